"""The two engines: a shift register each, a cycle that both share, and the logic at its input or output.

Their circuits are counted: bits that are stored, bits that are moved, and the multiplexers that move them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple

from netoffload.errors import CodecError
from netoffload.lab.models.hardware.blocks import CODE_BITS, Blocks, Coded
from netoffload.lab.models.hardware.ports import BEAT_BITS, Beat, Port, Timing, Wait, always

FLOAT_BITS: Final = 32
LANES: Final = BEAT_BITS // FLOAT_BITS
TAG_BITS: Final = 2
TAGS_BITS: Final = TAG_BITS * LANES
LONGEST_VECTOR_BITS: Final = TAGS_BITS + BEAT_BITS

REGISTER_BITS: Final = BEAT_BITS + LONGEST_VECTOR_BITS - 8
"""520, the least size that cannot hang; lengths are whole octets. The compressor may hold all but an octet of a beat
when the longest vector arrives. The decompressor may hold all but an octet of the longest vector when it needs a beat.
"""


class Vector(NamedTuple):
    """A string of ``length`` bits, the first one lowest; the bits of ``bits`` above are 0."""

    bits: int
    length: int

    def then(self, other: Vector) -> Vector:
        """Return this vector with ``other`` behind it: a node of the shifter tree."""
        return Vector(self.bits | other.bits << self.length, self.length + other.length)

    def first(self, length: int) -> Vector:
        """Return the first bits, or all if there are fewer."""
        length = min(length, self.length)
        return Vector(self.bits & ((1 << length) - 1), length)

    def without(self, length: int) -> Vector:
        """Return the bits behind the first ``length`` ones."""
        return Vector(self.bits >> length, self.length - length)


def joined(level: list[Vector]) -> Vector:
    """Return the codes of eight lanes behind one another: the shifter tree, three levels deep."""
    while len(level) > 1:  # 8 -> 4 -> 2 -> 1
        level = [low.then(high) for low, high in zip(level[::2], level[1::2], strict=True)]
    return level[0]


class Shifter(NamedTuple):
    """Rows of multiplexers with two inputs: row i moves all bits by 2^i of ``places``, or leaves them."""

    what: str
    bits: int
    places: int
    copies: int = 1

    @property
    def width_bits(self) -> int:
        """Bits that it can move in a cycle."""
        return self.copies * self.bits

    @property
    def multiplexers(self) -> int:
        """Multiplexers of one bit. A circuit has somewhat fewer, since some at the edges of a row are not needed."""
        return self.width_bits * (self.places - 1).bit_length()


class Circuit(NamedTuple):
    """One engine, without the blocks of its lanes; shifters fill or empty its register at any octet."""

    register_bits: int
    shifters: tuple[Shifter, ...]

    @property
    def width_bits(self) -> int:
        """Bits that all shifters can move in a cycle."""
        return sum(shifter.width_bits for shifter in self.shifters)

    @property
    def multiplexers(self) -> int:
        """Multiplexers of one bit in all shifters."""
        return sum(shifter.multiplexers for shifter in self.shifters)


def tree(what: str, code_bits: int, steps: int) -> tuple[Shifter, ...]:
    """Return the three levels that move the codes of eight lanes together, or apart.

    Args:
        code_bits: the longest code.
        steps: the longest code in the unit by which codes move.
    """
    return tuple(
        Shifter(f"{what}, {lanes} lanes", lanes * code_bits, lanes // 2 * steps + 1, 8 // lanes) for lanes in (2, 4, 8)
    )


class Engine(ABC):
    """Registers between two ports; subclasses define what enters and what leaves.

    ``held`` is the shift register at the port with the compressed octets.
    """

    capacity_bits: ClassVar[int] = REGISTER_BITS
    circuit: ClassVar[Circuit]
    """The engine's parts."""

    when_short: ClassVar[Wait]

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.intake = Port()
        self.outlet = Port()
        self.held = Vector(0, 0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left in the engine."""
        return not self.held.length

    @abstractmethod
    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return the beat that could leave and how many bits of ``held`` it uses; None if too few are held."""

    def release(self, used: int) -> None:
        """Remove the bits that the beat used."""
        self.held = self.held.without(used)

    @abstractmethod
    def refusal(self) -> Wait | None:
        """Return why no beat may enter in this cycle; None if a beat may enter."""

    @abstractmethod
    def enter(self, beat: Beat) -> None:
        """Take a beat in."""

    def cycle(self, offered: Beat | None, has_ended: bool, is_sink_ready: bool) -> tuple[bool, Beat | None]:
        """Let one clock cycle pass.

        Args:
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
            self.release(used)
            self.outlet.moved(out)

        if offered is None:
            self.intake.waited(Wait.INPUT_ENDED if has_ended else Wait.SOURCE_IDLE)
            return False, out
        refusal = self.refusal()
        if refusal is not None:
            self.intake.waited(refusal if is_sink_ready else Wait.SINK_BUSY)
            return False, out
        self.enter(offered)
        self.intake.moved(offered)
        return True, out


class Compressor(Engine):
    """Fig. 9: blocks and shifter tree at the input; the register is the alignment unit."""

    circuit = Circuit(
        REGISTER_BITS,
        (
            *tree("codes", FLOAT_BITS, 4),
            Shifter("alignment", REGISTER_BITS, 1 + (REGISTER_BITS - LONGEST_VECTOR_BITS) // 8),
        ),
    )
    when_short = Wait.COLLECTING

    def refusal(self) -> Wait | None:
        """Refuse a beat if the longest vector would not fit."""
        return Wait.ALIGNMENT_FULL if self.held.length + LONGEST_VECTOR_BITS > self.capacity_bits else None

    def enter(self, beat: Beat) -> None:
        """Append the tags and the aligned codes of eight floats: 16..272 bits."""
        coded = coded_lanes(self.blocks, beat)
        tags = sum(tag << TAG_BITS * lane for lane, (tag, _) in enumerate(coded))
        codes = joined([Vector(code, CODE_BITS[tag]) for tag, code in coded])
        self.held = self.held.then(Vector(tags, TAGS_BITS)).then(codes)

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return 256 bits, or the rest once the input has ended."""
        return beat_of(self.held, is_last=has_ended)


class Decompressor(Engine):
    """Fig. 10: the register is the burst buffer; tag decoder and blocks are at its output."""

    circuit = Circuit(
        REGISTER_BITS,
        (
            Shifter("beat in", REGISTER_BITS, 1 + (REGISTER_BITS - BEAT_BITS) // 8),
            Shifter("burst away", REGISTER_BITS, 1 + BEAT_BITS // 8),
            *(Shifter(f"code of lane {lane}", FLOAT_BITS * (lane + 1), 4 * lane + 1) for lane in range(LANES)),
        ),
    )
    when_short = Wait.INCOMPLETE_BURST

    def refusal(self) -> Wait | None:
        """Refuse a beat that would not fit."""
        return Wait.BUFFER_FULL if self.held.length + BEAT_BITS > self.capacity_bits else None

    def enter(self, beat: Beat) -> None:
        """Append a beat to the burst buffer."""
        self.held = self.held.then(Vector(beat.bits, 8 * beat.octets))

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return eight floats if the buffer holds their whole vector."""
        tags = [self.held.bits >> TAG_BITS * lane & 3 for lane in range(LANES)]
        used = TAGS_BITS + sum(CODE_BITS[tag] for tag in tags)
        if self.held.length < used:
            if has_ended and self.held.length:
                raise CodecError(f"payload ends {used - self.held.length} bits before its last burst does")
            return None
        burst, rest = 0, self.held.without(TAGS_BITS)
        for lane, tag in enumerate(tags):
            code = rest.first(CODE_BITS[tag])
            burst |= self.blocks.decompress(Coded(tag, code.bits)) << FLOAT_BITS * lane
            rest = rest.without(code.length)
        return Beat(burst), used


def coded_lanes(blocks: Blocks, beat: Beat) -> list[Coded]:
    """Return the tags and codes that the compression blocks make of eight floats."""
    return [blocks.compress(beat.bits >> FLOAT_BITS * lane & 0xFFFFFFFF) for lane in range(LANES)]


def beat_of(held: Vector, is_last: bool) -> tuple[Beat, int] | None:
    """Return a beat from the start of an alignment unit, and its bits; a short one only if it is the last."""
    first = held.first(BEAT_BITS)
    if first.length == BEAT_BITS or (is_last and first.length):
        return Beat(first.bits, first.length // 8), first.length
    return None


def clocked(engine: Engine, beats: Iterable[Beat], valid: Timing = always, ready: Timing = always) -> list[Beat]:
    """Clock an engine until the last beat has left it; return the beats that left.

    ``valid`` and ``ready`` must become true again and again.
    """
    coming = iter(beats)
    waiting = next(coming, None)
    gone: list[Beat] = []
    cycle = 0
    while waiting is not None or not engine.is_empty:
        offered = waiting if valid(cycle) else None
        taken, out = engine.cycle(offered, waiting is None, ready(cycle))
        if taken:
            waiting = next(coming, None)
        if out is not None:
            gone.append(out)
        cycle += 1
    return gone
