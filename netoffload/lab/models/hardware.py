"""The codecs as hardware: the compressor and decompressor of INCEPTIONN's NIC, cycle by cycle.

This is a text to read and a model to measure with, not a part of the data path. Time depends on the lengths of bursts
alone, which are those of the codec's oracle (``netoffload.codec.reference``, Algorithms 2 and 3).

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
the output: the beat that the register holds leaves. Then the input: a beat enters if the *most* that a beat can add
still fits: 272 bits in the compressor, 256 in the decompressor. So "ready" depends on the register's fill, never on the
data, as a circuit needs it. Source and sink never wait. Pipelining the logic would add a few cycles per stream; the
model leaves them out.

Both registers have 520 bits. The paper describes a burst buffer of two beats, 512 bits, that reads when less than one
beat is left. But a vector of 272 bits can lie across *three* beats (1 + 32 + 1 octets): such a buffer would then stop
for ever with 264 bits held. One octet more is the least size that cannot stop; ``tests/lab/models`` shows both.

**What limits the rate.** While bursts become 256 bits or less, the uncompressed side does: one burst per cycle,
25.6 Gb/s at 100 MHz, *however well they compress*. A burst in which nothing can be compressed becomes 272 bits, 16 more
than a beat. After sixteen such bursts the compressor must refuse one for a cycle (``alignment_full``), and the
decompressor lacks data for a cycle (``incomplete_burst``): 16 bursts in 17 cycles, 24.1 Gb/s. Mixed bursts can be
slower, because a register of about two beats evens out little. Bursts of 272, 224, 272 bits in turn, a beat on average,
stall both engines in every fourth cycle. A third beat would end that.

In every cycle each port moves a beat or waits for exactly one reason (:class:`Wait`). Packet headers are not modelled;
one gradient is one stream.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from netoffload.codec import get
from netoffload.codec_specs import SPECS, TAGGED
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_bound_k
from netoffload.errors import UsageError
from netoffload.lab.declared import Finding

BEAT_BITS: Final = 256  # bits that an AXI stream of the paper's NIC moves in one cycle (INCEPTIONN, VI-A)

FLOAT_BITS: Final = 32
LANES: Final = BEAT_BITS // FLOAT_BITS
TAGS_BITS: Final = 2 * LANES
CODE_BITS: Final = np.array((0, 8, 16, 32))  # bits of a code by its tag
LONGEST_VECTOR_BITS: Final = TAGS_BITS + BEAT_BITS

REGISTER_BITS: Final = BEAT_BITS + LONGEST_VECTOR_BITS - 8
"""520, the least size that cannot hang; lengths are whole octets. The compressor may hold all but an octet of a beat
when the longest vector arrives. The decompressor may hold all but an octet of the longest vector when it needs a beat.
"""

MODELLED: Final = tuple(SPECS[codec_id].name for codec_id in TAGGED)  # the codecs whose bursts have tags


class Beat(NamedTuple):
    """What crosses a port in one cycle: valid octets (AXI's TKEEP), and the bits that it means in the register."""

    octets: int
    bits: int


class Wait(enum.StrEnum):
    """Why a port moved no beat in a cycle, and what that means."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Wait:
        """Make the member that its name stands for."""
        member = str.__new__(cls, name)
        member._value_, member.meaning = name, meaning
        return member

    ALIGNMENT_FULL = "alignment_full", "in: a second beat waits to leave, because bursts became 272 bits"
    BUFFER_FULL = "buffer_full", "in: there is a whole burst to decompress, and no room for a beat behind it"
    INPUT_ENDED = "input_ended", "in: the stream has ended, and what is held leaves"
    COLLECTING = "collecting", "out: the alignment unit holds less than a beat"
    INCOMPLETE_BURST = "incomplete_burst", "out: the buffer holds no whole compressed burst"


@dataclass
class Port:
    """One side of an engine: the beats of a stream, how many have crossed, and the cycles in which none did."""

    stream: Sequence[Beat]
    beats: int = 0
    waits: collections.Counter[Wait] = field(default_factory=collections.Counter)

    @property
    def next(self) -> Beat | None:
        """The beat that crosses next; None: all have."""
        return self.stream[self.beats] if self.beats < len(self.stream) else None

    @property
    def octets(self) -> int:
        """Octets that have crossed."""
        return sum(beat.octets for beat in self.stream[: self.beats])

    @property
    def cycles(self) -> int:
        """All cycles that this port has seen."""
        return self.beats + self.waits.total()

    def rate_bps(self, clock_hz: float) -> float:
        """Return the bits per second that crossed at this clock; 0 before the first cycle."""
        return 8 * self.octets * clock_hz / self.cycles if self.cycles else 0.0


def bursts_of(values: Float32Array, codec: str, bound_k: int) -> list[Beat]:
    """Return the beats of float32[n], with the bits of their vectors; the last burst is filled up with 0.0."""
    check_bound_k(bound_k)
    if codec not in MODELLED:
        raise UsageError(f"codec {codec!r} has no burst engine: choose from {', '.join(MODELLED)}")
    compress = get(codec).oracle.compress
    assert compress is not None
    tags, _codes = compress(values, bound_k)
    lanes = CODE_BITS[np.pad(tags, (0, -tags.size % LANES))].reshape(-1, LANES)
    return [Beat(BEAT_BITS // 8, TAGS_BITS + int(bits)) for bits in lanes.sum(1)]


def packed(bursts: Sequence[Beat]) -> list[Beat]:
    """Return the beats of the compressed stream, of which only the last one may be short."""
    whole, rest = divmod(sum(burst.bits for burst in bursts), BEAT_BITS)
    return [Beat(bits // 8, bits) for bits in (*(BEAT_BITS,) * whole, rest) if bits]


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


@dataclass(frozen=True)
class Circuit:
    """What an engine is made of, without the blocks of its lanes; shifters fill or empty its register at any octet."""

    longest_bits: int  # the most that a beat can add to the register
    when_full: Wait
    when_short: Wait
    shifters: tuple[Shifter, ...]
    register_bits: int = REGISTER_BITS

    @property
    def width_bits(self) -> int:
        """Bits that all shifters can move in a cycle."""
        return sum(shifter.width_bits for shifter in self.shifters)

    @property
    def multiplexers(self) -> int:
        """Multiplexers of one bit in all shifters."""
        return sum(shifter.multiplexers for shifter in self.shifters)


COMPRESSOR: Final = Circuit(
    LONGEST_VECTOR_BITS,
    *(Wait.ALIGNMENT_FULL, Wait.COLLECTING),
    (
        # Three levels move the codes of eight lanes together, by octets.
        *(Shifter(f"codes, {lanes} lanes", lanes * FLOAT_BITS, lanes * 2 + 1, LANES // lanes) for lanes in (2, 4, 8)),
        Shifter("alignment", REGISTER_BITS, 1 + (REGISTER_BITS - LONGEST_VECTOR_BITS) // 8),
    ),
)
"""Fig. 9: blocks and shifter tree at the input; the register is the alignment unit."""

DECOMPRESSOR: Final = Circuit(
    BEAT_BITS,
    *(Wait.BUFFER_FULL, Wait.INCOMPLETE_BURST),
    (
        Shifter("beat in", REGISTER_BITS, 1 + (REGISTER_BITS - BEAT_BITS) // 8),
        Shifter("burst away", REGISTER_BITS, 1 + BEAT_BITS // 8),
        *(Shifter(f"code of lane {lane}", FLOAT_BITS * (lane + 1), 4 * lane + 1) for lane in range(LANES)),
    ),
)
"""Fig. 10: the register is the burst buffer; tag decoder and blocks are at its output."""


class Engine:
    """A circuit amid a stream: beats of its intake fill the register, beats of its outlet empty it."""

    def __init__(self, circuit: Circuit, intake: Sequence[Beat], outlet: Sequence[Beat]) -> None:
        self.circuit, self.intake, self.outlet = circuit, Port(intake), Port(outlet)
        self.held_bits = 0

    def cycle(self) -> None:
        """Let one clock cycle pass, in which the source has its next beat and the sink takes one."""
        leaving, entering, circuit = self.outlet.next, self.intake.next, self.circuit
        if leaving is None or self.held_bits < leaving.bits:
            self.outlet.waits[circuit.when_short] += 1
        else:
            self.held_bits -= leaving.bits
            self.outlet.beats += 1

        if entering is None:
            self.intake.waits[Wait.INPUT_ENDED] += 1
        elif self.held_bits + circuit.longest_bits > circuit.register_bits:
            self.intake.waits[circuit.when_full] += 1
        else:
            self.held_bits += entering.bits
            self.intake.beats += 1


def clocked(engine: Engine) -> Engine:
    """Clock an engine until the last beat has left it, and return it."""
    while engine.outlet.next is not None:
        engine.cycle()
    return engine


def compressor(bursts: Sequence[Beat], circuit: Circuit = COMPRESSOR) -> Engine:
    """Return the engine that compresses bursts."""
    return Engine(circuit, bursts, packed(bursts))


def decompressor(bursts: Sequence[Beat], circuit: Circuit = DECOMPRESSOR) -> Engine:
    """Return the engine that makes bursts of their compressed stream."""
    return Engine(circuit, packed(bursts), bursts)
