"""The generated pages of the site: commands from the parser, examples and API from the sources.

MkDocs calls these functions (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon"), str(ROOT / "mpi_ext")]

from mkdocs.structure.files import File, Files  # noqa: E402  (behind the path of the sources)

API: Final = {
    "netoffload_mpi": "mpi4py: a communicator whose collectives are compressed.",
    "netoffload.torch": "torch: the DDP hook, the optimizer, periodic averaging, the backend.",
    "netoffload.engine.pair": "Two NICs back to back in memory.",
    "netoffload.methods": "How replicas agree: the papers' systems.",
    "netoffload.compressors": "Float32 vectors to payloads, on the host.",
    "netoffload.codec": "The NIC's codecs on arrays.",
    "netoffload.collectives": "Schedules over an abstract exchange.",
    "netoffload.transport": "Connections between ranks, from any rendezvous.",
    "netoffload.lab.training": "One run is a configuration in and a record out.",
    "netoffload.errors": "The errors.",
}
"""The packages of the API page, in its order."""

_SOURCE_LINK: Final = re.compile(r"\]\((?:\.\./)+(examples|netoffload|mpi_ext/netoffload_mpi)/([\w/]+)\.(?:py|ipynb)\)")
_README_LINK: Final = re.compile(r"\]\(\.\./\.\./README\.md")
_RICH_TAG: Final = re.compile(r"\[(?:/|/?bold)\]")
_ROLE: Final = re.compile(r":(?:class|func|mod|data|meth|attr):<code>~?(?:[\w.]*\.)?(\w+)</code>")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    made = {"commands": _commands(), "api": _api(), "examples": _examples()}
    pages = {f"reference/{name}.md": text for name, text in made.items()}
    for name, path in {"project": "README.md", "CONTRIBUTING": "CONTRIBUTING.md"}.items():
        pages[f"{name}.md"] = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to source files into links to the pages that show them."""
    up = "../" * page.file.src_uri.count("/")

    def to_page(match: re.Match[str]) -> str:
        folder, name = match[1], match[2]
        if folder == "examples":
            return f"]({up}reference/examples.md#{name})"
        return f"]({up}reference/api.md)"

    markdown = _README_LINK.sub(rf"]({up}project.md", markdown)
    markdown = markdown.replace("](examples)", f"]({up}reference/examples.md)")
    return _SOURCE_LINK.sub(to_page, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show references in docstrings as code, and remove reStructuredText's mark before a block."""
    return _ROLE.sub(r"<code>\1</code>", html).replace("::</p>", ":</p>")


def _commands() -> str:
    import typer
    from typer.cli import get_docs_for_click

    from netoffload.cli import app

    command = typer.main.get_command(app)
    _keep_summaries_whole(command, typer.Context(command))
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="netoffload", title="Commands")
    return "\n".join(_RICH_TAG.sub("", line).rstrip() for line in text.splitlines()) + "\n"


def _keep_summaries_whole(group: Any, context: Any) -> None:
    """Give each command of a group its first paragraph as its summary, which typer would cut after 45 letters."""
    names = group.list_commands(context)
    for name in names:
        group.get_command(context, name)  # imports it, and makes others of the group anew
    for name in names:
        command = group.get_command(context, name)
        command.short_help = " ".join((command.help or "").split("\n\n")[0].split())
        if hasattr(command, "list_commands"):
            _keep_summaries_whole(command, context)


def _examples() -> str:
    parts = ["# Examples\n\n`netoffload example NAME` prints one of these programs.\n"]
    for path in sorted((ROOT / "examples").iterdir()):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            parts.append(f"## {path.stem}\n\n```python\n{text}```\n")
        elif path.suffix == ".ipynb":
            parts.append(f"## {path.stem}\n\n{_notebook(text)}")
    return "\n".join(parts)


def _notebook(text: str) -> str:
    """Return a notebook's cells as one page; its headings are two levels lower."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    shown = [
        f"```python\n{source}\n```" if kind == "code" else re.sub(r"^#", "###", source, flags=re.MULTILINE)
        for kind, source in cells
    ]
    return "\n\n".join(shown) + "\n"


def _api() -> str:
    parts = ["# API\n\nEach package begins with its theory of operation.\n"]
    parts += [f"::: {name}\n" for name in API]
    return "\n".join(parts)
