"""Groups with widths for CPUs with AVX-512 VBMI: 64 fields are folded and unfolded in a register.

Encoding drops the zeros as ``groups_avx512`` does. Three shifts, of 16, 32 and 64 bits, then fold eight fields to the
low end of each word of 64 bits. One byte permutation brings the octets of the eight words together, and a shift over
two words puts the width in front. Decoding permutes the octets of eight fields into each word, and VBMI's multishift
takes eight bits from anywhere in it for each field.

Only imported where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from netoffload.codec import vectors
from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.escapes import get_escapes
from netoffload.codec.groups import GROUP, decode_each_half
from netoffload.codec.groups_avx512 import (
    NO_OCTETS,
    OCTETS,
    call,
    encoder_of_group,
    lanes_below,
    put_floats,
    read_masks,
    spread,
    squeezed,
)
from netoffload.codec.packed import (
    WIDTH_BITS,
    WIDTH_MAX,
    decode_packed_groups,
    encode_packed_groups,
    fields_len,
    fill_of,
)
from netoffload.codec.vectors import I8, I32, I64
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import popcount_u64, u8

__all__ = ["decode_packed", "decode_packed_halves", "encode_packed"]

_EIGHTS: Final = GROUP // 8
_EIGHT_WORDS: Final = ir.VectorType(I64, _EIGHTS)

_NEVER_SET: Final = 7
"""An octet of the first word that folded fields of less than 8 bits do not reach."""


def _table(octet_of: Callable[[int, int], int]) -> list[list[int]]:
    """Return a row of 64 octets per width; width 0 is not used."""
    return [[octet_of(width, octet) if width else 0 for octet in range(GROUP)] for width in range(WIDTH_MAX + 1)]


_TOGETHER: Final = _table(lambda w, octet: 8 * (octet // w) + octet % w if octet < 8 * w else _NEVER_SET)
"""Per width and octet of the result: which octet of eight words, with folded fields at their low ends, it is."""

_APART: Final = _table(lambda w, octet: w * (octet // 8) + octet % 8)
"""Per width, which octets hold the fields of each word."""

_FIRST_BITS: Final = _table(lambda w, octet: w * (octet % 8) + (0 if w == WIDTH_MAX else WIDTH_BITS))
"""Per width, where in its word each field begins."""


def _row(builder: Builder, name: str, table: Sequence[Sequence[int]], width: Value) -> Value:
    """Return a row of a table that is part of the compiled code."""
    octets = ir.Constant(ir.ArrayType(OCTETS, len(table)), [ir.Constant(OCTETS, row) for row in table])
    rows = cgutils.global_constant(builder.module, f"packed_{name}", octets)
    return builder.load(builder.gep(rows, [I64(0), width]), align=GROUP)


def _octets(builder: Builder, value: Value) -> Value:
    """Return 64 octets, each the low end of an i64."""
    return vectors.all_lanes(builder, builder.trunc(value, I8), OCTETS)


def _all(value: int) -> ir.Constant:
    return ir.Constant(OCTETS, [value] * GROUP)


def _permuted(builder: Builder, octets: Value, order: Value) -> Value:
    return call(builder, "llvm.x86.avx512.permvar.qi.512", OCTETS, octets, order)


def _folded(builder: Builder, fields: Value, width: Value) -> Value:
    """Return eight words with eight fields each at their low end."""
    folded = fields
    for bits, times in ((8, 1), (16, 2), (32, 4)):
        lanes = ir.VectorType(ir.IntType(2 * bits), GROUP * 8 // (2 * bits))
        pairs = builder.bitcast(folded, lanes)
        low = builder.and_(pairs, ir.Constant(lanes, [(1 << bits) - 1] * lanes.count))
        high = builder.lshr(pairs, ir.Constant(lanes, [bits] * lanes.count))
        by = builder.mul(width, I64(times))
        by = vectors.all_lanes(builder, by if bits == 32 else builder.trunc(by, lanes.element), lanes)
        folded = builder.or_(low, builder.shl(high, by))
    return folded


def _put_fields(
    context: Context, builder: Builder, target: tuple[NumbaType, Value], at: Value, codes: Value, lanes: Value
) -> Value:
    """Store the width and the fields of a group; with fields of 8 bits, the last one may begin behind 64 octets."""
    all_fields = builder.or_(
        builder.shl(builder.sub(builder.and_(codes, _all(0x7F)), _all(1)), _all(1)), builder.lshr(codes, _all(7))
    )
    fields = squeezed(builder, all_fields, lanes)
    union = call(builder, "llvm.vector.reduce.or.v64i8", I8, fields)
    leading = builder.ctlz(builder.or_(union, I8(1)), ir.IntType(1)(1))
    width = builder.zext(builder.sub(I8(8), leading), I64)
    row = _row(builder, "together", _TOGETHER, width)
    together = builder.bitcast(
        _permuted(builder, builder.bitcast(_folded(builder, fields, width), OCTETS), row), _EIGHT_WORDS
    )
    is_whole = builder.icmp_unsigned("==", width, I64(WIDTH_MAX))
    shift = builder.select(is_whole, I64(8), I64(WIDTH_BITS))
    head = builder.shl(builder.sub(width, I64(1)), builder.sub(I64(64), shift))
    before = builder.insert_element(ir.Constant(_EIGHT_WORDS, ir.Undefined), head, I32(7))
    order = ir.Constant(ir.VectorType(I32, 8), list(range(7, 15)))
    below = builder.shuffle_vector(before, together, order)
    shifts = vectors.all_lanes(builder, shift, _EIGHT_WORDS)
    stored = call(builder, "llvm.fshl.v8i64", _EIGHT_WORDS, together, below, shifts)
    builder.store(stored, vectors.pointer(context, builder, *target, at, _EIGHT_WORDS), align=1)
    last = builder.extract_element(fields, I32(GROUP - 1))
    builder.store(last, vectors.pointer(context, builder, *target, builder.add(at, I64(GROUP)), I8), align=1)
    bits = builder.mul(builder.ctpop(builder.bitcast(lanes, I64)), width)
    return builder.lshr(builder.add(bits, I64(WIDTH_BITS + 7)), I64(3))


def _make_decode(*, full: bool) -> Callable[..., tuple[int, int, int]]:
    @intrinsic
    def decode(
        typing_context: TypingContext,
        payload: NumbaType,
        fields_at: NumbaType,
        group: NumbaType,
        unit8: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
    ) -> Intrinsic:
        """Store the floats of a group, 0 for an escape; ``group``: width, lanes that are not 0, floats.

        Return the lanes whose codes are escapes to 16 and to 32 bits, and which fields have the top bit of their width.
        """

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            kinds = signature.args
            width, lanes, count = (builder.extract_value(args[2], index) for index in range(3))
            is_whole = builder.zext(builder.icmp_unsigned("==", width, I64(WIDTH_MAX)), I64)
            at = builder.add(args[1], is_whole)
            stored = builder.load(vectors.pointer(context, builder, kinds[0], args[0], at, OCTETS), align=1)
            apart = _permuted(builder, stored, _row(builder, "apart", _APART, width))
            first_bits = _row(builder, "first_bits", _FIRST_BITS, width)
            bits = call(builder, "llvm.x86.avx512.pmultishift.qb.512", OCTETS, first_bits, apart)
            top = builder.shl(I64(1), builder.sub(width, I64(1)))
            tops = builder.icmp_unsigned("!=", builder.and_(bits, _octets(builder, top)), NO_OCTETS)
            kept = _octets(builder, builder.sub(builder.shl(top, I64(1)), I64(1)))
            fields = builder.and_(bits, kept)
            magnitudes = builder.and_(builder.add(builder.lshr(fields, _all(1)), _all(1)), _all(0x7F))
            codes, escapes = spread(builder, builder.or_(magnitudes, builder.shl(fields, _all(7))), lanes)
            written = None if full else lanes_below(builder, count)
            put_floats(context, builder, (kinds[4], args[4]), args[5], codes, args[3], written)
            among = builder.lshr(I64(-1), builder.sub(I64(GROUP), builder.ctpop(lanes)))
            in_top = builder.and_(builder.bitcast(tops, I64), among)
            return context.make_tuple(builder, signature.return_type, [*escapes, in_top])

        three = types.UniTuple(types.int64, 3)
        return three(payload, types.int64, three, types.float32, target, types.int64), codegen

    return decode


_encode_group = encoder_of_group(_put_fields)
_decode_full = _make_decode(full=True)
_decode_part = _make_decode(full=False)


@inline_kernel
def _decode_group(payload: Stretch, lanes: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    octets, at, end = payload.octets, payload.at, payload.at + payload.length
    present, there, is_whole = read_masks(octets, at)
    fields_at = at + 1 + popcount_u64(present)
    width = (u8(octets, fields_at) & (WIDTH_MAX - 1)) + 1
    bits = popcount_u64(there) * width
    fields_end = fields_at + fields_len(popcount_u64(there), width)
    if not is_whole or fields_end > end or fill_of(octets, fields_at, fields_end, bits):
        return MALFORMED
    group = width, there, lanes
    if lanes == GROUP:
        in16, in32, tops = _decode_full(octets, fields_at, group, unit8, target, target_at)
    else:
        if there >> lanes or present >> ((lanes + LANES - 1) // LANES):
            return MALFORMED
        in16, in32, tops = _decode_part(octets, fields_at, group, unit8, target, target_at)
    if tops == 0 and width > 1:
        return MALFORMED
    return get_escapes(payload, fields_end, in16, in32, target, target_at)


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
