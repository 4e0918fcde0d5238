"""The codecs as hardware: the compressor and decompressor of INCEPTIONN's NIC, cycle by cycle.

This is a text to read and a model to measure with, not a part of the data path: the NIC process runs
``netoffload.codec``. Both make the same octets, as ``tests/engine`` checks. Bits are Python integers, bit 0 first on
the stream, so the code follows the drawings.

**Compressor** (INCEPTIONN, Fig. 9). Eight floats arrive as one 256-bit beat of an AXI stream::

    beat     x7    x6    x5    x4    x3    x2    x1    x0        256 bits
              │     │     │     │     │     │     │     │
            ┌─▼─┐ ┌─▼─┐ ┌─▼─┐ ┌─▼─┐ ┌─▼─┐ ┌─▼─┐ ┌─▼─┐ ┌─▼─┐
            │CB │ │CB │ │CB │ │CB │ │CB │ │CB │ │CB │ │CB │      eight compression blocks, Algorithm 2:
            └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘      a 2-bit tag and 0, 8, 16 or 32 bits each
              └─ << ┘     └─ << ┘     └─ << ┘     └─ << ┘        binary shifter tree: the left half is moved
                 └── <<<< ──┘            └── <<<< ──┘            up to the end of the right half,
                       └─────── <<<<<<<< ──────┘                 three levels deep
                                   │
                     0..256 bits ──┴── 16 bits of tags           one vector of 16..272 bits per burst
                                   │
                       ┌───────────▼───────────┐
                       │ alignment unit        │                 collects vectors until it holds 256 bits
                       └───────────┬───────────┘
                                   ▼                             256-bit beats, the last one shorter

**Decompressor** (Fig. 10). Vectors do not begin at the edges of beats::

                       ┌───────────────────────┐
            beats ────►│     burst buffer      │                 a vector may begin in one beat and end in another
                       └─────┬─────────┬───────┘
                     16 bits │         │ 0..256 bits
                       ┌─────▼─────┐ ┌─▼───────────────────────────┐
                       │tag decoder├─► DB  DB  DB  DB  DB DB DB DB │ the tags say where every lane begins
                       └─────┬─────┘ └─┬───────────────────────────┘
                  bits to shift away   ▼                         eight floats, one beat

**Timing.** Each of these engines is one register with logic before or behind it, and each cycle has two halves. First
the output: the beat that the register holds leaves if the sink takes it. Then the input: a beat enters if the *most*
that a beat can add still fits: 272 bits in the compressor, 256 in the decompressor. So "ready" depends on the
register's fill and on the sink, never on the data, as a circuit needs it. Pipelining the logic would add a few cycles
per stream; the model leaves them out.

Both registers have 520 bits. The paper describes a burst buffer of two beats, 512 bits, that reads when less than one
beat is left. But a vector of 272 bits can lie across *three* beats (1 + 32 + 1 octets): such a buffer would then stop
for ever with 264 bits held. One octet more is the least size that cannot stop; ``tests/engine`` shows both.

**What limits the rate.** While bursts become 256 bits or less, the uncompressed side does: one burst per cycle,
25.6 Gb/s at 100 MHz, *however well they compress*. A burst in which nothing can be compressed becomes 272 bits, 16 more
than a beat. After sixteen such bursts the compressor must refuse one for a cycle (``alignment_full``), and the
decompressor lacks data for a cycle (``incomplete_burst``): 16 bursts in 17 cycles, 24.1 Gb/s. Mixed bursts can be
slower, because a register of about two beats evens out little. Bursts of 272, 224, 272 bits in turn, a beat on average,
stall both engines in every fourth cycle. A third beat would end that.

In every cycle each port moves a beat or waits for exactly one reason (:class:`Wait`). Packet headers are not modelled;
one gradient is one stream.

In the order of this file: beats and the counts of a port; the logic of one lane; register, cycle, compressor,
decompressor, and their parts; the functions from arrays to arrays.

**A lane** uses only integers, shifts and comparisons, like gates. A float below 1 is read as a fixed-point fraction:
with e its exponent and 1.m its significand, |x| = 1.m >> (127 - e). A code is the first bits of this fraction behind
the point.
"""

from __future__ import annotations

import collections
import enum
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from netoffload.codec_specs import SPECS, TAGGED, CodecId
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.config import check_bound_k
from netoffload.errors import CodecError, UsageError
from netoffload.lab.declared import Finding

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
    """Why a port moved no beat in a cycle, and what that means."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Wait:
        """Make the member that its name stands for."""
        member = str.__new__(cls, name)
        member._value_, member.meaning = name, meaning
        return member

    SOURCE_IDLE = "source_idle", "in: the source has no beat"
    ALIGNMENT_FULL = "alignment_full", "in: a second beat waits to leave, because bursts became 272 bits"
    BUFFER_FULL = "buffer_full", "in: there is a whole burst to decompress, and no room for a beat behind it"
    INPUT_ENDED = "input_ended", "in: the stream has ended, and what is held leaves"
    COLLECTING = "collecting", "out: the alignment unit holds less than a beat"
    INCOMPLETE_BURST = "incomplete_burst", "out: the buffer holds no whole compressed burst"
    SINK_BUSY = "sink_busy", "in, out: the sink does not take the beat"


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


def beats_of(octets: bytes) -> Iterator[Beat]:
    """Cut a stream into beats; the last one may be short."""
    for first in range(0, len(octets), BEAT_OCTETS):
        part = octets[first : first + BEAT_OCTETS]
        yield Beat(int.from_bytes(part, "little"), len(part))


def octets_of(beats: Iterable[Beat]) -> bytes:
    """Return the stream that was cut into beats."""
    return b"".join(beat.bits.to_bytes(beat.octets, "little") for beat in beats)


CODE_BITS: Final = (0, 8, 16, 32)
"""Bits of a code by its tag."""

MANTISSA_BITS: Final = 23
BIAS: Final = 127
"""Biased exponent of 1.0; floats from there on travel whole."""


class Coded(NamedTuple):
    """A lane's tag, 0..3, and its code of ``CODE_BITS[tag]`` bits."""

    tag: int
    code: int


def _fields(word: int) -> tuple[int, int, int]:
    """Return the sign, the exponent, and the significand with its hidden bit (24 bits)."""
    return word >> 31, word >> MANTISSA_BITS & 0xFF, 1 << MANTISSA_BITS | word & 0x7FFFFF


def compress_inceptionn(word: int, bound_k: int) -> Coded:
    """Algorithm 2: the exponent chooses the form, and the bits that do not fit into the form are cut off."""
    sign, exponent, significand = _fields(word)
    distance = BIAS - exponent  # from the binary point to the leading 1
    if distance <= 0:
        return Coded(3, word)
    if distance > bound_k:
        return Coded(0, 0)
    fraction = significand >> distance  # 23 bits; the first weighs 1/2
    if distance <= bound_k // 2:
        return Coded(2, sign << 15 | fraction >> 8)
    return Coded(1, sign << 7 | fraction >> 16)


def compress_bounded(word: int, bound_k: int) -> Coded:
    """``bounded``: round to the unit of each form, and take the smallest form whose range holds the result.

    It needs two more adders than Algorithm 2. ``netoffload.codec.scalar.bounded_limits`` explains the ranges.
    """
    sign, exponent, significand = _fields(word)
    distance = BIAS - exponent
    if distance <= 0:
        return Coded(3, word)
    in_units8 = _rounded(significand, MANTISSA_BITS + distance - (bound_k - 1))
    in_units16 = _rounded(significand, MANTISSA_BITS + distance - 15)
    if in_units8 == 0:
        return Coded(0, 0)
    if in_units8 <= min(127, (1 << (bound_k - 1)) - 1):
        return Coded(1, sign << 7 | in_units8)
    if (16385 if bound_k == 1 else 1) <= in_units16 <= 32767:
        return Coded(2, sign << 15 | in_units16)
    return Coded(3, word)


def _rounded(significand: int, shift: int) -> int:
    """Return ``significand >> shift`` (shift > 0), rounded to nearest, ties to even."""
    odd = significand >> shift & 1
    return (significand + (1 << (shift - 1)) - 1 + odd) >> shift


def decompress_lane(coded: Coded, places8: int) -> int:
    """Algorithm 3: find the leading 1, which gives the exponent, and move it to the hidden bit.

    The last bit of the 8-bit form weighs 2**-places8; only this differs between the two codecs. A magnitude of 0, which
    the algorithm leaves open, becomes +0.
    """
    tag, code = coded
    if tag == 3:
        return code
    bits, places = (15, 15) if tag == 2 else (7, places8)
    magnitude = code & ((1 << bits) - 1)
    if tag == 0 or magnitude == 0:
        return 0
    length = magnitude.bit_length()  # a leading-one detector
    mantissa = magnitude << (MANTISSA_BITS + 1 - length) & 0x7FFFFF
    return code >> bits << 31 | (BIAS - 1 + length - places) << MANTISSA_BITS | mantissa


class Blocks(NamedTuple):
    """The logic of one lane for a fixed error bound."""

    compress: Callable[[int], Coded]
    decompress: Callable[[Coded], int]


_COMPRESS: Final = {CodecId.INCEPTIONN: compress_inceptionn, CodecId.BOUNDED: compress_bounded}

MODELLED: Final = {SPECS[codec_id].name: codec_id for codec_id in _COMPRESS}
"""The codecs that are modelled: those with tags that have a compression block in this file."""


def blocks_of(codec: str, bound_k: int) -> Blocks:
    """Return the blocks of a codec."""
    check_bound_k(bound_k)
    if codec not in MODELLED:
        raise UsageError(f"codec {codec!r} has no burst engine: choose from {', '.join(MODELLED)}")
    codec_id = MODELLED[codec]
    places, places_per_k = TAGGED[codec_id].places8
    places8 = places + places_per_k * bound_k
    return Blocks(
        functools.partial(_COMPRESS[codec_id], bound_k=bound_k), functools.partial(decompress_lane, places8=places8)
    )


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


@dataclass(frozen=True)
class Shifter(Finding):
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
    longest_bits: ClassVar[int]
    """The most that a beat can add to the register."""
    circuit: ClassVar[Circuit]
    when_full: ClassVar[Wait]
    when_short: ClassVar[Wait]

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.intake = Port()
        self.outlet = Port()
        self.held = Vector(0, 0)

    @abstractmethod
    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return the beat that could leave and how many bits of ``held`` it uses; None if too few are held."""

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
            self.held = self.held.without(used)
            self.outlet.moved(out)

        if offered is None:
            self.intake.waited(Wait.INPUT_ENDED if has_ended else Wait.SOURCE_IDLE)
            return False, out
        if self.held.length + self.longest_bits > self.capacity_bits:
            self.intake.waited(self.when_full if is_sink_ready else Wait.SINK_BUSY)
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
    longest_bits = LONGEST_VECTOR_BITS
    when_full, when_short = Wait.ALIGNMENT_FULL, Wait.COLLECTING

    def enter(self, beat: Beat) -> None:
        """Append the tags and the aligned codes of eight floats: 16..272 bits."""
        coded = [self.blocks.compress(beat.bits >> FLOAT_BITS * lane & 0xFFFFFFFF) for lane in range(LANES)]
        tags = sum(tag << TAG_BITS * lane for lane, (tag, _) in enumerate(coded))
        codes = joined([Vector(code, CODE_BITS[tag]) for tag, code in coded])
        self.held = self.held.then(Vector(tags, TAGS_BITS)).then(codes)

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return 256 bits, or the rest once the input has ended."""
        first = self.held.first(BEAT_BITS)
        if first.length == BEAT_BITS or (has_ended and first.length):
            return Beat(first.bits, first.length // 8), first.length
        return None


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
    longest_bits = BEAT_BITS
    when_full, when_short = Wait.BUFFER_FULL, Wait.INCOMPLETE_BURST

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


def clocked(engine: Engine, beats: Iterable[Beat], valid: Timing = always, ready: Timing = always) -> list[Beat]:
    """Clock an engine until the last beat has left it; return the beats that left.

    ``valid`` and ``ready`` must become true again and again.
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


def compress(
    values: Float32Array, codec: str, bound_k: int, valid: Timing = always, ready: Timing = always
) -> tuple[Uint8Array, Engine]:
    """Send floats through a compressor.

    Args:
        values: float32[n]; the last burst is filled up with 0.0, which takes no bits.
        valid: the cycles in which the source has a beat.
        ready: the cycles in which the sink takes a beat.
    """
    engine = Compressor(blocks_of(codec, bound_k))
    octets = values.astype("<f4").tobytes()
    beats = clocked(engine, beats_of(octets + bytes(-len(octets) % BEAT_OCTETS)), valid, ready)
    return np.frombuffer(octets_of(beats), np.uint8), engine


def decompress(
    payload: Uint8Array, count: int, codec: str, bound_k: int, valid: Timing = always, ready: Timing = always
) -> tuple[Float32Array, Engine]:
    """Send a payload of ``count`` floats through a decompressor; the counterpart of :func:`compress`."""
    engine = Decompressor(blocks_of(codec, bound_k))
    beats = clocked(engine, beats_of(payload.tobytes()), valid, ready)
    if len(beats) != -(-count // LANES):
        raise CodecError(f"payload of {payload.size} octets holds {len(beats)} bursts, not {count} floats")
    return np.frombuffer(octets_of(beats), "<f4").astype(np.float32)[:count], engine
