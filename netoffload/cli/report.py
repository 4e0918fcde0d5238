"""``netoffload report``: a table, a summary and a figure of runs that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from netoffload.cli.app import app, console, notes

if TYPE_CHECKING:
    from netoffload.reports import Summary


@app.command()
def report(
    records: Annotated[Path, typer.Argument(help="JSON lines that train or demo wrote.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for table.txt, summary.json, figure.png.", show_default=False)],
    axis: Annotated[str, typer.Option(help="What the runs differ in: exchange, bound or nodes.")] = "exchange",
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Compare recorded runs: table, summary.json and figure.

    Runs that differ in anything but --axis and their seeds are refused.

    Example: netoffload report runs.jsonl --out results/tonight
    """
    from netoffload import reports, results

    summary = reports.write_report(results.read_records(records), out, reports.get(axis))
    print_summary(summary, as_json=as_json)
    notes.print(f"written to {out}", highlight=False)


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """Print a summary on standard output, as a table or as the content of ``summary.json``."""
    from netoffload import reports

    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
        return
    if len(summary.bars) > reports.WIDEST:
        console.print(reports.table_text(summary), soft_wrap=True, highlight=False, markup=False)
        return
    name, *bars = reports.table_header(summary)
    table = Table(box=box.SIMPLE_HEAD, caption=Text(reports.describe_run(summary)), caption_justify="left")
    rows = list(reports.table_rows(summary))
    table.add_column(name, overflow="fold")
    for bar, *cells in zip(bars, *(row[1:] for row in rows), strict=True):
        longest = max(len(number) for cell in cells for number in cell.split())  # the names of bars are folded
        table.add_column(bar, justify="right", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*row)
    console.print(table)
