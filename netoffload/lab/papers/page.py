"""The results of items as text: a table of claims, a paragraph on the setting, the origin of the figures.

:func:`lab_page` makes docs/lab/papers.md from records.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from netoffload.lab import results
from netoffload.lab.papers.item import HOLDS, Claim, Item, Paper, Reading, Standing
from netoffload.lab.reports import draw_panels
from netoffload.lab.results import StepRecord

COLUMNS: Final = 100
HEADINGS: Final = ("claim", "place", "unit", "printed", "here", "")
NOT_SHOWN: Final = 3
"""With more values that cannot be measured here, a line gives their number instead of a line for each."""


class Row(NamedTuple):
    """A line of the table, with the columns of :data:`HEADINGS`."""

    claim: str
    place: str
    unit: str
    printed: str
    here: str
    verdict: str


def rows(item: Item, reading: Reading) -> list[Row]:
    """Return a line for each claim, in their order."""
    return [_row(claim, reading.found.get(claim.id)) for claim in item.claims]


def _row(claim: Claim, ours: float | None) -> Row:
    verdict = claim.verdict(ours)
    if claim.standing is Standing.NOT_HERE:
        verdict += f": {claim.why}"
    unit = "" if claim.unit == HOLDS else claim.unit
    return Row(claim.quantity, claim.place, unit, claim.in_words(claim.printed), claim.in_words(ours), verdict)


def read(item: Item, folder: Path) -> tuple[Reading, list[StepRecord]]:
    """Return the reading of an item's records, and the records; without records the reading is empty."""
    kept = results.read_steps(folder, item.name)
    return item.read(results.values(kept)) if kept else Reading({}, []), list(kept.values())


def write_item(item: Item, folder: Path) -> Reading:
    """Write an item's table and figure beside its records, as ``NAME.txt`` and ``NAME.svg``."""
    reading, kept = read(item, folder)
    (folder / f"{item.name}.txt").write_text("\n".join(markdown(item, reading, kept)) + "\n", encoding="utf-8")
    if reading.panels:
        draw_panels(reading.panels, item.title, folder / f"{item.name}.svg")
    return reading


def markdown(item: Item, reading: Reading, kept: Sequence[StepRecord]) -> Iterator[str]:
    """Yield the lines of an item's section."""
    yield from (f"### {item.name}: {item.title}", "")
    yield from (*textwrap.wrap(item.setting, COLUMNS, break_long_words=False, break_on_hyphens=False), "")
    listed = [(claim, row) for claim, row in zip(item.claims, rows(item, reading), strict=True)]
    hidden = [claim for claim, _ in listed if claim.standing is Standing.NOT_HERE]
    shown = [row for claim, row in listed if claim.standing is not Standing.NOT_HERE or len(hidden) <= NOT_SHOWN]
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|" + " --- |" * len(HEADINGS)
    yield from (f"| {' | '.join(row)} |" for row in shown)
    if len(hidden) > NOT_SHOWN:
        for why in dict.fromkeys(claim.why for claim in hidden):
            same = [claim for claim in hidden if claim.why == why]
            places = ", ".join(dict.fromkeys(claim.place for claim in same))
            yield f"| {len(same)} more printed values | {places} | | | - | {Standing.NOT_HERE}: {why} |"
    yield ""
    for remark in reading.remarks:
        yield from (*textwrap.wrap(f"- {remark}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False), "")
    yield from (*textwrap.wrap(origin(kept), COLUMNS, break_long_words=False, break_on_hyphens=False), "")


def origin(kept: Sequence[StepRecord]) -> str:
    """Return a paragraph on the origin of records: command, date, machine, commit, time."""
    if not kept:
        return "Nothing was measured."
    of = results.origins(kept)
    wall_s = sum(record.wall_s for record in kept)
    commands = ", ".join(f"`{command}`" for command in of["command"])
    loads = [record.load_1min for record in kept if record.load_1min is not None]
    others = f" Load of the machine before a step: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    return (
        f"Command: {commands}. Machine: {'; '.join(of['machine'])}. Date: {', '.join(of['date'])}. "
        f"Commit: {', '.join(of['commit'])}. It took {wall_s:.0f} s.{others}"
    )


def tally(all_items: Sequence[Item], folder: Path) -> dict[str, int]:
    """Return how many claims have each verdict."""
    counts: dict[str, int] = {}
    for item in all_items:
        reading, _ = read(item, folder)
        for claim in item.claims:
            verdict = claim.verdict(reading.found.get(claim.id))
            counts[verdict] = counts.get(verdict, 0) + 1
    return dict(sorted(counts.items()))


INTRODUCTION: Final = """\
`netoffload report docs/lab/records --lab docs/lab/papers.md` makes this page from the records of
`netoffload reproduce`. A test makes it again and compares.

- *agrees*, *differs*: our value is within the tolerance of the claim, or is not.
- *holds*, *does not hold*: our values confirm a statement in words, or do not.
- *scaled*: model, data, link or length differ so much that only the form of the results can be
  compared. The section says how they differ.
- *not reproducible here*: this machine cannot measure it, for the reason given.
- *missing*: not measured yet.

`netoffload report DIR --html` shows the same with figures.
"""


def lab_page(papers: Sequence[Paper], folder: Path) -> str:
    """Return docs/lab/papers.md, made from the records in a folder."""
    every = [item for paper in papers for item in paper.items]
    lines = ["# The papers' tables and figures, theirs beside ours", "", INTRODUCTION]
    counts = tally(every, folder)
    lines += [
        "| verdict | claims |",
        "| --- | --- |",
        *(f"| {verdict} | {count} |" for verdict, count in counts.items()),
        "",
    ]
    for paper in papers:
        lines += [f"## {paper.name}", "", *textwrap.wrap(f"{paper.citation}.", COLUMNS), ""]
        for item in paper.items:
            reading, kept = read(item, folder)
            lines += list(markdown(item, reading, kept))
    return "\n".join(lines).rstrip() + "\n"
