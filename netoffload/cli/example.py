"""``netoffload example``: the whole programs that come with this package."""

import ast
import json
from pathlib import Path
from typing import Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, console
from netoffload.errors import UsageError

PACKAGE = Path(__file__).parents[1]


@app.command()
def example(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one. Default: list them.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the example to this new file. Default: print it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """Print a whole program or notebook that uses netoffload, as a start for yours; without a name, list them.

    Example: netoffload example

    Example: netoffload example ddp --out ddp.py

    Example: netoffload example codec --out codec.ipynb
    """
    programs = _programs()
    if name is not None:
        config.check_choice("example", name, tuple(programs))
        text = programs[name].read_text(encoding="utf-8")
        if out is None:
            print(text, end="")
            return
        try:
            with open(out, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UsageError(f"cannot write {out}: {error.strerror}") from error
        return
    if out is not None:
        raise UsageError(f"--out needs the name of an example: {', '.join(programs)}")
    abouts = {name: _about(path).splitlines() for name, path in programs.items()}
    if as_json:
        print(json.dumps({"examples": {name: {"about": one[0], "start": one[-1]} for name, one in abouts.items()}}))
        return
    for name, lines in abouts.items():
        console.print(f"{name:10} {lines[0]}\n{'':10} {lines[-1]}", highlight=False, markup=False)


def _programs() -> dict[str, Path]:
    """Return the examples by name: in a wheel they lie in the package, in a checkout beside it."""
    folder = next(path for path in (PACKAGE / "examples", PACKAGE.parent / "examples") if path.is_dir())
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".ipynb")}


def _about(path: Path) -> str:
    """Return a program's docstring, or a notebook's first cell."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    return "".join(json.loads(text)["cells"][0]["source"]).removeprefix("# ")
