"""The two engines: a shift register each, a cycle that both share, and the logic at its input or output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

from netoffload.engine.hardware.blocks import CODE_BITS, Blocks, Coded
from netoffload.engine.hardware.ports import BEAT_BITS, Beat, Port, Timing, Wait, always
from netoffload.errors import CodecError

FLOAT_BITS: Final = 32
LANES: Final = BEAT_BITS // FLOAT_BITS
TAG_BITS: Final = 2
TAGS_BITS: Final = TAG_BITS * LANES
LONGEST_VECTOR_BITS: Final = TAGS_BITS + BEAT_BITS

REGISTER_BITS: Final = BEAT_BITS + LONGEST_VECTOR_BITS - 8
"""520, the least that cannot hang, everything being whole octets. The compressor may hold all but an octet of a beat
when the longest vector arrives; the decompressor may hold all but an octet of the longest vector when it needs a beat.
"""


class Vector(NamedTuple):
    """So many bits, the first one lowest; ``bits`` has nothing above its length."""

    bits: int
    length: int

    def then(self, other: Vector) -> Vector:
        """Return both, ``other`` shifted to the end of this one: a node of the shifter tree."""
        return Vector(self.bits | other.bits << self.length, self.length + other.length)


class Engine(ABC):
    """A register between two ports; subclasses say what enters it and what leaves it.

    Attributes:
        intake: the port on which beats arrive.
        outlet: the port on which they leave.
    """

    capacity_bits: ClassVar[int] = REGISTER_BITS
    longest_bits: ClassVar[int]
    """The most that one beat adds to the register."""

    when_full: ClassVar[Wait]
    when_short: ClassVar[Wait]

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.intake = Port()
        self.outlet = Port()
        self.held = Vector(0, 0)

    @abstractmethod
    def enter(self, beat: Beat) -> Vector:
        """Return what the register gains from a beat."""

    @abstractmethod
    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return the beat that the register could emit and the bits it stands for; None if it holds too little."""

    def cycle(self, offered: Beat | None, has_ended: bool, is_sink_ready: bool) -> tuple[bool, Beat | None]:
        """Let one clock cycle pass.

        Args:
            offered: the beat at the input, or None.
            has_ended: no beat will ever come again.
            is_sink_ready: a beat at the output would be taken.

        Returns:
            Whether the offered beat was taken, and the beat that left.
        """
        ready = self.leave(has_ended)
        out = None
        if ready is None:
            self.outlet.waited(self.when_short)
        elif not is_sink_ready:
            self.outlet.waited(Wait.SINK_BUSY)
        else:
            out, used = ready
            self.held = Vector(self.held.bits >> used, self.held.length - used)
            self.outlet.moved(out)

        if offered is None:
            self.intake.waited(Wait.INPUT_ENDED if has_ended else Wait.SOURCE_IDLE)
        elif self.held.length + self.longest_bits > self.capacity_bits:
            self.intake.waited(self.when_full if is_sink_ready else Wait.SINK_BUSY)
        else:
            self.held = self.held.then(self.enter(offered))
            self.intake.moved(offered)
            return True, out
        return False, out


class Compressor(Engine):
    """Fig. 9: blocks and shifter tree at the input, the register is the alignment unit."""

    longest_bits = LONGEST_VECTOR_BITS
    when_full = Wait.ALIGNMENT_FULL
    when_short = Wait.COLLECTING

    def enter(self, beat: Beat) -> Vector:
        """Return the tags and the aligned codes of eight floats: 16..272 bits."""
        coded = [self.blocks.compress(beat.bits >> FLOAT_BITS * lane & 0xFFFFFFFF) for lane in range(LANES)]
        tags = sum(tag << TAG_BITS * lane for lane, (tag, _) in enumerate(coded))
        level = [Vector(code, CODE_BITS[tag]) for tag, code in coded]
        while len(level) > 1:  # 8 -> 4 -> 2 -> 1
            level = [low.then(high) for low, high in zip(level[::2], level[1::2], strict=True)]
        return Vector(tags, TAGS_BITS).then(level[0])

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return 256 bits, or what is left once the input has ended."""
        used = min(self.held.length, BEAT_BITS)
        if used == BEAT_BITS or (has_ended and used):
            return Beat(self.held.bits & ((1 << used) - 1), used // 8), used
        return None


class Decompressor(Engine):
    """Fig. 10: the register is the burst buffer, tag decoder and blocks at its output."""

    longest_bits = BEAT_BITS
    when_full = Wait.BUFFER_FULL
    when_short = Wait.INCOMPLETE_BURST

    def enter(self, beat: Beat) -> Vector:
        """Return a beat as it came."""
        return Vector(beat.bits, 8 * beat.octets)

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return eight floats if the buffer holds their whole vector.

        Raises:
            CodecError: the stream ended inside it.
        """
        tags = [self.held.bits >> TAG_BITS * lane & 3 for lane in range(LANES)]
        used = TAGS_BITS + sum(CODE_BITS[tag] for tag in tags)
        if self.held.length < used:
            if has_ended and self.held.length:
                raise CodecError(f"payload ends {used - self.held.length} bits before its last burst does")
            return None
        burst, at = 0, TAGS_BITS
        for lane, tag in enumerate(tags):
            code = self.held.bits >> at & ((1 << CODE_BITS[tag]) - 1)
            burst |= self.blocks.decompress(Coded(tag, code)) << FLOAT_BITS * lane
            at += CODE_BITS[tag]
        return Beat(burst), used


def clocked(engine: Engine, beats: Iterable[Beat], valid: Timing = always, ready: Timing = always) -> list[Beat]:
    """Clock an engine until the last beat has left it.

    Args:
        engine: a compressor or decompressor; its ports count.
        beats: what arrives.
        valid: the cycles in which the source has a beat.
        ready: the cycles in which the sink takes one; like ``valid``, it must become true again and again.

    Returns:
        What left.

    Raises:
        CodecError: the stream ends inside a compressed burst.
    """
    coming = iter(beats)
    waiting = next(coming, None)
    gone: list[Beat] = []
    cycle = 0
    while waiting is not None or engine.held.length:
        offered = waiting if valid(cycle) else None
        taken, out = engine.cycle(offered, waiting is None, ready(cycle))
        if taken:
            waiting = next(coming, None)
        if out is not None:
            gone.append(out)
        cycle += 1
    return gone
