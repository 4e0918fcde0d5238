"""Links of the documentation lead somewhere, tables match the code, docstrings name what exists."""

import ast
import builtins
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import HOMES, LEVELS, ROOT, SOURCES, nodes_of, parsed

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*_ext/**/*.md")])
ARCHITECTURE = ROOT / "docs" / "design" / "architecture.md"
ARCHITECTURE_WORDS_MAX = 1800
README_LINES_MAX = 120
PROSE_COLUMNS_MAX = 100
SENTENCE_WORDS_MAX = 30
HISTORY = re.compile(
    r"`[0-9a-f]{7,40}`|\b(previously|no\s+longer|used\s+to|any\s+more)\b|^(<{7}|>{7}) ", re.IGNORECASE | re.MULTILINE
)

BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def prose(text: str) -> str:
    """Return a page without its code blocks; lines keep their numbers."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return what GitHub makes of a page's headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{again}" if again else slug for slug, last in found.items() for again in range(last + 1)}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@BY_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[x](page.md#a-b-c) [x](#a) [x](none.md) [x](https://example.org)\n```\n[x](no.md)\n```\n"
    )
    assert broken_links(page) == ["#a", "none.md"]


def test_paths_of_documents_exist() -> None:
    """Docstrings, messages and commands name pages and examples too."""
    scripts = filter(Path.is_file, ROOT.glob("scripts/*"))  # not what Python compiled there
    files = [*(path for _, path in SOURCES), *PAGES, *scripts, *ROOT.glob("daemon/**/*.service")]
    texts = {str(file): file.read_text(encoding="utf-8") for file in files}
    named = {(file, path) for file, text in texts.items() for path in re.findall(r"\bdocs/[\w./-]+\.(?:md|py)\b", text)}
    assert {(file, path) for file, path in named if not (ROOT / path).exists()} == set()


@BY_PAGE
def test_modules_and_counters_of_a_page_exist(page: Path) -> None:
    text = "" if page.name == "CHANGELOG.md" else page.read_text(encoding="utf-8")
    modules = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    roots = (ROOT, ROOT / "netoffload", ROOT / "daemon", ROOT / "mpi_ext")
    assert [module for module in modules if not any((root / module).exists() for root in roots)] == []
    counters = re.findall(r"`((?:[tr]x|drop|fault|bypass(?!_kernel))_[a-z_]+)`", text)
    known = bound("netoffload.engine.counters")
    assert [counter for counter in counters if counter.upper() not in known] == []


@BY_PAGE
def test_lines_of_prose_are_short(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    lines = prose(page.read_text(encoding="utf-8")).splitlines()
    whole = re.compile(r"\||!\[|\[[\w-]+\]: \S+$")  # tables, pictures and addresses
    assert [line for line in lines if len(line) > PROSE_COLUMNS_MAX and not whole.match(line)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=lambda page: page.name)
def test_pages_tell_no_history(page: Path) -> None:
    assert [found[0] for found in HISTORY.finditer(page.read_text(encoding="utf-8"))] == []


def test_history_is_seen() -> None:
    found = [found[0] for found in HISTORY.finditer("It is used at `8bd256b`, and no\nlonger at `0x28`.\n>>>>>>> main")]
    assert found == ["`8bd256b`", "no\nlonger", ">>>>>>> "]


def sentences(text: str) -> list[str]:
    """Return the sentences of a page: neither code, tables, headings nor pictures; what is quoted as code is a word."""
    text = re.sub(r"<!--.*?-->", "", prose(text), flags=re.DOTALL)
    text = re.sub(r"^(#|\||!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "CODE", text))
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)]
    return [one for part in parts for one in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[(*\"]*[A-Z0-9])", part) if one]


def long_sentences(text: str) -> list[str]:
    """Return those with too many words; a dash or a sign of arithmetic is none."""
    return [one for one in sentences(text) if len(re.findall(r"\S*\w\S*", one)) > SENTENCE_WORDS_MAX]


READ_ALOUD = [page for page in PAGES if page.name != "CHANGELOG.md" and "lab" not in page.parts]


@pytest.mark.parametrize("page", READ_ALOUD, ids=lambda page: page.name)
def test_a_sentence_can_be_read_aloud(page: Path) -> None:
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_a_long_sentence_is_seen() -> None:
    words = " ".join(["word"] * 15)
    text = f"# {words} {words} {words}\n| {words} {words} {words} |\n- A `{words}` [{words}](x.md) end. But\n"
    assert long_sentences(text) == []
    assert long_sentences(f"{text}{words}\n{words}: it is.\n\n{words}\n") == [f"But {words} {words}: it is."]


def test_the_layer_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?)\|$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    levels, homes = {}, {}
    for level, modules, libraries in rows:
        for module in re.findall(r"`([\w.]+)`", modules):
            levels[module if module.startswith("netoffload") else f"netoffload.{module}"] = int(level)
        homes[int(level)] = set(re.findall(r"`(\w+)`", libraries))
    assert levels == LEVELS
    assert homes == {
        level: {library for library, places in HOMES.items() if level in map(LEVELS.get, places)}
        for level in set(LEVELS.values())
    }


def test_the_map_of_the_layers_is_that_of_the_code() -> None:
    """The package's own docstring lists every layer, from the bottom."""
    text = ast.get_docstring(parsed(PATHS["netoffload"])) or ""
    rows = re.findall(r"^    ([a-z_]+(?: [a-z_]+)*)  ", text, re.MULTILINE)
    levels = {name.removeprefix("netoffload."): level for name, level in LEVELS.items()}
    listed = [name for row in rows for name in row.split()]
    assert {name for name in levels if "." not in name} == {*listed, "netoffload", "__main__", "lab"}
    assert [levels[name] for name in listed] == sorted(levels[name] for name in listed)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.read_text(encoding="utf-8").split()) <= ARCHITECTURE_WORDS_MAX


PATHS = dict(SOURCES)
REFERENCE = re.compile(r":(?:func|class|meth|mod|data|attr|exc|obj):`~?\.?([\w.]+?)(?:\(\))?`")
MODULE_PATH = re.compile(r"``(netoffload(?:_daemon|_mpi)?(?:\.\w+)+)(?:\(\))?``")


def members(nodes: Iterable[ast.AST]) -> dict[str, ast.AST]:
    """Return what the nodes of a module or class bind: names, and attributes that methods set."""
    found: dict[str, ast.AST] = {}
    for part in nodes:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(part.name, part)
        elif isinstance(part, ast.Import | ast.ImportFrom):
            found.update({(alias.asname or alias.name).split(".")[0]: part for alias in part.names})
        elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.setdefault(part.id if isinstance(part, ast.Name) else part.attr, part)
    return found


@cache
def bound(module: str) -> dict[str, ast.AST]:
    return members(nodes_of(PATHS[module]))


def resolves(target: str, module: str) -> bool:
    """Say whether a name in a docstring of a module leads to a module, or to what one binds."""
    parts = target.split(".")
    if parts[0] in {"netoffload", "netoffload_daemon", "netoffload_mpi"}:
        cut = max((at for at in range(1, len(parts) + 1) if ".".join(parts[:at]) in PATHS), default=0)
        if cut == len(parts):
            return True
        module, parts = ".".join(parts[:cut]), parts[cut:]
        if module not in PATHS:
            return False
    names = bound(module)
    if parts[0] not in names:
        return len(parts) == 1 and hasattr(builtins, parts[0])
    node = names[parts[0]]
    return (
        len(parts) == 1 or not isinstance(node, ast.ClassDef) or bool(node.bases) or parts[1] in members(ast.walk(node))
    )


def dangling(module: str, nodes: Iterable[ast.AST]) -> list[str]:
    """Return the references in docstrings that lead nowhere."""
    parts = (part.value for part in nodes if isinstance(part, ast.Expr))
    texts = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
    targets = [target for text in texts for form in (REFERENCE, MODULE_PATH) for target in form.findall(text)]
    return [target for target in targets if not resolves(target, module) and target != "netoffload.lua"]


@pytest.mark.slow
def test_references_in_docstrings_resolve() -> None:
    found = {module: dangling(module, nodes_of(path)) for module, path in SOURCES}
    assert {module: targets for module, targets in found.items() if targets} == {}


def test_a_dangling_reference_is_seen() -> None:
    text = ":func:`none` :class:`~netoffload.errors.UsageError` :mod:`netoffload.none` ``netoffload.wire.tcp.NONE``"
    assert dangling("netoffload.config", ast.walk(ast.parse(repr(text)))) == [
        "none",
        "netoffload.none",
        "netoffload.wire.tcp.NONE",
    ]
