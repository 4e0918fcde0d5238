"""Groups with widths for CPUs with AVX2: the bursts of ``groups_avx2``, whose codes are folded eight at a time.

Encoding first writes the codes an octet each, as ``sparse`` does, and then folds them together in place. Decoding takes
the fields of a burst with one load of a word and unfolds them to codes. Both are the word arithmetic of ``packed``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload.codec import vectors
from netoffload.codec.bursts import BURST_LEN, LANES, MALFORMED, Middle
from netoffload.codec.groups import GROUP, Coded, decode_each_half, get_escapes, put_escapes
from netoffload.codec.groups_avx2 import SPREAD, decode_burst, limits_of_plain, put_codes, put_masks, store_zeros
from netoffload.codec.packed import (
    WIDTH_MAX,
    check_fields,
    decode_packed_groups,
    encode_packed_groups,
    first_bit,
    pack_codes,
    unfold_to_codes,
)
from netoffload.codec.packed import decode_group as decode_group_plainly
from netoffload.codec.packed import encode_group as encode_group_plainly
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u64, popcount_u16, popcount_u64, u8

__all__ = ["decode_packed", "decode_packed_halves", "encode_packed"]

_TOP_BITS: Final = np.array(
    [sum(1 << (width * (field + 1) - 1) for field in range(8 if width else 0)) for width in range(WIDTH_MAX + 1)],
    np.uint64,
).view(np.int64)
"""Per width, the top bits of eight fields."""


@inline_kernel
def _encode_group(
    source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
) -> Coded:
    if lanes < GROUP:
        return encode_group_plainly(source, first, lanes, limits_of_plain(limits), target, at)
    fields_at = put_masks(source, first, limits[0], target, at)
    if fields_at == at + 1:
        return Coded(0, 0, 0, 0)
    codes_end, longs, wholes = put_codes(source, first, limits, target, at, fields_at + 1)
    codes = codes_end - fields_at - 1
    cursor = fields_at + pack_codes(target, fields_at, codes)
    if longs == 0:
        return Coded(cursor - at, codes, 0, 0)
    in16, in32 = popcount_u64(longs & ~wholes), popcount_u64(wholes)
    put_escapes(source, first, longs & ~wholes, wholes, target, cursor)
    return Coded(cursor - at + 2 * in16 + 4 * in32, codes, in16, in32)


@inline_kernel
def _decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    if lanes < GROUP:
        return decode_group_plainly(payload, lanes, unit8, target, target_at)
    octets, at = payload.octets, payload.at
    fields_at, width, escapes_at = check_fields(payload, lanes)
    if fields_at == MALFORMED:
        return MALFORMED
    present, head, bit = u8(octets, at), at + 1, first_bit(width)
    in16 = in32 = tops = 0
    for burst in range(GROUP // LANES):
        to = target_at + BURST_LEN * burst
        if present >> burst & 1:
            mask = u8(octets, head)
            head += 1
            fields = load_u64(octets, fields_at + (bit >> 3)) >> (bit & 7)
            escapes = decode_burst(unfold_to_codes(fields, width), mask, unit8, target, to, SPREAD)
            bits = width * popcount_u16(mask)
            bit += bits
            tops |= fields & ((1 << (bits - 1) << 1) - 1)  # twice, because a shift by 64 is not defined
            in16 |= (escapes & 0xFF) << (8 * burst)
            in32 |= (escapes >> 8) << (8 * burst)
        else:
            store_zeros(target, to)
    if width > 1 and tops & _TOP_BITS[width] == 0:
        return MALFORMED
    if in16 | in32 == 0:
        return escapes_at - at
    following = escapes_at + 2 * popcount_u64(in16) + 4 * popcount_u64(in32)
    if following > at + payload.length:
        return MALFORMED
    get_escapes(octets, escapes_at, in16, in32, target, target_at)
    return following - at


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
    return encode_packed_groups(_encode_group, vectors.bounded_limits(bound_k), source, source_at, count, room, classes)


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
    """``decode`` of groups and runs; see ``netoffload.codec.packed``."""
    return decode_packed_groups(_decode_group, payload, payload_at, available, count, unit8, target, target_at)


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
    return decode_each_half(decode_packed, payload, payload_at, available, count, middle, unit8, target, target_at)
