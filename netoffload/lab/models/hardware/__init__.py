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

Files: ``ports``, beats and the counts of a port; ``blocks``, the logic of one lane; ``engines``, register, cycle,
compressor, decompressor, and their parts. This file has the functions from arrays to arrays.
"""

from __future__ import annotations

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CodecError
from netoffload.lab.models.hardware.blocks import MODELLED, blocks_of
from netoffload.lab.models.hardware.engines import LANES, Circuit, Compressor, Decompressor, Engine, Shifter, clocked
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
    "Port",
    "Shifter",
    "Timing",
    "Wait",
    "always",
    "compress",
    "decompress",
    "paced",
]


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
