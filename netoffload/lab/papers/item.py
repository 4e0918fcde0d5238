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
from netoffload.lab.reports import Panel

Json = Any
"""The result of a measurement: dicts, lists, strings, numbers, None."""

HOLDS: Final = "holds"
"""Unit of a claim that is a statement: 1 is yes, 0 no."""

HOW_TO_GET: Final[Mapping[str, str]] = {
    "mnist": "--mnist DIR with MNIST's four IDX files (http://yann.lecun.com/exdb/mnist or a mirror)",
    "cifar10": "--cifar10 FILE.npz or the folder of CIFAR-10's python batches (https://www.cs.toronto.edu/~kriz)",
}
"""Hints for missing data sets, by name."""

ROUNDING: Final = 1 + 1e-9
"""A tolerance of half a printed digit is no binary number."""


class Standing(enum.StrEnum):
    """How far a printed value can be compared with a value from here."""

    COMPARABLE = "comparable"
    """The same quantity of the same thing, by the same means."""
    SCALED = "scaled"
    """The same quantity of something smaller: another model, data set, link or number of iterations."""
    NOT_HERE = "not reproducible here"
    """It cannot be measured here."""


@dataclass(frozen=True)
class Claim:
    """One printed value.

    Attributes:
        id: name, unique within its item.
        printed: the value; None: a figure without numbers, or a statement in words.
        within: largest absolute difference with which ours agrees; None: no verdict.
        why: why it is not reproducible here.
    """

    id: str
    quantity: str
    printed: float | None
    unit: str
    place: str
    standing: Standing = Standing.COMPARABLE
    within: float | None = None
    why: str = ""

    def verdict(self, ours: float | None) -> str:
        """Return the result of comparing ``ours`` with the printed value, in a word."""
        if ours is None:
            return str(self.standing) if self.standing is Standing.NOT_HERE else "missing"
        if self.unit == HOLDS:
            return "holds" if ours else "does not hold"
        if self.within is None or self.printed is None:
            return str(self.standing)
        return "agrees" if abs(ours - self.printed) <= self.within * ROUNDING else "differs"

    def in_words(self, value: float | None) -> str:
        """Return a value of this claim as text, with the number of digits that its unit takes."""
        if value is None:
            return "-"
        if self.unit == HOLDS:
            return "yes" if value else "no"
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _read_claims(path: Path) -> dict[str, list[Claim]]:
    claims: dict[str, list[Claim]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = {name: float(row[name]) if row[name] else None for name in ("printed", "within")}
            item, standing = row.pop("item"), Standing(row["standing"])
            claims.setdefault(item, []).append(Claim(**(row | numbers | {"standing": standing})))  # type: ignore[arg-type]
    return claims


CLAIMS: Final = _read_claims(Path(__file__).with_name("claims.csv"))
"""The claims of every item."""


def printed(item: str) -> dict[str, float]:
    """Return the values that an item's claims print, by claim."""
    return {claim.id: claim.printed for claim in CLAIMS[item] if claim.printed is not None}


@dataclass(frozen=True)
class Setting:
    """The time and the data that a measurement may use.

    Attributes:
        is_full: it may take hours; else minutes.
        say: called with the name of what begins.
        trained: gets the settings of every training run in words.
    """

    is_full: bool
    folders: Mapping[str, Path] = field(default_factory=dict)
    say: Progress = lambda said, share=None: None
    trained: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One measurement, which is done once and recorded.

    Attributes:
        key: name, unique within its item.
        data: the data set that it needs; None: none.
        needs_root: whether it builds a testbed.
    """

    key: str
    measure: Callable[[Setting], Json]
    data: str | None = None
    needs_root: bool = False

    @classmethod
    def of(
        cls, measure: Callable[..., Json], *arguments: Any, data: str | None = None, needs_root: bool = False
    ) -> Step:
        """Return the step that measures with these arguments, which are its key."""
        key = " ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in arguments)
        return cls(key, lambda setting: measure(setting, *arguments), data, needs_root)


@dataclass(frozen=True)
class Reading:
    """The reading of an item's records.

    Attributes:
        found: our values, by claim.
        remarks: sentences with further figures, which explain differences.
    """

    found: Mapping[str, float]
    panels: Sequence[Panel]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure, or several that one measurement makes; ``claims.csv`` has its claims.

    Attributes:
        setting: how the paper's setting and ours differ: link, model, data, hardware.
        steps: returns the measurements of a full or a quick run.
        read: makes a reading from the results of the steps, by their keys.
    """

    name: str
    title: str
    setting: str
    steps: Callable[[bool], Sequence[Step]]
    read: Callable[[Mapping[str, Json]], Reading]

    @property
    def claims(self) -> Sequence[Claim]:
        """What the paper prints."""
        return CLAIMS[self.name]


@dataclass(frozen=True)
class Paper:
    """A paper; the names of its items begin with its own."""

    name: str
    citation: str
    items: Sequence[Item]
