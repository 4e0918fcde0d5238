"""Arrays <-> payload: the arithmetic of the burst engine.

Eight floats are one 256-bit burst. A burst becomes its 16-bit tag word (eight 2-bit tags, lane 0 in the low bits) and
then the octets of its lanes, little-endian: tag 0, 1, 2, 3 -> 0, 1, 2, 4 octets. A burst is whole octets and does not
depend on other bursts, and a float's code depends on that float alone. So a payload can be cut after any burst, and TCP
may send a stream again in other segments without changing its floats.

::

    8 floats   x0 x1 x2 x3 x4 x5 x6 x7          32 octets
    tags       0  1  0  0  2  0  0  3           2 octets: 0b11_00_00_10_00_00_01_00
    payload    tags | x1 1 | x4 2 | x7 4        9 octets

``inceptionn`` (Algorithms 2 and 3, error bound 2^-k), per float, n = 127 - exponent:

====================  =====  ==========================================================
|x|                   tag    code
====================  =====  ==========================================================
>= 1, inf, NaN        3      the 32 bits as they are
>= 2^-(k//2)          2      sign and 15 bits of |x| as a fixed-point fraction, cut off
>= 2^-k               1      sign and 7 bits, cut off
less                  0      nothing; decodes to +0 (so do -0.0 and subnormals)
====================  =====  ==========================================================

The paper's algorithm has a known defect, which is kept: the last of the 7 bits weighs 2^-7. So for k > 7 the error of
the 8-bit form reaches 2^-7, more than the bound 2^-k, and values below 2^-7 decode to 0. Decoding is idempotent on
values, as the ring collectives need: round_trip(round_trip(x)) == round_trip(x).

``bounded`` has the same bursts and keeps its bound. The 8-bit form counts units of 2^(1-k), the 16-bit form units of
2^-15, both rounded to nearest even. A float that would round to a value of another form takes the next larger form.

``packed`` has the values of ``bounded``, to the bit, in groups of 64 floats. A float that is 0 costs at most an eighth
of an octet, where ``bounded`` needs a quarter. Most codes of a gradient are small, so a group states the width of its
widest code, and all its codes have this width. Up to 256 groups of zeros take two octets::

    burst mask   1 octet, a bit per 8 floats: any of them not 0; at least one is
    lane masks   1 octet per burst with a bit in the burst mask, a bit per float
    width        3 bits: how many bits a field has, less 1
    fields       1 to 8 bits per float that is not 0: 2 * (magnitude - 1) + sign of its 8-bit form, or 255 or 254 for an
                 escape to 16 or 32 bits; then zeros up to a whole octet. Fields of 8 bits begin at the next octet
    escapes      the 16-bit forms, 2 octets each, then the 32-bit forms, 4 octets each

    64 floats, all 0 but x9 = +2, x12 = -1 and x13 = +1 units: fields 2, 1 and 0 of 2 bits, width 2
    payload    0x02 0x32 | 0b00_01_10_001 in 2 octets, 0x31 0x00                  4 octets

    1000 floats, all 0
    payload    0x00 0x0f                                                           2 octets

A payload can be cut after any group, and its last group may be shorter. Where a block header says where the middle is,
each half is a complete payload. Given floats have exactly one payload: the width is the least, a run is as long as
possible, and unused bits are 0. A decoder refuses any other payload, but takes fields of 1.0 and more, which bounds
below 8 leave room for, and no encoder makes.

``exact`` gives back every bit, of float32 and of bf16, in groups of 64 values::

    head         1 octet: kind << 6 | type << 4 | there is a mask << 3 | width
                 kind 0: all values are 0. 1: the values follow as they are. 2: what follows here
                 type 0: float32. 1: float32 whose low 16 bits are 0. 2: bf16, two in a float's place
    exponent     1 octet: the largest
    mask         a bit per value: is a bit of it set? Without a mask, no value is 0
    planes       per bit of the width, 0 to 6: a bit per value that is not 0, of the distance of its exponent below the
                 largest; up to a whole octet
    escapes      1 octet per distance of all ones: the exponent
    rests        3 octets per value that is not 0: mantissa << 1 | sign; 1 octet for types 1 and 2

    float32 1, -1.5, 0, 0.5, 2^-60
    payload    0x99 0x7f | 0x1b | 0x0c | 0x7e 0x43 | 0x00 0x81 0x00 0x00         10 octets

The width makes planes and escapes shortest, the least of several such; it is 0 only if all distances are. A group that
would be longer than its values and the head has kind 1. Every 4096 words the encoder looks whether 64 of them are
shorter as bf16. A decoder takes any width, and refuses heads that are not listed and a mask without a bit.

``truncate16/22/24`` and ``none`` have no tags: every float takes 16, 10, 8 or 32 bits.

``netoffload.codec_specs`` lists the codecs, and says what a new one needs.

Files: ``reference``, the slow oracle, which is the specification. One body per form: ``tagged``, ``packed``, ``exact``,
and ``fixed`` for codecs without tags. The first three are written once over primitives that instruction sets implement:
``plain`` for any CPU, ``avx2`` and ``avx512``. They share the vector arithmetic of ``vectors``, the limits of
``scalar``, and ``escapes``. ``interpreted`` has the primitives in plain Python. ``kernels`` puts bodies and primitives
together and chooses. ``bursts`` is the contract of all kernels, ``base`` the interface for whole arrays; the registry
is here.

Checks: ``verify`` sends drawn floats through kernels and oracle; ``tests/fuzz`` sends every float32, and payloads into
the decoder at the edge of memory. ``netoffload.lab.bench`` measures speed, ratio and error. ``netoffload.compiled``
sets up Numba.
"""

from types import MappingProxyType
from typing import Final

from netoffload.codec import reference
from netoffload.codec.base import Codec
from netoffload.codec.reference import Oracle
from netoffload.codec_specs import NAMES, CodecId
from netoffload.config import check_choice

__all__ = ["CODECS", "Codec", "CodecId", "Oracle", "by_id", "get"]

CODECS: Final = MappingProxyType({codec_id: Codec(codec_id, reference.oracle_of(codec_id)) for codec_id in CodecId})
"""Every codec by its id."""


def get(name: str) -> Codec:
    """Return the codec with a name, or raise :class:`~netoffload.errors.UsageError`."""
    return CODECS[CodecId[check_choice("codec", name, NAMES).upper()]]


def by_id(codec_id: int) -> Codec | None:
    """Return the codec with a block header's id, or None if this version does not know it."""
    return CODECS[CodecId(codec_id)] if codec_id in CODECS else None
