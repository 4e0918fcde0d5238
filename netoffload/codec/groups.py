"""The masked codec's groups: their numbers, their plain kernels, and the loops that all variants share.

A group is 64 floats, the last one of a payload perhaps fewer. Its values are those of ``bounded``, to the bit::

    burst mask   1 octet: bit i, burst i (8 floats) has a float that is not 0
    lane masks   1 octet per such burst: bit i, lane i is not 0
    codes        1 octet per float that is not 0: its 8-bit code, or ESCAPE16 or ESCAPE32
    16 bits      2 octets, little-endian, per code ESCAPE16
    32 bits      4 octets per code ESCAPE32

``ESCAPE16`` and ``ESCAPE32`` are the 8-bit codes of -0 and +0, which floats other than 0 never have. A variant brings
two kernels, from a group of floats to octets and back. All work that is done once per payload is in this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.escapes import ESCAPE16, ESCAPE32, Coded, get_escapes, with_escapes
from netoffload.codec.plain import bounded_lane, bounded_limits, decode_lane
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import (
    load_u32,
    load_u64,
    popcount_u16,
    store_u32,
    u8,
)

GROUP: Final = 64
"""Floats in a group."""

HEAD_MAX: Final = 1 + GROUP // LANES
"""The most octets of a group's masks."""

LOW7: Final = 0x7F7F7F7F7F7F7F7F
ONES: Final = 0x0101010101010101
"""Masks for a word of eight codes: the magnitudes, and the lowest bits."""


GroupEncoder: TypeAlias = Callable[[Uint8Array, int, int, tuple[int, ...], Uint8Array, int], Coded]
"""Writes a group: source, its place, floats (1 to 64), limits, target, its place."""

GroupDecoder: TypeAlias = Callable[[Stretch, int, np.float32, Uint8Array, int], int]
"""Reads a group from the start of a stretch: floats, unit8, target, its place; returns its octets or MALFORMED."""

Decoder: TypeAlias = Callable[[Uint8Array, int, int, int, np.float32, Uint8Array, int], int]
"""``decode`` of one of the forms with groups."""


@inlined_with
def encode_groups(
    encode_group: GroupEncoder,
    limits: tuple[int, ...],
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` by groups. If the last group does not fit, it gets as many bursts as fit."""
    target, at = room.octets, room.at
    end = at + room.length
    done = codes = sixteens = wholes = 0
    while done < count:
        lanes = min(GROUP, count - done)
        first = source_at + 4 * done
        coded = encode_group(source, first, lanes, limits, target, at)
        is_last = at + coded.octets > end
        if is_last:
            lanes = fitting_floats(target, at, lanes, end - at)
            if lanes == 0:
                break
            coded = encode_group(source, first, lanes, limits, target, at)
        codes += coded.codes
        sixteens += coded.in16
        wholes += coded.in32
        at += coded.octets
        done += lanes
        if is_last:
            break
    classes[0] += done - codes
    classes[1] += codes - sixteens - wholes
    classes[2] += sixteens
    classes[3] += wholes
    return done, at - room.at


@inline_kernel
def fitting_floats(octets: Uint8Array, at: int, lanes: int, capacity: int) -> int:
    """Return how many floats of the group at ``at``, whole bursts, fit into a group of at most ``capacity`` octets."""
    present = u8(octets, at)
    head, code = at + 1, at + 1 + popcount_u16(present)
    length, fitting = 1, 0
    for burst in range((lanes + LANES - 1) // LANES):
        if present >> burst & 1:
            in_burst = popcount_u16(u8(octets, head))
            head += 1
            length += 1 + in_burst
            for _ in range(in_burst):
                length += 2 * int(octets[code] == ESCAPE16) + 4 * int(octets[code] == ESCAPE32)
                code += 1
        if length > capacity:
            break
        fitting = min(lanes, fitting + LANES)
    return fitting


@inlined_with
def decode_groups(
    decode_group: GroupDecoder,
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` by groups."""
    at, end = payload_at, payload_at + available
    done = 0
    while done < count:
        lanes = min(GROUP, count - done)
        length = decode_group(Stretch(payload, at, end - at), lanes, unit8, target, target_at + 4 * done)
        if length == MALFORMED:
            return MALFORMED
        at += length
        done += lanes
    return at - payload_at


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
def encode_group(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> Coded:
    """Write up to 64 floats as a group, for any CPU."""
    codes_at = put_masks(source, first, lanes, limits[0], target, at)
    codes_end, longs, wholes = put_codes(source, first, lanes, limits, target, at, codes_at)
    return with_escapes(source, first, longs, wholes, target, at, codes_end, codes_end - codes_at)


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


@inline_kernel
def decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    """Read a group of up to 64 floats, for any CPU; ``unit8`` as in ``netoffload.codec.plain.decode_lane``."""
    codes_at, count = check_masks(payload, lanes)
    escapes_at = codes_at + count
    if codes_at == MALFORMED or escapes_at > payload.at + payload.length:
        return MALFORMED
    codes = Stretch(payload.octets, codes_at, count)
    in16, in32 = get_codes(payload, codes, lanes, unit8, target, target_at)
    return get_escapes(payload, escapes_at, in16, in32, target, target_at)


@kernel
def encode_sparse(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``sparse``; see ``netoffload.codec.kernels``."""
    room = Stretch(target, target_at, capacity)
    return encode_groups(encode_group, bounded_limits(bound_k), source, source_at, count, room, classes)


@kernel
def decode_masked(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` of groups; ``unit8`` (float32) is the weight of the 8-bit form's last bit, over 256."""
    return decode_groups(decode_group, payload, payload_at, available, count, unit8, target, target_at)


@kernel
def decode_masked_halves(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` of groups."""
    whole = Stretch(payload, payload_at, available)
    return decode_each_half(decode_masked, whole, count, middle, unit8, target, target_at)
