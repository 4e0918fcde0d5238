"""The printed values of a paper as data, and their comparison with ours."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
        unit: unit of the value; ``holds`` for a statement, whose value is 1 (yes) or 0 (no).
        within: largest absolute difference with which ours agrees; None: no verdict.
    """

    id: str
    quantity: str
    printed: float | None
    unit: str
    place: str
    standing: Standing = Standing.COMPARABLE
    why: str = ""
    within: float | None = None

    def verdict(self, ours: float | None) -> str:
        """Return the result of comparing ``ours`` with the printed value, in a word."""
        if ours is None:
            return str(self.standing) if self.standing is Standing.NOT_HERE else "missing"
        if self.unit == HOLDS:
            return "holds" if ours else "does not hold"
        if self.within is None or self.printed is None:
            return str(self.standing)
        return "agrees" if abs(ours - self.printed) <= self.within else "differs"

    def in_words(self, value: float | None) -> str:
        """Return a value of this claim as text, with the number of digits that its unit takes."""
        if value is None:
            return "-"
        if self.unit == HOLDS:
            return "yes" if value else "no"
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


HOLDS = "holds"


def holds(claim_id: str, statement: str, place: str, standing: Standing = Standing.SCALED, why: str = "") -> Claim:
    """Return a claim that is a statement in words, which our values confirm or do not."""
    return Claim(claim_id, statement, 1.0, HOLDS, place, standing, why)


def scaled(
    claim_id: str, quantity: str, printed: float | None, unit: str, place: str, *, within: float | None = None
) -> Claim:
    """Return a claim of which only the form can be compared; the item's setting says why."""
    return Claim(claim_id, quantity, printed, unit, place, Standing.SCALED, within=within)


def not_here(claim_id: str, quantity: str, printed: float | None, unit: str, place: str, why: str) -> Claim:
    """Return a claim whose value cannot be measured here."""
    return Claim(claim_id, quantity, printed, unit, place, Standing.NOT_HERE, why)
