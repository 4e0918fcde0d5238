"""The primitives of CPUs with AVX-512 VBMI2: one byte compression **in a register** squeezes a burst.

All 32 octets are stored, and the next burst overwrites the surplus. (The form of that instruction that stores to memory
is microcoded on Zen 4 and ten times slower.) A dozen scalar instructions for both bursts of a register compute from the
planes which octets are kept, and the tags. A population count of the kept octets gives the place of the next burst.

Decoding of bursts is AVX2's: its table shuffles are faster than the mirror image of this encoder, one byte expansion in
a register.

**Groups.** 64 floats fill four registers, their codes one. Encoding compares and codes 16 lanes at a time and gathers
the low octets of all 64 codes. One byte compression drops the zeros. Three shifts, of 16, 32 and 64 bits, then fold
eight fields to the low end of each word of 64 bits. One byte permutation brings the octets of the eight words together,
and a shift over two words puts the width in front. The masks of the format come straight from the CPU's mask registers:
``pext`` drops the empty lane masks, ``pdep`` brings them back.

Only imported where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from netoffload.codec import avx2, vectors
from netoffload.codec.avx2 import bmi2
from netoffload.codec.bursts import BURST_LEN, LANES, TAGS_LEN
from netoffload.codec.exact import Moves, threes, words_of_threes
from netoffload.codec.packed import GROUP, WIDTH_BITS, WIDTH_MAX, Groups, codes_of_fields, fields_of_codes
from netoffload.codec.scalar import ESCAPE16, LIMITS, Limits
from netoffload.codec.vectors import I8, I16, I32, I64, OCTETS, call, every, words
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits, held
from netoffload.compiled.jit import inlined_with

_OCTETS: Final = ir.VectorType(I8, BURST_LEN)
_NO_OCTETS: Final = ir.Constant(_OCTETS, [0] * BURST_LEN)


def _squeeze(builder: Builder, octets: Value, kept: Value) -> Value:
    """VBMI2 ``compress`` of 32 octets in a register: the octets with a bit in ``kept``, then zeros."""
    there = builder.bitcast(kept, ir.VectorType(ir.IntType(1), BURST_LEN))
    return call(builder, "llvm.x86.avx512.mask.compress.v32i8", _OCTETS, octets, _NO_OCTETS, there)


def _kept_and_tags(builder: Builder, planes: Sequence[Value], first_of_four: Value) -> tuple[Value, Value]:
    """Return which of the 64 octets are kept, one bit each, and both tag words, the first one's in the low half."""
    # A lane's four octets are four bits: 0000, 0001, 0011 or 1111. The planes are first spread, so that each bit is the
    # first of its lane's four. A tag is the last two bits of (first ^ third) ^ 3 * second.
    first, second, third = (bmi2(builder, "pdep", plane, first_of_four) for plane in planes)
    kept = builder.add(builder.add(first, builder.shl(second, I64(1))), builder.mul(third, I64(12)))
    tags = builder.xor(builder.xor(first, third), builder.mul(second, I64(3)))
    return kept, bmi2(builder, "pext", tags, builder.mul(first_of_four, I64(3)))


def _put_bursts(
    builder: Builder, octets: Value, at: Value, planes: Sequence[Value], codes: Value, limits: Sequence[Value]
) -> list[Value]:
    bursts = codes.type.count // LANES
    # ``held`` keeps LLVM from moving each plane out of its mask register once for every use.
    bits = [held(builder, vectors.bits_of_plane(builder, plane)) for plane in planes]
    kept, tags = _kept_and_tags(builder, bits, limits[7])
    first_len = builder.zext(builder.ctpop(builder.trunc(kept, I32)), I64)
    length = builder.add(builder.ctpop(kept), I64(TAGS_LEN * bursts))
    for number in range(bursts):
        tag_word = builder.trunc(builder.lshr(tags, I64(16 * number)), I16)
        vectors.store(builder, tag_word, octets, at)
        at = builder.add(at, I64(TAGS_LEN))
        kept_here = builder.trunc(builder.lshr(kept, I64(32 * number)), I32)
        code = builder.bitcast(vectors.part(builder, codes, number, LANES), _OCTETS)
        vectors.store(builder, _squeeze(builder, code, kept_here), octets, at)
        at = builder.add(at, first_len)
    return [length, *(builder.ctpop(plane) for plane in bits[1:])]


ISA: Final = avx2.ISA._replace(put_bursts=_put_bursts, bursts=2)


_QUARTER: Final = GROUP // 4
_WORDS: Final = ir.VectorType(I32, _QUARTER)
_GROUP_LANES: Final = ir.VectorType(ir.IntType(1), GROUP)
_LAST_BITS: Final = 0x8080808080808080
_OTHER_BITS: Final = 0x7F7F7F7F7F7F7F7F
_EIGHTS: Final = GROUP // 8
_EIGHT_WORDS: Final = ir.VectorType(I64, _EIGHTS)

_NEVER_SET: Final = 7
"""An octet of the first word that folded fields of less than 8 bits do not reach."""


def _by_width(octet_of: Callable[[int, int], int]) -> Uint8Array:
    """Return a row of 64 octets per width; width 0 is not used."""
    rows = [[octet_of(width, octet) if width else 0 for octet in range(GROUP)] for width in range(WIDTH_MAX + 1)]
    return np.array(rows, np.uint8)


_TOGETHER: Final = _by_width(lambda w, octet: 8 * (octet // w) + octet % w if octet < 8 * w else _NEVER_SET)
"""Per width and octet of the result: which octet of eight words, with folded fields at their low ends, it is."""

_APART: Final = _by_width(lambda w, octet: w * (octet // 8) + octet % 8)
"""Per width, which octets hold the fields of each word."""

_FIRST_BITS: Final = _by_width(lambda w, octet: w * (octet % 8) + (0 if w == WIDTH_MAX else WIDTH_BITS))
"""Per width, where in its word each field begins."""


def _row(builder: Builder, name: str, rows: Uint8Array, width: Value) -> Value:
    return vectors.entry(builder, vectors.table(builder, name, rows), width, OCTETS, GROUP)


def _low_octets(builder: Builder, value: Value) -> Value:
    """Return 64 octets, each the low end of an i64."""
    return vectors.all_lanes(builder, builder.trunc(value, I8), OCTETS)


def _permuted(builder: Builder, octets: Value, order: Value) -> Value:
    return call(builder, "llvm.x86.avx512.permvar.qi.512", OCTETS, octets, order)


def _full_octets(builder: Builder, top_bits: Value) -> Value:
    """Return 0xFF for every octet whose top bit is set; the other bits are 0."""
    return builder.sub(builder.shl(top_bits, I64(1)), builder.lshr(top_bits, I64(7)))


def _octets_not_0(builder: Builder, word: Value) -> Value:
    """Return the top bit of every octet of a word that is not 0."""
    carried = builder.add(builder.and_(word, I64(_OTHER_BITS)), I64(_OTHER_BITS))
    return builder.and_(builder.or_(carried, word), I64(_LAST_BITS))


def _put_masks(builder: Builder, octets: Value, at: Value, lanes: Value) -> Value:
    there = _octets_not_0(builder, lanes)
    present = bmi2(builder, "pext", there, I64(_LAST_BITS))
    lane_masks = bmi2(builder, "pext", lanes, _full_octets(builder, there))
    vectors.store(builder, builder.trunc(present, I8), octets, at)
    vectors.store(builder, lane_masks, octets, builder.add(at, I64(1)))
    return builder.add(builder.ctpop(present), I64(1))


def _folded(builder: Builder, fields: Value, width: Value) -> Value:
    """Return eight words with eight fields each at their low end."""
    folded = fields
    for bits, times in ((8, 1), (16, 2), (32, 4)):
        lanes = ir.VectorType(ir.IntType(2 * bits), GROUP * 8 // (2 * bits))
        pairs = builder.bitcast(folded, lanes)
        low = builder.and_(pairs, ir.Constant(lanes, [(1 << bits) - 1] * lanes.count))
        high = builder.lshr(pairs, ir.Constant(lanes, [bits] * lanes.count))
        by = builder.mul(width, I64(times))
        by = vectors.all_lanes(builder, by if bits == 32 else builder.trunc(by, lanes.element), lanes)
        folded = builder.or_(low, builder.shl(high, by))
    return folded


def _put_fields(builder: Builder, octets: Value, at: Value, codes: Value, lanes: Value) -> Value:
    """Store the width and the fields of a group; with fields of 8 bits, the last one may begin behind 64 octets."""
    all_fields = fields_of_codes(builder, codes)
    fields = call(builder, "llvm.x86.avx512.mask.compress.v64i8", OCTETS, all_fields, every(0), lanes)
    union = call(builder, "llvm.vector.reduce.or.v64i8", I8, fields)
    leading = builder.ctlz(builder.or_(union, I8(1)), ir.IntType(1)(1))
    width = builder.zext(builder.sub(I8(8), leading), I64)
    row = _row(builder, "together", _TOGETHER, width)
    folded = builder.bitcast(_folded(builder, fields, width), OCTETS)
    together = builder.bitcast(_permuted(builder, folded, row), _EIGHT_WORDS)
    is_whole = builder.icmp_unsigned("==", width, I64(WIDTH_MAX))
    shift = builder.select(is_whole, I64(8), I64(WIDTH_BITS))
    head = builder.shl(builder.sub(width, I64(1)), builder.sub(I64(64), shift))
    before = builder.insert_element(ir.Constant(_EIGHT_WORDS, ir.Undefined), head, I32(7))
    below = builder.shuffle_vector(before, together, words(*range(7, 15)))
    shifts = vectors.all_lanes(builder, shift, _EIGHT_WORDS)
    stored = call(builder, "llvm.fshl.v8i64", _EIGHT_WORDS, together, below, shifts)
    vectors.store(builder, stored, octets, at)
    last = builder.extract_element(fields, I32(GROUP - 1))
    vectors.store(builder, last, octets, builder.add(at, I64(GROUP)))
    bits = builder.mul(builder.ctpop(builder.bitcast(lanes, I64)), width)
    return builder.lshr(builder.add(bits, I64(WIDTH_BITS + 7)), I64(3))


def _make_put(*, full: bool) -> Any:
    @emits(types.UniTuple(types.int64, 4), ARRAY, types.int64, types.int64, LIMITS, ARRAY, types.int64)
    def put(
        builder: Builder, source: Value, source_at: Value, count: Value, limits: Value, target: Value, target_at: Value
    ) -> list[Value]:
        there = None if full else vectors.lanes_below(builder, count, GROUP)
        each = vectors.members(builder, limits)
        planes: list[list[Value]] = []
        octets = []
        for number in range(4):
            at = builder.add(source_at, I64(4 * _QUARTER * number))
            quarter = None if there is None else vectors.part(builder, there, number, _QUARTER)
            word = vectors.load_lanes(builder, source, at, _QUARTER, quarter)
            in_planes, codes = vectors.bounded_octets(builder, word, each)
            octets.append(codes)
            planes.append(in_planes)
        joined = [vectors.join(builder, [quarter[plane] for quarter in planes]) for plane in range(3)]
        bits = [builder.bitcast(plane, I64) for plane in joined]
        codes_at = builder.add(target_at, _put_masks(builder, target, target_at, bits[0]))
        length = _put_fields(builder, target, codes_at, vectors.join(builder, octets), joined[0])
        return [builder.sub(builder.add(codes_at, length), target_at), *bits]

    return put


@emits(types.UniTuple(types.int64, 3), ARRAY, types.int64)
def _read_masks(builder: Builder, payload: Value, at: Value) -> list[Value]:
    present = builder.zext(vectors.load(builder, payload, at, I8), I64)
    packed = vectors.load(builder, payload, builder.add(at, I64(1)), I64)
    tops = bmi2(builder, "pdep", present, I64(_LAST_BITS))
    lanes = bmi2(builder, "pdep", packed, _full_octets(builder, tops))
    return [present, lanes, builder.zext(builder.icmp_unsigned("==", _octets_not_0(builder, lanes), tops), I64)]


def _make_get(*, full: bool) -> Any:
    three = types.UniTuple(types.int64, 3)

    @emits(three, ARRAY, types.int64, three, types.float32, ARRAY, types.int64)
    def get(
        builder: Builder, payload: Value, fields_at: Value, group: Value, unit8: Value, target: Value, target_at: Value
    ) -> list[Value]:
        width, lanes, count = vectors.members(builder, group)
        is_whole = builder.zext(builder.icmp_unsigned("==", width, I64(WIDTH_MAX)), I64)
        stored = vectors.load(builder, payload, builder.add(fields_at, is_whole), OCTETS)
        apart = _permuted(builder, stored, _row(builder, "apart", _APART, width))
        first_bits = _row(builder, "first_bits", _FIRST_BITS, width)
        bits = call(builder, "llvm.x86.avx512.pmultishift.qb.512", OCTETS, first_bits, apart)
        top = builder.shl(I64(1), builder.sub(width, I64(1)))
        tops = builder.icmp_unsigned("!=", builder.and_(bits, _low_octets(builder, top)), every(0))
        kept = _low_octets(builder, builder.sub(builder.shl(top, I64(1)), I64(1)))
        fields = builder.and_(bits, kept)
        codes, escapes = _spread(builder, codes_of_fields(builder, fields), lanes)
        _put_floats(builder, target, target_at, codes, unit8, None if full else count)
        among = builder.lshr(I64(-1), builder.sub(I64(GROUP), builder.ctpop(lanes)))
        return [*escapes, builder.and_(builder.bitcast(tops, I64), among)]

    return get


def _spread(builder: Builder, codes: Value, lanes: Value) -> tuple[Value, list[Value]]:
    """Return the first codes in their ``lanes`` (i64), with 0 elsewhere, and the lanes of escapes to 16 and 32 bits."""
    there = builder.bitcast(lanes, _GROUP_LANES)
    codes = call(builder, "llvm.x86.avx512.mask.expand.v64i8", OCTETS, codes, every(0), there)
    escapes16 = builder.icmp_unsigned("==", codes, every(ESCAPE16))
    zeros = builder.icmp_unsigned("==", codes, every(0))
    return codes, [builder.bitcast(escapes16, I64), builder.and_(builder.bitcast(zeros, I64), lanes)]


def _put_floats(builder: Builder, target: Value, at: Value, codes: Value, unit8: Value, count: Value | None) -> None:
    """Store the floats of 64 codes, all of them or only the first ``count``; 0 for an escape."""
    there = None if count is None else vectors.lanes_below(builder, count, GROUP)
    for number in range(4):
        octets = vectors.part(builder, codes, number, _QUARTER)
        top = builder.shl(builder.zext(octets, _WORDS), words(24, lanes=_QUARTER))
        floats = vectors.floats_of_tops8(builder, top, unit8)
        quarter = None if there is None else vectors.part(builder, there, number, _QUARTER)
        vectors.store_lanes(builder, floats, target, builder.add(at, I64(4 * _QUARTER * number)), quarter)


_put_full, _put_part = _make_put(full=True), _make_put(full=False)
_get_full, _get_part = _make_get(full=True), _make_get(full=False)


@inlined_with
def _put(
    source: Uint8Array, first: int, lanes: int, limits: Limits, target: Uint8Array, at: int
) -> tuple[int, int, int, int]:
    if lanes == GROUP:
        return _put_full(source, first, lanes, limits, target, at)
    return _put_part(source, first, lanes, limits, target, at)


@inlined_with
def _get(
    payload: Uint8Array, at: int, group: tuple[int, int, int], unit8: np.float32, target: Uint8Array, target_at: int
) -> tuple[int, int, int]:
    if group[2] == GROUP:
        return _get_full(payload, at, group, unit8, target, target_at)
    return _get_part(payload, at, group, unit8, target, target_at)


GROUPS: Final = Groups(_put, _read_masks, _get)


def _put_octets(builder: Builder, target: Value, at: Value, octets: Value, mask: Value) -> Value:
    lanes = builder.bitcast(mask, _GROUP_LANES)
    kept = call(builder, "llvm.x86.avx512.mask.compress.v64i8", OCTETS, octets, every(0), lanes)
    vectors.store(builder, kept, target, at)
    return builder.add(at, builder.ctpop(mask))


def _get_octets(builder: Builder, octets: Value, at: Value, mask: Value) -> Value:
    loaded = vectors.load(builder, octets, at, OCTETS)
    lanes = builder.bitcast(mask, _GROUP_LANES)
    return call(builder, "llvm.x86.avx512.mask.expand.v64i8", OCTETS, loaded, every(0), lanes)


_NO_WORDS: Final = words(0, lanes=_QUARTER)


def _quarters(builder: Builder, mask: Value) -> list[tuple[Value, Value]]:
    """Return each quarter of a mask, and three times how many bits it has."""
    parts = [builder.trunc(builder.lshr(mask, I64(_QUARTER * number)), I16) for number in range(4)]
    lanes = ir.VectorType(ir.IntType(1), _QUARTER)
    counts = [builder.mul(builder.zext(builder.ctpop(part), I64), I64(3)) for part in parts]
    return [(builder.bitcast(part, lanes), count) for part, count in zip(parts, counts, strict=True)]


def _put_words(builder: Builder, target: Value, at: Value, quarters: Sequence[Value], mask: Value) -> None:
    for quarter, (lanes, octets) in zip(quarters, _quarters(builder, mask), strict=True):
        kept = call(builder, "llvm.x86.avx512.mask.compress.v16i32", _WORDS, quarter, _NO_WORDS, lanes)
        vectors.store(builder, threes(builder, kept), target, at)
        at = builder.add(at, octets)


def _get_words(builder: Builder, octets: Value, at: Value, mask: Value) -> list[Value]:
    quarters = []
    for lanes, taken in _quarters(builder, mask):
        loaded = words_of_threes(builder, octets, at, _QUARTER)
        quarters.append(call(builder, "llvm.x86.avx512.mask.expand.v16i32", _WORDS, loaded, _NO_WORDS, lanes))
        at = builder.add(at, taken)
    return quarters


MOVES: Final = Moves(
    avx2.spread_bits,
    avx2.squeeze_bits,
    lambda builder, mask: builder.bitcast(mask, _GROUP_LANES),
    lambda builder, lanes: builder.bitcast(lanes, I64),
    _put_octets,
    _get_octets,
    _put_words,
    _get_words,
)
