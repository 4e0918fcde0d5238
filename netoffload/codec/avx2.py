"""The tagged codecs for CPUs with AVX2: lanes are moved by byte shuffles from a table, the StreamVByte way.

The eight tag bits of four lanes select one of 256 shuffles of 16 octets, so a burst takes two lookups and two shuffles.
They squeeze the codes together when encoding, and spread them when decoding (``avx2_decode``). The code that classifies
and codes the lanes is shared with AVX-512 (``vectors``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain, vectors
from netoffload.codec.avx2_decode import decode_tagged, decode_tagged_halves
from netoffload.codec.bursts import LANES, TAGS_LEN, add_classes, long_lanes, tags_len
from netoffload.codec.shuffles import EVEN, HALF, LENGTH, SQUEEZE, entry, shuffle
from netoffload.codec.vectors import I8, I16, I32, I64, WORDS, BurstCoder, Coder, words
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import store_u16

__all__ = [
    "decode_tagged",
    "decode_tagged_halves",
    "encode_bounded",
    "encode_inceptionn",
    "round_trip_bounded",
    "round_trip_inceptionn",
]


def _halves(builder: Builder, burst: Value) -> list[Value]:
    nothing = ir.Constant(WORDS, ir.Undefined)
    return [
        builder.bitcast(
            builder.shuffle_vector(burst, nothing, ir.Constant(ir.VectorType(I32, 4), list(range(first, first + 4)))),
            HALF,
        )
        for first in (0, 4)
    ]


def _make_encode_burst(codes: Coder, limit_types: Sequence[NumbaType]) -> Callable[..., int]:
    # Nine parameters: the first is Numba's, and an intrinsic takes tables as arguments.
    @intrinsic
    def encode_burst(
        typing_context: TypingContext,
        source: NumbaType,
        source_at: NumbaType,
        limits: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
        squeeze: NumbaType,
        length: NumbaType,
        even: NumbaType,
    ) -> Intrinsic:
        """Store the codes of eight floats at ``target_at``; return their tag word."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            kinds = signature.args
            word = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], WORDS), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            low_plane = builder.or_(builder.xor(planes[0], planes[1]), planes[2])
            low, high = (
                entry(context, builder, kinds[7], args[7], vectors.bits_of_plane(builder, plane), 2, I16)
                for plane in (low_plane, planes[1])
            )
            tags = builder.zext(builder.or_(low, builder.shl(high, ir.Constant(I16, 1))), I64)
            at = args[4]
            for octets, half in zip(_halves(builder, code), (0, 8), strict=True):
                tag_octet = builder.and_(builder.lshr(tags, ir.Constant(I64, half)), ir.Constant(I64, 0xFF))
                control = entry(context, builder, kinds[5], args[5], tag_octet, 16, HALF)
                room = vectors.pointer(context, builder, kinds[3], args[3], at, HALF)
                builder.store(shuffle(builder, octets, control), room, align=1)
                taken = entry(context, builder, kinds[6], args[6], tag_octet, 1, I8)
                at = builder.add(at, builder.zext(taken, I64))
            return tags

        arguments = (source, types.int64, types.Tuple(limit_types), target, types.int64, squeeze, length, even)
        return types.int64(*arguments), codegen

    return encode_burst


_encode_burst_inceptionn = _make_encode_burst(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_encode_burst_bounded = _make_encode_burst(vectors.bounded_codes, vectors.LIMITS["bounded"])


@inline_kernel
def _inceptionn_burst(
    source: Uint8Array, source_at: int, limits: tuple[int, ...], target: Uint8Array, target_at: int
) -> int:
    return _encode_burst_inceptionn(source, source_at, limits, target, target_at, SQUEEZE, LENGTH, EVEN)


@inline_kernel
def _bounded_burst(
    source: Uint8Array, source_at: int, limits: tuple[int, ...], target: Uint8Array, target_at: int
) -> int:
    return _encode_burst_bounded(source, source_at, limits, target, target_at, SQUEEZE, LENGTH, EVEN)


@inlined_with
def _encode_whole(
    encode_burst: BurstCoder[int],
    limits: tuple[int, ...],
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """Encode whole bursts only."""
    target, at = room.octets, room.at
    end = at + room.length
    whole = count - count % LANES
    done = 0
    sixteens = wholes = 0
    while done < whole:
        tags = encode_burst(source, source_at + 4 * done, limits, target, at + TAGS_LEN)
        following = at + TAGS_LEN + tags_len(tags)
        if following > end:
            break
        store_u16(target, at, tags)
        in16, in32 = long_lanes(tags)
        sixteens += in16
        wholes += in32
        at = following
        done += LANES
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
    done, length = _encode_whole(_inceptionn_burst, limits, source, source_at, count, room, classes)
    if count - LANES < done < count:
        rest, rest_len = plain.encode_inceptionn(
            source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
        )
        return done + rest, length + rest_len
    return done, length


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
    done, length = _encode_whole(_bounded_burst, limits, source, source_at, count, room, classes)
    if count - LANES < done < count:
        rest, rest_len = plain.encode_bounded(
            source, source_at + 4 * done, count - done, bound_k, target, target_at + length, capacity - length, classes
        )
        return done + rest, length + rest_len
    return done, length


def _make_round_trip(codes: Coder, limit_types: Sequence[NumbaType]) -> Callable[..., None]:
    @intrinsic
    def round_trip_burst(
        typing_context: TypingContext,
        source: NumbaType,
        at: NumbaType,
        limits: NumbaType,
        unit8: NumbaType,
        target: NumbaType,
    ) -> Intrinsic:
        """Write the round trip of eight floats; ``at`` is in octets."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            kinds = signature.args
            word = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], WORDS), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            down8, down16 = vectors.spread(builder, unpacked[4:6])
            top = builder.shl(builder.select(planes[0], code, words(0)), builder.select(planes[1], down16, down8))
            unit = vectors.units(builder, builder.xor(planes[0], planes[1]), args[3])
            floats = vectors.floats_of_tops(builder, builder.select(planes[2], word, top), unit, planes[2])
            builder.store(floats, vectors.pointer(context, builder, kinds[4], args[4], args[1], WORDS), align=1)
            return context.get_dummy_value()

        arguments = (source, types.int64, types.Tuple(limit_types), types.float32, target)
        return types.none(*arguments), codegen

    return round_trip_burst


_round_trip_burst_inceptionn = _make_round_trip(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_round_trip_burst_bounded = _make_round_trip(vectors.bounded_codes, vectors.LIMITS["bounded"])


@kernel
def round_trip_inceptionn(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
    """``round_trip`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = vectors.inceptionn_limits(bound_k)
    whole = source.size - source.size % LANES
    for index in range(0, whole, LANES):
        _round_trip_burst_inceptionn(source, 4 * index, limits, plain.UNIT16, target)
    plain.round_trip_inceptionn(source[whole:], bound_k, target[whole:])


@kernel
def round_trip_bounded(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
    """``round_trip`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = vectors.bounded_limits(bound_k)
    unit8 = plain.bounded_unit8(bound_k)
    whole = source.size - source.size % LANES
    for index in range(0, whole, LANES):
        _round_trip_burst_bounded(source, 4 * index, limits, unit8, target)
    plain.round_trip_bounded(source[whole:], bound_k, target[whole:])
