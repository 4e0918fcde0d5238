"""``netoffload bench eight-bit``: the errors of the 8-bit types beside those printed in their paper's Table 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from netoffload.cli.app import console
from netoffload.lab.cli.bench_command import AsJson, run
from netoffload.lab.cli.figures import table

if TYPE_CHECKING:
    from netoffload.lab.bench.eight_bit import Findings

WORDS = ("distribution", "type")


def command(
    sample: Annotated[
        int, typer.Option(min=1, help="Numbers of each distribution; the paper's: 25000000.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the numbers.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the 8-bit types' errors beside Table 2 of their paper.

    nearest is what the compressor does. search is the binary search that the
    paper's figures suggest; it misses the nearest number one time in four.
    The paper prints its mean squared error as mean absolute error.

    Example: netoffload bench eight-bit --sample 25000000 --json
    """
    from netoffload.lab.bench.eight_bit import EightBit

    run(EightBit(sample, seed), _print_tables, as_json=as_json)


def _print_tables(found: Findings) -> None:
    relative = table(
        f"Mean relative error in %, {found.sample} numbers each",
        (*WORDS, "printed", "search", "nearest", "cut at 0.55"),
        WORDS,
    )
    absolute = table(
        "Printed absolute error; mean squared; mean absolute",
        (*WORDS, "printed", "search²", "nearest²", "nearest"),
        WORDS,
    )
    for row in found.rows:
        nearest, search, other = row.errors["nearest"], row.errors["search"], row.errors.get("middle_cut")
        relative.add_row(
            *(row.distribution, row.type, f"{row.printed_relative_percent:.2f}"),
            *(f"{search.mean_relative_percent:.2f}", f"{nearest.mean_relative_percent:.2f}"),
            f"{other.mean_relative_percent:.2f}" if other else "-",
        )
        absolute.add_row(
            *(row.distribution, row.type, f"{row.printed_absolute:g}", f"{search.mean_squared:.2g}"),
            *(f"{nearest.mean_squared:.2g}", f"{nearest.mean_absolute:.2g}"),
        )
    console.print(relative)
    console.print(absolute)
