"""The codecs without tags: every float takes the same number of bits, whatever its value.

``none``          the 32 bits as they are; the baseline
``truncate16``    the 16 most significant bits, as the paper's comparison drops 16 of the mantissa (INCEPTIONN, Fig. 14)
``truncate22``    the 10 most significant bits: sign, exponent and one bit of the mantissa
``truncate24``    the 8 most significant bits: sign and seven bits of the exponent

A burst is 32, 16, 10 or 8 octets, lane 0 first; at 10 bits, lane i starts at bit 10 i of an 80-bit little-endian word.
What is cut off comes back as 0 bits, so a NaN whose remaining mantissa is 0 comes back as an infinity: truncation
promises nothing. The lanes beyond the last float of the last burst are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import copy_octets, load_u16, load_u32, store_u16, store_u32


@inline_kernel
def _class_of(kept_bits: Any) -> Any:
    return 3 if kept_bits == 32 else 1 if kept_bits == 8 else 2


@inline_kernel
def _put_burst(kept_bits: Any, source: Any, first: Any, lanes: Any, target: Any, at: Any) -> None:
    if kept_bits == 32:
        copy_octets(source, first, target, at, 4 * lanes)
        for lane in range(lanes, LANES):
            store_u32(target, at + 4 * lane, 0)
        return
    low = 0  # lanes 0..3 of the 10-bit form
    for lane in range(LANES):
        code = load_u32(source, first + 4 * lane) >> (32 - kept_bits) if lane < lanes else 0
        if kept_bits == 16:
            store_u16(target, at + 2 * lane, code)
        elif kept_bits == 8:
            target[at + lane] = code
        else:
            low |= code << (10 * (lane & 3))
            if lane & 3 == 3:
                store_u32(target, at + 5 * (lane >> 2), low)
                target[at + 5 * (lane >> 2) + 4] = low >> 32
                low = 0


@inline_kernel
def _get_lane(kept_bits: Any, payload: Any, at: Any, lane: Any) -> Any:
    if kept_bits == 32:
        return load_u32(payload, at + 4 * lane)
    if kept_bits == 16:
        return load_u16(payload, at + 2 * lane) << 16
    if kept_bits == 8:
        return np.int64(payload[at + lane]) << 24
    half = at + 5 * (lane >> 2)
    word = load_u32(payload, half) | np.int64(payload[half + 4]) << 32
    return (word >> (10 * (lane & 3)) & 0x3FF) << 22


@kernel
def encode_fixed(
    source: Any, source_at: int, count: int, kept_bits: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """``encode_fit`` of the codecs without tags; see ``netoffload.codec.kernels``."""
    done = 0
    at = target_at
    end = target_at + capacity
    while done < count and at + kept_bits <= end:
        lanes = min(LANES, count - done)
        _put_burst(kept_bits, source, source_at + 4 * done, lanes, target, at)
        at += kept_bits
        done += lanes
    classes[_class_of(kept_bits)] += done
    return done, at - target_at


@kernel
def decode_fixed(
    payload: Any, payload_at: int, available: int, count: int, kept_bits: int, target: Any, target_at: int
) -> int:
    """``decode`` of the codecs without tags."""
    length = (count + LANES - 1) // LANES * kept_bits
    if length > available:
        return MALFORMED
    for index in range(count):
        word = _get_lane(kept_bits, payload, payload_at + index // LANES * kept_bits, index % LANES)
        store_u32(target, target_at + 4 * index, word)
    return length


@kernel
def decode_fixed_halves(
    payload: Any,
    payload_at: int,
    available: int,
    count: int,
    half_len: int,
    half_count: int,
    kept_bits: int,
    target: Any,
    target_at: int,
) -> int:
    """``decode_halves`` of the codecs without tags: each burst's place is known, so the mark is only checked."""
    if half_len != half_count // LANES * kept_bits:
        return MALFORMED
    return decode_fixed(payload, payload_at, available, count, kept_bits, target, target_at)


@kernel
def round_trip_fixed(source: Any, kept_bits: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    mask = np.uint32(0xFFFFFFFF & ~((1 << (32 - kept_bits)) - 1))
    for index in range(source.size):
        target[index] = source[index] & mask
