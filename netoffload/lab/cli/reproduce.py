"""``netoffload reproduce``: makes the papers' tables and figures again, and shows both beside each other."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netoffload.cli.app import app, console, notes, progress_bar
from netoffload.errors import RunError, UsageError
from netoffload.lab.cli.figures import drawn
from netoffload.lab.cli.training_runs import prepared
from netoffload.lab.declared import Column, Table, words

if TYPE_CHECKING:
    from netoffload.lab.papers.item import Item
    from netoffload.lab.papers.page import Row

OUT: Final = Path("results/papers")
NEWS_INTERVAL_S: Final = 30.0
"""From one line on a step's progress to the next, where there is no terminal."""


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Items or papers, or all; default: list them.", show_default=False, metavar="[NAME]..."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Measure for minutes, or for hours.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for records, tables and figures.")] = OUT,
    mnist: Annotated[Path | None, typer.Option(help="Folder with MNIST's four IDX files.", show_default=False)] = None,
    cifar10: Annotated[
        Path | None, typer.Option(help="CIFAR-10's .npz file, or folder of its python batches.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Make the papers' tables and figures again, and compare them with the printed ones.

    Each item leaves NAME.jsonl (records), NAME.txt (the table, the setting,
    where figures come from) and NAME.svg. Steps that have a record are not
    repeated: an interrupted command goes on where it stopped. Steps whose
    data set is missing are left out, and a line says how to get it.

    Example: netoffload reproduce all --quick --mnist DIR --cifar10 FILE.npz && netoffload report results/papers --html

    Example: netoffload reproduce eightbit-speedups terngrad-fig5
    """
    from netoffload.lab import papers
    from netoffload.lab.papers import page
    from netoffload.lab.papers.reproduction import Reproduction

    if not names:
        _list(as_json=as_json)
        return
    items = papers.chosen(names)
    for path in (mnist, cifar10):
        if path is not None and not path.exists():
            raise UsageError(f"{path} does not exist")
    data = {name: path for name, path in (("mnist", mnist), ("cifar10", cifar10)) if path is not None}
    effort = "--quick" if quick else "--full"
    work = Reproduction(items, out, not quick, data, " ".join(("netoffload reproduce", *names, effort)))
    trains = any(step.needs_root for _, step in work.pending())
    with prepared() if trains else contextlib.nullcontext(), progress_bar() as progress:
        if notes.is_terminal:
            missed = work.run(progress, progress)
        else:
            missed = work.run(lambda said, _share: progress(said), _seldom(progress))
    for (item_name, why), many in itertools.groupby(missed, key=lambda one: (one.item, one.why)):
        ones = list(many)
        said = str(ones[0]) if not ones[1:] else f"{item_name}: {len(ones)} steps {ones[0].fate}: {why}"
        notes.print(said, highlight=False, markup=False, soft_wrap=True)
    found = {}
    for item in items:
        rows = page.write_item(item, out)
        found[item.name] = [row._asdict() for row in rows]
        if not as_json:
            _print(item, rows)
    if as_json:
        print(json.dumps({"items": found, "missed": [str(one) for one in missed]}, indent=2))
    notes.print(f"records, tables and figures are in {out}", highlight=False)
    if failed := [one for one in missed if one.is_failure]:
        raise RunError(f"{len(failed)} of the steps failed: {failed[0]}")


def _seldom(show: Callable[[str], None]) -> Callable[[str, float], None]:
    """Return what shows a line now and then, for a step that takes hours."""
    shown_s = time.monotonic()

    def news(said: str, _share: float) -> None:
        nonlocal shown_s
        if time.monotonic() >= shown_s + NEWS_INTERVAL_S:
            shown_s = time.monotonic()
            show(said)

    return news


def _list(*, as_json: bool) -> None:
    from netoffload.lab import papers

    if as_json:
        items = {paper.citation: {item.name: item.title for item in paper.items} for paper in papers.PAPERS}
        print(json.dumps(items, indent=2))
        return
    for paper in papers.PAPERS:
        rows = [(item.name, item.title) for item in paper.items]
        console.print(drawn(Table(paper.citation, [words("name"), words("what")], rows)))


def _print(item: Item, rows: list[Row]) -> None:
    from netoffload.lab.papers import page

    columns = [Column(heading, is_words=heading in ("claim", "place", "")) for heading in page.HEADINGS]
    console.print(drawn(Table(f"{item.name}: {item.title}", columns, rows)))
    sys.stdout.flush()
