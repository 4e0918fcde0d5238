"""The tagged codecs for CPUs with AVX-512 VBMI2: two bursts are coded in one 512-bit register.

Sixteen lanes are coded together (``vectors``). Then one byte compression **in a register** squeezes each burst. All 32
octets are stored, and the next burst overwrites the surplus. (The form of that instruction that stores to memory is
microcoded on Zen 4 and ten times slower.) A dozen scalar instructions for both bursts compute from the planes which
octets are kept, and the tags. A population count of the kept octets gives the place of the next burst. AVX2 encodes the
rest, less than two bursts.

Decoding and round trips are AVX2's: its table shuffles are faster than the mirror image of this encoder, one byte
expansion in a register.

Only imported where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import avx2, vectors
from netoffload.codec.avx2 import decode_tagged, decode_tagged_halves, round_trip_bounded, round_trip_inceptionn
from netoffload.codec.bursts import BURST_LEN, LANES, TAGS_LEN, add_classes
from netoffload.codec.vectors import I16, I32, I64, OCTETS, BurstCoder, Coder, words
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel

_OCTET_MASK: Final = ir.VectorType(ir.IntType(1), BURST_LEN)
_NO_OCTETS: Final = ir.Constant(OCTETS, [0] * BURST_LEN)
_FIRST_OF_FOUR: Final = 0x1111111111111111
_PAIR: Final = ir.VectorType(I32, 2 * LANES)
_COUNTS: Final = types.UniTuple(types.int64, 3)


__all__ = [
    "decode_tagged",
    "decode_tagged_halves",
    "encode_bounded",
    "encode_inceptionn",
    "round_trip_bounded",
    "round_trip_inceptionn",
]


def _bmi2(builder: Builder, name: str, word: Value, mask: int) -> Value:
    """``pdep``: the low bits of a word onto the bits of ``mask``; ``pext``: the bits of ``mask`` to the low end."""
    function = builder.module.declare_intrinsic(f"llvm.x86.bmi.{name}.64", fnty=ir.FunctionType(I64, [I64, I64]))
    return builder.call(function, [word, ir.Constant(I64, mask)])


def _squeeze(builder: Builder, octets: Value, kept: Value) -> Value:
    """VBMI2 ``compress`` of 32 octets in a register: the octets with a bit in ``kept``, then zeros."""
    name = "llvm.x86.avx512.mask.compress.v32i8"
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(OCTETS, [OCTETS, OCTETS, _OCTET_MASK]))
    return builder.call(function, [octets, _NO_OCTETS, builder.bitcast(kept, _OCTET_MASK)])


def _half(builder: Builder, pair: Value, half: int) -> Value:
    """Return one burst of two, as octets."""
    lanes = words(*range(LANES * half, LANES * (half + 1)))
    return builder.bitcast(builder.shuffle_vector(pair, ir.Constant(_PAIR, ir.Undefined), lanes), OCTETS)


def _kept_and_tags(builder: Builder, planes: Sequence[Value]) -> tuple[Value, Value]:
    """Return which of the 64 octets are kept, one bit each, and both tag words, the first one's in the low half.

    A lane's four octets are four bits: 0000, 0001, 0011 or 1111. The planes are first spread, so that each bit is the
    first of its lane's four. A tag is the last two bits of (first ^ third) ^ 3 * second.
    """
    first, second, third = (_bmi2(builder, "pdep", plane, _FIRST_OF_FOUR) for plane in planes)
    kept = builder.add(builder.add(first, builder.shl(second, I64(1))), builder.mul(third, I64(12)))
    tags = builder.xor(builder.xor(first, third), builder.mul(second, I64(3)))
    return kept, _bmi2(builder, "pext", tags, 3 * _FIRST_OF_FOUR)


def _make_encode_bursts(codes: Coder, limit_types: Sequence[NumbaType]) -> Callable[..., tuple[int, int, int]]:
    @intrinsic
    def encode_bursts(
        typing_context: TypingContext,
        source: NumbaType,
        source_at: NumbaType,
        limits: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
    ) -> Intrinsic:
        """Store two bursts from ``target_at`` on; return their length, and how many lanes are in planes 1 and 2."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            word = builder.load(vectors.pointer(context, builder, signature.args[0], args[0], args[1], _PAIR), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            # ``held`` keeps LLVM from moving each plane out of its mask register once for every use.
            bits = [vectors.held(builder, vectors.bits_of_plane(builder, plane)) for plane in planes]
            kept, tags = _kept_and_tags(builder, bits)
            kept_halves = builder.trunc(kept, I32), builder.trunc(builder.lshr(kept, I64(32)), I32)
            at = args[4]
            ends = [builder.zext(builder.ctpop(kept_halves[0]), I64), builder.ctpop(kept)]
            for half in (0, 1):
                tag_word = builder.trunc(builder.lshr(tags, I64(16 * half)), I16)
                builder.store(tag_word, vectors.pointer(context, builder, signature.args[3], args[3], at, I16), align=1)
                at = builder.add(at, I64(TAGS_LEN))
                squeezed = _squeeze(builder, _half(builder, code, half), kept_halves[half])
                room = vectors.pointer(context, builder, signature.args[3], args[3], at, OCTETS)
                builder.store(squeezed, room, align=1)
                at = builder.add(at, ends[0])
            length = builder.add(ends[1], I64(2 * TAGS_LEN))
            in16, in32 = (builder.ctpop(plane) for plane in bits[1:])
            return context.make_tuple(builder, signature.return_type, [length, in16, in32])

        return _COUNTS(source, types.int64, types.Tuple(limit_types), target, types.int64), codegen

    return encode_bursts


_encode_bursts_inceptionn = _make_encode_bursts(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_encode_bursts_bounded = _make_encode_bursts(vectors.bounded_codes, vectors.LIMITS["bounded"])


@inline_kernel
def _inceptionn_bursts(
    source: Uint8Array, source_at: int, limits: tuple[int, ...], target: Uint8Array, target_at: int
) -> tuple[int, int, int]:
    return _encode_bursts_inceptionn(source, source_at, limits, target, target_at)


@inline_kernel
def _bounded_bursts(
    source: Uint8Array, source_at: int, limits: tuple[int, ...], target: Uint8Array, target_at: int
) -> tuple[int, int, int]:
    return _encode_bursts_bounded(source, source_at, limits, target, target_at)


@inlined_with
def _encode_pairs(
    encode_bursts: BurstCoder[tuple[int, int, int]],
    limits: tuple[int, ...],
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """Encode bursts two by two, as long as both fit."""
    target, at = room.octets, room.at
    end = at + room.length
    whole = count - count % (2 * LANES)
    done = 0
    sixteens = wholes = 0
    while done < whole:
        length, in16, in32 = encode_bursts(source, source_at + 4 * done, limits, target, at)
        if at + length > end:
            break
        sixteens += in16
        wholes += in32
        at += length
        done += 2 * LANES
    add_classes(classes, done, at - room.at - done // LANES * TAGS_LEN, sixteens, wholes)
    return done, at - room.at


@kernel
def encode_inceptionn(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = vectors.inceptionn_limits(bound_k)
    room = Stretch(target, target_at, capacity)
    done, length = _encode_pairs(_inceptionn_bursts, limits, source, source_at, count, room, classes)
    if done == count:
        return done, length
    rest, rest_len = avx2.encode_inceptionn(
        source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
    )
    return done + rest, length + rest_len


@kernel
def encode_bounded(
    source: Uint8Array,
    source_at: int,
    count: int,
    bound_k: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = vectors.bounded_limits(bound_k)
    room = Stretch(target, target_at, capacity)
    done, length = _encode_pairs(_bounded_bursts, limits, source, source_at, count, room, classes)
    if done == count:
        return done, length
    rest, rest_len = avx2.encode_bounded(
        source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
    )
    return done + rest, length + rest_len
