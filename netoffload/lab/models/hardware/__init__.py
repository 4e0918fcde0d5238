"""The codecs as hardware: the compressor and decompressor of INCEPTIONN's NIC, and those of groups, cycle by cycle.

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

**Groups.** The masked codec (``netoffload.codec``) sends first which of 64 floats are not 0, then their codes, then the
escapes. The masks are complete only after the last burst, so a compressor collects a group while the one before it
leaves::

    beat     x7 .. x0 ──► eight compression blocks ──► 8 tags, 8 codes
                                     │
             ┌────────────┬──────────┴─┬──────────────┐
         lane mask    8 octets     8 x 16 bits    8 x 32 bits
             │        ┌───▼───┐    ┌───▼───┐      ┌───▼───┐    three trees: the lanes that have such a code,
             │        │squeeze│    │squeeze│      │squeeze│    side by side: 64, 128, 256 bits wide
             │        └───┬───┘    └───┬───┘      └───┬───┘
             │        ┌───▼───┐    ┌───▼───┐      ┌───▼───┐    three rotators of a word, 256 bits: to the octets
             │        │rotate │    │rotate │      │rotate │    behind what is there; 32, 16, 8 places
             │        └───┬───┘    └───┬───┘      └───┬───┘
          ┌──▼──┐     ┌───▼───┐    ┌───▼───┐      ┌───▼───┐    memories for two groups: one is filled, and one
          │72   │     │512    │    │1024   │      │2048   │    leaves
          └──┬──┘     └───┬───┘    └───┬───┘      └───┬───┘
             └────────────┴─────┬──────┴──────────────┘
                       a word of one memory per cycle
                    ┌───────────▼───────────┐
                    │ alignment unit, 504   │                  0..32 octets at one of 32 places
                    └───────────┬───────────┘
                                ▼                              256-bit beats, the last one shorter

The octets that a burst adds to a memory may lie across two words, so each octet of a word has a separate address.

The decompressor mirrors this. In each cycle a register of 504 bits delivers the masks or up to 32 octets of the next
part: masks say how many codes there are, and codes how many escapes. Once a group is complete, one of its bursts leaves
per cycle: the rotators and trees run backwards, and each lane finds its code behind the codes of the lanes before it.
The block header says how many floats there are, and so where the last group ends.

A group enters in eight cycles. It leaves in one cycle for its masks and one for each word of a part: 1 + codes / 32 +
16-bit escapes / 16 + 32-bit escapes / 8, each rounded up. Up to eight words cost no time: one burst per cycle, even if
every float takes 16 bits. With more words the next group waits (``group_full``). If every float takes 32 bits there are
eleven words, 18.6 Gb/s; if one of the group's floats takes 16 bits there are twelve, 17.1 Gb/s. The decompressor
stalls as often (``incomplete_group``).

``circuit`` says what each form costs. Groups need memories of 7312 bits, and bursts none; the compressor of groups has
half as many multiplexers again. The decompressor of groups has somewhat fewer: rotators bring the codes of a burst to
one place, and trees spread them. The decompressor of bursts selects each lane's code separately, the last one from 29
places.

In every cycle each port moves a beat or waits for exactly one reason (:class:`Wait`). Packet headers are not modelled;
one gradient is one stream.

Files: ``ports``, beats and the counts of a port; ``blocks``, the logic of one lane; ``engines``, register, cycle,
compressor, decompressor; ``groups``, the engines of the masked codec; ``circuit``, the parts of an engine. This file
has the functions from arrays to arrays.
"""

from __future__ import annotations

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CodecError
from netoffload.lab.models.hardware.blocks import MODELLED, blocks_of, has_groups
from netoffload.lab.models.hardware.circuit import Circuit, Shifter
from netoffload.lab.models.hardware.engines import LANES, Compressor, Decompressor, Engine, clocked
from netoffload.lab.models.hardware.groups import GroupCompressor, GroupDecompressor
from netoffload.lab.models.hardware.ports import (
    BEAT_OCTETS,
    MEANING,
    Beat,
    Port,
    Timing,
    Wait,
    always,
    beats_of,
    octets_of,
    paced,
)

__all__ = [
    "LANES",
    "MEANING",
    "MODELLED",
    "Beat",
    "Circuit",
    "Compressor",
    "Decompressor",
    "Engine",
    "GroupCompressor",
    "GroupDecompressor",
    "Port",
    "Shifter",
    "Timing",
    "Wait",
    "always",
    "compress",
    "decompress",
    "has_groups",
    "paced",
]


def compress(
    values: Float32Array, codec: str, bound_k: int, valid: Timing = always, ready: Timing = always
) -> tuple[Uint8Array, Engine]:
    """Send floats through a compressor.

    Args:
        values: float32[n]; the last burst is filled up with 0.0, which takes no bits.
        codec: one of :data:`MODELLED`.
        bound_k: the error bound is 2**-bound_k, 1..16.
        valid: the cycles in which the source has a beat.
        ready: the cycles in which the sink takes a beat.

    Returns:
        The payload, equal to the codec's, and the engine with its counts.

    Raises:
        UsageError: no such codec in hardware, or a bound outside 1..16.
    """
    blocks = blocks_of(codec, bound_k)
    engine = GroupCompressor(blocks) if has_groups(codec) else Compressor(blocks)
    octets = values.astype("<f4").tobytes()
    beats = clocked(engine, beats_of(octets + bytes(-len(octets) % BEAT_OCTETS)), valid, ready)
    return np.frombuffer(octets_of(beats), np.uint8), engine


def decompress(
    payload: Uint8Array, count: int, codec: str, bound_k: int, valid: Timing = always, ready: Timing = always
) -> tuple[Float32Array, Engine]:
    """Send a payload of ``count`` floats through a decompressor; the counterpart of :func:`compress`.

    Raises:
        UsageError: no such codec in hardware, or a bound outside 1..16.
        CodecError: the payload does not hold ``count`` floats, or no encoder makes such a payload.
    """
    blocks = blocks_of(codec, bound_k)
    engine = GroupDecompressor(blocks, count) if has_groups(codec) else Decompressor(blocks)
    beats = clocked(engine, beats_of(payload.tobytes()), valid, ready)
    if len(beats) != -(-count // LANES):
        raise CodecError(f"payload of {payload.size} octets holds {len(beats)} bursts, not {count} floats")
    return np.frombuffer(octets_of(beats), "<f4").astype(np.float32)[:count], engine
