"""``netoffload bench eight-bit``: the errors of the 8-bit types beside those printed in their paper's Table 2."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from netoffload.cli.app import add_columns, console, notes
from netoffload.cli.bench import bench_app

if TYPE_CHECKING:
    from netoffload.bench.eight_bit import Row


@bench_app.command("eight-bit")
def bench_eight_bit(
    sample: Annotated[
        int, typer.Option(min=1, help="Numbers of each distribution; the paper's: 25000000.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the numbers.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the 8-bit types' errors beside Table 2 of their paper.

    nearest is what the compressor does. search is the paper's binary search as
    its figures suggest it, which misses the nearest number one time in four;
    its mean squared error is what the paper prints as mean absolute error.

    Example: netoffload bench eight-bit --sample 25000000 --json
    """
    from netoffload.bench.eight_bit import PRINTED, measure_table

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not notes.is_terminal:
        notes.print(f"measuring 8-bit types on {sample} numbers of each distribution", highlight=False)
    rows: list[Row] = []
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bars:
        task = bars.add_task("8-bit types", total=len(PRINTED))
        for row in measure_table(sample, seed):
            rows.append(row)
            bars.update(task, advance=1, description=f"{row.distribution}, {row.type}")
    if as_json:
        print(json.dumps({"sample": sample, "seed": seed, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        _print_tables(rows, sample)


def _print_tables(rows: list[Row], sample: int) -> None:
    relative = _table(
        f"Mean relative error in %, {sample} numbers each", ("printed", "search", "nearest", "cut at 0.55")
    )
    absolute = _table(
        "Printed absolute error; mean squared; mean absolute", ("printed", "search²", "nearest²", "nearest")
    )
    for row in rows:
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


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, title=title)
    add_columns(table, ("distribution", "type", *headings), ("distribution", "type"))
    return table
