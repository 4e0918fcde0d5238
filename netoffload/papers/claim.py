"""What a paper prints, as data, and how ours is held against it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Standing(enum.StrEnum):
    """What a printed value can be compared with here."""

    COMPARABLE = "comparable"
    """The same quantity of the same thing, by the same means."""
    SCALED = "scaled"
    """The same quantity of something smaller: another model, data set, link or number of iterations."""
    NOT_HERE = "not reproducible here"
    """Nothing here can say."""


@dataclass(frozen=True)
class Claim:
    """One printed value.

    Attributes:
        id: unique within its item.
        quantity: what it is of, in words.
        printed: the value; None: a figure without numbers, or a statement in words.
        unit: of it; ``holds`` for a statement, whose value is 1 (yes) or 0 (no).
        place: where it is printed.
        standing: what ours can be.
        why: where it is not comparable, the reason.
        within: how far ours may be off, absolutely, to agree; None: no verdict.
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
        """Say in a word how ``ours`` stands beside the printed value."""
        if ours is None:
            return str(self.standing) if self.standing is Standing.NOT_HERE else "missing"
        if self.unit == HOLDS:
            return "holds" if ours else "does not hold"
        if self.within is None or self.printed is None:
            return str(self.standing)
        return "agrees" if abs(ours - self.printed) <= self.within else "differs"

    def in_words(self, value: float | None) -> str:
        """Return a value of this claim with its unit's digits."""
        if value is None:
            return "-"
        if self.unit == HOLDS:
            return "yes" if value else "no"
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


HOLDS = "holds"


def holds(claim_id: str, statement: str, place: str, standing: Standing = Standing.SCALED, why: str = "") -> Claim:
    """Return a statement in words, which ours confirms or does not."""
    return Claim(claim_id, statement, 1.0, HOLDS, place, standing, why)


def not_here(claim_id: str, quantity: str, printed: float | None, unit: str, place: str, why: str) -> Claim:
    """Return a value that nothing here can say anything about."""
    return Claim(claim_id, quantity, printed, unit, place, Standing.NOT_HERE, why)
