"""What the commands of ``netoffload bench`` share: options, and the run of an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from netoffload.cli.app import notes, progress_bar, told_anyway

if TYPE_CHECKING:
    from netoffload.lab.bench.experiment import Experiment, Finding

F = TypeVar("F", bound="Finding")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Gradients = Annotated[str, typer.Option(help="Values: gaussian:STANDARD_DEVIATION, or a float32 .npy file.")]
GRADIENTS = "gaussian:0.002"


def run(experiment: Experiment[F], print_tables: Callable[[F], None], *, as_json: bool) -> None:
    """Measure, then print the findings; if an error or a signal ends measuring, print the findings up to then.

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
