"""Command lines, programs and tables that readers copy out of the documentation work."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand

from netoffload.cli.app import app
from netoffload.cli.known import import_all
from netoffload.errors import SystemRefusedError, UsageError
from netoffload.lab.reports.table import QUANTITIES
from netoffload_daemon.arguments import parse_arguments
from tests.shared.commands import PYTHONPATH, netoffload
from tests.shared.documented import (
    PAGES,
    ROOT,
    SHELL,
    Block,
    blocks,
    blocks_of,
    calls,
    has_placeholders,
    is_like,
    spans,
    typed,
)

BLOCKS = blocks()
DOORS = (
    "netoffload.lab.testbed.build.check_root",
    "netoffload.lab.cli.bench.progress_bar",
    "netoffload.lab.cli.reproduce.progress_bar",
    "netoffload.lab.cli.training_runs.progress",
    "netoffload.cli.verify.progress_bar",
)
"""What every command goes through that builds, trains or measures, behind all that it checks."""

CHECKED_BEHIND_THE_PARSER = ("bench", "demo", "model", "reproduce", "run", "train", "up", "verify")
"""Commands with values that they check themselves, in front of these doors."""

WITHOUT_A_DOOR = (["verify", "collectives"],)
"""These need a launcher."""

AT_THE_DOOR = "this far, and no further"


def commands_of_pages() -> dict[str, list[str]]:
    """Return the arguments of every ``netoffload ...``, by where it stands and what it is."""
    found: dict[str, list[str]] = {}
    for block in BLOCKS:
        if block.language in SHELL:
            lines = [line for line, _ in [*typed(block.text, block.language), *typed(block.instead, "sh")]]
            found |= {f"{block.place} {shlex.join(words)}": words for line in lines for words in calls(line)}
    for path in sorted([*ROOT.glob("netoffload/cli/*.py"), *ROOT.glob("netoffload/lab/**/*.py")]):
        for example in re.findall(r"^\s+Examples?: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            found |= {f"{path.name} {shlex.join(words)}": words for words in calls(example)}
    return found


def quoted_commands() -> dict[str, list[str]]:
    """Return those that stand within sentences and tables, of which parts may be left out."""
    return {
        f"{page.relative_to(ROOT)} {span}": [word for word in words if word != "..."]
        for page in PAGES
        for span in spans(page.read_text(encoding="utf-8"))
        if re.match(r"(?:\w+=\S+ )*netoffload ", span)
        for words in calls(span)
        if not has_placeholders(words[:1])
    }


@pytest.fixture(autouse=True, scope="module")
def _every_command() -> None:
    """All commands are imported; of a group that is imported in part, the others would be unknown."""
    import_all()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader has it: the checkout's pages and examples, and programs of one's own."""
    for name in ("docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("app.py", "train.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wrong(words: list[str], *, is_part: bool = False) -> str:
    """Return what the real parser, and behind it the command, has against a command line; empty: nothing."""
    if words[0] == "nic":
        try:
            parse_arguments([*(["--host", "tap:inc0", "--wire", "eth1"] if is_part else []), *words[1:]])
        except UsageError as error:
            return "" if is_part and "expected one argument" in str(error) else str(error)
        except SystemExit as ended:  # --help
            return str(ended.code or "")
        return ""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_: object, **__: object) -> None:
            raise SystemRefusedError(AT_THE_DOOR)

        for door in DOORS:
            patch.setattr(door, stop)
        is_whole = not is_part and not has_placeholders(words) and not re.search(r"\.np[yz]\b", " ".join(words))
        if not is_whole or words[0] not in CHECKED_BEHIND_THE_PARSER or words[:2] in WITHOUT_A_DOOR:
            patch.setattr(TyperCommand, "invoke", lambda *_: None)
        done = netoffload(*words)
    is_short = is_part and re.search("Missing|requires an argument", done.stderr) is not None
    is_well = done.returncode in (0, 3) or is_short or (is_part and "Usage" in done.stdout)
    return "" if is_well and "Traceback" not in done.stderr else done.stderr


@pytest.mark.usefixtures("reader")
def test_every_command_line_is_one_that_the_program_takes() -> None:
    lines = commands_of_pages()
    assert len(lines) > 100
    assert {line: said for line, words in lines.items() if (said := wrong(words))} == {}


def test_the_page_of_all_commands_has_all() -> None:
    def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        members = getattr(command, "commands", {})
        if not members:
            yield path
        for name, member in members.items():
            yield from leaves(member, (*path, name))

    page = [block for block in BLOCKS if block.page == "docs/guide/commands.md"]
    shown = [words for block in page for line, _ in typed(block.text, block.language) for words in calls(line)]
    every = set(leaves(typer.main.get_command(app)))
    assert {path for path in every if not any(tuple(words[: len(path)]) == path for words in shown)} == set()


def test_every_quoted_command_has_options_that_exist() -> None:
    quoted = quoted_commands()
    assert len(quoted) > 50
    assert {line: said for line, words in quoted.items() if (said := wrong(words, is_part=True))} == {}


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("netoffload up -n 2 --rat 100mbit", "No such option"),
        ("netoffload frobnicate", "No such command"),
        ("sudo netoffload up -n 2 --codec zip # a comment", "'zip' is unknown"),
        ("netoffload train hdc --exchange inc --exchange qgd &", "'qgd' is unknown"),
        ("netoffload nic --host tap:inc0 --wire eth1 --bound 99", "99 is outside"),
        ("netoffload bench allreduce --what ring --what rong", "'rong' is unknown"),
        ("netoffload run -n 4 -- python nosuch.py", "there is no script nosuch.py"),
        ("netoffload run -n 4 -- -m netoffload advise --rat fast", "No such option"),
        ("netoffload train hdc --rate fast", "rate 'fast' is not"),
        ("netoffload verify codec --codec bounded --bound ten", "Invalid value"),
    ],
)
def test_a_wrong_command_line_is_seen(line: str, said: str) -> None:
    assert any(said in " ".join(wrong(words).split()) for words in calls(line))


def test_no_command_stands_in_a_drawing() -> None:
    """A block with commands says its language, so that they are looked at."""
    drawings = [block for block in BLOCKS if not block.language]
    found = {
        block.place: re.findall(r"^(?:\$ )?(?:sudo )?netoffload .*", block.text, re.MULTILINE) for block in drawings
    }
    assert {
        place: lines for place, lines in found.items() if any(not line.startswith("netoffload top  ") for line in lines)
    } == {}


def test_scripts_and_extras_that_are_named_exist() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    scripts = set(re.findall(r"\./(scripts/\w+)", text))
    assert "scripts/demo" in scripts
    assert [script for script in scripts if not os.access(ROOT / script, os.X_OK)] == []
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = [extra for asked in re.findall(r"(?:netoffload|\.)\[([\w,]+)\]'", text) for extra in asked.split(",")]
    assert set(named) <= set(known)
    overview = (ROOT / "docs/guide/overview.md").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"^\| `(\w+)` \|", overview, re.MULTILINE) if name in known] == list(known)


PYTHON = [block for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_program_compiles_and_imports_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("netoffload"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(f"{node.module}.{alias.name}")


def here(language: str) -> dict[str, list[Block]]:
    """Return the blocks of a language that are run here, by page."""
    found: dict[str, list[Block]] = {}
    for block in BLOCKS:
        if block.where == "here" and (block.language == language or (language == "sh" and block.language in SHELL)):
            found.setdefault(block.page, []).append(block)
    return found


@pytest.fixture
def _nothing_left() -> Iterator[None]:
    """Environment and process groups are afterwards as they were."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("reader", "_nothing_left")
@pytest.mark.parametrize("page", here("python"))
def test_the_programs_of_a_page_run(page: str) -> None:
    """One after the other, as a reader would who types all of them."""
    names: dict[str, object] = {}
    for block in here("python")[page]:
        for part in (block.instead, block.text):
            exec(compile(part, block.place, "exec"), names)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("block", [one for page in here("sh").values() for one in page], ids=lambda block: block.place)
def test_the_commands_of_a_block_run(block: Block) -> None:
    stand = {words[0] for line, _ in typed(block.text, block.language) for words in calls(line)}
    for line, shown in block.steps():
        for words in calls(line):
            assert words[0] in stand  # a shorter form of what the page has
            done = netoffload(*words)
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), f"{line}\n{done.stderr}"
            assert not shown or is_like(shown, done.stdout), done.stdout


def test_output_is_compared_but_for_its_figures() -> None:
    shown = "run first is up: 2 nodes, 100 Mb/s (measured 101.9 Mb/s)\n...\n ratio   4.58\n"
    assert is_like(shown, "run first is up: 3 nodes, 10 Mb/s (measured 9 Mb/s)\none\ntwo\nratio 12\n")
    assert not is_like(shown, "run first is up: 3 nodes, 10 Mb/s (measured 9 Mb/s)\nrate 12\n")
    assert not is_like("ratio 4.58\n", "ratio 4.58\nand more\n")


def test_a_mark_says_where_and_what() -> None:
    text = "# A\n<!-- run as root:\nnetoffload up\n-->\n```console\n$ netoffload up -n 2 \\\n  --json\nup\n$ ls\n```\n"
    (block,) = blocks_of(text, "a.md")
    assert (block.place, block.section, block.where, block.instead) == ("a.md:5", "A", "as root", "netoffload up")
    assert typed(block.text, "console") == [("netoffload up -n 2 \\\n  --json", "up\n"), ("ls", "")]
    assert block.steps() == [("netoffload up", "up\n")]


def test_the_tables_of_training_have_the_rows_of_the_program() -> None:
    tables = [block for block in BLOCKS if re.search(r"^\s+per iteration ", block.text, re.MULTILINE)]
    assert {block.page for block in tables} >= {"README.md", "docs/guide/tutorial.md"}
    labels = "".join(f"{label.strip()}\n" for label, _, _ in QUANTITIES)
    for block in tables:
        rows = [re.split(r"\s{2,}", line.strip())[0] for line in block.text.splitlines()]
        rows = [row for row in rows[rows.index("per iteration") + 2 :] if not row.startswith("faster than ")]
        assert is_like("\n".join(rows), labels), block.place


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells in order, without Jupyter; figures go nowhere."""
    pytest.importorskip("matplotlib", reason="pip install 'netoffload[report]'")
    import json

    cells = json.loads((ROOT / "examples/codec.ipynb").read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells)
    program = tmp_path / "codec.py"
    program.write_text("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout
