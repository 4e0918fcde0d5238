"""The tagged codecs: one body for every CPU and for both codecs.

``inceptionn`` and ``bounded`` differ in one row of :data:`ARITHMETIC`. Instruction sets differ in the two primitives of
:class:`~netoffload.codec.vectors.Isa`: squeezing the codes of a burst together behind its tags, and spreading them over
the lanes. The last burst of a payload, perhaps a shorter one, is loaded under a mask.

Both short forms are spread into the top octets of their lane, so their signs and fractions begin at the same bit, and
the same code turns both into floats. The place of the next burst limits the speed of decoding: it follows from the
burst's tags, read from memory, and their lengths, read from a table. With a known middle, two bursts are decoded side
by side.

With ``NUMBA_DISABLE_JIT=1`` the same loops run over ``netoffload.codec.scalar``, a float at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numba import types
from numba.extending import intrinsic

from netoffload.codec import scalar, vectors
from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, Middle, add_classes, long_lanes
from netoffload.codec.scalar import LIMITS, UNIT16, LaneCoder, Limits, decode_lane
from netoffload.codec.vectors import I32, WORDS, Coder, Isa, words
from netoffload.codec_specs import CodecId
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import JIT_DISABLED, compiled_with, inlined_with
from netoffload.compiled.octets import load_u16, load_u32, store_u16, store_u32, u8, whole


class Arithmetic(NamedTuple):
    """What the codecs differ in.

    Attributes:
        limits: from the bound k to the limits of the classes.
        magnitudes: emits the code that classifies lanes and rounds them.
        lane: the same for one float.
    """

    limits: Callable[[int], Limits]
    magnitudes: Coder
    lane: LaneCoder


ARITHMETIC: Final = {
    CodecId.INCEPTIONN: Arithmetic(scalar.inceptionn_limits, vectors.inceptionn_magnitudes, scalar.inceptionn_lane),
    CodecId.BOUNDED: Arithmetic(scalar.bounded_limits, vectors.bounded_magnitudes, scalar.bounded_lane),
}
"""The tagged codecs."""

BurstsEncoder: TypeAlias = Callable[[Uint8Array, int, int, Limits, Uint8Array, int], tuple[int, int, int]]
"""Stores one burst or two: source, its place, floats, limits, target, its place. Returns octets, lanes of 16 bits or
more, and lanes of 32 bits."""

BurstDecoder: TypeAlias = Callable[[Uint8Array, int, int, np.float32, Uint8Array, int], None]
"""Stores the floats of a burst: payload, place of the tag word, tag word, unit8, target, its place."""

BurstRounder: TypeAlias = Callable[[Uint32Array, int, int, Limits, np.float32, Uint32Array], None]
"""Stores the round trip of up to eight floats: source, octets before them, floats, limits, unit8, target."""

_LENGTHS: Final = np.array(
    [sum((0, 1, 2, 4)[tags >> 2 * lane & 3] for lane in range(4)) for tags in range(256)], np.uint8
)
"""Octets of four lanes by their tags."""


@inlined_with
def _codes_len(tags: int) -> int:
    return u8(_LENGTHS, tags & 0xFF) + u8(_LENGTHS, tags >> 8)


def encoder(isa: Isa, arithmetic: Arithmetic) -> Callable[..., tuple[int, int]]:
    """Return ``encode_fit``."""
    encode_some = bursts_encoder(isa, arithmetic, isa.bursts, full=True)
    encode_one, step = bursts_encoder(isa, arithmetic, 1, full=False), LANES * isa.bursts

    @inlined_with
    def encode(
        limits: Limits,
        source: Uint8Array,
        source_at: int,
        count: int,
        room: Stretch,
        classes: Int64Array,
    ) -> tuple[int, int]:
        """``encode_fit``: ``step`` floats at a time by ``encode_some``, and what remains by ``encode_one``."""
        target, at = room.octets, room.at
        end = at + room.length
        done = sixteens = wholes = 0
        while done < count - count % step:
            length, in16, in32 = encode_some(source, source_at + 4 * done, step, limits, target, at)
            if at + length > end:
                break
            sixteens += in16
            wholes += in32
            at += length
            done += step
        tagged = done // LANES * TAGS_LEN
        add_classes(classes, done, at - room.at - tagged, sixteens, wholes)
        if done < count and (step > LANES or count - done < LANES):
            rest = Stretch(target, at, end - at)
            lanes, length = _encode_rest(encode_one, limits, source, source_at + 4 * done, count - done, rest, classes)
            return done + lanes, at + length - room.at
        return done, at - room.at

    return encode


@compiled_with
def _encode_rest(
    encode_one: BurstsEncoder,
    limits: Limits,
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` by bursts, the last one perhaps shorter; apart, because a loop's constants fill the registers."""
    target, at = room.octets, room.at
    done = 0
    while done < count:
        lanes = min(LANES, count - done)
        length, in16, in32 = encode_one(source, source_at + 4 * done, lanes, limits, target, at)
        if at + length > room.at + room.length:
            break
        add_classes(classes, lanes, length - TAGS_LEN, in16, in32)
        at += length
        done += lanes
    return done, at - room.at


@inlined_with
def _decode_whole(
    decode_burst: BurstDecoder,
    payload: Uint8Array,
    payload_at: int,
    end: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """Decode whole bursts; return where the next one starts, or ``MALFORMED``."""
    at = payload_at
    for first in range(0, count, LANES):
        tags = load_u16(payload, at)
        following = at + TAGS_LEN + _codes_len(tags)
        if following > end:
            return MALFORMED
        decode_burst(payload, at, tags, unit8, target, target_at + 4 * first)
        at = following
    return at


@inlined_with
def _decode_pairs(
    decode_burst: BurstDecoder,
    payload: Uint8Array,
    limits: tuple[int, int, int],
    count: int,
    half_count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> tuple[int, int]:
    """Decode the same number of whole bursts of each half, in turn; return where the next ones start, or ``MALFORMED``.

    ``limits`` are the beginning of the payload, the beginning of its second half, and its end.
    """
    at, half_at, end = limits
    other_at = half_at
    for first in range(0, count, LANES):
        tags = load_u16(payload, at)
        other_tags = load_u16(payload, other_at)
        following = at + TAGS_LEN + _codes_len(tags)
        other_following = other_at + TAGS_LEN + _codes_len(other_tags)
        if following > half_at or other_following > end:
            return MALFORMED, MALFORMED
        to = target_at + 4 * first
        decode_burst(payload, at, tags, unit8, target, to)
        decode_burst(payload, other_at, other_tags, unit8, target, to + 4 * half_count)
        at = following
        other_at = other_following
    return at, other_at


@inlined_with
def _decode_rest(
    decode_burst: BurstDecoder,
    payload: Uint8Array,
    payload_at: int,
    end: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """Decode bursts, the last one perhaps shorter; return where they end, or ``MALFORMED``.

    The target has room for a whole burst. A lane beyond the last float must have tag 0, as encoders write it.
    """
    at = _decode_whole(decode_burst, payload, payload_at, end, count - count % LANES, unit8, target, target_at)
    if at == MALFORMED or count % LANES == 0:
        return at
    tags = load_u16(payload, at)
    following = at + TAGS_LEN + _codes_len(tags)
    if following > end or tags >> (2 * (count % LANES)):
        return MALFORMED
    decode_burst(payload, at, tags, unit8, target, target_at + 4 * (count - count % LANES))
    return following


@inlined_with
def decode(
    decode_same: BurstDecoder,
    decode_other: BurstDecoder,
    coded: Stretch,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode``; with the unit of the 16-bit form also in the 8-bit form, by ``decode_same``."""
    at, end = coded.at, coded.at + coded.length
    if unit8 == UNIT16:
        at = _decode_rest(decode_same, coded.octets, at, end, count, unit8, target, target_at)
    else:
        at = _decode_rest(decode_other, coded.octets, at, end, count, unit8, target, target_at)
    return MALFORMED if at == MALFORMED else at - coded.at


@inlined_with
def _decode_both(
    decode_same: BurstDecoder,
    decode_other: BurstDecoder,
    payload: Uint8Array,
    limits: tuple[int, int, int],
    counts: tuple[int, int],
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> tuple[int, int]:
    both, half_count = counts
    if unit8 == UNIT16:
        return _decode_pairs(decode_same, payload, limits, both, half_count, unit8, target, target_at)
    return _decode_pairs(decode_other, payload, limits, both, half_count, unit8, target, target_at)


def halves_decoder(
    decode_same: BurstDecoder, decode_other: BurstDecoder, decode: Callable[..., int]
) -> Callable[..., int]:
    """Return ``decode_halves``: a burst of each half in turn, and what remains of either by ``decode``."""

    @inlined_with
    def decode_halves(
        coded: Stretch, count: int, middle: Middle, unit8: np.float32, target: Uint8Array, target_at: int
    ) -> int:
        half_len, half_count = middle
        payload, half_at, end = coded.octets, coded.at + half_len, coded.at + coded.length
        both = min(half_count, count - half_count) // LANES * LANES
        limits, counts = (coded.at, half_at, end), (both, half_count)
        at, other_at = _decode_both(decode_same, decode_other, payload, limits, counts, unit8, target, target_at)
        if at == MALFORMED:
            return MALFORMED
        to = target_at + 4 * both
        if decode(payload, at, half_at - at, half_count - both, unit8, target, to) != half_at - at:
            return MALFORMED
        to += 4 * half_count
        rest = decode(payload, other_at, end - other_at, count - half_count - both, unit8, target, to)
        return MALFORMED if rest == MALFORMED else other_at + rest - coded.at

    return decode_halves


@inlined_with
def round_trip(
    round_whole: BurstRounder,
    round_part: BurstRounder,
    limits: Limits,
    unit8: np.float32,
    source: Uint32Array,
    target: Uint32Array,
) -> None:
    """``round_trip``, eight floats at a time."""
    rest = source.size % LANES
    for index in range(0, source.size - rest, LANES):
        round_whole(source, 4 * index, LANES, limits, unit8, target)
    if rest:
        round_part(source, 4 * (source.size - rest), rest, limits, unit8, target)


def _whole_limits(builder: Builder, limits: Value) -> list[Value]:
    return [builder.extract_value(limits, index) for index in range(len(LIMITS))]


def bursts_encoder(isa: Isa, arithmetic: Arithmetic, bursts: int, *, full: bool) -> BurstsEncoder:
    """Return the function that codes one burst, or two; unless ``full``, only its first floats."""
    if JIT_DISABLED:
        return _interpreted_encoder(arithmetic.lane)

    # Seven parameters: the first is Numba's.
    @intrinsic
    def encode_bursts(
        typing_context: TypingContext,
        source: NumbaType,
        source_at: NumbaType,
        floats: NumbaType,
        limits: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
    ) -> Intrinsic:
        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            floats, octets = (vectors.octets_of(context, builder, signature.args[i], args[i]) for i in (0, 4))
            lanes = LANES * bursts
            there = None if full else vectors.lanes_below(builder, args[2], lanes)
            word = vectors.load_lanes(builder, floats, args[1], lanes, there)
            limits = _whole_limits(builder, args[3])
            planes, magnitude = arithmetic.magnitudes(builder, word, limits)
            code = vectors.with_signs(builder, word, planes, magnitude, limits)
            sizes = isa.put_bursts(builder, octets, args[5], planes, code, limits)
            return context.make_tuple(builder, signature.return_type, sizes)

        arguments = (source, types.int64, types.int64, LIMITS, target, types.int64)
        return types.UniTuple(types.int64, 3)(*arguments), codegen

    return encode_bursts


def burst_decoder(isa: Isa, *, same_unit: bool) -> BurstDecoder:
    """Return the decoder of a burst; with ``same_unit``, ``UNIT16`` is the unit of both short forms."""
    if JIT_DISABLED:
        return _interpreted_decoder

    @intrinsic
    def decode_burst(
        typing_context: TypingContext,
        payload: NumbaType,
        at: NumbaType,
        tags: NumbaType,
        unit8: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
    ) -> Intrinsic:
        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            payload, floats = (vectors.octets_of(context, builder, signature.args[i], args[i]) for i in (0, 4))
            # One instruction loads the tags from memory into every lane; a mask removes the two octets behind them.
            four_octets = vectors.load(builder, payload, args[1], I32)
            tags = builder.and_(vectors.all_lanes(builder, four_octets, WORDS), words(*_tag_in_every_lane(3)))
            classes = [builder.icmp_unsigned("==", tags, words(*_tag_in_every_lane(tag))) for tag in (1, 2, 3)]
            top = isa.get_tops(builder, payload, args[1], args[2], classes)
            unit = vectors.units(builder, None if same_unit else classes[1], args[3], -31)
            small = vectors.floats_of_tops(builder, top, unit)
            vectors.store(builder, builder.select(classes[2], top, small), floats, args[5])
            return context.get_dummy_value()

        return types.none(payload, types.int64, types.int64, types.float32, target, types.int64), codegen

    return decode_burst


def _tag_in_every_lane(tag: int) -> list[int]:
    """Return a word for each lane that has ``tag`` at the lane's place in a tag word."""
    return [tag << 2 * lane for lane in range(LANES)]


def burst_rounder(isa: Isa, arithmetic: Arithmetic, *, full: bool) -> BurstRounder:
    """Return the function that rounds eight floats, or fewer."""
    if JIT_DISABLED:
        return _interpreted_rounder(arithmetic.lane)

    @intrinsic
    def round_burst(
        typing_context: TypingContext,
        source: NumbaType,
        at: NumbaType,
        floats: NumbaType,
        limits: NumbaType,
        unit8: NumbaType,
        target: NumbaType,
    ) -> Intrinsic:
        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            floats, rounded = (vectors.octets_of(context, builder, signature.args[i], args[i]) for i in (0, 5))
            there = None if full else vectors.lanes_below(builder, args[2], LANES)
            word = vectors.load_lanes(builder, floats, args[1], LANES, there)
            planes, magnitude = arithmetic.magnitudes(builder, word, _whole_limits(builder, args[3]))
            magnitude = builder.select(planes[0], magnitude, words(0))
            unit = vectors.units(builder, planes[1], builder.fmul(args[4], vectors.F32(256)), -15)
            small = vectors.floats_of_magnitudes(builder, magnitude, word, unit)
            result = builder.select(planes[2], word, small)
            vectors.store_lanes(builder, result, rounded, args[1], there)
            return context.get_dummy_value()

        arguments = (source, types.int64, types.int64, LIMITS, types.float32, target)
        return types.none(*arguments), codegen

    return round_burst


def _interpreted_encoder(lane: LaneCoder) -> BurstsEncoder:
    """Return :func:`bursts_encoder` of one burst without a compiler."""

    def encode_burst(
        source: Uint8Array, source_at: int, lanes: int, limits: Limits, target: Uint8Array, target_at: int
    ) -> tuple[int, int, int]:
        tags, at = 0, target_at + TAGS_LEN
        for index in range(lanes):
            code, tag = lane(load_u32(source, source_at + 4 * index), limits)
            store_u32(target, at, code)
            at += tag + (tag & (tag >> 1))
            tags |= tag << (2 * index)
        store_u16(target, target_at, tags)
        return at - target_at, *long_lanes(tags)

    return encode_burst


def _interpreted_decoder(
    payload: Uint8Array, at: int, tags: int, unit8: np.float32, target: Uint8Array, target_at: int
) -> None:
    """:func:`burst_decoder` without a compiler."""
    at += TAGS_LEN
    for index in range(LANES):
        tag = tags >> 2 * index & 3
        store_u32(target, target_at + 4 * index, decode_lane(load_u32(payload, at), tag, unit8))
        at += tag + (tag & (tag >> 1))


def _interpreted_rounder(lane: LaneCoder) -> BurstRounder:
    """Return :func:`burst_rounder` without a compiler."""

    def round_burst(
        source: Uint32Array, at: int, floats: int, limits: Limits, unit8: np.float32, target: Uint32Array
    ) -> None:
        for index in range(at // 4, at // 4 + floats):
            code, tag = lane(whole(source[index]), limits)
            target[index] = np.uint32(decode_lane(code, tag, unit8))

    return round_burst
