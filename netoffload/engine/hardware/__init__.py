"""The codecs as hardware: the compressor and decompressor of INCEPTIONN's NIC, and those of groups, cycle by cycle.

This is a text to read and a model to measure with, not a part of the data path: what the NIC process runs is
``netoffload.codec``. Both make the same octets; ``tests/engine`` compares every one. Bits are Python integers, bit 0
first on the stream, so that what is drawn here is what the code says.

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

**Decompressor** (Fig. 10). The vectors lie across the beats as they fall::

                       ┌───────────────────────┐
            beats ────►│     burst buffer      │                 a vector may begin in one beat and end in another
                       └─────┬─────────┬───────┘
                     16 bits │         │ 0..256 bits
                       ┌─────▼─────┐ ┌─▼───────────────────────────┐
                       │tag decoder├─► DB  DB  DB  DB  DB DB DB DB │ the tags say where every lane begins
                       └─────┬─────┘ └─┬───────────────────────────┘
                  bits to shift away   ▼                         eight floats, one beat

**Timing.** Both of these engines are one register with logic before or behind it, and each cycle has two halves. First
the output: the beat that the register holds leaves if the sink takes it. Then the input: a beat enters if, after that,
the *most* that a beat can add would still fit: 272 bits in the compressor, 256 in the decompressor. So "ready" hangs on
the register's fill and on the sink, never on the data, as a circuit wants it. Pipelining the logic would add some
cycles to a stream, once; the model leaves them out.

Both registers have 520 bits. The paper describes a burst buffer of two beats, 512, that reads when fewer bits than one
beat are left; but a vector of 272 bits can lie across *three* beats (1 + 32 + 1 octets), and in front of it such a
buffer would stop for ever with 264 bits held. One octet more is the least that cannot; ``tests/engine`` shows both.

**What limits it.** While bursts become 256 bits or less it is the side of the floats: one burst per cycle, 25.6 Gb/s at
100 MHz, *however well they compress*. A burst in which nothing can be compressed becomes 272 bits, 16 more than a
beat; after sixteen of them the compressor must refuse one for a cycle (``alignment_full``) and the decompressor comes
up short for a cycle (``incomplete_burst``): 16 bursts in 17 cycles, 24.1 Gb/s. Mixed bursts can do worse, because a
register of about two beats evens out little: 272, 224, 272 bits in turn are a beat on average, and stall both engines
in every fourth cycle. A third beat would end that.

**Groups.** The masked codec (``netoffload.codec``) says first which of 64 floats are not 0, then their codes, then the
escapes. Nobody knows the masks before the last burst, so a compressor collects a group while the one before it leaves::

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

What a burst adds to a memory may lie across two words, so each octet of a word has an address of its own.

The decompressor mirrors this. A register of 504 bits gives off, in a cycle, the masks or up to 32 octets of the part
that comes next: masks say how many codes there are, and codes how many escapes. Once a group is whole, a burst of it
leaves per cycle: the rotators and trees run backwards, and each lane finds its code behind those of the lanes before
it. The block header says how many floats there are, and so where the last group ends.

A group enters in eight cycles and leaves in one for its masks and one per word that a part begins: 1 + codes / 32 +
16 bits / 16 + 32 bits / 8, each rounded up. Up to eight words that costs nothing: a burst per cycle, also where every
float takes 16 bits. Beyond, the next group waits (``group_full``): eleven words, 18.6 Gb/s, if every float takes 32
bits, and twelve, 17.1 Gb/s, if one in the group takes 16. The decompressor stalls equally (``incomplete_group``).

What a form costs is in ``circuit``. The memories have 7312 bits, where bursts need none, and the compressor has half as
many multiplexers again. The decompressor has somewhat fewer: rotators bring the codes of a burst to one place, and
trees spread them. That of bursts selects every lane's code by itself, the last one from 29 places.

Every cycle of every port is accounted for: it moved a beat or waited for one reason (:class:`Wait`).
Packet headers are not modelled; one gradient is one stream.

Files: ``ports`` beats and what ports count; ``blocks`` the logic of one lane; ``engines`` register, cycle, compressor,
decompressor; ``groups`` those of the masked codec; ``circuit`` what an engine is made of; the functions from arrays to
arrays are here.
"""

from __future__ import annotations

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.engine.hardware.blocks import MODELLED, blocks_of, has_groups
from netoffload.engine.hardware.circuit import Circuit, Shifter
from netoffload.engine.hardware.engines import LANES, Compressor, Decompressor, Engine, clocked
from netoffload.engine.hardware.groups import GroupCompressor, GroupDecompressor
from netoffload.engine.hardware.ports import (
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
from netoffload.errors import CodecError

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
        ready: the cycles in which the sink takes one.

    Returns:
        The payload, octet by octet the codec's, and the engine with its counts.

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
        CodecError: the payload does not hold ``count`` floats, or no encoder makes it.
    """
    blocks = blocks_of(codec, bound_k)
    engine = GroupDecompressor(blocks, count) if has_groups(codec) else Decompressor(blocks)
    beats = clocked(engine, beats_of(payload.tobytes()), valid, ready)
    if len(beats) != -(-count // LANES):
        raise CodecError(f"payload of {payload.size} octets holds {len(beats)} bursts, not {count} floats")
    return np.frombuffer(octets_of(beats), "<f4").astype(np.float32)[:count], engine
