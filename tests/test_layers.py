"""The house rules that a reader cannot check at a glance: imports, outside libraries, and numbers of parameters.

Imports point down, never sideways. A module's layer is its package below ``netoffload``, or its top-level package.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = (ROOT, ROOT / "daemon", ROOT / "mpi_ext")
PACKAGES = ("netoffload", "netoffload_daemon", "netoffload_mpi")

LEVELS = {
    "netoffload": 0,  # the package's own __init__: the version, and the map of the layers
    "netoffload.errors": 0,
    "netoffload.codec_specs": 0,
    "netoffload.log": 0,
    "netoffload.config": 1,
    "netoffload.control": 1,
    "netoffload.torch_plugin": 1,  # imports nothing of ours: torch loads it in every program
    "netoffload.compiled": 1,
    "netoffload.netlink": 1,
    "netoffload.nic_options": 2,
    "netoffload.wire": 1,
    "netoffload.codec": 2,
    "netoffload.engine": 3,
    "netoffload.devices": 3,
    "netoffload.collectives": 3,
    "netoffload.compressors": 3,
    "netoffload.dissect": 3,
    "netoffload.transport": 4,
    "netoffload.methods": 4,
    "netoffload.machine": 4,
    "netoffload_daemon": 4,
    "netoffload_mpi": 5,
    "netoffload.torch": 5,
    "netoffload.cli": 6,
    "netoffload.__main__": 7,
    # The wall. What stands above this line never imports what stands below.
    "netoffload.lab": 8,  # its own __init__: the map of the laboratory
    "netoffload.lab.declared": 8,
    "netoffload.lab.machine": 8,
    "netoffload.lab.units": 8,
    "netoffload.lab.results": 9,
    "netoffload.lab.testbed": 9,
    "netoffload.lab.reports": 10,
    "netoffload.lab.models": 11,
    "netoffload.lab.training": 11,
    "netoffload.lab.bench": 12,
    "netoffload.lab.papers": 13,
    "netoffload.lab.cli": 14,
}


COMMAND_LAYERS = {"netoffload.cli", "netoffload.lab.cli"}

HOMES = {
    "numba": {
        "netoffload.codec",
        "netoffload.compressors",
        "netoffload.engine",
        "netoffload.compiled",
        "netoffload_daemon",
    },
    "llvmlite": {"netoffload.compiled", "netoffload.codec", "netoffload.engine", "netoffload_daemon"},
    "pyroute2": {"netoffload.netlink"},
    "torch": {"netoffload.torch", "netoffload.torch_plugin", "netoffload.lab.training"},
    "torchft": {"netoffload.torch"},
    "lightning": {"netoffload.torch"},
    "accelerate": {"netoffload.torch"},
    "sklearn": {"netoffload.lab.training"},
    "mpi4py": {"netoffload_mpi"},
    "matplotlib": {"netoffload.lab.reports"},
    "cramjam": {"netoffload.compressors", "netoffload.lab.bench"},
    "zfpy": {"netoffload.compressors", "netoffload.lab.bench"},
    "typer": COMMAND_LAYERS,
    "rich": COMMAND_LAYERS,
    "scapy": {"netoffload.dissect"},
    "hypothesis": set(),
    "pytest": set(),
    "socket": {
        "netoffload.lab.bench",
        "netoffload.control",
        "netoffload.devices",
        "netoffload.lab.testbed",
        "netoffload.transport",
        "netoffload_daemon",
        "netoffload_mpi",
    },
    "subprocess": {"netoffload.lab.bench", "netoffload.lab.testbed"},
}

MAX_PARAMETERS = 8

MANY_PARAMETERS = {"lifecycle.__init__"}
"""Functions that have more; a comment on each says why. A command's parameters are its options."""


def source_files() -> list[tuple[str, Path]]:
    """Every module of the three packages, by its dotted name."""
    return [
        (module_name(path.relative_to(root)), path)
        for root in SOURCE_ROOTS
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    ]


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = source_files()
MODULES = {name for name, _ in SOURCES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module, outer ones first, without contexts of names: ``ast.walk`` takes four times as long."""
    found: list[ast.AST] = [parsed(path)]
    for node in found:
        for name, value in vars(node).items():
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


def layer(module: str) -> str:
    if module in LEVELS:
        return module
    parts = module.split(".")
    depth = 3 if parts[:2] == ["netoffload", "lab"] else 2
    return ".".join(parts[:depth]) if parts[0] == "netoffload" else parts[0]


def imported(name: str, path: Path) -> Iterator[str]:
    """The dotted names that a module imports, wherever in the file; a relative import becomes an absolute one."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for module, attribute in _origins(node, package):
                yield f"{module}.{attribute}" if f"{module}.{attribute}" in MODULES else module


def _origins(node: ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a ``from ... import`` names."""
    anchor = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*anchor, *([node.module] if node.module else [])])
    return ((base, alias.name) for alias in node.names)


def wrong_imports(name: str, path: Path) -> list[str]:
    own = layer(name)
    wrong = []
    for target in imported(name, path):
        top = target.split(".")[0]
        if top in PACKAGES:
            other = layer(target)
            if other != own and not LEVELS.get(other, 99) < LEVELS[own]:
                wrong.append(f"{name} (level {LEVELS[own]}) imports {target} (level {LEVELS.get(other, '?')})")
        elif top in HOMES and own not in HOMES[top]:
            wrong.append(f"{name} imports {top}, whose home is {', '.join(sorted(HOMES[top])) or 'the tests'}")
    return wrong


def test_every_layer_has_a_level() -> None:
    assert {layer(name) for name in MODULES} <= LEVELS.keys()
    assert {"netoffload.cli.app", "netoffload.lab.results"} <= MODULES  # the search for files works


def test_imports_point_down_and_libraries_stay_home() -> None:
    assert [line for name, path in SOURCES for line in wrong_imports(name, path)] == []


@pytest.mark.parametrize(
    ("code", "offends"),
    [
        ("import netoffload.lab.training.data", True),
        ("from netoffload.lab import training", True),
        ("from netoffload.lab.training import data as d", True),
        ("from ..lab.training import data", True),
        ("from ..lab import training", True),
        ("def late():\n    from netoffload.cli import app", True),
        ("from netoffload import compressors", True),  # sideways
        ("import torch.nn.functional as F", True),
        ("from mpi4py import MPI", True),
        ("from netoffload import __version__, errors", False),
        ("from netoffload.codec import get", False),
        ("from . import schedule", False),
        ("import numpy as np", False),
    ],
)
def test_the_import_check_sees_every_spelling(code: str, offends: bool, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(code)
    assert bool(wrong_imports("netoffload.collectives.made", path)) is offends


def imported_modules(name: str, sources: Mapping[str, Path]) -> set[str]:
    """The modules that a module imports, wherever in the file; a name from a package counts as its definer's."""
    path = sources[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {_definer(module, attribute, sources) for module, attribute in _origins(node, package)}
    return (found & sources.keys()) - {name}


def _definer(module: str, attribute: str, sources: Mapping[str, Path]) -> str:
    """The module that defines what another one imports as ``attribute`` from ``module``."""
    if f"{module}.{attribute}" in sources:
        return f"{module}.{attribute}"
    if module in sources and sources[module].name == "__init__.py":
        for node in parsed(sources[module]).body:
            for base, named in _origins(node, module) if isinstance(node, ast.ImportFrom) else ():
                if named == attribute and base != module:
                    return _definer(base, named, sources)
    return module


def circle(arrows: Mapping[str, set[str]]) -> list[str]:
    """Some modules that import each other in a circle, if there are any."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    sources = dict(SOURCES)
    arrows = {name: imported_modules(name, sources) for name in sources}
    assert "netoffload.transport.calls" in arrows["netoffload.torch.state"]  # which names it as netoffload.transport's
    assert circle(arrows) == []


def test_a_circle_is_found_however_it_is_closed(tmp_path: Path) -> None:
    made = {
        "p": "from p.a import first",
        "p.a": "from p.b import second\nfirst = 1",
        "p.b": "import p.c\nsecond = 2",
        "p.c": "def late():\n    from p import first",
        "p.d": "from . import a",
    }
    sources = {name: tmp_path / ("__init__.py" if name == "p" else f"{name[2:]}.py") for name in made}
    for name, code in made.items():
        sources[name].write_text(code)
    arrows = {name: imported_modules(name, sources) for name in sources}
    assert circle(arrows) == ["p.a", "p.b", "p.c"]
    arrows["p.c"].clear()
    assert circle(arrows) == []


def parameters(function: ast.FunctionDef) -> list[str]:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [one.arg for one in every if one.arg not in ("self", "cls")]


def test_functions_have_few_parameters_but_for_some_with_a_reason() -> None:
    many = {
        f"{path.stem}.{node.name}"
        for name, path in SOURCES
        if layer(name) not in COMMAND_LAYERS
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and len(parameters(node)) > MAX_PARAMETERS
    }
    assert many == MANY_PARAMETERS


COMMANDS = [(name, path) for name, path in SOURCES if layer(name) in COMMAND_LAYERS]
COMPUTES = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow


def arithmetic(path: Path) -> list[int]:
    """The lines on which something is computed; ``|`` joins types."""
    return [node.lineno for node in nodes_of(path) if isinstance(node, ast.BinOp) and isinstance(node.op, COMPUTES)]


@pytest.mark.parametrize(("name", "path"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_commands_hold_arguments_and_tables_only(name: str, path: Path) -> None:
    assert not {"numpy", "subprocess"} & {target.split(".")[0] for target in imported(name, path)}
    if path.name.startswith("bench"):
        assert arithmetic(path) == []


def test_arithmetic_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text("def cells(row: int | None):\n    return f'{row.time_s * 1e3:.1f}'\n")
    assert arithmetic(path) == [2]
