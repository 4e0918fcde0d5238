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

``packed`` has the values of ``bounded``, to the bit, in groups of 64 floats that share the width of their widest code.
``exact`` gives back every bit, of float32 and of bf16, in groups of 64 values. docs/design/codecs.md has the octets of
both, and the rules for what a decoder refuses. A payload of either can be cut after any group, and its last group may
be shorter. Where a block header says where the middle is, each half is a complete payload.

``truncate16/22/24`` and ``none`` have no tags: every float takes 16, 10, 8 or 32 bits.

``netoffload.codec_specs`` lists the codecs, and says what a new one needs.

Files: ``reference``, the slow oracle, which is the specification. One body per form: ``tagged``, ``packed``, ``exact``,
and ``fixed`` for codecs without tags. The first three are written once over primitives that instruction sets implement:
``plain`` for any CPU, ``avx2`` and ``avx512``. They share the vector arithmetic of ``vectors`` and the limits of
``scalar``. ``interpreted`` has the primitives in plain Python. ``kernels`` puts bodies and primitives together and
chooses. ``bursts`` is the contract of all kernels, ``base`` the interface for whole arrays; the registry is here.

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
