"""Turns: an experiment's contenders are measured one after the other, in rounds.

::

    round 1   ring  ring_comp  mpich  ...       each turn leaves a sample
    round 2   ring  ring_comp  mpich  ...
              ──────────────────────── time ──>

A disturbance of the machine then disturbs all contenders. Medians of the samples are reported.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from netoffload.errors import RunError

Sample = TypeVar("Sample")


@dataclass
class Contender(Generic[Sample]):
    """Something that is measured in turn with others.

    ``turn`` takes the number of the round and returns a sample; rounds below 1 warm up, and leave none. If it
    ``may_fail``, a RunError ends only its own turns.
    """

    name: str
    turn: Callable[[int], Sample]
    may_fail: bool = False
    samples: list[Sample] = field(default_factory=list)
    failed: str | None = None


def take_turns(
    contenders: Iterable[Contender[Any]],
    rounds: int,
    *,
    warm_ups: int = 0,
    on_turn: Callable[[str, int], None] = lambda _name, _number: None,
) -> None:
    """Let every contender that has not failed take its turn in every round.

    Warm-ups come first; their numbers end at 0, their samples are dropped. ``on_turn`` is called before each turn.
    """
    contenders = list(contenders)
    for number in range(1 - warm_ups, rounds + 1):
        for contender in contenders:
            if contender.failed is not None:
                continue
            on_turn(contender.name, number)
            try:
                sample = contender.turn(number)
            except RunError as error:
                if not contender.may_fail:
                    raise
                contender.failed = str(error)
                contender.samples.clear()
                continue
            if number > 0:
                contender.samples.append(sample)
