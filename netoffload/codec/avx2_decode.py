"""Decoding of the tagged codecs with AVX2: two lookups and two shuffles spread the codes of a burst over its lanes.

Both short forms land in the top octets of their lane, so their signs and fractions begin at the same bit, and the same
code turns both into floats (``vectors``). The place of the next burst limits the speed: it follows from the burst's
tags, read from memory, and their lengths, read from a table. With a known middle, two bursts are decoded side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain, vectors
from netoffload.codec.bursts import LANES, MALFORMED, TAGS_LEN, Middle
from netoffload.codec.shuffles import HALF, LENGTH_AT, SPREAD_AND_LENGTH, entry, shuffle
from netoffload.codec.vectors import I32, I64, WORDS, words
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import load_u16, u8


def _make_decode_burst(*, same_unit: bool) -> Callable[..., None]:
    """Return the decoder of a burst; with ``same_unit``, ``UNIT16`` is the unit of both short forms."""

    # Nine parameters: the first is Numba's, and an intrinsic takes a table as arguments.
    @intrinsic
    def decode_burst(
        typing_context: TypingContext,
        payload: NumbaType,
        at: NumbaType,
        tags: NumbaType,
        middle: NumbaType,
        unit8: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
        spread: NumbaType,
    ) -> Intrinsic:
        """Store the eight floats of the burst at ``at``; the codes of its last four lanes begin at ``middle``."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            kinds = signature.args
            halves = []
            for tag_octet, octets_at in zip(
                (builder.and_(args[2], I64(0xFF)), builder.lshr(args[2], I64(8))),
                (builder.add(args[1], I64(TAGS_LEN)), args[3]),
                strict=True,
            ):
                control = entry(context, builder, kinds[7], args[7], tag_octet, 16, HALF)
                octets = builder.load(vectors.pointer(context, builder, kinds[0], args[0], octets_at, HALF), align=1)
                halves.append(builder.bitcast(shuffle(builder, octets, control), ir.VectorType(I32, 4)))
            top = builder.shuffle_vector(halves[0], halves[1], words(*range(LANES)))
            # One instruction loads the tags from memory into every lane; a mask removes the two octets behind them.
            four_octets = builder.load(vectors.pointer(context, builder, kinds[0], args[0], args[1], I32), align=1)
            tags = builder.and_(vectors.all_lanes(builder, four_octets, WORDS), words(*_tag_in_every_lane(3)))
            in8, in32 = (builder.icmp_unsigned("==", tags, words(*_tag_in_every_lane(tag))) for tag in (1, 3))
            unit = vectors.units(builder, None if same_unit else in8, args[4])
            floats = vectors.floats_of_tops(builder, top, unit, in32)
            builder.store(floats, vectors.pointer(context, builder, kinds[5], args[5], args[6], WORDS), align=1)
            return context.get_dummy_value()

        arguments = (payload, types.int64, types.int64, types.int64, types.float32, target, types.int64, spread)
        return types.none(*arguments), codegen

    return decode_burst


def _tag_in_every_lane(tag: int) -> list[int]:
    """Return a word for each lane that has ``tag`` at the lane's place in a tag word."""
    return [tag << 2 * lane for lane in range(LANES)]


_decode_burst_same = _make_decode_burst(same_unit=True)
_decode_burst_other = _make_decode_burst(same_unit=False)


@inline_kernel
def _middle_and_end(payload: Uint8Array, at: int, tags: int) -> tuple[int, int]:
    """Return where the codes of a burst's last four lanes begin, and where the burst ends."""
    middle = at + TAGS_LEN + u8(SPREAD_AND_LENGTH, LENGTH_AT + (tags & 0xFF))
    return middle, middle + u8(SPREAD_AND_LENGTH, LENGTH_AT + (tags >> 8))


@inlined_with
def _decode_whole(
    decode_burst: Callable[..., None],
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
        middle, following = _middle_and_end(payload, at, tags)
        if following > end:
            return MALFORMED
        decode_burst(payload, at, tags, middle, unit8, target, target_at + 4 * first, SPREAD_AND_LENGTH)
        at = following
    return at


@inlined_with
def _decode_pairs(
    decode_burst: Callable[..., None],
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
        middle, following = _middle_and_end(payload, at, tags)
        other_middle, other_following = _middle_and_end(payload, other_at, other_tags)
        if following > half_at or other_following > end:
            return MALFORMED, MALFORMED
        to = target_at + 4 * first
        decode_burst(payload, at, tags, middle, unit8, target, to, SPREAD_AND_LENGTH)
        decode_burst(payload, other_at, other_tags, other_middle, unit8, target, to + 4 * half_count, SPREAD_AND_LENGTH)
        at = following
        other_at = other_following
    return at, other_at


@kernel
def decode_tagged(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` of both tagged codecs; see ``netoffload.codec.plain``."""
    end = payload_at + available
    whole = count - count % LANES
    if unit8 == plain.UNIT16:
        at = _decode_whole(_decode_burst_same, payload, payload_at, end, whole, unit8, target, target_at)
    else:
        at = _decode_whole(_decode_burst_other, payload, payload_at, end, whole, unit8, target, target_at)
    if at == MALFORMED:
        return MALFORMED
    if whole < count:
        rest = plain.decode_tagged(payload, at, end - at, count - whole, unit8, target, target_at + 4 * whole)
        if rest == MALFORMED:
            return MALFORMED
        at += rest
    return int(at - payload_at)


@kernel
def decode_tagged_halves(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    middle: Middle,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` of both tagged codecs: a burst of each in turn."""
    half_len, half_count = middle
    half_at = payload_at + half_len
    end = payload_at + available
    both = min(half_count, count - half_count) // LANES * LANES
    limits = payload_at, half_at, end
    if unit8 == plain.UNIT16:
        at, other_at = _decode_pairs(_decode_burst_same, payload, limits, both, half_count, unit8, target, target_at)
    else:
        at, other_at = _decode_pairs(_decode_burst_other, payload, limits, both, half_count, unit8, target, target_at)
    if at == MALFORMED:
        return MALFORMED
    to = target_at + 4 * both
    if decode_tagged(payload, at, half_at - at, half_count - both, unit8, target, to) != half_at - at:
        return MALFORMED
    to += 4 * half_count
    rest = decode_tagged(payload, other_at, end - other_at, count - half_count - both, unit8, target, to)
    return MALFORMED if rest == MALFORMED else int(other_at + rest - payload_at)
