"""The tagged codecs for CPUs with AVX-512 VBMI2: one burst is one 256-bit register.

Eight lanes are coded (``vectors``) and squeezed together by one byte compression **in a register**; the 32 octets are
then stored plainly and the next burst overwrites what was too much. (The form of that instruction that stores to memory
is microcoded on Zen 4 and ten times slower.) The way from one burst to the start of the next is short: its length is
three population counts of the planes.

Decoding and round trips are AVX2's: table shuffles reached 9 GB/s where the mirror image of this encoder, one byte
expansion in a register, reached 6.

Only imported where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain, vectors
from netoffload.codec.avx2 import decode_tagged, round_trip_bounded, round_trip_inceptionn
from netoffload.codec.bursts import BURST_LEN, EVEN_BITS, LANES, TAGS_LEN
from netoffload.codec.jit import inline_kernel, inlined_with, kernel
from netoffload.codec.octets import popcount_u16, store_u16
from netoffload.codec.vectors import I32, I64, OCTETS, WORDS, words

_OCTET_MASK: Final = ir.VectorType(ir.IntType(1), BURST_LEN)
_NO_OCTETS: Final = ir.Constant(OCTETS, [0] * BURST_LEN)
_ODD_BITS: Final = 0xAAAA
_PLANES: Final = types.UniTuple(types.int64, 3)


__all__ = ["decode_tagged", "encode_bounded", "encode_inceptionn", "round_trip_bounded", "round_trip_inceptionn"]


def _scatter(builder: Any, word: Any, mask: int) -> Any:
    """BMI2 ``pdep``: the low bits of a 32-bit word onto the bits of ``mask``."""
    function = builder.module.declare_intrinsic("llvm.x86.bmi.pdep.32", fnty=ir.FunctionType(I32, [I32, I32]))
    return builder.call(function, [word, ir.Constant(I32, mask)])


def _squeeze(builder: Any, octets: Any, mask: Any) -> Any:
    """VBMI2 ``compress`` of 32 octets in a register; octets that nothing moves to are 0."""
    name = "llvm.x86.avx512.mask.compress.v32i8"
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(OCTETS, [OCTETS, OCTETS, _OCTET_MASK]))
    return builder.call(function, [octets, _NO_OCTETS, mask])


def _make_encode_burst(codes: Any, limit_types: Any) -> Any:
    @intrinsic
    def encode_burst(typing_context: Any, source: Any, source_at: Any, limits: Any, target: Any, target_at: Any) -> Any:
        """Store the codes of eight floats at ``target_at``; return the three planes, eight bits each."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = builder.load(vectors.pointer(context, builder, signature.args[0], args[0], args[1], WORDS), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            kept = words(0)
            for plane, octets in zip(planes, [*vectors.spread(builder, unpacked[6:8]), words(0xFFFFFFFF)], strict=True):
                kept = builder.or_(kept, builder.select(plane, octets, words(0)))
            mask = builder.icmp_unsigned("!=", builder.bitcast(kept, OCTETS), _NO_OCTETS)
            squeezed = _squeeze(builder, builder.bitcast(code, OCTETS), mask)
            builder.store(
                squeezed, vectors.pointer(context, builder, signature.args[3], args[3], args[4], OCTETS), align=1
            )
            # Held, or LLVM would move each plane out of its mask register a second time for the tag word.
            bits = [vectors.held(builder, vectors.bits_of_plane(builder, plane)) for plane in planes]
            return context.make_tuple(builder, signature.return_type, bits)

        return _PLANES(source, types.int64, types.Tuple(limit_types), target, types.int64), codegen

    return encode_burst


_encode_burst_inceptionn = _make_encode_burst(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_encode_burst_bounded = _make_encode_burst(vectors.bounded_codes, vectors.LIMITS["bounded"])


@inline_kernel
def _inceptionn_burst(source: Any, source_at: Any, limits: Any, target: Any, target_at: Any) -> Any:
    return _encode_burst_inceptionn(source, source_at, limits, target, target_at)


@inline_kernel
def _bounded_burst(source: Any, source_at: Any, limits: Any, target: Any, target_at: Any) -> Any:
    return _encode_burst_bounded(source, source_at, limits, target, target_at)


@intrinsic
def _tags_of_planes(typing_context: Any, first: Any, second: Any, third: Any) -> Any:
    """Return the tag word: tag 1, 2, 3 means plane 0, planes 0 and 1, all planes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, third = (builder.trunc(plane, I32) for plane in args)
        low = builder.or_(builder.xor(first, second), third)
        tags = builder.or_(_scatter(builder, low, EVEN_BITS), _scatter(builder, second, _ODD_BITS))
        return builder.zext(tags, I64)

    return types.int64(types.int64, types.int64, types.int64), codegen


@inlined_with
def _encode_whole(
    encode_burst: Any,
    limits: Any,
    source: Any,
    source_at: Any,
    count: Any,
    target: Any,
    target_at: Any,
    capacity: Any,
    classes: Any,
) -> Any:
    """Encode whole bursts only."""
    at = target_at
    end = target_at + capacity
    whole = count - count % LANES
    done = 0
    eights = sixteens = wholes = 0
    while done < whole:
        first, second, third = encode_burst(source, source_at + 4 * done, limits, target, at + TAGS_LEN)
        in8 = popcount_u16(first)
        in16 = popcount_u16(second)
        in32 = popcount_u16(third)
        following = at + TAGS_LEN + in8 + in16 + 2 * in32
        if following > end:
            break
        store_u16(target, at, _tags_of_planes(first, second, third))
        eights += in8
        sixteens += in16
        wholes += in32
        at = following
        done += LANES
    classes[0] += done - eights
    classes[1] += eights - sixteens
    classes[2] += sixteens - wholes
    classes[3] += wholes
    return done, at - target_at


@kernel
def encode_inceptionn(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """``encode_fit`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = vectors.inceptionn_limits(bound_k)
    done, length = _encode_whole(
        _inceptionn_burst, limits, source, source_at, count, target, target_at, capacity, classes
    )
    if count - LANES < done < count:
        rest, rest_len = plain.encode_inceptionn(
            source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
        )
        return done + rest, length + rest_len
    return done, length


@kernel
def encode_bounded(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """``encode_fit`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = vectors.bounded_limits(bound_k)
    done, length = _encode_whole(_bounded_burst, limits, source, source_at, count, target, target_at, capacity, classes)
    if count - LANES < done < count:
        rest, rest_len = plain.encode_bounded(
            source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
        )
        return done + rest, length + rest_len
    return done, length
