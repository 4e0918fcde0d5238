"""The burst engine for CPUs with AVX-512 VBMI2: one burst is one 256-bit register.

Eight lanes are classified by three compares, coded by shifts, and squeezed together by one byte compression **in a
register**; the 32 octets are then stored plainly and the next burst overwrites what was too much. (The form of that
instruction that stores to memory is microcoded on Zen 4 and ten times slower.) Decoding is the mirror: one load, one
byte expansion, one integer-to-float conversion, which finds the leading one.

What limits both is the way from one burst to the start of the next, so the length comes from population counts of the
tag planes and not from the expanded mask.

The contract is that of ``netoffload.codec.plain``, which also encodes what is less than a whole burst. Only imported
where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain
from netoffload.codec.jit import kernel
from netoffload.codec.octets import load_u16, popcount_u16, store_u16
from netoffload.codec.plain import BURST_LEN, LANES, TAGS_LEN, tags_len

_I8 = ir.IntType(8)
_I16 = ir.IntType(16)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_V8I1 = ir.VectorType(ir.IntType(1), LANES)
_V8I32 = ir.VectorType(_I32, LANES)
_V8F32 = ir.VectorType(ir.FloatType(), LANES)
_V32I1 = ir.VectorType(ir.IntType(1), BURST_LEN)
_V32I8 = ir.VectorType(_I8, BURST_LEN)

_EVEN: Final = 0x5555
_ODD: Final = 0xAAAA


def _all_lanes(value: int) -> ir.Constant:
    return ir.Constant(_V8I32, [value] * LANES)


def _octet_pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, pointee: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), pointee.as_pointer())


def _broadcast(builder: Any, word: Any) -> Any:
    one = builder.insert_element(ir.Constant(_V8I32, ir.Undefined), builder.trunc(word, _I32), ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, ir.Constant(_V8I32, ir.Undefined), _all_lanes(0))


def _bit_scatter(builder: Any, operation: str, word: Any, mask: int) -> Any:
    """BMI2 ``pdep`` or ``pext`` of a 32-bit word."""
    function = builder.module.declare_intrinsic(
        f"llvm.x86.bmi.{operation}.32", fnty=ir.FunctionType(_I32, [_I32, _I32])
    )
    return builder.call(function, [word, ir.Constant(_I32, mask)])


def _move_octets(builder: Any, operation: str, octets: Any, mask: Any) -> Any:
    """VBMI2 ``compress`` or ``expand`` of 32 octets in a register; octets that nothing moves to are 0."""
    function = builder.module.declare_intrinsic(
        f"llvm.x86.avx512.mask.{operation}.v32i8", fnty=ir.FunctionType(_V32I8, [_V32I8, _V32I8, _V32I1])
    )
    return builder.call(function, [octets, ir.Constant(_V32I8, [0] * BURST_LEN), mask])


@intrinsic
def _encode_burst(typing_context: Any, source: Any, source_at: Any, bound_k: Any, target: Any, target_at: Any) -> Any:
    """Store the codes of eight floats at ``target_at``; return the three class planes, eight bits each.

    Bit i of plane 0, 1, 2: lane i takes at least 1, 2, 4 octets.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _octet_pointer(context, builder, signature.args[0], args[0], args[1], _V8I32)
        word = builder.load(pointer, align=1)
        exponent = builder.and_(builder.lshr(word, _all_lanes(23)), _all_lanes(0xFF))
        n_shift = builder.sub(_all_lanes(127), exponent)
        bound = _broadcast(builder, args[2])
        planes = (
            builder.icmp_signed("<=", n_shift, bound),
            builder.icmp_signed("<=", n_shift, builder.lshr(bound, _all_lanes(1))),
            builder.icmp_signed("<=", n_shift, _all_lanes(0)),
        )
        significand = builder.or_(builder.and_(word, _all_lanes(0x7FFFFF)), _all_lanes(0x800000))
        # A shift of 32 or more only happens to lanes of class 0, whose code is not used.
        shifted = builder.lshr(significand, builder.and_(n_shift, _all_lanes(31)))
        code8 = builder.or_(
            builder.and_(builder.lshr(word, _all_lanes(24)), _all_lanes(0x80)), builder.lshr(shifted, _all_lanes(16))
        )
        code16 = builder.or_(
            builder.and_(builder.lshr(word, _all_lanes(16)), _all_lanes(0x8000)), builder.lshr(shifted, _all_lanes(8))
        )
        code = builder.select(planes[2], word, builder.select(planes[1], code16, code8))
        kept = _all_lanes(0)
        for plane, octets in zip(planes, (0xFF, 0xFFFF, 0xFFFFFFFF), strict=True):
            kept = builder.or_(kept, builder.select(plane, _all_lanes(octets), _all_lanes(0)))
        mask = builder.icmp_unsigned("!=", builder.bitcast(kept, _V32I8), ir.Constant(_V32I8, [0] * BURST_LEN))
        squeezed = _move_octets(builder, "compress", builder.bitcast(code, _V32I8), mask)
        builder.store(squeezed, _octet_pointer(context, builder, signature.args[3], args[3], args[4], _V32I8), align=1)
        result = ir.Constant(_I64, 0)
        for index, plane in enumerate(planes):
            bits = builder.zext(builder.bitcast(plane, _I8), _I64)
            result = builder.or_(result, builder.shl(bits, ir.Constant(_I64, 8 * index)))
        return result

    signature = types.int64(source, types.int64, types.int64, target, types.int64)
    return signature, codegen


@intrinsic
def _tags_of_planes(typing_context: Any, planes: Any) -> Any:
    """Return the tag word: tag 1, 2, 3 means plane 0, planes 0 and 1, all planes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.trunc(args[0], _I32)
        first = builder.and_(word, ir.Constant(_I32, 0xFF))
        second = builder.and_(builder.lshr(word, ir.Constant(_I32, 8)), ir.Constant(_I32, 0xFF))
        third = builder.lshr(word, ir.Constant(_I32, 16))
        low = builder.or_(builder.xor(first, second), third)
        tags = builder.or_(_bit_scatter(builder, "pdep", low, _EVEN), _bit_scatter(builder, "pdep", second, _ODD))
        return builder.zext(tags, _I64)

    return types.int64(types.int64), codegen


@intrinsic
def _decode_burst(typing_context: Any, tags: Any, payload: Any, payload_at: Any, target: Any, target_at: Any) -> Any:
    """Store the eight floats whose codes start at ``payload_at`` (behind their tag word)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.trunc(args[0], _I32)
        nibbles = _bit_scatter(builder, "pdep", word, 0x33333333)
        low = builder.and_(nibbles, ir.Constant(_I32, 0x11111111))
        high = builder.and_(builder.lshr(nibbles, ir.Constant(_I32, 1)), ir.Constant(_I32, 0x11111111))
        both = builder.and_(low, high)
        mask = builder.or_(
            builder.or_(builder.or_(low, high), builder.shl(high, ir.Constant(_I32, 1))),
            builder.mul(both, ir.Constant(_I32, 12)),
        )
        octets = builder.load(_octet_pointer(context, builder, signature.args[1], args[1], args[2], _V32I8), align=1)
        code = builder.bitcast(_move_octets(builder, "expand", octets, builder.bitcast(mask, _V32I1)), _V8I32)

        low_plane = builder.bitcast(builder.trunc(_bit_scatter(builder, "pext", word, _EVEN), _I8), _V8I1)
        high_plane = builder.bitcast(builder.trunc(_bit_scatter(builder, "pext", word, _ODD), _I8), _V8I1)
        is_whole = builder.and_(low_plane, high_plane)
        # The 8-bit form is the 16-bit form without its low octet; one conversion serves both.
        fraction = builder.select(high_plane, code, builder.shl(code, _all_lanes(8)))
        magnitude = builder.and_(fraction, _all_lanes(0x7FFF))
        scale = ir.Constant(_V8F32, [2.0**-15] * LANES)
        value = builder.bitcast(builder.fmul(builder.sitofp(magnitude, _V8F32), scale), _V8I32)
        sign = builder.shl(builder.and_(fraction, _all_lanes(0x8000)), _all_lanes(16))
        is_zero = builder.icmp_unsigned("==", magnitude, _all_lanes(0))
        small = builder.select(is_zero, _all_lanes(0), builder.or_(value, sign))
        result = builder.select(is_whole, code, small)
        builder.store(result, _octet_pointer(context, builder, signature.args[3], args[3], args[4], _V8I32), align=1)
        return context.get_dummy_value()

    signature = types.none(types.int64, payload, types.int64, target, types.int64)
    return signature, codegen


@kernel
def encode_fit(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """See :func:`netoffload.codec.plain.encode_fit`."""
    at = target_at
    end = target_at + capacity
    whole = count - count % LANES
    done = 0
    eights = sixteens = words = 0
    while done < whole:
        planes = _encode_burst(source, source_at + 4 * done, bound_k, target, at + TAGS_LEN)
        in8 = popcount_u16(planes & 0xFF)
        in16 = popcount_u16(planes >> 8 & 0xFF)
        in32 = popcount_u16(planes >> 16)
        following = at + TAGS_LEN + in8 + in16 + 2 * in32
        if following > end:
            break
        store_u16(target, at, _tags_of_planes(planes))
        eights += in8
        sixteens += in16
        words += in32
        at = following
        done += LANES
    classes[0] += done - eights
    classes[1] += eights - sixteens
    classes[2] += sixteens - words
    classes[3] += words
    if done == whole and whole < count:
        rest, rest_len = plain.encode_fit(
            source, source_at + 4 * done, count - done, bound_k, target, at, end - at, classes
        )
        done += rest
        at += rest_len
    return done, at - target_at


@kernel
def decode(payload: Any, payload_at: int, count: int, target: Any, target_at: int) -> int:
    """See :func:`netoffload.codec.plain.decode`."""
    at = payload_at
    whole = count - count % LANES
    for first in range(0, whole, LANES):
        tags = load_u16(payload, at)
        _decode_burst(tags, payload, at + TAGS_LEN, target, target_at + 4 * first)
        at += TAGS_LEN + tags_len(tags)
    if whole < count:
        at += plain.decode(payload, at, count - whole, target, target_at + 4 * whole)
    return int(at - payload_at)


__all__ = ["decode", "encode_fit"]
