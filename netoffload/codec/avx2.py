"""The tagged codecs for CPUs with AVX2: lanes are moved by byte shuffles from a table, the StreamVByte way.

The eight tag bits of four lanes name one of 256 shuffles of 16 octets, so a burst is two lookups and two shuffles: to
squeeze the codes together when encoding, to spread them when decoding. Classifying and coding the lanes is shared with
AVX-512 (``vectors``).

Lemire, Kurz, Rupp: Stream VByte: Faster byte-oriented integer compression (2018).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain, vectors
from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, count_classes, tags_len
from netoffload.codec.jit import inline_kernel, inlined_with, kernel
from netoffload.codec.octets import load_u16, store_u16
from netoffload.codec.vectors import I8, I16, I32, I64, WORDS, words

_HALF: Final = ir.VectorType(I8, 16)
_NO_OCTET: Final = 0x80
"""A shuffle control with the top bit set gives 0."""

Uint8Array = npt.NDArray[np.uint8]


def _make_tables() -> tuple[Uint8Array, Uint8Array, Uint8Array, Uint8Array]:
    """Return (squeeze, spread, length, even) by tag octet; the last puts eight bits onto the even ones of sixteen."""
    squeeze = np.full((256, 16), _NO_OCTET, np.uint8)
    spread = np.full((256, 16), _NO_OCTET, np.uint8)
    length = np.zeros(256, np.uint8)
    for tags in range(256):
        at = 0
        for lane in range(4):
            for octet in range((0, 1, 2, 4)[tags >> 2 * lane & 3]):
                squeeze[tags, at] = 4 * lane + octet
                spread[tags, 4 * lane + octet] = at
                at += 1
        length[tags] = at
    even = np.array([sum((bits >> i & 1) << 2 * i for i in range(8)) for bits in range(256)], np.uint16)
    return squeeze.reshape(-1), spread.reshape(-1), length, even.view(np.uint8)


_SQUEEZE, _SPREAD, _LENGTH, _EVEN = _make_tables()


def _shuffle(builder: Any, octets: Any, control: Any) -> Any:
    function = builder.module.declare_intrinsic(
        "llvm.x86.ssse3.pshuf.b.128", fnty=ir.FunctionType(_HALF, [_HALF, _HALF])
    )
    return builder.call(function, [octets, control])


def _halves(builder: Any, burst: Any) -> Any:
    nothing = ir.Constant(WORDS, ir.Undefined)
    return [
        builder.bitcast(
            builder.shuffle_vector(burst, nothing, ir.Constant(ir.VectorType(I32, 4), list(range(first, first + 4)))),
            _HALF,
        )
        for first in (0, 4)
    ]


def _entry(context: Any, builder: Any, table_type: Any, table: Any, index: Any, size: int, pointee: Any) -> Any:
    at = builder.mul(index, ir.Constant(I64, size))
    return builder.load(vectors.pointer(context, builder, table_type, table, at, pointee), align=1)


def _make_encode_burst(codes: Any, limit_types: Any) -> Any:
    @intrinsic
    def encode_burst(
        typing_context: Any,
        source: Any,
        source_at: Any,
        limits: Any,
        target: Any,
        target_at: Any,
        squeeze: Any,
        length: Any,
        even: Any,
    ) -> Any:
        """Store the codes of eight floats at ``target_at``; return their tag word."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args
            word = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], WORDS), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            low_plane = builder.or_(builder.xor(planes[0], planes[1]), planes[2])
            low, high = (
                _entry(context, builder, kinds[7], args[7], vectors.bits_of_plane(builder, plane), 2, I16)
                for plane in (low_plane, planes[1])
            )
            tags = builder.zext(builder.or_(low, builder.shl(high, ir.Constant(I16, 1))), I64)
            at = args[4]
            for octets, half in zip(_halves(builder, code), (0, 8), strict=True):
                tag_octet = builder.and_(builder.lshr(tags, ir.Constant(I64, half)), ir.Constant(I64, 0xFF))
                control = _entry(context, builder, kinds[5], args[5], tag_octet, 16, _HALF)
                room = vectors.pointer(context, builder, kinds[3], args[3], at, _HALF)
                builder.store(_shuffle(builder, octets, control), room, align=1)
                taken = _entry(context, builder, kinds[6], args[6], tag_octet, 1, I8)
                at = builder.add(at, builder.zext(taken, I64))
            return tags

        arguments = (source, types.int64, types.Tuple(limit_types), target, types.int64, squeeze, length, even)
        return types.int64(*arguments), codegen

    return encode_burst


_encode_burst_inceptionn = _make_encode_burst(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_encode_burst_bounded = _make_encode_burst(vectors.bounded_codes, vectors.LIMITS["bounded"])


@inline_kernel
def _inceptionn_burst(source: Any, source_at: Any, limits: Any, target: Any, target_at: Any) -> Any:
    return _encode_burst_inceptionn(source, source_at, limits, target, target_at, _SQUEEZE, _LENGTH, _EVEN)


@inline_kernel
def _bounded_burst(source: Any, source_at: Any, limits: Any, target: Any, target_at: Any) -> Any:
    return _encode_burst_bounded(source, source_at, limits, target, target_at, _SQUEEZE, _LENGTH, _EVEN)


@intrinsic
def _decode_burst(
    typing_context: Any,
    tags: Any,
    payload: Any,
    payload_at: Any,
    unit8: Any,
    target: Any,
    target_at: Any,
    spread: Any,
    length: Any,
) -> Any:
    """Store the eight floats whose codes start at ``payload_at`` (behind their tag word)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        at = args[2]
        halves = []
        for half in (0, 8):
            tag_octet = builder.and_(builder.lshr(args[0], ir.Constant(I64, half)), ir.Constant(I64, 0xFF))
            control = _entry(context, builder, kinds[6], args[6], tag_octet, 16, _HALF)
            octets = builder.load(vectors.pointer(context, builder, kinds[1], args[1], at, _HALF), align=1)
            halves.append(builder.bitcast(_shuffle(builder, octets, control), ir.VectorType(I32, 4)))
            taken = _entry(context, builder, kinds[7], args[7], tag_octet, 1, I8)
            at = builder.add(at, builder.zext(taken, I64))
        code = builder.shuffle_vector(halves[0], halves[1], words(*range(LANES)))
        every_tag = vectors.all_lanes(builder, builder.trunc(args[0], I32), WORDS)
        tag = builder.and_(builder.lshr(every_tag, words(*range(0, 2 * LANES, 2))), words(3))
        in8, in32 = (builder.icmp_unsigned("==", tag, words(value)) for value in (1, 3))
        floats = vectors.floats_of_codes(builder, code, in8, in32, args[3])
        builder.store(floats, vectors.pointer(context, builder, kinds[4], args[4], args[5], WORDS), align=1)
        return context.get_dummy_value()

    arguments = (types.int64, payload, types.int64, types.float32, target, types.int64, spread, length)
    return types.none(*arguments), codegen


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
    while done < whole:
        tags = encode_burst(source, source_at + 4 * done, limits, target, at + TAGS_LEN)
        following = at + TAGS_LEN + tags_len(tags)
        if following > end:
            break
        store_u16(target, at, tags)
        count_classes(tags, classes)
        at = following
        done += LANES
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


@kernel
def decode_tagged(
    payload: Any, payload_at: int, available: int, count: int, unit8: Any, target: Any, target_at: int
) -> int:
    """``decode`` of both tagged codecs; see ``netoffload.codec.plain``."""
    at = payload_at
    end = payload_at + available
    whole = count - count % LANES
    for first in range(0, whole, LANES):
        if at + TAGS_LEN > end:
            return MALFORMED
        tags = load_u16(payload, at)
        following = at + TAGS_LEN + tags_len(tags)
        if following > end:
            return MALFORMED
        _decode_burst(tags, payload, at + TAGS_LEN, unit8, target, target_at + 4 * first, _SPREAD, _LENGTH)
        at = following
    if whole < count:
        rest = plain.decode_tagged(payload, at, end - at, count - whole, unit8, target, target_at + 4 * whole)
        if rest == MALFORMED:
            return MALFORMED
        at += rest
    return int(at - payload_at)


@kernel
def decode_tagged_halves(
    payload: Any,
    payload_at: int,
    available: int,
    count: int,
    half_len: int,
    half_count: int,
    unit8: Any,
    target: Any,
    target_at: int,
) -> int:
    """``decode_halves`` of both tagged codecs: a burst of each in turn, so that one's tags are on their way from memory
    while the other's lanes are spread.

    Sixteen lanes in one register are no faster, and byte expansion (VBMI2) takes twice as long.
    """
    at = payload_at
    half_at = payload_at + half_len
    other_at = half_at
    end = payload_at + available
    both = min(half_count, count - half_count) // LANES * LANES
    for first in range(0, both, LANES):
        if at + TAGS_LEN > half_at or other_at + TAGS_LEN > end:
            return MALFORMED
        tags = load_u16(payload, at)
        other_tags = load_u16(payload, other_at)
        following = at + TAGS_LEN + tags_len(tags)
        other_following = other_at + TAGS_LEN + tags_len(other_tags)
        if following > half_at or other_following > end:
            return MALFORMED
        to = target_at + 4 * first
        _decode_burst(tags, payload, at + TAGS_LEN, unit8, target, to, _SPREAD, _LENGTH)
        to += 4 * half_count
        _decode_burst(other_tags, payload, other_at + TAGS_LEN, unit8, target, to, _SPREAD, _LENGTH)
        at = following
        other_at = other_following
    to = target_at + 4 * both
    if decode_tagged(payload, at, half_at - at, half_count - both, unit8, target, to) != half_at - at:
        return MALFORMED
    to += 4 * half_count
    rest = decode_tagged(payload, other_at, end - other_at, count - half_count - both, unit8, target, to)
    return MALFORMED if rest == MALFORMED else int(other_at + rest - payload_at)


def _make_round_trip(codes: Any, limit_types: Any) -> Any:
    @intrinsic
    def round_trip_burst(typing_context: Any, source: Any, at: Any, limits: Any, unit8: Any, target: Any) -> Any:
        """Write what decoding eight encoded floats gives; ``at`` is in octets."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds = signature.args
            word = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], WORDS), align=1)
            unpacked = [builder.extract_value(args[2], index) for index in range(len(limit_types))]
            planes, code = codes(builder, word, unpacked)
            code = builder.select(planes[0], code, words(0))
            in8 = builder.xor(planes[0], planes[1])
            floats = vectors.floats_of_codes(builder, code, in8, planes[2], args[3])
            builder.store(floats, vectors.pointer(context, builder, kinds[4], args[4], args[1], WORDS), align=1)
            return context.get_dummy_value()

        arguments = (source, types.int64, types.Tuple(limit_types), types.float32, target)
        return types.none(*arguments), codegen

    return round_trip_burst


_round_trip_burst_inceptionn = _make_round_trip(vectors.inceptionn_codes, vectors.LIMITS["inceptionn"])
_round_trip_burst_bounded = _make_round_trip(vectors.bounded_codes, vectors.LIMITS["bounded"])


@kernel
def round_trip_inceptionn(source: Any, bound_k: int, target: Any) -> None:
    """``round_trip`` of ``inceptionn``; see ``netoffload.codec.kernels``."""
    limits = vectors.inceptionn_limits(bound_k)
    whole = source.size - source.size % LANES
    for index in range(0, whole, LANES):
        _round_trip_burst_inceptionn(source, 4 * index, limits, plain.UNIT16, target)
    plain.round_trip_inceptionn(source[whole:], bound_k, target[whole:])


@kernel
def round_trip_bounded(source: Any, bound_k: int, target: Any) -> None:
    """``round_trip`` of ``bounded``; see ``netoffload.codec.kernels``."""
    limits = vectors.bounded_limits(bound_k)
    unit8 = plain.bounded_unit8(bound_k)
    whole = source.size - source.size % LANES
    for index in range(0, whole, LANES):
        _round_trip_burst_bounded(source, 4 * index, limits, unit8, target)
    plain.round_trip_bounded(source[whole:], bound_k, target[whole:])
