"""The five papers' tables and figures: printed values beside those measured here.

::

    Item ── claims      printed values, as data: place, unit, whether ours can be compared, and why not
         ├─ steps       measurements, each done once:  setting ──► JSON ──► records/PAPER-ITEM.jsonl
         └─ read        records ──► a value for each claim, panels of a figure, remarks
                                          │
    netoffload reproduce ── runs steps ───┴─► table, figure, paragraph; one HTML page; docs/lab/papers.md

A table also lists values that cannot be measured here, with the reason. Pages are made from records alone, so they can
be made again, and a test does so. A step is a real run of this program: of ``bench``, ``training`` or ``models``. A
quick run takes minutes, a full one hours; their records do not mix.

One paper is one module, or a package of them: ``inceptionn``, ``terngrad``, ``pqasgd``, ``thresholded``,
``eight_bit``. Files: ``claim`` and ``item`` have the types, ``runs`` the code that steps share; ``reproduction``
does the steps and leaves records (``netoffload.lab.results``), ``page`` and ``web`` write the results.
"""

from collections.abc import Sequence
from typing import Final

from netoffload.errors import UsageError
from netoffload.lab.papers import eight_bit, inceptionn, pqasgd, terngrad, thresholded
from netoffload.lab.papers.item import Item, Paper

PAPERS: Final[Sequence[Paper]] = (inceptionn.PAPER, terngrad.PAPER, pqasgd.PAPER, thresholded.PAPER, eight_bit.PAPER)


def items() -> dict[str, Item]:
    """Return every item by its name on the command line."""
    return {item.name: item for paper in PAPERS for item in paper.items}


def chosen(names: Sequence[str]) -> list[Item]:
    """Return the items that names stand for: each is an item's name, a paper's name, or ``all``."""
    known = items()
    meant = {paper.name: list(paper.items) for paper in PAPERS} | {"all": list(known.values())}
    meant |= {name: [item] for name, item in known.items()}
    if unknown := [name for name in names if name not in meant]:
        raise UsageError(f"{unknown[0]!r} is unknown: choose from {', '.join(meant)}")
    return list({item.name: item for name in names for item in meant[name]}.values())
