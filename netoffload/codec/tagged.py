"""The tagged codecs: one body for every CPU and for both codecs.

``inceptionn`` and ``bounded`` differ in one row of :data:`ARITHMETIC`. Instruction sets differ in the two primitives of
:class:`~netoffload.codec.vectors.Isa`: squeezing the codes of a burst together behind its tags, and spreading them over
the lanes. The last burst of a payload, perhaps a shorter one, is loaded under a mask.

Both short forms are spread into the top octets of their lane, so their signs and fractions begin at the same bit, and
the same code turns both into floats. The place of the next burst limits the speed of decoding: it follows from the
burst's tags, read from memory, and their lengths, read from a table. With a known middle, two bursts are decoded side
by side.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
from numba import types

from netoffload.codec import interpreted, reference, scalar, vectors
from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, Middle
from netoffload.codec.scalar import LIMITS, Limits
from netoffload.codec.vectors import I32, WORDS, Coder, Isa, words
from netoffload.codec_specs import CodecId
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits
from netoffload.compiled.jit import JIT_DISABLED, compiled_with, inlined_with
from netoffload.compiled.octets import load_u16, u8


class Arithmetic(NamedTuple):
    """What the codecs differ in."""

    limits: Callable[[int], Limits]
    """From the bound k to the limits of the classes."""
    magnitudes: Coder
    """Emits the code that classifies lanes and rounds them."""


ARITHMETIC: Final = {
    CodecId.INCEPTIONN: Arithmetic(scalar.inceptionn_limits, vectors.inceptionn_magnitudes),
    CodecId.BOUNDED: Arithmetic(scalar.bounded_limits, vectors.bounded_magnitudes),
}
"""The tagged codecs."""


def limits_of(codec_id: CodecId) -> Callable[[int], Limits]:
    """Return the function from the bound k to what the primitives take as limits."""
    return interpreted.limits if JIT_DISABLED else ARITHMETIC[codec_id].limits


BurstsEncoder: TypeAlias = Callable[[Uint8Array, int, int, Limits, Uint8Array, int], tuple[int, int, int]]
"""Stores one burst or two. Returns octets, lanes of 16 bits or more, and lanes of 32 bits."""

BurstDecoder: TypeAlias = Callable[[Uint8Array, int, int, np.float32, Uint8Array, int], None]
"""Stores the floats of the burst with a tag word."""

BurstRounder: TypeAlias = Callable[[Uint32Array, int, int, Limits, np.float32, Uint32Array], None]
"""Stores the round trip of up to eight floats."""

LENGTHS: Final = np.array(
    [sum((0, 1, 2, 4)[tags >> 2 * lane & 3] for lane in range(4)) for tags in range(256)], np.uint8
)
"""Octets of four lanes by their tags."""


@inlined_with
def _codes_len(tags: int) -> int:
    return u8(LENGTHS, tags & 0xFF) + u8(LENGTHS, tags >> 8)


def _encode_bursts(
    encode_some: BurstsEncoder,
    step: int,
    limits: Limits,
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit``, ``step`` floats at a time; the last time perhaps fewer."""
    target, at = room.octets, room.at
    end = at + room.length
    done = in16 = in32 = 0
    while done < count:
        lanes = min(step, count - done)
        length, some16, some32 = encode_some(source, source_at + 4 * done, lanes, limits, target, at)
        if at + length > end:
            break
        in16 += some16
        in32 += some32
        at += length
        done += step  # not ``lanes``: whole bursts need no minimum, which costs them 7 % of their speed
    done = min(done, count)
    tags_len = (done + LANES - 1) // LANES * TAGS_LEN
    # A float that is not 0 takes an octet, one more from 16 bits on, and two more for 32.
    in8 = at - room.at - tags_len - in16 - 2 * in32
    classes[0] += done - in8
    classes[1] += in8 - in16
    classes[2] += in16 - in32
    classes[3] += in32
    return done, at - room.at


_encode_full = inlined_with(_encode_bursts)
_encode_rest = compiled_with(_encode_bursts)  # apart, because the constants of one loop fill the registers


def encoder(isa: Isa, codec_id: CodecId) -> Callable[..., tuple[int, int]]:
    """Return ``encode_fit``."""
    encode_some = bursts_encoder(isa, codec_id, isa.bursts, full=True)
    encode_one, step = bursts_encoder(isa, codec_id, 1, full=False), LANES * isa.bursts

    @inlined_with
    def encode(
        limits: Limits, source: Uint8Array, source_at: int, count: int, room: Stretch, classes: Int64Array
    ) -> tuple[int, int]:
        full = count - count % step
        done, length = _encode_full(encode_some, step, limits, source, source_at, full, room, classes)
        # Of two bursts that do not fit, the first one may. A single burst that does not fit is the end.
        if done == count or (done < full and step == LANES):
            return done, length
        rest = Stretch(room.octets, room.at + length, room.length - length)
        floats, rest_len = _encode_rest(
            encode_one, LANES, limits, source, source_at + 4 * done, count - done, rest, classes
        )
        return done + floats, length + rest_len

    return encode


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
def decode(
    decode_burst: BurstDecoder, coded: Stretch, count: int, unit8: np.float32, target: Uint8Array, target_at: int
) -> int:
    """``decode``. The target has room for a whole burst; a lane beyond the last float must have tag 0."""
    payload, end, rest = coded.octets, coded.at + coded.length, count % LANES
    at = _decode_whole(decode_burst, payload, coded.at, end, count - rest, unit8, target, target_at)
    if at == MALFORMED:
        return MALFORMED
    if rest:
        tags = load_u16(payload, at)
        following = at + TAGS_LEN + _codes_len(tags)
        if following > end or tags >> 2 * rest:
            return MALFORMED
        decode_burst(payload, at, tags, unit8, target, target_at + 4 * (count - rest))
        at = following
    return at - coded.at


@inlined_with
def decode_halves(
    decode_burst: BurstDecoder,
    decode: Callable[..., int],
    coded: Stretch,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves``: a burst of each half in turn, and what remains of either by the kernel ``decode``."""
    half_len, half_count = middle
    payload, half_at, end = coded.octets, coded.at + half_len, coded.at + coded.length
    both = min(half_count, count - half_count) // LANES * LANES
    limits = coded.at, half_at, end
    at, other_at = _decode_pairs(decode_burst, payload, limits, both, half_count, unit8, target, target_at)
    if at == MALFORMED:
        return MALFORMED
    to = target_at + 4 * both
    if decode(payload, at, half_at - at, half_count - both, unit8, target, to) != half_at - at:
        return MALFORMED
    to += 4 * half_count
    rest = decode(payload, other_at, end - other_at, count - half_count - both, unit8, target, to)
    return MALFORMED if rest == MALFORMED else other_at + rest - coded.at


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


def bursts_encoder(isa: Isa, codec_id: CodecId, bursts: int, *, full: bool) -> BurstsEncoder:
    """Return the function that codes one burst, or two; unless ``full``, only its first floats."""
    if JIT_DISABLED:
        return interpreted.burst_encoder(reference.oracle_of(codec_id))
    lanes, arithmetic = LANES * bursts, ARITHMETIC[codec_id]

    @emits(types.UniTuple(types.int64, 3), ARRAY, types.int64, types.int64, LIMITS, ARRAY, types.int64)
    def encode_bursts(
        builder: Builder, source: Value, source_at: Value, floats: Value, limits: Value, target: Value, target_at: Value
    ) -> list[Value]:
        there = None if full else vectors.lanes_below(builder, floats, lanes)
        word = vectors.load_lanes(builder, source, source_at, lanes, there)
        each = vectors.members(builder, limits)
        planes, magnitude = arithmetic.magnitudes(builder, word, each)
        code = vectors.with_signs(builder, word, planes, magnitude, each)
        return isa.put_bursts(builder, target, target_at, planes, code, each)

    return cast(BurstsEncoder, encode_bursts)


def burst_decoder(isa: Isa, *, same_unit: bool) -> BurstDecoder:
    """Return the decoder of a burst; with ``same_unit``, ``UNIT16`` is the unit of both short forms."""
    if JIT_DISABLED:
        return interpreted.decode_burst

    @emits(types.none, ARRAY, types.int64, types.int64, types.float32, ARRAY, types.int64)
    def decode_burst(
        builder: Builder, payload: Value, at: Value, tags: Value, unit8: Value, target: Value, target_at: Value
    ) -> None:
        # One instruction loads the tags from memory into every lane; a mask removes the two octets behind them.
        four_octets = vectors.load(builder, payload, at, I32)
        tag_bits = builder.and_(vectors.all_lanes(builder, four_octets, WORDS), words(*_tag_in_every_lane(3)))
        classes = [builder.icmp_unsigned("==", tag_bits, words(*_tag_in_every_lane(tag))) for tag in (1, 2, 3)]
        top = isa.get_tops(builder, payload, at, tags, classes)
        unit = vectors.units(builder, None if same_unit else classes[1], unit8, -31)
        small = vectors.floats_of_tops(builder, top, unit)
        vectors.store(builder, builder.select(classes[2], top, small), target, target_at)

    return cast(BurstDecoder, decode_burst)


def _tag_in_every_lane(tag: int) -> list[int]:
    """Return a word for each lane that has ``tag`` at the lane's place in a tag word."""
    return [tag << 2 * lane for lane in range(LANES)]


def burst_rounder(codec_id: CodecId, *, full: bool) -> BurstRounder:
    """Return the function that rounds eight floats, or fewer."""
    if JIT_DISABLED:
        return interpreted.burst_rounder(reference.oracle_of(codec_id))
    arithmetic = ARITHMETIC[codec_id]

    @emits(types.none, ARRAY, types.int64, types.int64, LIMITS, types.float32, ARRAY)
    def round_burst(
        builder: Builder, source: Value, at: Value, floats: Value, limits: Value, unit8: Value, target: Value
    ) -> None:
        there = None if full else vectors.lanes_below(builder, floats, LANES)
        word = vectors.load_lanes(builder, source, at, LANES, there)
        planes, magnitude = arithmetic.magnitudes(builder, word, vectors.members(builder, limits))
        magnitude = builder.select(planes[0], magnitude, words(0))
        unit = vectors.units(builder, planes[1], builder.fmul(unit8, vectors.F32(256)), -15)
        small = vectors.floats_of_magnitudes(builder, magnitude, word, unit)
        vectors.store_lanes(builder, builder.select(planes[2], word, small), target, at, there)

    return cast(BurstRounder, round_burst)
