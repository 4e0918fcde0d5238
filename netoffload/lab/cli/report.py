"""``netoffload report``: a table, a summary and a figure of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from netoffload.cli.app import app, console, notes
from netoffload.errors import UsageError
from netoffload.lab.cli.figures import drawn

if TYPE_CHECKING:
    from netoffload.lab.reports import Summary


@app.command()
def report(
    records: Annotated[
        Path, typer.Argument(help="Records that train or demo wrote; or a folder of reproduce.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write table.txt, summary.json and figures into this folder.", show_default=False),
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(help="Draw accuracy over octets and time into this file; any models.", show_default=False),
    ] = None,
    axis: Annotated[str, typer.Option(help="What the runs differ in: exchange, bound or nodes.")] = "exchange",
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
    as_page: Annotated[
        bool, typer.Option("--html", help="Write index.html into a folder of reproduce: all its items on one page.")
    ] = False,
    lab: Annotated[
        Path | None,
        typer.Option(help="Write the tables of reproduce as Markdown: docs/lab/papers.md.", show_default=False),
    ] = None,
) -> None:
    """Compare recorded runs in a table, summary.json and a figure; or show the results of reproduce on one page.

    Runs that differ in anything but --axis and their seeds are refused.

    Example: netoffload report runs.jsonl --out results/tonight

    Example: netoffload report runs.jsonl --curves results/curves.svg

    Example: netoffload report results/papers --html
    """
    from netoffload.lab import reports, results

    if not records.exists():
        raise UsageError(f"there is no {records}: give a file of train --out, or a folder of reproduce --out")
    if as_page or lab is not None:
        _write_pages(records, out, lab, as_page=as_page)
        return
    if records.is_dir():
        raise UsageError(f"{records} is a folder: give --html or --lab FILE, or a file of records in it")
    if curves is not None:
        reports.draw_curves(results.read_records(records), curves)
        notes.print(f"written to {curves}", highlight=False)
        if out is None and not as_json:
            return
    found = results.read_records(records)
    if out is None:
        print_summary(reports.summarise(found, reports.get(axis)), as_json=as_json)
        return
    print_summary(reports.write_report(found, out, reports.get(axis)), as_json=as_json)
    notes.print(f"written to {out}", highlight=False)


def _write_pages(folder: Path, out: Path | None, lab: Path | None, *, as_page: bool) -> None:
    from netoffload.lab import papers
    from netoffload.lab.papers import page, web
    from netoffload.lab.results import SUFFIX

    if not any((folder / f"{item.name}{SUFFIX}").is_file() for paper in papers.PAPERS for item in paper.items):
        raise UsageError(f"{folder} is no folder of netoffload reproduce: it has no records of an item")
    if as_page:
        path = (out or folder) / "index.html"
        path.write_text(web.text(papers.PAPERS, folder), encoding="utf-8")
        notes.print(f"written to {path}", highlight=False)
    if lab is not None:
        lab.write_text(page.lab_page(papers.PAPERS, folder), encoding="utf-8")
        notes.print(f"written to {lab}", highlight=False)


def print_summary(summary: Summary, *, as_json: bool) -> None:
    """Print a summary on standard output, as a table or as the content of ``summary.json``."""
    from netoffload.lab import reports

    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
    elif len(summary.bars) > reports.WIDEST:
        console.print(reports.table_text(summary), soft_wrap=True, highlight=False, markup=False)
    else:
        console.print(drawn(reports.table_of(summary)), Text(reports.describe_run(summary)))
