"""The parts of every experiment: contenders that take turns, progress, and findings that become a record.

::

    round 1   ring  ring_comp  mpich  ...       each turn leaves a sample
    round 2   ring  ring_comp  mpich  ...
              ──────────────────────── time ──>

A disturbance of the machine then disturbs all contenders. Medians of the samples are reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from netoffload.errors import RunError

Sample = TypeVar("Sample")
F = TypeVar("F", bound="Finding")
F_co = TypeVar("F_co", bound="Finding", covariant=True)


class Progress(Protocol):
    """Shows the name of what begins, and the share that is done (0..1); None: the share is not known."""

    def __call__(self, said: str, share: float | None = None) -> None:
        """Show it."""


@dataclass
class Contender(Generic[Sample]):
    """Something that is measured in turn with others.

    Attributes:
        name: its name in the findings.
        turn: takes the number of the round and returns a sample; rounds below 1 warm up.
        may_fail: a :class:`~netoffload.errors.RunError` ends only this contender's turns, not the experiment.
        samples: samples of all rounds from 1 on.
        failed: why the contender failed; None: it did not.
    """

    name: str
    turn: Callable[[int], Sample]
    may_fail: bool = False
    samples: list[Sample] = field(default_factory=list)
    failed: str | None = None

    def take_turn(self, number: int) -> None:
        """Leave the sample of one round."""
        try:
            sample = self.turn(number)
        except RunError as error:
            if not self.may_fail:
                raise
            self.failed = str(error)
            self.samples.clear()
            return
        if number > 0:
            self.samples.append(sample)


def take_turns(
    contenders: Iterable[Contender[Any]],
    rounds: int,
    *,
    warm_ups: int = 0,
    on_turn: Callable[[str, int], None] = lambda _name, _number: None,
) -> None:
    """Let every contender that has not failed take its turn in every round.

    Args:
        contenders: contenders, which get the samples.
        rounds: number of rounds whose samples are kept.
        warm_ups: number of rounds before them, numbered up to 0, whose samples are dropped.
        on_turn: takes the contender's name and the round's number before each turn.

    Raises:
        RunError: a contender failed whose ``may_fail`` is false.
    """
    contenders = list(contenders)
    for number in range(1 - warm_ups, rounds + 1):
        for contender in contenders:
            if contender.failed is None:
                on_turn(contender.name, number)
                contender.take_turn(number)


class Finding:
    """Base of the frozen dataclasses of findings; their fields are the keys of the record."""

    def to_record(self) -> dict[str, Any]:
        """Return what ``--json`` prints: dicts, lists, strings, numbers, None."""
        return {name: record_of(value) for name, value in vars(self).items()}


def record_of(value: Any) -> Any:
    """Return a finding, or a container of findings, in the types that JSON has."""
    if isinstance(value, Finding):
        return value.to_record()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return record_of(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: record_of(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [record_of(entry) for entry in value]
    return value


class AllOrNothing(Generic[F]):
    """Base of experiments that have findings only after everything is measured."""

    found: F | None = None

    def findings(self, reason: str | None) -> F | None:
        """Return the findings; None: not everything is measured."""
        return self.found if reason is None else None


class Experiment(Protocol[F_co]):
    """What a command runs: it measures, and then has findings, also if measuring ended early."""

    def measure(self, progress: Progress) -> None:
        """Measure everything that was asked for.

        Raises:
            NetOffloadError: it cannot be measured.
        """

    def findings(self, reason: str | None) -> F_co | None:
        """Return the findings so far.

        Args:
            reason: why measuring ended early; None: it did not.

        Returns:
            The findings, or None if there is nothing to report.
        """
