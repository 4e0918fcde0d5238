"""Arrays <-> payload: the arithmetic of the burst engine.

Eight floats are one 256-bit burst. A burst becomes its 16-bit tag word (eight 2-bit tags, lane 0 in the low bits) and
then the octets of its lanes, little-endian: tag 0, 1, 2, 3 -> 0, 1, 2, 4 octets. Everything is whole octets, nothing
refers to another burst, and a float's code depends on that float alone; so a payload can be cut after any burst, and a
segment that TCP sends again with other limits gives the same floats.

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

Its known defect is kept, because it is the paper's: the last of the 7 bits weighs 2^-7, so for k > 7 the 8-bit form's
error reaches 2^-7, more than the bound 2^-k, and values below 2^-7 decode to 0. Decoding is idempotent on values:
round_trip(round_trip(x)) == round_trip(x); the ring exchange relies on it.

``bounded`` has the same bursts and keeps its word: the 8-bit form counts units of 2^(1-k), the 16-bit form of 2^-15,
both rounded to nearest even; what would round to a value of another form takes the next larger one.
``sparse`` has the values of ``bounded``, to the bit, in groups of 64 floats. Where most floats are 0, its payload is
less than half as long: a float that is 0 costs an eighth of an octet at most, not a quarter::

    burst mask   1 octet, a bit per 8 floats: any of them not 0
    lane masks   1 octet per burst that is there, a bit per float
    codes        1 octet per float that is not 0: its 8-bit form, or which escape it has
    escapes      the 16-bit forms, 2 octets each, then the 32-bit forms, 4 octets each

    64 floats, all 0 but x9 and x12 (8 bits) and x60 (16 bits):
    payload    0x82 | 0x12 0x10 | x9 x12 0x80 | x60 x60          8 octets

No float that is not 0 has the 8-bit form of -0 or +0. These two are the escapes: 0x80 to 16 bits, 0x00 to 32. A
payload can be cut after any group, and its last group may be shorter. Where a block says its middle, each half is a
payload of its own.

``packed`` has the same values once more, in the same groups. Most codes of a gradient are small, so a group says how
many bits the widest of its codes takes, and all of them take as many. Up to 256 groups of zeros are two octets::

    masks        those of ``sparse``; at least one float is not 0
    width        3 bits: how many bits a field has, less 1
    fields       1 to 8 bits per float that is not 0: 2 * (magnitude - 1) + sign of its 8-bit form, or 255 or 254 for an
                 escape to 16 or 32 bits; then zeros up to a whole octet. Fields of 8 bits begin at the next octet
    escapes      those of ``sparse``

    64 floats, all 0 but x9 = +2, x12 = -1 and x13 = +1 units: fields 2, 1 and 0 of 2 bits, width 2
    payload    0x02 0x32 | 0b00_01_10_001 in 2 octets, 0x31 0x00                  4 octets

    1000 floats, all 0
    payload    0x00 0x0f                                                           2 octets

There is one payload for given floats: the width is the least, a run is as long as it can be, and what fills up an octet
is 0. A decoder refuses anything else.

``truncate16/22/24`` and ``none`` have no tags: every float takes 16, 10, 8 or 32 bits.

Which codecs there are, and what a new one needs, is in ``netoffload.codec_specs``.

Files: ``reference`` the slow oracle, which is the specification; ``kernels`` which compiled loops are in use: those of
``plain``, ``avx2`` or ``avx512`` (the latter two share ``vectors`` and ``avx2_decode``; ``shuffles`` has AVX2's
tables), for ``sparse`` those of ``groups``, ``groups_avx2`` or ``groups_avx512``, for ``packed`` those of ``packed``,
``packed_avx2`` or ``packed_avx512`` (``escapes`` is shared by all of these), and ``fixed`` for codecs without tags; ``bursts`` their contract; ``octets`` unaligned loads and stores; ``jit`` Numba's set-up; ``cache`` where it keeps
kernels; ``base`` the whole-array interface; the registry is here.

Checks and figures: ``verify`` every float32 through kernels and oracle; ``fuzz`` payloads into the decoder at the edge
of memory (``guarded``); ``pool`` processes for both. ``netoffload.bench`` has speed, ratio and error.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from netoffload.codec import reference
from netoffload.codec.base import Codec
from netoffload.codec.reference import Oracle
from netoffload.codec_specs import NAMES, CodecId
from netoffload.errors import UsageError

__all__ = ["CODECS", "Codec", "CodecId", "Oracle", "by_id", "get"]

CODECS: Final = MappingProxyType({codec_id: Codec(codec_id, reference.oracle_of(codec_id)) for codec_id in CodecId})
"""Every codec by its id."""


def get(name: str) -> Codec:
    """Return the codec a user calls ``name``.

    Raises:
        UsageError: no such codec.
    """
    for codec in CODECS.values():
        if codec.name == name:
            return codec
    raise UsageError(f"codec {name!r} is unknown: choose from {', '.join(NAMES)}")


def by_id(codec_id: int) -> Codec | None:
    """Return the codec of a block header, or None where this version does not know it."""
    return CODECS[CodecId(codec_id)] if codec_id in CODECS else None
