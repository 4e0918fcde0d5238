"""The application object, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

import netoffload
from netoffload.errors import NetOffloadError

app = typer.Typer(
    name="netoffload",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A smart NIC that compresses gradients, in user space: emulate it, train over it, measure it.",
)

console = Console()
"""Results go here (standard output)."""

notes = Console(stderr=True)
"""Progress and remarks go here (standard error), so that ``--json`` output stays parseable."""

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def _print_version(asked: bool) -> None:
    if asked:
        console.print(f"netoffload {netoffload.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, raised in the main thread so that every context manager undoes what it made.

    Not ``KeyboardInterrupt``: typer would turn that into an exit without a word.
    """


def _raise_interrupted(_signal: int, _frame: FrameType | None) -> None:
    raise Interrupted


def main() -> None:
    """Run the command line: one clear line per error, everything undone on Ctrl-C and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_interrupted)
    try:
        app(standalone_mode=True)
    except NetOffloadError as error:
        print(f"netoffload: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Interrupted:
        print("netoffload: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
