"""One table or figure of a paper: its claims, its measurements, and how to read them.

Everything that the papers print stands in ``claims.csv`` beside this file, a line for each value.
"""

from __future__ import annotations

import csv
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from netoffload.lab.declared import Progress
from netoffload.lab.reports.panels import Panel

Json = Any  # the result of a measurement: dicts, lists, strings, numbers, None

FULL: Final = "full"  # effort of a run that may take hours; the other one is ``quick``
HOLDS: Final = "holds"  # unit of a claim that is a statement: 1 is yes, 0 no

HOW_TO_GET: Final[Mapping[str, str]] = {
    "mnist": "--mnist DIR with MNIST's four IDX files (http://yann.lecun.com/exdb/mnist or a mirror)",
    "cifar10": "--cifar10 FILE.npz or the folder of CIFAR-10's python batches (https://www.cs.toronto.edu/~kriz)",
}
"""Hints for missing data sets, by name."""

ROUNDING: Final = 1 + 1e-9  # a tolerance of half a printed digit is no binary number


class Kind(enum.StrEnum):
    """What stands behind a comparison with a printed value."""

    MEASURED = "measured here"  # with the paper's own model, data and length, or with what holds for any
    SCALED = "scaled"  # the same quantity of something smaller: another model, data set, link or number of iterations
    ARITHMETIC = "arithmetic of the paper"  # computed from the paper's own numbers by what it prints
    FITTED = "fitted afterwards"  # computed by a procedure that was chosen because it gives the printed values
    NOT_HERE = "not reproducible here"

    @property
    def short(self) -> str:
        """The kind in a word, for tables."""
        return self.split()[0]


@dataclass(frozen=True)
class Claim:
    """One printed value, a printed range, or a row of a table that cannot be measured here."""

    id: str  # unique within its item
    quantity: str
    printed: tuple[float, ...]  # two: a range; none: a figure without numbers, or a statement whose value is ours
    unit: str
    place: str
    kind: Kind = Kind.SCALED
    within: float | None = None  # largest distance from the printed value with which ours agrees; None: no verdict
    reason: str = ""  # why the tolerance is as large as it is; for a statement in words, when it holds
    why: str = ""  # why it is not reproducible here, or why ours differs

    def verdict(self, ours: float | None) -> str:
        """Return the result of comparing ``ours`` with the printed value, in a word or two."""
        if self.kind is Kind.NOT_HERE:
            return str(self.kind)
        if ours is None:
            return "missing"
        if self.unit == HOLDS:
            return "holds" if ours else "does not hold"
        if self.within is None or not self.printed:
            return "not judged"
        allowed = self.within * ROUNDING
        return "agrees" if min(self.printed) - allowed <= ours <= max(self.printed) + allowed else "differs"

    def in_words(self, *values: float) -> str:
        """Return values of this claim as text, with the number of digits that its unit takes."""
        if self.unit == HOLDS:
            return " ".join("yes" if value else "no" for value in values)
        texts = [f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" for value in values]
        return (" to " if self.kind is not Kind.NOT_HERE else ", ").join(texts) or "-"

    @property
    def tolerance(self) -> str:
        """The tolerance and its reason, or when a statement holds, to follow what is printed."""
        reason = f" ({self.reason})" if self.reason else ""
        return reason if self.within is None else f" ± {self.within:g}{reason}"


def _read_claims(path: Path) -> dict[str, list[Claim]]:
    claims: dict[str, list[Claim]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            item, within, kind = row.pop("item"), row.pop("within"), Kind(row.pop("kind"))
            values = tuple(map(float, row.pop("printed").split()))
            claim = Claim(**row, printed=values, kind=kind, within=float(within) if within else None)
            claims.setdefault(item, []).append(claim)
    return claims


CLAIMS: Final = _read_claims(Path(__file__).with_name("claims.csv"))  # the claims of every item


def rows(item: str) -> dict[str, tuple[float, ...]]:
    """Return what an item's claims print, by claim."""
    return {claim.id: claim.printed for claim in CLAIMS[item]}


def printed(item: str) -> dict[str, float]:
    """Return the values that an item's claims print, by claim; without ranges and rows of tables."""
    return {name: values[0] for name, values in rows(item).items() if len(values) == 1}


@dataclass(frozen=True)
class Setting:
    """The time and the data that a measurement may use."""

    is_full: bool  # it may take hours; else minutes
    folders: Mapping[str, Path] = field(default_factory=dict)
    say: Progress = lambda said, share=None: None  # called with the name of what begins
    trained: list[str] = field(default_factory=list)  # gets the settings of every training run in words


@dataclass(frozen=True)
class Step:
    """One measurement, which is done once and recorded."""

    key: str  # unique within its item
    measure: Callable[[Setting], Json]
    data: str | None = None  # the data set that it needs
    needs_root: bool = False  # it builds a testbed

    @classmethod
    def of(
        cls, measure: Callable[..., Json], *arguments: Any, data: str | None = None, needs_root: bool = False
    ) -> Step:
        """Return the step that measures with these arguments, which are its key."""
        key = " ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in arguments)
        return cls(key, lambda setting: measure(setting, *arguments), data, needs_root)


@dataclass(frozen=True)
class Reading:
    """The reading of an item's records: our values by claim, its figure, and sentences that explain differences."""

    found: Mapping[str, float]
    panels: Sequence[Panel]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure, or several that one measurement makes; ``claims.csv`` has its claims.

    ``setting`` says how the paper's setting and ours differ: link, model, data, hardware. How a run trained is not said
    there: its record says it. In a full run that ``is_own_when_full``, scaled claims count as measured.
    """

    name: str
    title: str
    setting: str
    steps: Callable[[bool], Sequence[Step]]  # the measurements of a full or a quick run
    read: Callable[[Mapping[str, Json]], Reading]  # from the results of the steps, by their keys
    is_own_when_full: bool = False  # a full run has the paper's model, data and length

    @property
    def claims(self) -> Sequence[Claim]:
        """What the paper prints."""
        return CLAIMS[self.name]


@dataclass(frozen=True)
class Paper:
    """A paper; the names of its items begin with its own."""

    name: str
    citation: str
    judgement: str  # what the items say of the paper, in a paragraph
    items: Sequence[Item]
