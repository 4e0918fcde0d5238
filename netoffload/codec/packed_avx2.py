"""Groups with widths for CPUs with AVX2: the bursts of ``groups_avx2``, and the folding of ``packed``.

Encoding writes each code as an octet, and ``packed`` folds them in place. Decoding first unfolds the
codes, a word at a time, to the place of the group's last floats.
"""

from __future__ import annotations

import numpy as np

from netoffload.codec import vectors
from netoffload.codec.bursts import MALFORMED, Middle
from netoffload.codec.escapes import Coded, get_escapes, with_escapes
from netoffload.codec.groups import GROUP, decode_each_half
from netoffload.codec.groups_avx2 import get_codes, limits_of_plain, put_codes, put_masks
from netoffload.codec.packed import decode_group as decode_group_plainly
from netoffload.codec.packed import decode_packed_groups, encode_packed_groups, pack_codes, unpack_codes
from netoffload.codec.packed import encode_group as encode_group_plainly
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel

__all__ = ["decode_packed", "decode_packed_halves", "encode_packed"]


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
    return with_escapes(source, first, longs, wholes, target, at, cursor, codes)


@inline_kernel
def _decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    if lanes < GROUP:
        return decode_group_plainly(payload, lanes, unit8, target, target_at)
    codes, escapes_at = unpack_codes(payload, lanes, target, target_at)
    if escapes_at == MALFORMED:
        return MALFORMED
    in16, in32 = get_codes(payload, codes, unit8, target, target_at)
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
    whole = Stretch(payload, payload_at, available)
    return decode_each_half(decode_packed, whole, count, middle, unit8, target, target_at)
