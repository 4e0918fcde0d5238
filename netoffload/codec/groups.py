"""What all kernels of groups share: their numbers, and masks and codes for any CPU.

A group is 64 floats, the last one of a payload perhaps fewer. ``netoffload.codec.packed`` has its octets. In between,
each float that is not 0 has a *code* of an octet: its 8-bit form, or ``ESCAPE16`` or ``ESCAPE32``, which are the 8-bit
codes of -0 and +0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.escapes import ESCAPE16, ESCAPE32, Coded
from netoffload.codec.plain import bounded_lane, decode_lane
from netoffload.compiled.arrays import Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, inlined_with
from netoffload.compiled.octets import (
    load_u32,
    load_u64,
    popcount_u16,
    store_u32,
    u8,
)

GROUP: Final = 64
"""Floats in a group."""

LOW7: Final = 0x7F7F7F7F7F7F7F7F
ONES: Final = 0x0101010101010101
"""Masks for a word of eight codes: the magnitudes, and the lowest bits."""


GroupEncoder: TypeAlias = Callable[[Uint8Array, int, int, tuple[int, ...], Uint8Array, int], Coded]
"""Writes a group: source, its place, floats (1 to 64), limits, target, its place."""

GroupDecoder: TypeAlias = Callable[[Stretch, int, np.float32, Uint8Array, int], int]
"""Reads a group from the start of a stretch: floats, unit8, target, its place; returns its octets or MALFORMED."""

Decoder: TypeAlias = Callable[[Uint8Array, int, int, int, np.float32, Uint8Array, int], int]
"""``decode`` of groups."""


@inlined_with
def decode_each_half(
    decode: Decoder,
    payload: Stretch,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves``: one half after the other; each is a complete payload."""
    first, floats = middle
    octets, at = payload.octets, payload.at
    if decode(octets, at, first, floats, unit8, target, target_at) != first:
        return MALFORMED
    to, left = target_at + 4 * floats, count - floats
    rest = decode(octets, at + first, payload.length - first, left, unit8, target, to)
    return MALFORMED if rest == MALFORMED else first + rest


@inline_kernel
def _lane_mask(source: Uint8Array, first: int, lanes: int, smallest: int) -> int:
    mask = 0
    for lane in range(lanes):
        mask |= int(load_u32(source, first + 4 * lane) & 0x7FFFFFFF >= smallest) << lane
    return mask


@inline_kernel
def put_masks(source: Uint8Array, first: int, lanes: int, smallest: int, target: Uint8Array, at: int) -> int:
    """Write the masks of a group; return where its codes begin."""
    present, head = 0, at + 1
    for burst in range((lanes + LANES - 1) // LANES):
        left = lanes - LANES * burst
        from_at = first + 4 * LANES * burst
        # Eight as a constant, so that the compiler unrolls the lanes.
        mask = (
            _lane_mask(source, from_at, LANES, smallest)
            if left >= LANES
            else _lane_mask(source, from_at, left, smallest)
        )
        target[head] = mask
        head += int(mask != 0)
        present |= int(mask != 0) << burst
    target[at] = present
    return head


@inline_kernel
def _put_burst_codes(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> tuple[int, int]:
    """Write the codes of a burst; return where they end, and how many are escapes."""
    escapes = 0
    for lane in range(lanes):
        code, tag = bounded_lane(load_u32(source, first + 4 * lane), limits)
        is_long, is_whole = tag >> 1, tag & tag >> 1
        target[at] = (code & (is_long - 1) & 0xFF) | (ESCAPE16 & (is_whole - is_long))
        at += int(tag != 0)
        escapes += is_long
    return at, escapes


@inline_kernel
def put_codes(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, masks_at: int, at: int
) -> tuple[int, int, int]:
    """Write the codes of a group behind its masks; return their end, which lanes take 16 bits or more, and which 32."""
    escapes = longs = wholes = 0
    for burst in range((lanes + LANES - 1) // LANES):
        if u8(target, masks_at) >> burst & 1 == 0:
            continue
        from_at, left = first + 4 * LANES * burst, lanes - LANES * burst
        if left >= LANES:  # as a constant, so that the compiler unrolls the lanes
            at, in_burst = _put_burst_codes(source, from_at, LANES, limits, target, at)
        else:
            at, in_burst = _put_burst_codes(source, from_at, left, limits, target, at)
        escapes += in_burst
    for lane in range(lanes if escapes else 0):
        _, tag = bounded_lane(load_u32(source, first + 4 * lane), limits)
        longs |= (tag >> 1) << lane
        wholes |= (tag & tag >> 1) << lane
    return at, longs, wholes


@inline_kernel
def check_masks(payload: Stretch, lanes: int) -> tuple[int, int]:
    """Return where the codes of a group begin and how many there are.

    Both are ``MALFORMED`` if no encoder writes these masks for ``lanes`` floats, or the octets end inside the masks.
    """
    octets, at = payload.octets, payload.at
    end = at + payload.length
    if payload.length <= 0:
        return MALFORMED, MALFORMED
    present = u8(octets, at)
    codes_at = at + 1 + popcount_u16(present)
    if present >> ((lanes + LANES - 1) // LANES) or codes_at > end:
        return MALFORMED, MALFORMED
    codes, mask = 0, 0
    for head in range(at + 1, codes_at):
        mask = u8(octets, head)
        if mask == 0:
            return MALFORMED, MALFORMED
        codes += popcount_u16(mask)
    is_last_present = lanes % LANES and present >> lanes // LANES & 1
    return (MALFORMED, MALFORMED) if is_last_present and mask >> lanes % LANES else (codes_at, codes)


@inline_kernel
def get_codes(
    masks: Stretch, codes: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int
) -> tuple[int, int]:
    """Read up to 64 floats from their masks and codes; return which are escapes to 16 and to 32 bits, which become 0.

    The codes of a burst are read before its floats are written, so the floats may overwrite codes that are read.
    """
    present, head, cursor = u8(masks.octets, masks.at), masks.at + 1, codes.at
    in16 = in32 = escapes = 0
    for code_at in range(codes.at, codes.at + codes.length):
        escapes |= int(codes.octets[code_at] & 0x7F == 0)
    for burst in range((lanes + LANES - 1) // LANES):
        mask = 0
        if present >> burst & 1:
            mask = int(u8(masks.octets, head))
            head += 1
        first_codes = word = load_u64(codes.octets, cursor)
        for lane in range(LANES):
            if burst * LANES + lane < lanes:
                is_there = mask >> lane & 1
                store_u32(target, target_at + 4 * (burst * LANES + lane), decode_lane(word, is_there, unit8))
                word >>= 8 * is_there
                cursor += is_there
        while escapes and mask:
            code, lane_bit = first_codes & 0xFF, (mask & -mask) << (burst * LANES)
            in16 |= lane_bit & -int(code == ESCAPE16)
            in32 |= lane_bit & -int(code == ESCAPE32)
            first_codes >>= 8
            mask &= mask - 1
    return in16, in32
