"""The masked codec's groups: their numbers, their plain kernels, and the loops around every variant's own.

A group is 64 floats, the last one of a payload perhaps fewer. Its values are those of ``bounded``, to the bit::

    burst mask   1 octet: bit i, burst i (8 floats) has a float that is not 0
    lane masks   1 octet per such burst: bit i, lane i is not 0
    codes        1 octet per float that is not 0: its 8-bit code, or ESCAPE16 or ESCAPE32
    16 bits      2 octets, little-endian, per code ESCAPE16
    32 bits      4 octets per code ESCAPE32

``ESCAPE16`` and ``ESCAPE32`` are the 8-bit codes of -0 and +0, which no float that is not 0 has. A variant brings two
kernels, from a group of floats to octets and back. Everything that happens once per payload stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.plain import MAGNITUDE_BITS, ROUNDER, SCALE16, UNIT16, bounded_lane, bounded_limits, decode_lane
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import (
    bits_float32,
    float32_bits,
    load_u16,
    load_u32,
    popcount_u16,
    store_u16,
    store_u32,
    trailing_zeros,
    u8,
)

GROUP: Final = 64
"""Floats in a group."""

HEAD_MAX: Final = 1 + GROUP // LANES
"""Most octets of its masks."""

ESCAPE16: Final = 0x80
ESCAPE32: Final = 0x00


class Coded(NamedTuple):
    """What became of a group.

    Attributes:
        octets: its length.
        codes: floats that are not 0.
        in16: of them with a 16-bit form.
        in32: with a 32-bit form.
    """

    octets: int
    codes: int
    in16: int
    in32: int


GroupEncoder: TypeAlias = Callable[[Uint8Array, int, int, tuple[int, ...], Uint8Array, int], Coded]
"""Writes a group: source, its place, floats (1 to 64), limits, target, its place."""

GroupDecoder: TypeAlias = Callable[[Stretch, int, np.float32, Uint8Array, int], int]
"""Reads a group from the start of a stretch: floats, unit8, target, its place; returns its octets or MALFORMED."""


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
    """``encode_fit`` by groups. Of the group that does not fit, as many bursts are taken as do."""
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
    """Return how many floats of the group at ``at``, whole bursts, would be a group of at most ``capacity`` octets."""
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
    decode_group: GroupDecoder, coded: Stretch, count: int, unit8: np.float32, target: Uint8Array, target_at: int
) -> int:
    """``decode`` by groups."""
    at, end = coded.at, coded.at + coded.length
    done = 0
    while done < count:
        lanes = min(GROUP, count - done)
        length = decode_group(Stretch(coded.octets, at, end - at), lanes, unit8, target, target_at + 4 * done)
        if length == MALFORMED:
            return MALFORMED
        at += length
        done += lanes
    return at - coded.at


@inlined_with
def decode_half_groups(
    decode_group: GroupDecoder,
    coded: Stretch,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` by groups: one half after the other, each a payload of its own."""
    first, floats = middle
    half = Stretch(coded.octets, coded.at, first)
    if decode_groups(decode_group, half, floats, unit8, target, target_at) != first:
        return MALFORMED
    other = Stretch(coded.octets, coded.at + first, coded.length - first)
    rest = decode_groups(decode_group, other, count - floats, unit8, target, target_at + 4 * floats)
    return MALFORMED if rest == MALFORMED else first + rest


@inline_kernel
def _lane_mask(source: Uint8Array, first: int, lanes: int, smallest: int) -> int:
    mask = 0
    for lane in range(lanes):
        mask |= int(load_u32(source, first + 4 * lane) & 0x7FFFFFFF >= smallest) << lane
    return mask


@inline_kernel
def _put_masks(source: Uint8Array, first: int, lanes: int, smallest: int, target: Uint8Array, at: int) -> int:
    """Write the masks of a group; return where its codes begin."""
    present, head = 0, at + 1
    for burst in range((lanes + LANES - 1) // LANES):
        left = lanes - LANES * burst
        from_at = first + 4 * LANES * burst
        # Eight said as a constant, so that the lanes are unrolled.
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
def _put_codes(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> tuple[int, int, int]:
    """Write the codes of a burst; return where they end, and how many floats take 16 bits or more, and 32."""
    longs = wholes = 0
    for lane in range(lanes):
        code, tag = bounded_lane(load_u32(source, first + 4 * lane), limits)
        is_long, is_whole = tag >> 1, tag & tag >> 1
        target[at] = (code & (is_long - 1) & 0xFF) | (ESCAPE16 & (is_whole - is_long))
        at += int(tag != 0)
        longs += is_long
        wholes += is_whole
    return at, longs, wholes


@inline_kernel
def encode_group(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> Coded:
    """Write up to 64 floats as a group, for any CPU."""
    cursor = _put_masks(source, first, lanes, limits[0], target, at)
    codes_at = cursor
    in16 = in32 = 0
    for burst in range((lanes + LANES - 1) // LANES):
        if u8(target, at) >> burst & 1 == 0:
            continue
        from_at, left = first + 4 * LANES * burst, lanes - LANES * burst
        if left >= LANES:  # said as a constant, so that the lanes are unrolled
            cursor, longs, wholes = _put_codes(source, from_at, LANES, limits, target, cursor)
        else:
            cursor, longs, wholes = _put_codes(source, from_at, left, limits, target, cursor)
        in16 += longs - wholes
        in32 += wholes
    codes = cursor - codes_at
    if in16 | in32:
        cursor = _put_escapes(source, first, lanes, limits, target, cursor)
    return Coded(cursor - at, codes, in16, in32)


@inline_kernel
def _put_escapes(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> int:
    for wanted in (2, 3):
        for lane in range(lanes):
            code, tag = bounded_lane(load_u32(source, first + 4 * lane), limits)
            if tag == wanted:
                store_u32(target, at, code)
                at += 2 * tag - 2
    return at


@inline_kernel
def put_escapes(source: Uint8Array, first: int, in16: int, in32: int, target: Uint8Array, at: int) -> None:
    """Write the escapes of a group: bit i of ``in16`` and ``in32`` says that its float i has one."""
    while in16:
        word = load_u32(source, first + 4 * trailing_zeros(in16))
        nearest = float32_bits(bits_float32((word & MAGNITUDE_BITS) + SCALE16) + ROUNDER) & 0x7FFF
        store_u16(target, at, nearest | (word >> 16 & 0x8000))
        at += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, at, load_u32(source, first + 4 * trailing_zeros(in32)))
        at += 4
        in32 &= in32 - 1


@inline_kernel
def get_escapes(payload: Uint8Array, at: int, in16: int, in32: int, target: Uint8Array, target_at: int) -> None:
    """Read them back into the floats of the group."""
    while in16:
        word = decode_lane(load_u16(payload, at), 2, UNIT16)
        store_u32(target, target_at + 4 * trailing_zeros(in16), word)
        at += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, target_at + 4 * trailing_zeros(in32), load_u32(payload, at))
        at += 4
        in32 &= in32 - 1


@inline_kernel
def check_masks(payload: Stretch, lanes: int) -> tuple[int, int]:
    """Return where the codes of a group begin and how many there are; ``MALFORMED`` twice if no encoder writes these
    masks for ``lanes`` floats, or the octets end before the codes do."""
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
    if codes_at + codes > end or (is_last_present and mask >> lanes % LANES):
        return MALFORMED, MALFORMED
    return codes_at, codes


@inline_kernel
def decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    """Read a group of up to 64 floats, for any CPU; ``unit8`` is that of ``netoffload.codec.plain.decode_lane``."""
    octets, at = payload.octets, payload.at
    cursor, codes = check_masks(payload, lanes)
    if cursor == MALFORMED:
        return MALFORMED
    in16 = in32 = 0
    for code_at in range(cursor, cursor + codes):
        in16 += int(octets[code_at] == ESCAPE16)
        in32 += int(octets[code_at] == ESCAPE32)
    at16 = cursor + codes
    at32 = at16 + 2 * in16
    following = at32 + 4 * in32
    if following > at + payload.length:
        return MALFORMED
    present, head = u8(octets, at), at + 1
    for burst in range((lanes + LANES - 1) // LANES):
        mask = 0
        if present >> burst & 1:
            mask = u8(octets, head)
            head += 1
        for lane in range(LANES):
            if burst * LANES + lane < lanes:
                is_there = mask >> lane & 1
                word = decode_lane(u8(octets, cursor), is_there, unit8)
                if is_there and in16 | in32:
                    code = u8(octets, cursor)
                    if code == ESCAPE16:
                        word = decode_lane(load_u16(octets, at16), 2, unit8)
                        at16 += 2
                    elif code == ESCAPE32:
                        word = load_u32(octets, at32)
                        at32 += 4
                store_u32(target, target_at + 4 * (burst * LANES + lane), word)
                cursor += is_there
    return following - at


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
    """``decode`` of groups; ``unit8`` (float32) is what the last bit of the 8-bit form weighs, over 256."""
    coded = Stretch(payload, payload_at, available)
    return decode_groups(decode_group, coded, count, unit8, target, target_at)


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
    coded = Stretch(payload, payload_at, available)
    return decode_half_groups(decode_group, coded, count, middle, unit8, target, target_at)
