"""The tagged codecs as compiled loops for any CPU, without a branch on the data.

``inceptionn`` and ``bounded`` differ in one function, from a float to its code and tag; the loop around it, and
decoding but for one weight, are shared. Limits that depend on the bound are worked out before the loop.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, count_classes, tags_len
from netoffload.codec.jit import inline_kernel, inlined_with, kernel
from netoffload.codec.octets import bits_float32, float32_bits, load_u16, load_u32, store_u16, store_u32

UNIT16: Final = np.float32(2.0**-15)
"""What the last of the 15 magnitude bits of the 16-bit form weighs, in both codecs."""

ROUNDER: Final = np.float32(2.0**23)
"""Adding it to a float below 2**22 rounds that to a whole number, ties to even, which stands in the low mantissa
bits."""

ROUNDER_BITS: Final = 0x4B000000

ALL_OF_16: Final = 32767


@inline_kernel
def inceptionn_limits(bound_k: Any) -> Any:
    """Return the largest shifts of the 8-bit and the 16-bit form (Algorithm 2)."""
    return bound_k, bound_k >> 1


@inline_kernel
def inceptionn_lane(word: Any, limits: Any) -> Any:
    """Return ``code << 2 | tag`` of one float32's bits (Algorithm 2).

    With the unbiased exponent -n, the tag is how many of three thresholds n does not exceed, which is the algorithm's
    comparison with e turned around. The three candidate codes are masked together: a branch on the class would be
    mispredicted on mixed data.
    """
    n_shift = 127 - ((word >> 23) & 0xFF)
    in8 = int(n_shift <= limits[0])
    in16 = int(n_shift <= limits[1])
    in32 = int(n_shift <= 0)
    shifted = ((word & 0x7FFFFF) | 0x800000) >> (n_shift & 31)  # wrong from 32 on, where nothing is kept
    sign = word >> 31
    code = (sign << 7 | shifted >> 16) & -(in8 - in16)
    code |= (sign << 15 | shifted >> 8) & -(in16 - in32)
    code |= word & -in32
    return code << 2 | (in8 + in16 + in32)


@inline_kernel
def bounded_limits(bound_k: Any) -> Any:
    """Return (largest 8-bit magnitude, smallest 16-bit magnitude, factor from a float to the 8-bit magnitude).

    The 8-bit magnitude ends below 1, where floats travel whole. At k = 1 the value 1/2 belongs to class 0, so what
    would round to it in the 16-bit form moves on; for every other k the forms' windows meet.
    """
    largest8 = min(127, (1 << (bound_k - 1)) - 1)
    smallest16 = 16385 if bound_k == 1 else 1
    return largest8, smallest16, np.float32(1 << (bound_k - 1))


@inline_kernel
def bounded_unit8(bound_k: Any) -> Any:
    """Return what the last bit of the 8-bit form weighs, over 256: 2**(1 - k - 8)."""
    return np.float32(1.0) / np.float32(1 << (bound_k + 7))


@inline_kernel
def bounded_lane(word: Any, limits: Any) -> Any:
    """Return ``code << 2 | tag`` of one float32's bits, rounded to nearest, ties to even."""
    is_small = int(((word >> 23) & 0xFF) < 127)
    magnitude = bits_float32(word & 0x7FFFFFFF & -is_small)
    nearest8 = float32_bits(magnitude * limits[2] + ROUNDER) - ROUNDER_BITS
    nearest16 = float32_bits(magnitude * np.float32(1 << 15) + ROUNDER) - ROUNDER_BITS
    over8 = int(nearest8 > limits[0])
    fits16 = int(nearest16 >= limits[1]) & int(nearest16 <= ALL_OF_16)
    in32 = (1 - is_small) | (over8 & (1 - fits16))
    in16 = over8 | in32
    in8 = int(nearest8 > 0) | in32
    sign = word >> 31
    code = (sign << 7 | nearest8) & -(in8 - in16)
    code |= (sign << 15 | nearest16) & -(in16 - in32)
    code |= word & -in32
    return code << 2 | (in8 + in16 + in32)


@inline_kernel
def decode_lane(code: Any, tag: Any, unit8: Any) -> Any:
    """Return the float32 bits of one code (Algorithm 3); ``code`` may have octets of the next lane above it.

    The 8-bit form is read as a 16-bit form without its low octet, and a magnitude is a fixed-point fraction: finding
    the leading one and moving it to the hidden bit is what converting an integer to a float does. The integer carries
    the sign, so a magnitude of 0, which the paper leaves open, becomes +0 for either sign.
    """
    in8 = int(tag == 1)
    in16 = int(tag == 2)
    in32 = int(tag == 3)
    fraction = (code << 8) & (-in8 & 0xFF00) | code & (-in16 & 0xFFFF)
    sign = fraction >> 15
    signed = ((fraction & 0x7FFF) ^ -sign) + sign
    unit = unit8 if tag == 1 else UNIT16
    small = float32_bits(np.float32(signed) * unit)
    return (code & (-in32 & 0xFFFFFFFF)) | (small & ~-in32)


@inlined_with
def _encode_fit(
    encode_lane: Any,
    limits: Any,
    source: Any,
    source_at: Any,
    count: Any,
    target: Any,
    target_at: Any,
    capacity: Any,
    classes: Any,
) -> Any:
    done = 0
    at = target_at
    end = target_at + capacity
    while done < count:
        lanes = min(LANES, count - done)
        first = source_at + 4 * done
        tags = 0
        cursor = at + TAGS_LEN
        for lane in range(lanes):
            coded = encode_lane(load_u32(source, first + 4 * lane), limits)
            tag = coded & 3
            store_u32(target, cursor, coded >> 2)
            cursor += tag + (tag & (tag >> 1))
            tags |= tag << (2 * lane)
        if cursor > end:
            break
        store_u16(target, at, tags)
        count_classes(tags, classes)
        classes[0] -= LANES - lanes
        at = cursor
        done += lanes
    return done, at - target_at


@kernel
def encode_inceptionn(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """``encode_fit`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = inceptionn_limits(bound_k)
    return _encode_fit(inceptionn_lane, limits, source, source_at, count, target, target_at, capacity, classes)


@kernel
def encode_bounded(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """``encode_fit`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = bounded_limits(bound_k)
    return _encode_fit(bounded_lane, limits, source, source_at, count, target, target_at, capacity, classes)


@kernel
def decode_tagged(
    payload: Any, payload_at: int, available: int, count: int, unit8: Any, target: Any, target_at: int
) -> int:
    """``decode`` of both tagged codecs; ``unit8`` (float32) is what the last bit of the 8-bit form weighs, over 256.

    A lane beyond ``count`` in the last burst must have tag 0: no encoder makes another.
    """
    at = payload_at
    end = payload_at + available
    done = 0
    while done < count:
        lanes = min(LANES, count - done)
        if at + TAGS_LEN > end:
            return MALFORMED
        tags = load_u16(payload, at)
        cursor = at + TAGS_LEN
        at = cursor + tags_len(tags)
        if at > end or tags >> (2 * lanes):
            return MALFORMED
        first = target_at + 4 * done
        for lane in range(lanes):
            tag = (tags >> (2 * lane)) & 3
            store_u32(target, first + 4 * lane, decode_lane(load_u32(payload, cursor), tag, unit8))
            cursor += tag + (tag & (tag >> 1))
        done += lanes
    return at - payload_at


@kernel
def round_trip_inceptionn(source: Any, bound_k: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    limits = inceptionn_limits(bound_k)
    for index in range(source.size):
        coded = inceptionn_lane(np.int64(source[index]), limits)
        target[index] = np.uint32(decode_lane(coded >> 2, coded & 3, UNIT16))


@kernel
def round_trip_bounded(source: Any, bound_k: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    limits = bounded_limits(bound_k)
    unit8 = bounded_unit8(bound_k)
    for index in range(source.size):
        coded = bounded_lane(np.int64(source[index]), limits)
        target[index] = np.uint32(decode_lane(coded >> 2, coded & 3, unit8))
