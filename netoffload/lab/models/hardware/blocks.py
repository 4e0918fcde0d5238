"""One lane: the compression block from a float to its tag and code, the decompression block back.

It uses only integers, shifts and comparisons, like gates. A float below 1 is read as a fixed-point fraction: with e its
exponent and 1.m its significand, |x| = 1.m >> (127 - e). A code is the first bits of this fraction behind the point.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from netoffload.codec_specs import SPECS, TAGGED, CodecId
from netoffload.config import check_bound_k
from netoffload.errors import UsageError

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


def decompress(coded: Coded, places8: int) -> int:
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


@dataclass(frozen=True)
class Blocks:
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
        functools.partial(_COMPRESS[codec_id], bound_k=bound_k), functools.partial(decompress, places8=places8)
    )
