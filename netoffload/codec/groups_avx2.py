"""Masks and codes of groups for CPUs with AVX2: a byte shuffle from a table of 256 moves the codes of a burst.

A lane mask selects the shuffle, which squeezes eight codes together when encoding and spreads them when decoding. A
burst of zeros costs one comparison, or one store. ``vectors`` has the arithmetic on eight lanes; escapes go one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import vectors
from netoffload.codec.bursts import BURST_LEN, LANES
from netoffload.codec.escapes import ESCAPE16
from netoffload.codec.groups import GROUP
from netoffload.codec.plain import MAGNITUDE_BITS
from netoffload.codec.shuffles import HALF, NO_OCTET, entry, shuffle
from netoffload.codec.vectors import I8, I32, I64, WORDS, words
from netoffload.compiled.arrays import Stretch, Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import load_u64, popcount_u16, u8

_CODES: Final = ir.VectorType(I8, LANES)
_NO_CODES: Final = ir.Constant(_CODES, [0] * LANES)


def _make_tables() -> tuple[Uint8Array, Uint8Array]:
    """Return (squeeze, spread): per lane mask the shuffle controls of eight octets."""
    squeeze = np.full((256, LANES), NO_OCTET, np.uint8)
    spread = np.full((256, LANES), NO_OCTET, np.uint8)
    for mask in range(256):
        for at, lane in enumerate(lane for lane in range(LANES) if mask >> lane & 1):
            squeeze[mask, at] = lane
            spread[mask, lane] = at
    return squeeze.reshape(-1), spread.reshape(-1)


_SQUEEZE, _SPREAD = _make_tables()


def _moved(context: Context, builder: Builder, table: tuple[NumbaType, Value], mask: Value, codes: Value) -> Value:
    """Return the eight octets of a word, moved by the table's shuffle for ``mask``."""
    control = entry(context, builder, *table, mask, LANES, I64)
    pair = ir.VectorType(I64, 2)
    both = [
        builder.bitcast(builder.insert_element(ir.Constant(pair, [0, 0]), half, I32(0)), HALF)
        for half in (codes, control)
    ]
    moved = builder.bitcast(shuffle(builder, *both), pair)
    return builder.bitcast(builder.extract_element(moved, I32(0)), _CODES)


@intrinsic
def _lane_mask(typing_context: TypingContext, source: NumbaType, at: NumbaType, smallest: NumbaType) -> Intrinsic:
    """Return which of eight floats do not become 0."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        word = builder.load(vectors.pointer(context, builder, signature.args[0], args[0], args[1], WORDS), align=1)
        magnitude = builder.and_(word, words(MAGNITUDE_BITS))
        (limit,) = vectors.spread(builder, [args[2]])
        return vectors.bits_of_plane(builder, builder.icmp_signed(">=", magnitude, limit))

    return types.int64(source, types.int64, types.int64), codegen


# Eight parameters: the first is Numba's, and an intrinsic takes tables as arguments.
@intrinsic
def _encode_burst(
    typing_context: TypingContext,
    source: NumbaType,
    source_at: NumbaType,
    limits: NumbaType,
    mask: NumbaType,
    target: NumbaType,
    target_at: NumbaType,
    squeeze: NumbaType,
) -> Intrinsic:
    """Store the codes of eight floats; return which take 16 bits or more, and which 32, in the next octet."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        kinds = signature.args
        word = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], WORDS), align=1)
        unpacked = [builder.extract_value(args[2], index) for index in range(len(vectors.LIMITS["bounded"]))]
        planes, codes = vectors.bounded_octets(builder, word, unpacked)
        squeezed = _moved(context, builder, (kinds[6], args[6]), args[3], builder.bitcast(codes, I64))
        builder.store(squeezed, vectors.pointer(context, builder, kinds[4], args[4], args[5], _CODES), align=1)
        longs, wholes = (vectors.bits_of_plane(builder, plane) for plane in planes[1:])
        return builder.or_(longs, builder.shl(wholes, I64(8)))

    limit_types = types.Tuple(vectors.LIMITS["bounded"])
    return types.int64(source, types.int64, limit_types, types.int64, target, types.int64, squeeze), codegen


@intrinsic
def _decode_burst(
    typing_context: TypingContext,
    codes: NumbaType,
    mask: NumbaType,
    unit8: NumbaType,
    target: NumbaType,
    target_at: NumbaType,
    spread: NumbaType,
) -> Intrinsic:
    """Store eight floats from up to eight codes in a word; return which are escapes to 16 bits, and to 32 bits in the
    next octet. An escape is stored as 0."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        kinds = signature.args
        codes = _moved(context, builder, (kinds[5], args[5]), args[1], args[0])
        top = builder.shl(builder.zext(codes, WORDS), words(24))
        floats = vectors.floats_of_tops8(builder, top, args[2])
        builder.store(floats, vectors.pointer(context, builder, kinds[3], args[3], args[4], WORDS), align=1)
        escapes16 = builder.icmp_unsigned("==", codes, ir.Constant(_CODES, [ESCAPE16] * LANES))
        zeros = builder.icmp_unsigned("==", codes, _NO_CODES)
        in16, in32 = (vectors.bits_of_plane(builder, plane) for plane in (escapes16, zeros))
        return builder.or_(in16, builder.shl(builder.and_(in32, args[1]), I64(8)))

    arguments = (types.int64, types.int64, types.float32, target, types.int64, spread)
    return types.int64(*arguments), codegen


@intrinsic
def _store_zeros(typing_context: TypingContext, target: NumbaType, at: NumbaType) -> Intrinsic:
    """Store eight floats, all +0."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        room = vectors.pointer(context, builder, signature.args[0], args[0], args[1], WORDS)
        builder.store(words(0), room, align=1)
        return context.get_dummy_value()

    return types.none(target, types.int64), codegen


@inline_kernel
def put_masks(source: Uint8Array, first: int, smallest: int, target: Uint8Array, at: int) -> int:
    """Write the masks of a group; return where its codes begin."""
    present, head = 0, at + 1
    for burst in range(GROUP // LANES):
        mask = _lane_mask(source, first + BURST_LEN * burst, smallest)
        target[head] = mask
        head += int(mask != 0)
        present |= int(mask != 0) << burst
    target[at] = present
    return head


@inline_kernel
def put_codes(
    source: Uint8Array, first: int, limits: tuple[int, ...], target: Uint8Array, masks_at: int, at: int
) -> tuple[int, int, int]:
    """Write the codes of a group behind its masks; return their end, which lanes take 16 bits or more, and which 32."""
    present, head = u8(target, masks_at), masks_at + 1
    longs = wholes = 0
    for burst in range(GROUP // LANES):
        if present >> burst & 1:
            mask = u8(target, head)
            head += 1
            planes = _encode_burst(source, first + BURST_LEN * burst, limits, mask, target, at, _SQUEEZE)
            longs |= (planes & 0xFF) << (8 * burst)
            wholes |= (planes >> 8) << (8 * burst)
            at += popcount_u16(mask)
    return at, longs, wholes


@inline_kernel
def limits_of_plain(limits: tuple[int, ...]) -> tuple[int, ...]:
    """Return the limits that the plain kernels take."""
    return limits[0], limits[1], limits[6], limits[2]


@inline_kernel
def get_codes(masks: Stretch, codes: Stretch, unit8: np.float32, target: Uint8Array, target_at: int) -> tuple[int, int]:
    """``get_codes`` of ``netoffload.codec.groups``, for 64 floats."""
    present, head, cursor = u8(masks.octets, masks.at), masks.at + 1, codes.at
    in16 = in32 = 0
    for burst in range(GROUP // LANES):
        to = target_at + BURST_LEN * burst
        if present >> burst & 1:
            mask = u8(masks.octets, head)
            head += 1
            escapes = _decode_burst(load_u64(codes.octets, cursor), mask, unit8, target, to, _SPREAD)
            in16 |= (escapes & 0xFF) << (8 * burst)
            in32 |= (escapes >> 8) << (8 * burst)
            cursor += popcount_u16(mask)
        else:
            _store_zeros(target, to)
    return in16, in32
