"""The results of items as text: a table of claims, a paragraph on the setting, the origin of the figures.

:func:`lab_page` makes docs/lab/papers.md from records. There claims that end alike are one line; NAME.txt beside the
records and the HTML page have a line for each.
"""

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from netoffload.errors import UsageError
from netoffload.lab import results
from netoffload.lab.papers.item import FULL, HOLDS, Claim, Item, Kind, Paper, Reading
from netoffload.lab.reports.panels import draw_panels
from netoffload.lab.results import StepRecord

COLUMNS: Final = 100
HEADINGS: Final = ("claim", "place", "printed ± tolerance", "here", "")
MOST_VALUES: Final = 12  # with more claims that end alike, their line in docs/lab/papers.md has no values
MOST_NAMES: Final = 8
"""In the command that measures them, more items are named as all: full ones only if there are no quick ones."""
DIFFERING: Final = ("differs", "does not hold")


class Row(NamedTuple):
    """A line of the table, with the columns of :data:`HEADINGS`."""

    claim: str
    place: str
    printed: str
    here: str
    verdict: str


def kind_of(claim: Claim, item: Item, kept: Sequence[StepRecord]) -> Kind:
    """Return the kind of a claim by the runs that its item's records are of."""
    is_own = item.is_own_when_full and bool(kept) and all(record.effort == FULL for record in kept)
    return Kind.MEASURED if is_own and claim.kind is Kind.SCALED else claim.kind


def rows(item: Item, reading: Reading, kept: Sequence[StepRecord] = ()) -> list[Row]:
    """Return a line for each claim, in their order."""
    return [_row(claim, reading.found.get(claim.id), kind_of(claim, item, kept)) for claim in item.claims]


def _row(claim: Claim, ours: float | None, kind: Kind) -> Row:
    verdict = claim.verdict(ours)
    verdict = "not here" if kind is Kind.NOT_HERE else f"{kind.short}: {verdict}"
    if claim.why and claim.verdict(ours) in (*DIFFERING, Kind.NOT_HERE):
        verdict += f": {claim.why}"
    quantity = f"{claim.quantity}, {claim.unit}" if claim.unit not in ("", HOLDS) else claim.quantity
    here = claim.in_words(ours) if ours is not None else "-"
    return Row(quantity, claim.place, f"{claim.in_words(*claim.printed)}{claim.tolerance}", here, verdict)


def read(item: Item, folder: Path) -> tuple[Reading, list[StepRecord]]:
    """Return the reading of an item's records, and the records; without records the reading is empty."""
    kept = results.read_steps(folder, item.name)
    try:
        values = {step: record.value for step, record in kept.items()}
        return item.read(values) if kept else Reading({}, []), list(kept.values())
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        path = results.steps_path(folder, item.name)
        raise UsageError(
            f"{path} has a value that no step of {item.name} makes ({error!r}): remove the file"
        ) from error


def write_item(item: Item, folder: Path) -> list[Row]:
    """Write an item's table and figure beside its records, as ``NAME.txt`` and ``NAME.svg``; return the table."""
    reading, kept = read(item, folder)
    lines = markdown(item, reading, kept, is_whole=True)
    (folder / f"{item.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if reading.panels:
        draw_panels(reading.panels, item.title, folder / f"{item.name}.svg")
    return rows(item, reading, kept)


def markdown(item: Item, reading: Reading, kept: Sequence[StepRecord], is_whole: bool = False) -> Iterator[str]:
    """Yield the lines of an item's section.

    If it is not whole, claims that end alike are one line of its table, and the kind *scaled* and the time that it
    took are left out.
    """
    yield from (f"### {item.name}: {item.title}", "")
    yield from (*_wrapped(f"{item.setting}{trained(kept)}{cost(kept) if is_whole or not kept else ''}"), "")
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|" + " --- |" * len(HEADINGS)
    listed = rows(item, reading, kept)
    for row in listed if is_whole else _joined(listed):
        verdict = row.verdict if is_whole else row.verdict.removeprefix(f"{Kind.SCALED.short}: ")
        yield f"| {' | '.join((*row[:-1], verdict))} |"
    yield ""
    for remark in reading.remarks:
        yield from textwrap.wrap(f"- {remark}", COLUMNS, subsequent_indent="  ", break_on_hyphens=False)
    yield from [""] if reading.remarks else []


def _joined(listed: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows; those that end alike, and read alike or are many or not here, are one row with all values."""
    groups: list[list[Row]] = []
    for row in listed:
        ends_alike = (group for group in groups if group[0].verdict == row.verdict)
        fitting = next((group for group in ends_alike if _reads_alike(group, row)), None)
        if fitting is None:
            groups.append([row])
        else:
            fitting.append(row)
    yield from (row for group in groups for row in ([_one_row(group)] if len(group) > 1 else group))


def _reads_alike(group: Sequence[Row], row: Row) -> bool:
    if row.verdict.startswith(("not here", "fitted: agrees")):
        return True
    common = in_common([of.claim for of in (*group, row)]).split()
    return 2 * (len(common) - 1) >= len(row.claim.split())


def _one_row(group: Sequence[Row]) -> Row:
    claims, places, printed, here, (verdict, *_) = zip(*group, strict=True)
    reasons = dict.fromkeys(text.partition(" (")[2].removesuffix(")") for text in printed)
    if len(group) > MOST_VALUES or verdict.startswith("not here"):
        values = ["in the HTML", "in the HTML" if set(here) != {"-"} else "-"]
    else:
        bare = [text.partition(" (")[0] for text in printed]
        values = [of[0] if len(set(of)) == 1 else "; ".join(of) for of in (bare, here)]
    values[0] += f" ({', '.join(reasons)})" if "" not in reasons else ""
    claim = f"{len(group)} x {in_common(list(dict.fromkeys(claims)))}"
    return Row(claim, "; ".join(dict.fromkeys(places)), values[0], values[1], verdict)


def in_common(texts: Sequence[str]) -> str:
    """Return the words that texts begin and end with, and dots between them."""
    split = [text.split() for text in texts]
    first = _alike(split)
    last = _alike([words[first:][::-1] for words in split])
    words = split[0]
    return " ".join([*words[:first], "...", *words[len(words) - last :]]) if len(split) > 1 else texts[0]


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with."""
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def trained(kept: Sequence[StepRecord]) -> str:
    """Return a sentence with the settings of the runs that the records are of, a part for each model, or nothing."""
    by_model: dict[str, list[list[str]]] = {}
    for text in dict.fromkeys(text for record in kept for text in record.settings):
        parts = text.replace(", shared data", " (shared data)").split(", ")
        by_model.setdefault(f"{parts[0]} {len(parts)}", []).append(parts)
    said = [", ".join("/".join(dict.fromkeys(of)) for of in zip(*runs, strict=True)) for runs in by_model.values()]
    return f" Trained: {'; '.join(said)}." if said else ""


def cost(kept: Sequence[StepRecord]) -> str:
    """Return a sentence on the time that records took."""
    return f" It took {sum(record.wall_s for record in kept):.0f} s." if kept else " Nothing was measured."


def origin(kept: Sequence[StepRecord]) -> str:
    """Return sentences on the origin of records: command, machine, date, commit, load."""
    if not kept:
        return ""
    by_effort: dict[str, dict[str, None]] = {}
    for record in kept:
        by_effort.setdefault(record.effort, {})[record.item] = None
    is_one = len(by_effort) == 1

    def named(effort: str, items: Mapping[str, None]) -> str:
        """Name full items beside quick ones, which are all others."""
        return "all" if len(items) > MOST_NAMES and (is_one or effort != FULL) else " ".join(items)

    commands = ", ".join(
        f"`netoffload reproduce {named(effort, items)} --{effort}`" for effort, items in by_effort.items()
    )
    loads = [record.load_1min for record in kept if record.load_1min is not None]
    others = f" Load before a step: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    machines, dates, commits = (
        ", ".join(dict.fromkeys(texts))
        for texts in zip(*((one.machine, one.started[:10], one.commit) for one in kept), strict=True)
    )
    return f"Commands: {commands}. Machine: {machines}. Date: {dates}. Commit: {commits}.{others}"


def tally(all_items: Sequence[Item], folder: Path) -> Mapping[Kind, Counter[str]]:
    """Return how many claims of each kind have each verdict; those that are not reproducible here have one."""
    counts: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}
    for item in all_items:
        reading, kept = read(item, folder)
        for claim in item.claims:
            counts[kind_of(claim, item, kept)][claim.verdict(reading.found.get(claim.id))] += 1
    return counts


VERDICTS: Final = ("agrees", "holds", "differs", "does not hold", "not judged", "missing")

INTRODUCTION: Final = """\
`netoffload report docs/lab/records --lab docs/lab/papers.md` makes this page from the records of
`netoffload reproduce`. A test compares.

- *measured here*: with the paper's model, data and length, or with what holds for any.
- *scaled*: another model, data set, link or length; also where a verdict has no kind.
- *arithmetic of the paper*: from its own numbers by what it prints.
- *fitted afterwards*: by a procedure that was chosen because it gives the printed values.
- *not reproducible here*: this machine cannot measure it.

*Not judged* is a value without a tolerance; *missing* is not measured, or of a network that has not
learnt. What follows by construction is a test, not a claim. Claims that end alike are one line;
`netoffload report DIR --html` has each, with figures.
"""


def lab_page(papers: Sequence[Paper], folder: Path) -> str:
    """Return docs/lab/papers.md, made from the records in a folder."""
    every = [item for paper in papers for item in paper.items]
    counts = tally(every, folder)
    lines = ["# The papers' tables and figures, theirs beside ours", "", INTRODUCTION]
    lines += [f"| kind | claims | {' | '.join(VERDICTS)} |", "|" + " --- |" * (len(VERDICTS) + 2)]
    for kind, of in counts.items():
        verdicts = ["" if kind is Kind.NOT_HERE else str(of[verdict]) for verdict in VERDICTS]
        lines.append(f"| {kind} | {sum(of.values())} | {' | '.join(verdicts)} |")
    lines += ["", "## What they come to", ""]
    for paper in papers:
        lines += [*_wrapped(f"**{paper.name}.** {paper.judgement}"), ""]
    kept = [record for item in every for record in read(item, folder)[1]]
    took = f" All steps took {sum(record.wall_s for record in kept) / 60:.0f} minutes."
    lines += [*_wrapped(origin(kept) + took), ""]
    for paper in papers:
        lines += [f"## {paper.name}", "", *textwrap.wrap(f"{paper.citation}.", COLUMNS), ""]
        for item in paper.items:
            lines += list(markdown(item, *read(item, folder)))
    return "\n".join(lines).rstrip() + "\n"
