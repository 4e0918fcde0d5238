"""The application object. Only this module turns an error into a line and an exit code."""

import contextlib
import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, Any, Final, TextIO, cast

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer import rich_utils

import netoffload
from netoffload.cli.known import KnownCommands
from netoffload.compiled.programs import end_at_once
from netoffload.errors import EXTRAS, NetOffloadError, SystemRefusedError, missing_package

app = typer.Typer(
    name="netoffload",
    cls=KnownCommands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A smart NIC that compresses gradients, in user space: emulate it, train over it, measure it.",
)
KnownCommands.app = app

WIDTH_IN_FILES: Final = 200
"""Width of lines, in characters, if the output is no terminal: enough for every table."""

console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_FILES)
"""Results go here (standard output)."""

notes = Console(stderr=True)
"""Progress and remarks go here (standard error), so that ``--json`` output stays parseable."""

_UsageError: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""What typer raises for words that are no option, argument or value of a command. It has no public name for it."""

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Ctrl-C, SIGTERM or SIGHUP, raised in the main thread so that every context manager undoes what it made.

    It is no ``KeyboardInterrupt``: typer would end the program on that without a message.
    """


def make_table(headings: Iterable[str], words: Collection[str], **how: Any) -> Table:
    """Return a table for narrow terminals too: columns with ``words`` are folded, those with numbers are not."""
    table = Table(**how)
    for heading in headings:
        if heading in words:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    return table


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[..., None]]:
    """Show a bar; without a terminal, write a line for each step that begins.

    The function to call takes the step that begins and, if it is known, the share that is done (0..1).
    """
    if not notes.is_terminal:

        def say(step: str, share: float | None = None) -> None:
            if share is None:
                notes.print(step, highlight=False, markup=False)

        yield say
        return
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda step, share=None: bars.update(
            task, description=step, total=None if share is None else 1.0, completed=share
        )


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _raise_interrupted(_signal: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the undoing
    raise Interrupted


class _HelpTable(Table):
    """A table of ``--help`` whose names stay whole, and whose other words are folded.

    In a narrow terminal typer's would end names of options, and long words, in "…". It has no setting for this.
    """

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*cells, **more)
        for column in self.columns:
            column.overflow = "fold"
        for column in self.columns[:-2]:  # names; the last two are the placeholder and the help
            column.no_wrap = True


@functools.cache  # because putting them together takes longer than most tests of an error
def _command() -> Callable[..., object]:
    """Return the commands; the parts of an option's help stand one below the other."""
    rich_utils.Table = _HelpTable  # type: ignore[attr-defined]
    rich_utils.Columns = lambda parts: Group(*parts)  # type: ignore[attr-defined, assignment, misc]
    return typer.main.get_command(app)


def _say_how(error: Any) -> None:
    """Say in one line what is wrong with a command's words; without any words typer has printed the help."""
    if type(error).__name__ != "NoArgsIsHelpError":
        where = f": see {error.ctx.command_path} --help" if error.ctx is not None else ""
        print(f"netoffload: {' '.join(error.format_message().split()).rstrip('.')}{where}", file=sys.stderr)


@contextlib.contextmanager
def _written_out() -> Iterator[None]:
    """Write what is left in standard output's buffer at the end, and raise an error if that fails."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _lead_nowhere(sys.stdout)  # the reader closed the pipe: it has seen enough
        sys.exit(1)
    except OSError as error:
        # Code that reads files and devices turns an OSError into an error of ours with a path. One without a path
        # therefore comes from standard output.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG):
            raise
        _lead_nowhere(sys.stdout)
        raise SystemRefusedError(f"cannot write to standard output: {error.strerror}") from error


@contextlib.contextmanager
def _said_what_is_missing() -> Iterator[None]:
    """Turn the failed import of an extra's package into an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing_package(package) from error


def need(package: str) -> None:
    """Refuse, before anything is built, a command whose ranks need an extra's package that is missing."""
    if find_spec(package) is None:
        raise missing_package(package)


def _lead_nowhere(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that Python's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """Run the command line: one clear line per error, everything undone on Ctrl-C and SIGTERM."""
    end_at_once()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")  # the encoding may lack a sign of a table
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, _raise_interrupted)
    try:
        with _written_out(), _said_what_is_missing():
            exit_code: Any = _command()(standalone_mode=False, prog_name="netoffload")
            sys.exit(exit_code)
    except _UsageError as error:
        _say_how(error)
        sys.exit(2)
    except NetOffloadError as error:
        print(f"netoffload: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except MemoryError as error:
        print(f"netoffload: not enough memory: {str(error) or 'ask for less at once'}", file=sys.stderr)
        sys.exit(SystemRefusedError.exit_code)
    except Interrupted:
        print("netoffload: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
