"""AXI streams: beats, the cycles in which they may move, and what every port counts."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

BEAT_BITS: Final = 256
"""Bits that an AXI stream of the paper's NIC moves in one cycle (INCEPTIONN, VI-A)."""

BEAT_OCTETS: Final = BEAT_BITS // 8

Timing = Callable[[int], bool]
"""Whether the other end of a port is ready to move a beat in a cycle; cycles count from 0."""


class Beat(NamedTuple):
    """The octets that cross a port in one cycle.

    Attributes:
        bits: the octets, the first one in the low bits.
        octets: how many octets are valid (AXI's TKEEP); only the last beat of a stream has less than 32.
    """

    bits: int
    octets: int = BEAT_OCTETS


class Wait(enum.StrEnum):
    """Why a port moved no beat in a cycle."""

    SOURCE_IDLE = "source_idle"
    ALIGNMENT_FULL = "alignment_full"
    BUFFER_FULL = "buffer_full"
    INPUT_ENDED = "input_ended"
    COLLECTING = "collecting"
    INCOMPLETE_BURST = "incomplete_burst"
    SINK_BUSY = "sink_busy"


MEANING: Final = {
    Wait.SOURCE_IDLE: "in: the source has no beat",
    Wait.ALIGNMENT_FULL: "in: a second beat waits to leave, because bursts became 272 bits",
    Wait.BUFFER_FULL: "in: there is a whole burst to decompress, and no room for a beat behind it",
    Wait.INPUT_ENDED: "in: the stream has ended, and what is held leaves",
    Wait.COLLECTING: "out: the alignment unit holds less than a beat",
    Wait.INCOMPLETE_BURST: "out: the buffer holds no whole compressed burst",
    Wait.SINK_BUSY: "in, out: the sink does not take the beat",
}
"""One line per reason; ``tests/engine`` checks that no reason is missing."""


class Port:
    """One side of an engine: each cycle it moves a beat or waits for one reason."""

    def __init__(self) -> None:
        self.beats = 0
        self.octets = 0
        self.waits: collections.Counter[Wait] = collections.Counter()

    @property
    def cycles(self) -> int:
        """All cycles that this port has seen."""
        return self.beats + self.waits.total()

    def moved(self, beat: Beat) -> None:
        """Count a beat."""
        self.beats += 1
        self.octets += beat.octets

    def waited(self, reason: Wait) -> None:
        """Count a cycle without a beat."""
        self.waits[reason] += 1

    def rate_bps(self, clock_hz: float) -> float:
        """Return the bits per second that crossed at this clock; 0 before the first cycle."""
        return 8 * self.octets * clock_hz / self.cycles if self.cycles else 0.0


def always(cycle: int) -> bool:
    """Return True: the timing of a port that never keeps the engine waiting."""
    del cycle
    return True


def paced(beats: int, cycles: int) -> Timing:
    """Return the timing of a port that is ready in ``beats`` of every ``cycles`` cycles, evenly spread."""
    return lambda cycle: (cycle + 1) * beats // cycles > cycle * beats // cycles


def beats_of(octets: bytes) -> Iterator[Beat]:
    """Cut a stream into beats; the last one may be short."""
    for first in range(0, len(octets), BEAT_OCTETS):
        part = octets[first : first + BEAT_OCTETS]
        yield Beat(int.from_bytes(part, "little"), len(part))


def octets_of(beats: Iterable[Beat]) -> bytes:
    """Return the stream that was cut into beats."""
    return b"".join(beat.bits.to_bytes(beat.octets, "little") for beat in beats)
