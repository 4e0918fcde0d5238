"""The five papers' tables and figures: what they print beside what is measured here.

::

    Item ── claims      printed values, as data: place, unit, whether ours can be compared, and why not
         ├─ steps       measurements, each done once:  setting ──► JSON ──► records/PAPER-ITEM.jsonl
         └─ read        records ──► a value for each claim, panels of a figure, remarks
                                          │
    netoffload reproduce ── runs steps ───┴─► table, figure, paragraph; one HTML page; docs/lab/papers.md

A table holds what nobody can do here as well, with the reason. Nothing is read from anywhere but records, so a page can
be made again from them, and a test does. A step is a real run of what this program has: ``bench``, ``training``,
``costmodel``. A quick run takes minutes, a full one hours; their records do not mix.

One paper is one module, or a package of them: ``inceptionn``, ``terngrad``, ``pqasgd``, ``thresholded``,
``eight_bit``. Files: ``claim`` and ``item`` what they are made of, ``runs`` what their steps share, ``records`` the
files, ``reproduction`` does the steps, ``page`` and ``web`` write what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from netoffload.errors import UsageError
from netoffload.papers import eight_bit, inceptionn, pqasgd, terngrad, thresholded
from netoffload.papers.item import Item, Paper

PAPERS: Final[Sequence[Paper]] = (
    inceptionn.PAPER,
    terngrad.PAPER,
    pqasgd.PAPER,
    thresholded.PAPER,
    eight_bit.PAPER,
)

ALL: Final = "all"


def items() -> dict[str, Item]:
    """Return every item by the name that the command line takes."""
    return {item.name: item for paper in PAPERS for item in paper.items}


def chosen(names: Sequence[str]) -> list[Item]:
    """Return the items of names: an item's, a paper's, or ``all``.

    Raises:
        UsageError: no such name.
    """
    known = items()
    groups = {paper.name: list(paper.items) for paper in PAPERS} | {ALL: list(known.values())}
    found: dict[str, Item] = {}
    for name in names:
        if name not in known and name not in groups:
            raise UsageError(f"{name!r} is unknown: choose from {', '.join((*groups, *known))}")
        found |= {item.name: item for item in groups.get(name, [known[name]] if name in known else [])}
    return list(found.values())
