"""The packed codec: one body for every CPU. docs/design/codecs.md describes the groups.

Each float that is not 0 has a *code* of an octet: the 8-bit form of ``bounded``, or ``ESCAPE16`` or ``ESCAPE32``, which
are the 8-bit codes of -0 and +0. A field is 2 * (magnitude - 1) + sign of the code, so escapes become ``FIELD16`` and
``FIELD32``, and their group has fields of 8 bits. A run of groups of zeros is 0x00 and an octet, their number less 1.

Instruction sets differ in three primitives (:class:`Groups`): to write masks and fields of a group, to read its masks,
and to read its fields. Escapes, runs, checks and what does not fit are the same for all. AVX-512 holds a group in
registers. Other CPUs go burst by burst (:func:`groups_by_bursts`): a burst of zeros costs one comparison, or one store.
They squeeze the codes of a burst together and spread them again in a word of 64 bits, and fold eight codes to fields at
a time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types

from netoffload.codec import interpreted, vectors
from netoffload.codec.bursts import BURST_LEN, LANES, MALFORMED
from netoffload.codec.scalar import (
    ESCAPE16,
    ESCAPE32,
    LIMITS,
    MAGNITUDE_BITS,
    ROUNDER,
    SCALE16,
    UNIT16,
    Limits,
    decode_short,
)
from netoffload.codec.vectors import I8, I64, WORDS, Isa, words
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits
from netoffload.compiled.jit import inline_kernel, inlined_with
from netoffload.compiled.octets import (
    bit_length,
    bits_float32,
    clear_octets,
    float32_bits,
    load_u16,
    load_u32,
    load_u64,
    popcount_u16,
    popcount_u64,
    store_u16,
    store_u32,
    store_u64,
    trailing_zeros,
    u8,
)

GROUP: Final = 64
"""Floats in a group."""

BURSTS: Final = GROUP // LANES

FIELD32: Final = 254
FIELD16: Final = 255

WIDTH_BITS: Final = 3
WIDTH_MAX: Final = 8

RUN_MAX: Final = 256
"""The most groups of zeros in one run."""

_LOW8: Final = 0x00FF00FF00FF00FF
_LOW16: Final = 0x0000FFFF0000FFFF
_LOW32: Final = 0xFFFFFFFF
_EVERY16: Final = 0x0001000100010001
_EVERY32: Final = 0x0000000100000001
GroupPutter: TypeAlias = Callable[[Uint8Array, int, int, Limits, Uint8Array, int], tuple[int, int, int, int]]
"""Writes masks and fields of 1 to 64 floats. Returns their octets, and which floats are not 0, take 16 bits or more,
and take 32. Of a group of zeros only the second result counts."""

MaskReader: TypeAlias = Callable[[Uint8Array, int], tuple[int, int, int]]
"""Reads the masks at a place: the burst mask, which of 64 floats are not 0, and whether every lane mask has a bit."""

GroupGetter: TypeAlias = Callable[
    [Uint8Array, int, tuple[int, int, int], np.float32, Uint8Array, int], tuple[int, int, int]
]
"""Stores the floats of the fields at a place, 0 for an escape, of a group: (width, which floats are not 0, floats).
Returns which are escapes to 16 and to 32 bits, and whether a field needs all bits."""


class Groups(NamedTuple):
    """The primitives of an instruction set."""

    put: GroupPutter
    read_masks: MaskReader
    get: GroupGetter


class Coded(NamedTuple):
    """The octets of an encoded group, its floats that are not 0, and how many of them take 16 and 32 bits."""

    octets: int
    codes: int
    in16: int
    in32: int


@inlined_with
def encode(
    put: GroupPutter, limits: Limits, source: Uint8Array, source_at: int, count: int, room: Stretch, classes: Int64Array
) -> tuple[int, int]:
    """``encode_fit`` by groups and runs. If the last group does not fit, it gets as many bursts as fit."""
    target, at = room.octets, room.at
    end = at + room.length
    done = codes = sixteens = wholes = run = 0
    while done < count:
        lanes = min(GROUP, count - done)
        first = source_at + 4 * done
        coded = _encode_group(put, source, first, lanes, limits, target, at)
        is_last = coded.codes > 0 and at + coded.octets > end
        if is_last:
            lanes = fitting_floats(target, at, lanes, end - at)
            if lanes == 0:
                break
            coded = _encode_group(put, source, first, lanes, limits, target, at)
        if coded.codes > 0:
            at += coded.octets
            run = 0
        else:
            if run % RUN_MAX == 0:
                if at + 2 > end:
                    break
                target[at] = 0
                at += 2
                run = 0
            target[at - 1] = run
            run += 1
        codes += coded.codes
        sixteens += coded.in16
        wholes += coded.in32
        done += lanes
        if is_last:
            break
    classes[0] += done - codes
    classes[1] += codes - sixteens - wholes
    classes[2] += sixteens
    classes[3] += wholes
    return done, at - room.at


@inlined_with
def _encode_group(
    put: GroupPutter, source: Uint8Array, first: int, lanes: int, limits: Limits, target: Uint8Array, at: int
) -> Coded:
    length, there, longs, wholes = put(source, first, lanes, limits, target, at)
    if there == 0:
        return Coded(0, 0, 0, 0)
    codes, cursor = popcount_u64(there), at + length
    if longs == 0:
        return Coded(length, codes, 0, 0)
    in16, in32 = longs & ~wholes, wholes
    while in16:
        word = load_u32(source, first + 4 * trailing_zeros(in16))
        nearest = float32_bits(bits_float32((word & MAGNITUDE_BITS) + SCALE16) + ROUNDER) & 0x7FFF
        store_u16(target, cursor, nearest | (word >> 16 & 0x8000))
        cursor += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, cursor, load_u32(source, first + 4 * trailing_zeros(in32)))
        cursor += 4
        in32 &= in32 - 1
    return Coded(cursor - at, codes, popcount_u64(longs & ~wholes), popcount_u64(wholes))


@inline_kernel
def fields_len(fields: int, width: int) -> int:
    """Return the octets of the width and of ``fields`` fields."""
    return (WIDTH_BITS + fields * width + 7) >> 3


@inline_kernel
def fitting_floats(octets: Uint8Array, at: int, lanes: int, capacity: int) -> int:
    """Return how many floats of the group at ``at``, whole bursts, fit into ``capacity`` octets."""
    present = u8(octets, at)
    head, fields_at = at + 1, at + 1 + popcount_u16(present)
    width = (u8(octets, fields_at) & (WIDTH_MAX - 1)) + 1
    bit = 8 if width == WIDTH_MAX else WIDTH_BITS
    others, fields, union, fitting = 1, 0, 1, 0
    for burst in range((lanes + LANES - 1) // LANES):
        if present >> burst & 1:
            in_burst = popcount_u16(u8(octets, head))
            head += 1
            others += 1
            fields += in_burst
            for _ in range(in_burst):
                field = (load_u16(octets, fields_at + (bit >> 3)) >> (bit & 7)) & ((1 << width) - 1)
                bit += width
                union |= field
                others += 2 * int(field == FIELD16) + 4 * int(field == FIELD32)
        # Bursts of zeros at the group's beginning always fit: they become part of a run.
        if fields > 0 and others + fields_len(fields, bit_length(union)) > capacity:
            break
        fitting = min(lanes, fitting + LANES)
    return fitting


@inlined_with
def decode(
    read_masks: MaskReader,
    get: GroupGetter,
    coded: Stretch,
    count: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode`` by groups and runs."""
    payload, at, end = coded.octets, coded.at, coded.at + coded.length
    done = 0
    is_run_over = True
    while done < count:
        if at >= end:
            return MALFORMED
        to = target_at + 4 * done
        if u8(payload, at) == 0:
            groups = u8(payload, at + 1) + 1
            left = (count - done + GROUP - 1) // GROUP
            if at + 2 > end or groups > left or not is_run_over:
                return MALFORMED
            floats = min(GROUP * groups, count - done)
            clear_octets(target, to, 4 * floats)
            is_run_over = groups == RUN_MAX
            at += 2
            done += floats
        else:
            lanes = min(GROUP, count - done)
            length = _decode_group(read_masks, get, Stretch(payload, at, end - at), lanes, unit8, target, to)
            if length == MALFORMED:
                return MALFORMED
            is_run_over = True
            at += length
            done += lanes
    return at - coded.at


@inlined_with
def _decode_group(
    read_masks: MaskReader,
    get: GroupGetter,
    coded: Stretch,
    lanes: int,
    unit8: np.float32,
    target: Uint8Array,
    target_at: int,
) -> int:
    """Read a group from the start of a stretch; return its octets or ``MALFORMED``."""
    octets, at, end = coded.octets, coded.at, coded.at + coded.length
    present, there, is_whole = read_masks(octets, at)
    fields_at = at + 1 + popcount_u64(present)
    width = int(u8(octets, fields_at) & (WIDTH_MAX - 1)) + 1
    bits = popcount_u64(there) * width
    fields_end = fields_at + fields_len(popcount_u64(there), width)
    if not is_whole or fields_end > end or _fill_of(octets, fields_at, fields_end, bits):
        return MALFORMED
    if lanes == GROUP:  # as a constant, so that the compiler makes code without a rest
        in16, in32, tops = get(octets, fields_at, (width, there, GROUP), unit8, target, target_at)
    elif there >> lanes:
        return MALFORMED
    else:
        in16, in32, tops = get(octets, fields_at, (width, there, lanes), unit8, target, target_at)
    if tops == 0 and width > 1:
        return MALFORMED
    cursor = fields_end
    if in16 | in32 == 0:
        return cursor - at
    if cursor + 2 * popcount_u64(in16) + 4 * popcount_u64(in32) > end:
        return MALFORMED
    while in16:
        store_u32(target, target_at + 4 * trailing_zeros(in16), decode_short(load_u16(octets, cursor), UNIT16))
        cursor += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, target_at + 4 * trailing_zeros(in32), load_u32(octets, cursor))
        cursor += 4
        in32 &= in32 - 1
    return cursor - at


@inline_kernel
def _fill_of(octets: Uint8Array, fields_at: int, fields_end: int, bits: int) -> int:
    """Return the unused bits of the last octet of ``bits`` bits of fields; with a width of 8, of the width's octet."""
    is_whole = u8(octets, fields_at) & (WIDTH_MAX - 1) == WIDTH_MAX - 1
    fill_bits = -(WIDTH_BITS + bits) & 7
    return u8(octets, fields_at if is_whole else fields_end - 1) >> (8 - fill_bits)


_OCTETS: Final = ir.VectorType(I8, LANES)


def _of_word(emit: Callable[[Builder, Value], Value], twin: Callable[[int], int]) -> Any:
    """Return a function from a word to a word: eight octets side by side."""

    def of_word(builder: Builder, word: Value) -> Value:
        result = emit(builder, builder.bitcast(word, _OCTETS))
        return builder.bitcast(result, I64) if result.type == _OCTETS else result

    return emits(types.int64, types.int64, twin=twin)(of_word)


def fields_of_codes(builder: Builder, codes: Value) -> Value:
    """Return the fields of codes, an octet each."""
    every = partial(vectors.every, vector=codes.type)
    less = builder.shl(builder.sub(builder.and_(codes, every(127)), every(1)), every(1))
    return builder.or_(less, builder.lshr(codes, every(7)))


def codes_of_fields(builder: Builder, fields: Value) -> Value:
    """Return the codes of fields, an octet each."""
    every = partial(vectors.every, vector=fields.type)
    magnitudes = builder.and_(builder.add(builder.lshr(fields, every(1)), every(1)), every(127))
    return builder.or_(magnitudes, builder.shl(fields, every(7)))


def _emit_sums(builder: Builder, word: Value) -> Value:
    counts = vectors.call(builder, "llvm.ctpop.v8i8", _OCTETS, word)
    return builder.mul(builder.bitcast(counts, I64), I64(0x0101010101010101))


def _emit_there(builder: Builder, word: Value) -> Value:
    return vectors.bits_of_plane(builder, builder.icmp_unsigned("!=", word, vectors.every(0, word.type)))


octets_there = _of_word(_emit_there, interpreted.octets_there)
sums_of_bits = _of_word(_emit_sums, interpreted.sums_of_bits)
fields_of = _of_word(fields_of_codes, interpreted.fields_of)
codes_of = _of_word(codes_of_fields, interpreted.codes_of)


@inline_kernel
def _fold(fields: int, width: int) -> int:
    """Return eight fields of ``width`` bits each, from eight fields of an octet each."""
    pairs = (fields & _LOW8) | ((fields >> 8) & _LOW8) << width
    fours = (pairs & _LOW16) | ((pairs >> 16) & _LOW16) << (2 * width)
    return (fours & _LOW32) | ((fours >> 32) & _LOW32) << (4 * width)


@inline_kernel
def _unfold(bits: int, width: int) -> int:
    """Undo :func:`_fold`; the bits above its result do not matter."""
    low4, low2, low = (1 << 4 * width) - 1, ((1 << 2 * width) - 1) * _EVERY32, ((1 << width) - 1) * _EVERY16
    fours = (bits & low4) | ((bits >> (4 * width)) & low4) << 32
    pairs = (fours & low2) | ((fours >> (2 * width)) & low2) << 16
    return (pairs & low) | ((pairs >> width) & low) << 8


@inline_kernel
def _or_of_octets(word: int) -> int:
    word |= word >> 32
    word |= word >> 16
    return (word | word >> 8) & 0xFF


@inline_kernel
def _first(word: int, count: int) -> int:
    """Return the first ``count`` octets of a word, 1 to 8."""
    return word & ((1 << (8 * int(count) - 1) << 1) - 1)  # twice, because a shift by 64 is not defined


@inline_kernel
def _pack_codes(target: Uint8Array, at: int, codes: int) -> int:
    """Turn the codes behind ``at``, an octet each, into the width and fields; return the octets of width and fields."""
    union = 0
    for first in range(0, codes, 8):
        fields = _first(fields_of(load_u64(target, at + 1 + first)), min(codes - first, 8))
        store_u64(target, at + 1 + first, fields)
        union |= fields
    width = bit_length(_or_of_octets(union) | 1)
    below = width - 1
    if width == WIDTH_MAX:
        target[at] = below
        return 1 + codes
    # Eight fields of any width are whole octets. The width takes three bits, so each word of eight fields is shifted by
    # three bits. The write position never overtakes the codes that are still to be read.
    for eight in range((codes + 7) // 8):
        word = _fold(load_u64(target, at + 1 + 8 * eight), width) << WIDTH_BITS | below
        store_u64(target, at + width * eight, word)
        below = word >> (8 * width)
    return fields_len(codes, width)


@inline_kernel
def _unpack_codes(payload: Uint8Array, fields_at: int, width: int, codes: int, target: Uint8Array, at: int) -> int:
    """Turn fields into codes, an octet each; return the bitwise or of the fields, in an octet."""
    fields_at, shift = (fields_at + 1, 0) if width == WIDTH_MAX else (fields_at, WIDTH_BITS)
    union = 0
    for first in range(0, codes, 8):
        fields = _unfold(load_u64(payload, fields_at) >> shift, width)
        union |= _first(fields, min(codes - first, 8))
        store_u64(target, at + first, codes_of(fields))
        fields_at += width
    return _or_of_octets(union)


@inline_kernel
def _sum_below(sums: int, burst: int) -> int:
    return sums << 8 >> 8 * burst & 0xFF


def groups_by_bursts(isa: Isa) -> Groups:
    """Return primitives that handle one burst after the other."""
    squeeze, spread = _mover(isa.squeeze, interpreted.squeeze), _mover(isa.spread, interpreted.spread)
    mask_burst, mask_part = _masker(full=True), _masker(full=False)
    code_burst, code_part = _coder(isa, full=True), _coder(isa, full=False)
    decode_burst = _burst_decoder(isa)

    @inlined_with
    def put(
        source: Uint8Array, first: int, lanes: int, limits: Limits, target: Uint8Array, at: int
    ) -> tuple[int, int, int, int]:
        lanes = int(lanes)  # without a compiler it may be NumPy's, whose shifts overflow
        there = longs = wholes = 0
        rest = lanes % LANES
        if lanes == GROUP:  # as a constant, so that the compiler unrolls the bursts
            for burst in range(BURSTS):
                there |= mask_burst(source, first + BURST_LEN * burst, LANES, limits[0]) << LANES * burst
        else:
            for burst in range(lanes // LANES):
                there |= mask_burst(source, first + BURST_LEN * burst, LANES, limits[0]) << LANES * burst
            if rest:
                there |= mask_part(source, first + 4 * (lanes - rest), rest, limits[0]) << lanes - rest
        if there == 0:
            return 0, 0, 0, 0
        present = octets_there(there)
        target[at] = present
        store_u64(target, at + 1, squeeze(there, present))
        fields_at = at + 1 + popcount_u16(present)
        sums = sums_of_bits(there)
        for burst in range(lanes // LANES):
            mask = there >> LANES * burst & 0xFF
            if mask:
                to = fields_at + 1 + _sum_below(sums, burst)
                planes = code_burst(source, first + BURST_LEN * burst, LANES, limits, mask, target, to)
                longs |= (planes & 0xFF) << LANES * burst
                wholes |= (planes >> 8) << LANES * burst
        if rest:
            mask, to = there >> lanes - rest & 0xFF, fields_at + 1 + _sum_below(sums, lanes // LANES)
            planes = code_part(source, first + 4 * (lanes - rest), rest, limits, mask, target, to)
            longs |= (planes & 0xFF) << lanes - rest
            wholes |= (planes >> 8) << lanes - rest
        return fields_at - at + _pack_codes(target, fields_at, sums >> 56 & 0xFF), there, longs, wholes

    @inlined_with
    def read_masks(payload: Uint8Array, at: int) -> tuple[int, int, int]:
        present = u8(payload, at)
        there = spread(load_u64(payload, at + 1), present)
        return present, there, int(octets_there(there) == present)

    @inlined_with
    def get(
        payload: Uint8Array,
        fields_at: int,
        group: tuple[int, int, int],
        unit8: np.float32,
        target: Uint8Array,
        target_at: int,
    ) -> tuple[int, int, int]:
        width, there, lanes = group[0], group[1], int(group[2])
        bursts, sums = (lanes + LANES - 1) // LANES, sums_of_bits(there)
        codes = sums >> 56 & 0xFF
        # The codes stand before the group's last floats: each burst's are read before its floats overwrite them.
        codes_at = target_at + BURST_LEN * bursts - 8 * ((codes + 7) // 8 + 1)
        union = _unpack_codes(payload, fields_at, width, codes, target, codes_at)
        in16 = in32 = 0
        for burst in range(bursts):
            mask = there >> LANES * burst & 0xFF
            if mask == 0:
                clear_octets(target, target_at + BURST_LEN * burst, BURST_LEN)
                continue
            word = load_u64(target, codes_at + _sum_below(sums, burst))
            escapes = decode_burst(word, mask, unit8, target, target_at + BURST_LEN * burst)
            in16 |= (escapes & 0xFF) << LANES * burst
            in32 |= (escapes >> 8) << LANES * burst
        return in16, in32, union >> width - 1

    return Groups(put, read_masks, get)


def _mover(emit: Callable[[Builder, Value, Value], Value], twin: Callable[[int, int], int]) -> Any:
    return emits(types.int64, types.int64, types.int64, twin=twin)(
        lambda builder, word, mask: emit(builder, word, mask)
    )


def _burst_decoder(isa: Isa) -> Any:
    @emits(types.int64, types.int64, types.int64, types.float32, ARRAY, types.int64, twin=interpreted.decode_codes)
    def decode_burst(
        builder: Builder, codes: Value, mask: Value, unit8: Value, target: Value, target_at: Value
    ) -> Value:
        octets = builder.bitcast(isa.spread(builder, codes, mask), _OCTETS)
        top = builder.shl(builder.zext(octets, WORDS), words(24))
        vectors.store(builder, vectors.floats_of_tops8(builder, top, unit8), target, target_at)
        marks = (builder.icmp_unsigned("==", octets, vectors.every(mark, _OCTETS)) for mark in (ESCAPE16, ESCAPE32))
        in16, in32 = (vectors.bits_of_plane(builder, mark) for mark in marks)
        return builder.or_(in16, builder.shl(builder.and_(in32, mask), I64(8)))

    return decode_burst


def _masker(*, full: bool) -> Any:
    @emits(types.int64, ARRAY, types.int64, types.int64, types.int64, twin=interpreted.mask_burst)
    def mask_burst(builder: Builder, source: Value, at: Value, floats: Value, smallest: Value) -> Value:
        there = None if full else vectors.lanes_below(builder, floats, LANES)
        magnitude = builder.and_(vectors.load_lanes(builder, source, at, LANES, there), words(MAGNITUDE_BITS))
        (limit,) = vectors.spread(builder, [smallest])
        return vectors.bits_of_plane(builder, builder.icmp_signed(">=", magnitude, limit))

    return mask_burst


def _coder(isa: Isa, *, full: bool) -> Any:
    @emits(
        *(types.int64, ARRAY, types.int64, types.int64, LIMITS, types.int64, ARRAY, types.int64),
        twin=interpreted.code_burst,
    )
    def code_burst(
        builder: Builder,
        source: Value,
        at: Value,
        floats: Value,
        limits: Value,
        mask: Value,
        target: Value,
        target_at: Value,
    ) -> Value:
        there = None if full else vectors.lanes_below(builder, floats, LANES)
        word = vectors.load_lanes(builder, source, at, LANES, there)
        planes, codes = vectors.bounded_octets(builder, word, vectors.members(builder, limits))
        vectors.store(builder, isa.squeeze(builder, builder.bitcast(codes, I64), mask), target, target_at)
        longs, wholes = (vectors.bits_of_plane(builder, plane) for plane in planes[1:])
        return builder.or_(longs, builder.shl(wholes, I64(8)))

    return code_burst
