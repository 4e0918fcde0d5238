"""Schedules of the learning rate, by name; iterations are counted from 0."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from netoffload.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The base of all schedules, whose rate is constant after it has risen in ``warmup`` equal steps."""

    warmup: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("warmup", "iterations"):
            if getattr(self, name, 0) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must not be negative")

    def rate_at(self, first: float, iteration: int) -> float:
        """Return the learning rate of an iteration if it starts at ``first``."""
        rate = self._rate_at(first, iteration)
        return rate * (iteration + 1) / self.warmup if iteration < self.warmup else rate

    def for_run(self, iterations: int) -> Schedule:
        """Return the schedule of a run of that length."""
        is_open = getattr(self, "iterations", None) == 0
        return dataclasses.replace(self, iterations=iterations) if is_open else self  # type: ignore[call-arg]

    def _rate_at(self, first: float, iteration: int) -> float:
        del iteration
        return first


@dataclasses.dataclass(frozen=True)
class StepDecay(Schedule):
    """A learning rate that is divided by ``divisor`` every ``interval`` iterations."""

    divisor: float = 10.0
    interval: int = 1000

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.interval < 1:
            raise UsageError(f"learning_rate_interval is {self.interval}: it must be at least 1")
        if not 1 <= self.divisor < math.inf:
            raise UsageError(f"the learning rate's divisor is {self.divisor}: it must be at least 1")

    def _rate_at(self, first: float, iteration: int) -> float:
        return first / self.divisor ** (iteration // self.interval)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine down to ``last`` times the first rate (Loshchilov and Hutter, 2017).

    It ends after ``iterations``; 0: with the run.
    """

    iterations: int = 0
    last: float = 0.0

    def _rate_at(self, first: float, iteration: int) -> float:
        turn = math.pi * min(1.0, iteration / self.iterations)
        return first * (self.last + (1 - self.last) * (1 + math.cos(turn)) / 2)


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """A power of the share of ``iterations`` (0: the run's) that is left.

    With 0.5 it is the schedule of Wen et al. (TernGrad), 4.
    """

    power: float = 0.5
    iterations: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if not 0 <= self.power < math.inf:
            raise UsageError(f"power is {self.power}: it must not be negative")

    def _rate_at(self, first: float, iteration: int) -> float:
        return float(first * max(0.0, 1 - iteration / self.iterations) ** self.power)


SCHEDULES: Final[dict[str, type[Schedule]]] = {
    "constant": Schedule,
    "step": StepDecay,
    "cosine": Cosine,
    "polynomial": Polynomial,
}
"""The schedules by their names in ``--schedule``; their fields are the parameters."""
