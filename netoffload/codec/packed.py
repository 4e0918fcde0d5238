"""Groups that choose the width of their codes: their plain kernels, and the loops that all variants share.

A group is 64 floats, the last one of a payload perhaps fewer. Groups of zeros become runs::

    burst mask               1 octet, not 0: bit i, burst i (8 floats) has a float that is not 0
    lane masks               1 octet per such burst: bit i, lane i is not 0
    width and fields         from the low end: 3 bits for the width less 1, a field per float that is not 0, zeros up
                             to a whole octet; before fields of 8 bits the first octet is 0x07
    16 bits                  2 octets, little-endian, per field ``FIELD16``
    32 bits                  4 octets per field ``FIELD32``

    0x00, then an octet z    z + 1 groups of zeros, 1 to 256; the last group of a payload may be shorter

A field is 2 * (magnitude - 1) + sign of the 8-bit code. ``FIELD16`` and ``FIELD32`` mark escapes, so a group with an
escape has fields of 8 bits. An encoder takes the least width and the longest run of zeros; a decoder refuses any other
payload.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload.codec.bursts import BURST_LEN, LANES, MALFORMED, Middle
from netoffload.codec.escapes import Coded, get_escapes, with_escapes
from netoffload.codec.groups import (
    GROUP,
    LOW7,
    ONES,
    GroupDecoder,
    GroupEncoder,
    check_masks,
    decode_each_half,
    get_codes,
    put_codes,
    put_masks,
)
from netoffload.codec.plain import bounded_limits
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import (
    bit_length,
    clear_octets,
    load_u16,
    load_u64,
    popcount_u16,
    store_u64,
    u8,
)

FIELD32: Final = 254
FIELD16: Final = 255

WIDTH_BITS: Final = 3
WIDTH_MAX: Final = 8

RUN_MAX: Final = 256
"""The most groups of zeros in one run."""

_LOW8: Final = 0x00FF00FF00FF00FF
_LOW16: Final = 0x0000FFFF0000FFFF
_LOW32: Final = 0xFFFFFFFF
_EVERY16: Final = 0x0001000100010001
_EVERY32: Final = 0x0000000100000001


@inlined_with
def encode_packed_groups(
    encode_group: GroupEncoder,
    limits: tuple[int, ...],
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` by groups and runs. If the last group does not fit, it gets as many bursts as fit."""
    target, at = room.octets, room.at
    end = at + room.length
    done = codes = sixteens = wholes = run = 0
    while done < count:
        lanes = min(GROUP, count - done)
        first = source_at + 4 * done
        coded = encode_group(source, first, lanes, limits, target, at)
        is_last = coded.codes > 0 and at + coded.octets > end
        if is_last:
            lanes = fitting_floats(target, at, lanes, end - at)
            if lanes == 0:
                break
            coded = encode_group(source, first, lanes, limits, target, at)
        if coded.codes > 0:
            at += coded.octets
            run = 0
        else:
            if run % RUN_MAX == 0:
                if at + 2 > end:
                    break
                target[at] = 0
                at += 2
                run = 0
            target[at - 1] = run
            run += 1
        codes += coded.codes
        sixteens += coded.in16
        wholes += coded.in32
        done += lanes
        if is_last:
            break
    classes[0] += done - codes
    classes[1] += codes - sixteens - wholes
    classes[2] += sixteens
    classes[3] += wholes
    return done, at - room.at


@inline_kernel
def fields_len(fields: int, width: int) -> int:
    """Return the octets of the width and of ``fields`` fields."""
    return (WIDTH_BITS + fields * width + 7) >> 3


@inline_kernel
def fitting_floats(octets: Uint8Array, at: int, lanes: int, capacity: int) -> int:
    """Return how many floats of the group at ``at``, whole bursts, fit into ``capacity`` octets.

    Bursts of zeros at the group's beginning always fit: they become part of a run.
    """
    present = u8(octets, at)
    head, fields_at = at + 1, at + 1 + popcount_u16(present)
    width = (u8(octets, fields_at) & (WIDTH_MAX - 1)) + 1
    bit = 8 if width == WIDTH_MAX else WIDTH_BITS
    others, fields, union, fitting = 1, 0, 1, 0
    for burst in range((lanes + LANES - 1) // LANES):
        if present >> burst & 1:
            in_burst = popcount_u16(u8(octets, head))
            head += 1
            others += 1
            fields += in_burst
            for _ in range(in_burst):
                field = (load_u16(octets, fields_at + (bit >> 3)) >> (bit & 7)) & ((1 << width) - 1)
                bit += width
                union |= field
                others += 2 * int(field == FIELD16) + 4 * int(field == FIELD32)
        if fields > 0 and others + fields_len(fields, bit_length(union)) > capacity:
            break
        fitting = min(lanes, fitting + LANES)
    return fitting


@inlined_with
def decode_packed_groups(
    decode_group: GroupDecoder,
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` by groups and runs."""
    at, end = payload_at, payload_at + available
    done = 0
    is_run_over = True
    while done < count:
        if at >= end:
            return MALFORMED
        to = target_at + 4 * done
        if u8(payload, at) == 0:
            groups = u8(payload, at + 1) + 1
            left = (count - done + GROUP - 1) // GROUP
            if at + 2 > end or groups > left or not is_run_over:
                return MALFORMED
            floats = min(GROUP * groups, count - done)
            clear_octets(target, to, 4 * floats)
            is_run_over = groups == RUN_MAX
            at += 2
            done += floats
        else:
            lanes = min(GROUP, count - done)
            length = decode_group(Stretch(payload, at, end - at), lanes, unit8, target, to)
            if length == MALFORMED:
                return MALFORMED
            is_run_over = True
            at += length
            done += lanes
    return at - payload_at


@inline_kernel
def _fold(fields: int, width: int) -> int:
    """Return eight fields of ``width`` bits each, from eight fields of an octet each."""
    pairs = (fields & _LOW8) | ((fields >> 8) & _LOW8) << width
    fours = (pairs & _LOW16) | ((pairs >> 16) & _LOW16) << (2 * width)
    return (fours & _LOW32) | ((fours >> 32) & _LOW32) << (4 * width)


@inline_kernel
def _unfold(bits: int, width: int) -> int:
    """Undo :func:`_fold`; the bits above its result do not matter."""
    low4, low2, low = (1 << 4 * width) - 1, ((1 << 2 * width) - 1) * _EVERY32, ((1 << width) - 1) * _EVERY16
    fours = (bits & low4) | ((bits >> (4 * width)) & low4) << 32
    pairs = (fours & low2) | ((fours >> (2 * width)) & low2) << 16
    return (pairs & low) | ((pairs >> width) & low) << 8


@inline_kernel
def _width_of(union: int) -> int:
    """Return the least width of fields whose bitwise or is ``union``, an octet each."""
    union |= union >> 32
    union |= union >> 16
    return bit_length((union | union >> 8) & 0xFF | 1)


@inline_kernel
def _first(word: int, count: int) -> int:
    """Return the first ``count`` octets of a word, 1 to 8."""
    return word & ((1 << (8 * int(count) - 1) << 1) - 1)  # twice, because a shift by 64 is not defined


@inline_kernel
def pack_codes(target: Uint8Array, at: int, codes: int) -> int:
    """Turn the codes behind ``at``, an octet each, into the width and fields; return the octets of width and fields.

    Eight fields of any width are whole octets. The width takes three bits, so each word of eight fields is shifted by
    three bits. The write position never overtakes the codes that are still to be read.
    """
    union = 0
    for first in range(0, codes, 8):
        word = load_u64(target, at + 1 + first)
        fields = (((word & LOW7) + LOW7) & LOW7) << 1 | (word >> 7) & ONES
        fields = _first(fields, min(codes - first, 8))
        store_u64(target, at + 1 + first, fields)
        union |= fields
    width = _width_of(union)
    below = width - 1
    if width == WIDTH_MAX:
        target[at] = below
        return 1 + codes
    for eight in range((codes + 7) // 8):
        word = _fold(load_u64(target, at + 1 + 8 * eight), width) << WIDTH_BITS | below
        store_u64(target, at + width * eight, word)
        below = word >> (8 * width)
    return fields_len(codes, width)


@inline_kernel
def unpack_codes(payload: Stretch, lanes: int, target: Uint8Array, target_at: int) -> tuple[Stretch, int]:
    """Turn the fields of a group into 8-bit codes; return the codes, and where the escapes begin.

    The second result is ``MALFORMED`` if no encoder writes these masks and fields, or the octets end too early. The
    codes are stored near the end of the group's floats: ``get_codes`` reads the codes of a burst before its floats
    overwrite them.
    """
    octets, end = payload.octets, payload.at + payload.length
    fields_at, codes = check_masks(payload, lanes)
    codes_at = target_at + BURST_LEN * ((lanes + LANES - 1) // LANES) - 8 * ((codes + 7) // 8 + 1)
    unpacked = Stretch(target, codes_at, codes)
    if fields_at == MALFORMED or fields_at >= end:
        return unpacked, MALFORMED
    width = int(u8(octets, fields_at) & (WIDTH_MAX - 1)) + 1
    fields_end = fields_at + fields_len(codes, width)
    if fields_end > end or fill_of(octets, fields_at, fields_end, codes * width):
        return unpacked, MALFORMED
    at, shift = (fields_at + 1, 0) if width == WIDTH_MAX else (fields_at, WIDTH_BITS)
    union = 0
    for first in range(0, codes, 8):
        fields = _unfold(load_u64(octets, at) >> shift, width)
        union |= _first(fields, min(codes - first, 8))
        store_u64(target, codes_at + first, (((fields >> 1) & LOW7) + ONES) & LOW7 | (fields & ONES) << 7)
        at += width
    return unpacked, fields_end if _width_of(union) == width else MALFORMED


@inline_kernel
def encode_group(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> Coded:
    """Write up to 64 floats as a group, for any CPU; the caller ignores the result of a group without codes."""
    fields_at = put_masks(source, first, lanes, limits[0], target, at)
    codes_end, longs, wholes = put_codes(source, first, lanes, limits, target, at, fields_at + 1)
    codes = codes_end - fields_at - 1
    cursor = fields_at + pack_codes(target, fields_at, codes)
    return with_escapes(source, first, longs, wholes, target, at, cursor, codes)


@inline_kernel
def fill_of(octets: Uint8Array, fields_at: int, fields_end: int, bits: int) -> int:
    """Return the unused bits of the last octet of ``bits`` bits of fields; with a width of 8, of the width's octet."""
    is_whole = u8(octets, fields_at) & (WIDTH_MAX - 1) == WIDTH_MAX - 1
    fill_bits = -(WIDTH_BITS + bits) & 7
    return u8(octets, fields_at if is_whole else fields_end - 1) >> (8 - fill_bits)


@inline_kernel
def decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    """Read a group of up to 64 floats, for any CPU; ``unit8`` as in ``netoffload.codec.plain.decode_lane``."""
    codes, escapes_at = unpack_codes(payload, lanes, target, target_at)
    if escapes_at == MALFORMED:
        return MALFORMED
    in16, in32 = get_codes(payload, codes, lanes, unit8, target, target_at)
    return get_escapes(payload, escapes_at, in16, in32, target, target_at)


@kernel
def encode_packed(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``packed``; see ``netoffload.codec.kernels``."""
    room = Stretch(target, target_at, capacity)
    return encode_packed_groups(encode_group, bounded_limits(bound_k), source, source_at, count, room, classes)


@kernel
def decode_packed(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` of groups and runs; ``unit8`` (float32) is the weight of the 8-bit form's last bit, over 256."""
    return decode_packed_groups(decode_group, payload, payload_at, available, count, unit8, target, target_at)


@kernel
def decode_packed_halves(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` of groups and runs."""
    whole = Stretch(payload, payload_at, available)
    return decode_each_half(decode_packed, whole, count, middle, unit8, target, target_at)
