"""The tagged codecs as compiled loops for any CPU, without a branch on the data.

``inceptionn`` and ``bounded`` differ in one function, from a float to its code and tag. They share the loop around this
function, and decoding but for one weight. Limits that depend on the bound are computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, Middle, add_classes, long_lanes, tags_len
from netoffload.codec_specs import TAGGED, CodecId, Tagged
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import bits_float32, float32_bits, load_u16, load_u32, store_u16, store_u32, whole

LaneCoder: TypeAlias = Callable[[int, tuple[int, ...]], tuple[int, int]]
"""From a float's bits and a codec's limits to (code, tag)."""

UNIT16: Final = np.float32(2.0**-15)
"""The weight of the last of the 15 magnitude bits of the 16-bit form, in both codecs."""

ROUNDER: Final = np.float32(2.0**23)
"""Adding it to a float below 2**22 rounds the float to an integer, ties to even, in the low bits of the mantissa."""

MAGNITUDE_BITS: Final = 0x7FFFFFFF
ONE_BITS: Final = 0x3F800000
"""The bits of 1.0. Floats of one sign have the order of their bits, so classes are told apart by comparing bits."""

SCALE16: Final = 15 << 23
"""Adding it to a float's bits multiplies the float by 2**15."""

ROUNDS_TO_ONE: Final = int(np.float32(1 - 2.0**-16).view(np.uint32))
"""The bits of the smallest float whose nearest 16-bit magnitude in ``bounded`` is 1."""

HALF_BITS: Final = 0x3F000000


@inline_kernel
def inceptionn_limits(bound_k: int) -> tuple[int, int]:
    """Return the bits of the smallest |x| of the 8-bit and of the 16-bit form (Algorithm 2): 2**-k and 2**-(k//2)."""
    return (127 - bound_k) << 23, (127 - (bound_k >> 1)) << 23


@inline_kernel
def inceptionn_lane(word: int, limits: tuple[int, ...]) -> tuple[int, int]:
    """Return (code, tag) of one float32's bits (Algorithm 2).

    The tag is how many of three limits |x| reaches, which is the algorithm's comparison with e. A code of class 0 is
    arbitrary. There is no branch, because on mixed data it would be mispredicted.
    """
    magnitude = word & MAGNITUDE_BITS
    in8 = int(magnitude >= limits[0])
    in16 = int(magnitude >= limits[1])
    in32 = int(magnitude >= ONE_BITS)
    dropped = 127 + 16 - 8 * in16 - (magnitude >> 23)
    shifted = ((word & 0x7FFFFF) | 0x800000) >> (dropped & 63)  # wrong from 64 on, but there the class is 0
    small = shifted | (word >> 16 & 0x8000) >> (8 - 8 * in16)
    return word if in32 else small, in8 + in16 + in32


@inline_kernel
def bounded_limits(bound_k: int) -> tuple[int, int, int, int]:
    """Return the bits of the smallest |x| of the 8-bit and of the 16-bit form, the end of a hole, and a scale.

    Magnitudes up to 2**-k, a tie, round to 0. The 16-bit form begins half a unit above the largest 8-bit magnitude and
    ends below 1. The hole exists only at k = 1: the 256 floats above 1/2 would round to 1/2 in the 16-bit form, but 1/2
    is of class 0, so these floats travel whole. Adding the scale to a float's bits converts the float to 8-bit units.
    """
    largest8 = min(127, (1 << (bound_k - 1)) - 1)
    after8 = float32_bits(np.float32(largest8 + 0.5) / np.float32(1 << (bound_k - 1)))
    if bound_k == 1:
        return HALF_BITS + 1, HALF_BITS + 1, HALF_BITS + 1 + 256, 0
    return ((127 - bound_k) << 23) + 1, after8, after8, (bound_k - 1) << 23


def unit8_of(form: Tagged) -> Callable[[int], np.float32]:
    """Return a compiled function from the bound k to the weight of the last bit of the 8-bit form, divided by 256."""
    places, places_per_k = 8 + form.places8[0], form.places8[1]

    @inlined_with
    def unit8(bound_k: int) -> np.float32:
        return np.float32(1.0) / np.float32(1 << (places + places_per_k * bound_k))

    return unit8


bounded_unit8: Final = unit8_of(TAGGED[CodecId.BOUNDED])


@inline_kernel
def bounded_lane(word: int, limits: tuple[int, ...]) -> tuple[int, int]:
    """Return (code, tag) of one float32's bits, rounded to nearest, ties to even; a code of class 0 is arbitrary."""
    magnitude = word & MAGNITUDE_BITS
    in8 = int(magnitude >= limits[0])
    in16 = int(magnitude >= limits[1])
    in32 = int(magnitude >= ROUNDS_TO_ONE) | (in16 & int(magnitude < limits[2]))
    scaled = min(magnitude, ONE_BITS) + (SCALE16 if in16 else limits[3])  # the minimum avoids NaN and its warnings
    nearest = float32_bits(bits_float32(scaled) + ROUNDER) & 0x7FFF
    small = nearest | (word >> 16 & 0x8000) >> (8 - 8 * in16)
    return word if in32 else small, in8 + in16 + in32


@inline_kernel
def decode_lane(code: int, tag: int, unit8: np.float32) -> int:
    """Return the float32 bits of one code (Algorithm 3); ``code`` may have octets of the next lane above it.

    The 8-bit form is read as a 16-bit form without its low octet. A magnitude is a fixed-point fraction; converting an
    integer to a float finds its leading one and moves it to the hidden bit. The integer carries the sign. So a
    magnitude of 0, which the paper leaves open, becomes +0 for either sign.
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
def _encode_burst(
    encode_lane: LaneCoder,
    limits: tuple[int, ...],
    source: Uint8Array,
    first: int,
    lanes: int,
    target: Uint8Array,
    target_at: int,
) -> tuple[int, int]:
    tags = 0
    cursor = target_at
    for lane in range(lanes):
        code, tag = encode_lane(load_u32(source, first + 4 * lane), limits)
        store_u32(target, cursor, code)
        cursor += tag + (tag & (tag >> 1))
        tags |= tag << (2 * lane)
    return tags, cursor


@inlined_with
def _encode_fit(
    encode_lane: LaneCoder,
    limits: tuple[int, ...],
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    done = tagged = sixteens = wholes = 0
    target, at = room.octets, room.at
    end = at + room.length
    while done < count:
        lanes = min(LANES, count - done)
        first = source_at + 4 * done
        if lanes == LANES:  # as a constant, so that the compiler unrolls the lanes
            tags, cursor = _encode_burst(encode_lane, limits, source, first, LANES, target, at + TAGS_LEN)
        else:
            tags, cursor = _encode_burst(encode_lane, limits, source, first, lanes, target, at + TAGS_LEN)
        if cursor > end:
            break
        store_u16(target, at, tags)
        in16, in32 = long_lanes(tags)
        sixteens += in16
        wholes += in32
        tagged += TAGS_LEN
        at = cursor
        done += lanes
    add_classes(classes, done, at - room.at - tagged, sixteens, wholes)
    return done, at - room.at


@kernel
def encode_inceptionn(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = inceptionn_limits(bound_k)
    room = Stretch(target, target_at, capacity)
    return _encode_fit(inceptionn_lane, limits, source, source_at, count, room, classes)


@kernel
def encode_bounded(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = bounded_limits(bound_k)
    room = Stretch(target, target_at, capacity)
    return _encode_fit(bounded_lane, limits, source, source_at, count, room, classes)


@kernel
def decode_tagged(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` of both tagged codecs; ``unit8`` (float32) is the weight of the 8-bit form's last bit, over 256.

    A lane beyond ``count`` in the last burst must have tag 0, as encoders write it.
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
def decode_tagged_halves(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` of both tagged codecs: one half after the other."""
    first, floats = middle
    if decode_tagged(payload, payload_at, first, floats, unit8, target, target_at) != first:
        return MALFORMED
    to = target_at + 4 * floats
    rest = decode_tagged(payload, payload_at + first, available - first, count - floats, unit8, target, to)
    return MALFORMED if rest == MALFORMED else first + rest


@kernel
def round_trip_inceptionn(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    limits = inceptionn_limits(bound_k)
    for index in range(source.size):
        code, tag = inceptionn_lane(whole(source[index]), limits)
        target[index] = np.uint32(decode_lane(code, tag, UNIT16))


@kernel
def round_trip_bounded(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    limits = bounded_limits(bound_k)
    unit8 = bounded_unit8(bound_k)
    for index in range(source.size):
        code, tag = bounded_lane(whole(source[index]), limits)
        target[index] = np.uint32(decode_lane(code, tag, unit8))
