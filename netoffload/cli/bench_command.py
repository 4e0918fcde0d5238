"""What the commands of ``netoffload bench`` share: options, the run of an experiment, and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import add_columns, notes, progress_bar, told_anyway

if TYPE_CHECKING:
    from netoffload.bench.experiment import Experiment, Finding

F = TypeVar("F", bound="Finding")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Bound = Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")]
NicCodec = Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")]
Gradients = Annotated[str, typer.Option(help="Values: gaussian:STANDARD_DEVIATION, or a float32 .npy file.")]
GRADIENTS = "gaussian:0.002"


def run(experiment: Experiment[F], print_tables: Callable[[F], None], *, as_json: bool) -> None:
    """Measure, then print what was found; also what was found before an error or a signal.

    Args:
        experiment: what to measure.
        print_tables: prints the findings for people.
        as_json: print them as JSON instead.
    """

    def tell(reason: str | None) -> None:
        if (found := experiment.findings(reason)) is None:
            return
        if as_json:
            print(json.dumps(found.to_record(), indent=2))
        else:
            print_tables(found)

    with told_anyway(tell), progress_bar() as progress:
        experiment.measure(progress)


def note(remark: str) -> None:
    """Print a remark on standard error."""
    notes.print(remark, highlight=False, markup=False)


def table(
    title: str | None, headings: tuple[str, ...], words: Collection[str], caption: str | None = None, padding: int = 1
) -> Table:
    """Return an empty table.

    Args:
        title: above it.
        headings: of all columns.
        words: headings of the columns that hold words; all others hold numbers.
        caption: below it.
        padding: blanks behind each column.
    """
    made = Table(box=box.SIMPLE, pad_edge=False, padding=(0, padding, 0, 0), title=title, caption=caption)
    add_columns(made, headings, words)
    return made


def mega(count: float, form: str = ".4g") -> str:
    """Write a count in millions."""
    return f"{count / 1e6:{form}}"


def milli(time_s: float) -> str:
    """Write a time in milliseconds."""
    return f"{time_s * 1e3:.1f}"


def percent(share: float, form: str = ".1f") -> str:
    """Write a share in per cent, without the sign."""
    return f"{100 * share:{form}}"
