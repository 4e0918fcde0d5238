"""The exact codec: one body for every CPU. docs/design/codecs.md describes the groups.

Exponents of neighbouring floats are close to each other; signs and mantissas look random. So a group of 64 values has
the largest exponent once, each other one as its distance below that, and the rest of each value as it is. Bits of the
same weight of all distances stand together, in a *plane*: SIMD compares yield planes. What follows from them (which
width is the shortest, which exponents escape, how long the group is) is arithmetic on words of 64 bits, the same on
every CPU. So a group's size is known before its first octet is written.

Instruction sets differ in eight primitives (:class:`Moves`), which squeeze bits, octets or words together by a mask,
and spread them. A group of fewer than 64 values is filled up with zeros in the slack behind the target.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Final, NamedTuple, TypeAlias

from llvmlite import ir
from numba import types

from netoffload.codec import interpreted, vectors
from netoffload.codec.bursts import BURST_LEN, ENCODE_SLACK, LANES, MALFORMED
from netoffload.codec.packed import GROUP
from netoffload.codec.reference import BF16, FLOAT32, NARROW
from netoffload.codec.vectors import I8, I16, I32, I64, OCTETS, Isa, call, every, words
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits, held
from netoffload.compiled.jit import JIT_DISABLED, compiled_with, inline_kernel, inlined_with
from netoffload.compiled.octets import clear_octets, copy_octets, load_u64, popcount_u64, store_u64, u8

LOOK: Final = 4096
"""Words after which the encoder chooses the type of values again."""

ZEROS: Final = 0x00
RAW: Final = 0x40
CODED: Final = 0x80
"""Kinds of groups. The head of a group is kind | type << 4 | is there a mask << 3 | width."""

WIDTH_MAX: Final = 6
_WIDTH_BITS: Final = 7
_FILLED_LEN: Final = 4 * GROUP
_FILLED_AT: Final = ENCODE_SLACK - _FILLED_LEN
"""Where in the slack a short group is filled up: beyond what the group itself takes, with 64 octets to spare."""

_HALVES: Final = ir.VectorType(I16, GROUP)
_PAIRS: Final = ir.VectorType(I16, GROUP // 2)
_QUARTER: Final = GROUP // 4

Seen: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""Of 64 values: which are not 0, the largest exponent, whether a low half is not 0, and for each width from 1 on which
exponents of values that are not 0 escape."""

_SEEN: Final = types.UniTuple(types.int64, 9)
_PLANNED: Final = types.UniTuple(types.int64, 5)
"""The largest exponent, the width, octets of a plane, which exponents escape, which values are not 0."""
_GOT: Final = types.UniTuple(types.int64, 10)
"""Six planes, which exponents escape, which values are not 0, the largest exponent, octets of the group's values."""


class Moves(NamedTuple):
    """The primitives of an instruction set, which emit code."""

    spread_bits: Callable[[Builder, Value, Value], Value]
    """From the low bits of a word to the bits of a mask, with 0 between them."""
    squeeze_bits: Callable[[Builder, Sequence[Value], Value], Sequence[Value]]
    """Given words and a mask: the way back, for each."""
    lanes: Callable[[Builder, Value], Value]
    """From the bits of a mask to 64 lanes."""
    bits: Callable[[Builder, Value], Value]
    """The way back."""
    put_octets: Callable[[Builder, Value, Value, Value, Value], Value]
    """Given an address, a place, 64 octets and a mask: store those in the mask together; return the place behind."""
    get_octets: Callable[[Builder, Value, Value, Value], Value]
    """The way back, with 0 between them."""
    put_words: Callable[[Builder, Value, Value, Sequence[Value], Value], None]
    """The same for the low three octets of 64 words, in four vectors."""
    get_words: Callable[[Builder, Value, Value, Value], list[Value]]


class _Plan(NamedTuple):
    """How a group is written."""

    head: int
    there: int
    escapes: int
    octets: int


@inline_kernel
def _plan(seen: Seen, values: int, kind: int) -> _Plan:
    """Return the shortest form of a group of ``values`` values."""
    there, low = seen[0], seen[2]
    if there == 0:
        return _Plan(ZEROS | kind << 4, 0, 0, 1)
    count = popcount_u64(there)
    plane_len = (count + 7) >> 3
    width = escaping = coded_len = 0
    if seen[3]:
        coded_len = 9 * GROUP
        for less, escapes in enumerate(seen[3:]):
            octets = (less + 1) * plane_len + popcount_u64(escapes)
            if octets < coded_len:
                width, escaping, coded_len = less + 1, escapes, octets
    form = NARROW if kind == FLOAT32 and low == 0 else kind
    has_zeros = int(count < values)
    octets = 2 + has_zeros * ((values + 7) >> 3) + coded_len + count * (3 if form == FLOAT32 else 1)
    values_len = values * (2 if kind == BF16 else 4)
    if octets > values_len:
        return _Plan(RAW | kind << 4, there, 0, 1 + values_len)
    return _Plan(CODED | form << 4 | has_zeros << 3 | width, there, escaping, octets)


@inline_kernel
def _fill(source: Uint8Array, first: int, lanes: int, target: Uint8Array, at: int) -> int:
    """Copy ``lanes`` words into the slack behind ``at``, fill them up with zeros, and return where they are."""
    filled = at + _FILLED_AT
    copy_octets(source, first, target, filled, 4 * lanes)
    clear_octets(target, filled + 4 * lanes, _FILLED_LEN - 4 * lanes)
    return filled


def encoder(moves: Moves) -> Callable[..., tuple[int, int]]:
    """Return ``encode_fit``."""
    look32, look16 = _looker(moves, FLOAT32), _looker(moves, BF16)
    put = _by_form(_putter, moves, interpreted.exact_put)

    @inlined_with
    def look(kind: int, source: Uint8Array, first: int) -> Seen:
        return look16(source, first) if kind == BF16 else look32(source, first)

    def put_group(
        kind: int, source: Uint8Array, first: int, values: int, target: Uint8Array, at: int, end: int
    ) -> tuple[int, int]:
        """Write a group if it ends at ``end`` or before; return its octets, and how many values are 0."""
        seen = look(kind, source, first)
        head, there, escapes, octets = _plan(seen, values, kind)
        zeros = values - popcount_u64(there)
        if at + octets > end:
            return octets, zeros
        target[at] = head
        if head < RAW:
            return octets, zeros
        if head < CODED:
            copy_octets(source, first, target, at + 1, octets - 1)
            return octets, zeros
        target[at + 1] = seen[1]
        cursor = at + 2
        if zeros:
            store_u64(target, cursor, there)
            cursor += (values + 7) >> 3
        planned = seen[1], head & _WIDTH_BITS, (values - zeros + 7) >> 3, escapes, there
        put(head >> 4 & 3, source, first, planned, target, cursor)
        return octets, zeros

    put_whole, put_filled = inlined_with(put_group), compiled_with(put_group)

    @compiled_with
    def choose(source: Uint8Array, first: int, lanes: int, target: Uint8Array, at: int) -> int:
        """Return the type that makes ``lanes`` words, up to 64, shorter."""
        filled = _fill(source, first, lanes, target, at)
        half = min(lanes, GROUP // 2)
        as_float32 = _plan(look(FLOAT32, target, filled), lanes, FLOAT32).octets
        as_bf16 = _plan(look(BF16, target, filled), 2 * half, BF16).octets
        if lanes > half:
            as_bf16 += _plan(look(BF16, target, filled + 2 * GROUP), 2 * (lanes - half), BF16).octets
        return BF16 if as_bf16 < as_float32 else FLOAT32

    @compiled_with
    def put_short(
        kind: int, source: Uint8Array, first: int, lanes: int, target: Uint8Array, at: int, end: int
    ) -> tuple[int, int, int]:
        """Write a group of up to ``lanes`` words, or of so many bursts as fit; return words, octets, zeros."""
        while lanes > 0:
            filled = _fill(source, first, lanes, target, at)
            octets, zeros = put_filled(kind, target, filled, lanes * (1 + (kind == BF16)), target, at, end)
            if at + octets <= end:
                return lanes, octets, zeros
            lanes = (lanes - 1) // LANES * LANES
        return 0, 0, 0

    @inlined_with
    def encode(source: Uint8Array, source_at: int, count: int, room: Stretch, classes: Int64Array) -> tuple[int, int]:
        target, at = room.octets, room.at
        end = at + room.length
        done = kind = none = halves = 0
        while done < count:
            first = source_at + 4 * done
            if done % LOOK == 0:
                kind = choose(source, first, min(GROUP, count - done), target, at)
            whole = GROUP if kind == FLOAT32 else GROUP // 2
            wanted = lanes = min(whole, count - done)
            octets, zeros = 0, 0
            if lanes == whole:
                octets, zeros = put_whole(kind, source, first, GROUP, target, at, end)
            if lanes < whole or at + octets > end:
                lanes, octets, zeros = put_short(kind, source, first, lanes, target, at, end)
            at += octets
            done += lanes
            if kind == FLOAT32:
                none += zeros
            else:
                halves += lanes
            if lanes < wanted:
                break
        classes[0] += none
        classes[2] += halves
        classes[3] += done - none - halves
        return done, at - room.at

    return encode


def decoder(moves: Moves) -> Callable[..., int]:
    """Return ``decode``."""
    spread_bits = emits(types.int64, types.int64, types.int64, twin=interpreted.spread_bits)(moves.spread_bits)
    get = _by_form(_getter, moves, interpreted.exact_get)

    @inline_kernel
    def plane(octets: Uint8Array, at: int, number: int, width: int, plane_len: int, there: int) -> int:
        if number >= width:
            return 0
        return spread_bits(load_u64(octets, at + number * plane_len), there)

    @inlined_with
    def get_group(coded: Stretch, left: int, target: Uint8Array, target_at: int) -> tuple[int, int]:
        """Read a group from the start of a stretch; return its octets, or ``MALFORMED``, and its words."""
        octets, at, end = coded.octets, coded.at, coded.at + coded.length
        head = u8(octets, at)
        kind, form, width = head & 0xC0, head >> 4 & 3, head & _WIDTH_BITS
        lanes = min(left, GROUP // 2 if form == BF16 else GROUP)
        if kind != CODED:
            length = 1 + 4 * lanes if kind == RAW else 1
            if kind > RAW or head & 0x1F or form > BF16 or at + length > end:
                return MALFORMED, 0
            if kind == RAW:
                copy_octets(octets, at + 1, target, target_at, 4 * lanes)
            else:
                clear_octets(target, target_at, 4 * lanes)
            return length, lanes
        values = 2 * lanes if form == BF16 else lanes
        cursor, there = at + 2, (1 << (int(values) - 1) << 1) - 1  # twice: a shift by 64 is not defined
        if head & 8:
            there &= load_u64(octets, cursor)
            cursor += (values + 7) >> 3
        count = popcount_u64(there)
        plane_len = (count + 7) >> 3
        escapes_at = cursor + width * plane_len
        if form > BF16 or width > WIDTH_MAX or count == 0 or escapes_at > end:
            return MALFORMED, 0
        c0 = plane(octets, cursor, 0, width, plane_len, there)
        c1 = plane(octets, cursor, 1, width, plane_len, there)
        c2 = plane(octets, cursor, 2, width, plane_len, there)
        c3 = plane(octets, cursor, 3, width, plane_len, there)
        c4 = c5 = 0
        escapes = (c0 if width > 0 else 0) & (c1 if width > 1 else -1)
        escapes &= (c2 if width > 2 else -1) & (c3 if width > 3 else -1) & there
        if width > 4:
            c4 = plane(octets, cursor, 4, width, plane_len, there)
            c5 = plane(octets, cursor, 5, width, plane_len, there)
            escapes &= c4 & (c5 if width > 5 else -1)
        length = escapes_at + popcount_u64(escapes) + count * (3 if form == FLOAT32 else 1) - at
        if at + length > end:
            return MALFORMED, 0
        got = (c0, c1, c2, c3, c4, c5, escapes, there, u8(octets, at + 1), 4 * lanes)
        get(form, octets, escapes_at, got, target, target_at)
        return length, lanes

    @inlined_with
    def decode(coded: Stretch, count: int, target: Uint8Array, target_at: int) -> int:
        at, end, done = coded.at, coded.at + coded.length, 0
        while done < count:
            if at >= end:
                return MALFORMED
            length, lanes = get_group(Stretch(coded.octets, at, end - at), count - done, target, target_at + 4 * done)
            if length == MALFORMED:
                return MALFORMED
            at += length
            done += lanes
        return at - coded.at

    return decode


def _by_form(make: Callable[[Moves, int], Any], moves: Moves, twin: Any) -> Any:
    """Return a function that calls the one that ``make`` returns for the type in its first argument."""
    if JIT_DISABLED:
        return twin
    of_float32, of_narrow, of_bf16 = (make(moves, form) for form in (FLOAT32, NARROW, BF16))

    @inlined_with
    def of_form(
        form: int, octets: Uint8Array, at: int, group: tuple[int, ...], target: Uint8Array, target_at: int
    ) -> None:
        if form == FLOAT32:
            of_float32(octets, at, group, target, target_at)
        elif form == NARROW:
            of_narrow(octets, at, group, target, target_at)
        else:
            of_bf16(octets, at, group, target, target_at)

    return of_form


def _load(builder: Builder, form: int, source: Value, at: Value) -> list[Value]:
    """Return 64 values, 64 octets in each vector."""
    kind = ir.VectorType(I16, GROUP // 2) if form == BF16 else ir.VectorType(I32, _QUARTER)
    places = [builder.add(at, I64(place)) for place in range(0, (2 if form == BF16 else 4) * GROUP, 64)]
    return [vectors.load(builder, source, place, kind) for place in places]


def _exponents(builder: Builder, form: int, values: Sequence[Value]) -> Value:
    """Return the exponents of 64 values, an octet each."""
    octets = [builder.bitcast(builder.shl(one, every(1, one.type)), OCTETS) for one in values]
    value_len = 2 if form == BF16 else 4
    lasts = [octet for octet in range(2 * GROUP) if octet % value_len == value_len - 1]
    order = words(*lasts, lanes=len(lasts))
    pairs = zip(octets[::2], octets[1::2], strict=True)
    return vectors.join(builder, [builder.shuffle_vector(left, right, order) for left, right in pairs])


def _rotated(builder: Builder, value: Value, bits: int) -> Value:
    """Return lanes rotated left."""
    name = f"llvm.fshl.v{value.type.count}i{value.type.element.width}"
    return call(builder, name, value.type, value, value, every(bits, value.type))


def _looker(moves: Moves, form: int) -> Any:
    """Return what sees 64 values of a type at a place."""

    @emits(_SEEN, ARRAY, types.int64, twin=partial(interpreted.exact_look, form))
    def look(builder: Builder, source: Value, at: Value) -> list[Value]:
        values = _load(builder, form, source, at)
        exponents = _exponents(builder, form, values)
        not_0 = vectors.join(builder, [builder.icmp_unsigned("!=", one, every(0, one.type)) for one in values])
        low = I64(1)
        if form != BF16:
            union = reduce(builder.or_, values)
            low_bits = builder.icmp_unsigned("!=", builder.and_(union, every(0xFFFF, union.type)), every(0, union.type))
            low = vectors.bits_of_plane(builder, low_bits)
        top = call(builder, f"llvm.vector.reduce.umax.v{GROUP}i8", I8, exponents)
        distances = builder.sub(vectors.all_lanes(builder, top, OCTETS), exponents)
        there = moves.bits(builder, not_0)
        over = [builder.icmp_unsigned(">=", distances, every((1 << width) - 1)) for width in range(1, WIDTH_MAX + 1)]
        escapes = [builder.and_(moves.bits(builder, plane), there) for plane in over]
        return [there, builder.zext(top, I64), low, *escapes]

    return look


def _putter(moves: Moves, form: int) -> Any:
    """Return what stores planes, exponents that escape, and rests of the values of a type."""

    @emits(types.none, ARRAY, types.int64, _PLANNED, ARRAY, types.int64)
    def put(builder: Builder, source: Value, first: Value, planned: Value, target: Value, at: Value) -> None:
        values = _load(builder, form, source, first)
        exponents = _exponents(builder, form, values)
        top, width, plane_len, escapes, there = vectors.members(builder, planned)
        distances = builder.sub(vectors.all_lanes(builder, builder.trunc(top, I8), OCTETS), exponents)
        largest = builder.trunc(builder.sub(builder.shl(I64(1), width), I64(1)), I8)
        largest = vectors.all_lanes(builder, largest, OCTETS)
        pairs = builder.bitcast(call(builder, f"llvm.umin.v{GROUP}i8", OCTETS, distances, largest), _PAIRS)

        def put_planes(bits: range) -> None:
            """Store planes one after the other; those beyond the width are overwritten by what follows."""
            signs = [builder.bitcast(builder.shl(pairs, every(7 - bit, _PAIRS)), OCTETS) for bit in bits]
            planes = [builder.bitcast(builder.icmp_signed("<", sign, every(0)), I64) for sign in signs]
            for bit, plane in zip(bits, moves.squeeze_bits(builder, planes, there), strict=True):
                vectors.store(builder, plane, target, builder.add(at, builder.mul(plane_len, I64(bit))))

        put_planes(range(4))
        with builder.if_then(builder.icmp_unsigned(">", width, I64(4)), likely=False):
            put_planes(range(4, WIDTH_MAX))
        rests_at = moves.put_octets(builder, target, builder.add(at, builder.mul(width, plane_len)), exponents, escapes)
        rotated = [_rotated(builder, one, 1) for one in values]
        if form == FLOAT32:
            moves.put_words(builder, target, rests_at, rotated, there)
            return
        if form == NARROW:  # the sign is the lowest bit, and the mantissa's upper bits are 17 to 23
            rotated = [builder.or_(one, builder.lshr(one, every(16, one.type))) for one in rotated]
        rests = vectors.join(builder, [builder.trunc(one, ir.VectorType(I8, one.type.count)) for one in rotated])
        moves.put_octets(builder, target, rests_at, rests, there)

    return put


def _getter(moves: Moves, form: int) -> Any:
    """Return what stores the values of a type, whole bursts, from the place of the escapes and the planes."""

    @emits(types.none, ARRAY, types.int64, _GOT, ARRAY, types.int64)
    def get(builder: Builder, octets: Value, at: Value, got: Value, target: Value, target_at: Value) -> None:
        *planes, escapes, there, top, length = vectors.members(builder, got)
        exponents = vectors.all_lanes(builder, builder.trunc(top, I8), OCTETS)
        for bit, plane in enumerate(planes):
            weight = builder.select(moves.lanes(builder, plane), every(1 << bit), every(0))
            exponents = builder.sub(exponents, weight)
        escaped = moves.get_octets(builder, octets, at, escapes)
        exponents = builder.select(moves.lanes(builder, escapes), escaped, exponents)
        exponents = builder.select(moves.lanes(builder, there), exponents, every(0))
        rest_at = builder.add(at, builder.ctpop(escapes))
        if form == FLOAT32:
            rests = moves.get_words(builder, octets, rest_at, there)
            values = []
            for number, rest in enumerate(rests):
                tops = builder.zext(vectors.part(builder, exponents, number, _QUARTER), rest.type)
                value = builder.or_(builder.shl(tops, every(24, rest.type)), rest)
                values.append(_rotated(builder, value, 31))
        else:
            rests = builder.zext(moves.get_octets(builder, octets, rest_at, there), _HALVES)
            tops = builder.shl(builder.zext(exponents, _HALVES), every(8, _HALVES))
            halves = _rotated(builder, builder.or_(tops, rests), 15)
            values = [vectors.part(builder, halves, number, _QUARTER) for number in range(4)]
            if form == NARROW:
                kind = ir.VectorType(I32, _QUARTER)
                values = [builder.shl(builder.zext(one, kind), every(16, kind)) for one in values]
        _store(builder, values, target, target_at, length)

    return get


def _store(builder: Builder, values: Sequence[Value], target: Value, at: Value, length: Value) -> None:
    """Store values, of a short group only its bursts."""
    lanes = 8 * BURST_LEN // values[0].type.element.width
    bursts = values[0].type.count // lanes
    with builder.if_else(builder.icmp_unsigned("==", length, I64(BURST_LEN * bursts * len(values)))) as (whole, short):
        with whole:
            for number, value in enumerate(values):
                vectors.store(builder, value, target, builder.add(at, I64(BURST_LEN * bursts * number)))
        with short:
            for place in range(0, BURST_LEN * bursts * len(values), BURST_LEN):
                with builder.if_then(builder.icmp_unsigned("<", I64(place), length)):
                    number, burst = divmod(place // BURST_LEN, bursts)
                    part = vectors.part(builder, values[number], burst, lanes)
                    vectors.store(builder, part, target, builder.add(at, I64(place)))


def moves_by_bursts(
    isa: Isa,
    put_words: Callable[[Builder, Value, Value, Sequence[Value], Value], None],
    get_words: Callable[[Builder, Value, Value, Value], list[Value]],
) -> Moves:
    """Return primitives that move the octets of one burst after the other, and all at once where nothing is left out.

    Without zeros a mask is all ones, and most groups have few exponents that escape, or none.
    """
    eights = ir.VectorType(I64, GROUP // LANES)

    def put_octets(builder: Builder, target: Value, at: Value, octets: Value, mask: Value) -> Value:
        with builder.if_else(_is_all(builder, mask)) as (whole, some):
            with whole:
                vectors.store(builder, octets, target, at)
            with some, builder.if_then(builder.icmp_unsigned("!=", mask, I64(0))):
                bursts, cursor = builder.bitcast(octets, eights), at
                for number in range(eights.count):
                    here = mask_of(builder, mask, number)
                    word = builder.extract_element(bursts, I32(number))
                    vectors.store(builder, isa.squeeze(builder, word, here), target, cursor)
                    cursor = builder.add(cursor, builder.ctpop(here))
        return builder.add(at, builder.ctpop(mask))

    def get_octets(builder: Builder, payload: Value, at: Value, mask: Value) -> Value:
        def get_bursts() -> list[Value]:
            bursts, cursor = ir.Constant(eights, ir.Undefined), at
            for number in range(eights.count):
                here = mask_of(builder, mask, number)
                word = isa.spread(builder, vectors.load(builder, payload, cursor, I64), here)
                bursts = builder.insert_element(bursts, word, I32(number))
                cursor = builder.add(cursor, builder.ctpop(here))
            return [builder.bitcast(bursts, OCTETS)]

        def get_some() -> list[Value]:
            return _either(builder, builder.icmp_unsigned("==", mask, I64(0)), lambda: [every(0)], get_bursts)

        def get_all() -> list[Value]:
            return [vectors.load(builder, payload, at, OCTETS)]

        return _either(builder, _is_all(builder, mask), get_all, get_some)[0]

    def put_all_words(builder: Builder, target: Value, at: Value, quarters: Sequence[Value], mask: Value) -> None:
        with builder.if_else(_is_all(builder, mask)) as (whole, some):
            with whole:
                for burst in range(GROUP // LANES):
                    lanes = vectors.part(builder, quarters[burst // 2], burst % 2, LANES)
                    vectors.store(builder, threes(builder, lanes), target, builder.add(at, I64(3 * LANES * burst)))
            with some:
                put_words(builder, target, at, quarters, mask)

    def get_all_words(builder: Builder, octets: Value, at: Value, mask: Value) -> list[Value]:
        def get_whole() -> list[Value]:
            places = [builder.add(at, I64(3 * LANES * burst)) for burst in range(GROUP // LANES)]
            return quarters_of(builder, [words_of_threes(builder, octets, place) for place in places])

        return _either(builder, _is_all(builder, mask), get_whole, lambda: get_words(builder, octets, at, mask))

    return Moves(_spread_bits, _squeezed, _lanes_of, _bits_of, put_octets, get_octets, put_all_words, get_all_words)


_THREES: Final = [octet for octet in range(GROUP) if octet % 4 < 3]
"""The low three octets of each of 16 words."""


def threes(builder: Builder, lanes: Value) -> Value:
    """Return the low three octets of words together, with as many octets behind as there are words."""
    count, octets = lanes.type.count, ir.VectorType(I8, 4 * lanes.type.count)
    together = words(*_THREES[: 3 * count], *range(count), lanes=octets.count)
    return builder.shuffle_vector(builder.bitcast(lanes, octets), ir.Constant(octets, ir.Undefined), together)


def words_of_threes(builder: Builder, octets: Value, at: Value, count: int = LANES) -> Value:
    """Return words of three octets each."""
    kind = ir.VectorType(I8, 4 * count)
    places = (kind.count if octet % 4 == 3 else _THREES.index(octet) for octet in range(kind.count))
    loaded = vectors.load(builder, octets, at, kind)
    apart = builder.shuffle_vector(loaded, every(0, kind), words(*places, lanes=kind.count))
    return builder.bitcast(apart, ir.VectorType(I32, count))


def quarters_of(builder: Builder, bursts: Sequence[Value]) -> list[Value]:
    """Return 64 words in four vectors, from eight."""
    return [vectors.join(builder, pair) for pair in zip(bursts[::2], bursts[1::2], strict=True)]


def _is_all(builder: Builder, mask: Value) -> Value:
    return builder.icmp_unsigned("==", mask, I64(-1))


def _either(
    builder: Builder, condition: Value, first: Callable[[], list[Value]], second: Callable[[], list[Value]]
) -> list[Value]:
    """Return the values that one of two pieces of code makes."""
    made = []
    with builder.if_else(condition) as branches:
        for branch, make in zip(branches, (first, second), strict=True):
            with branch:
                made.append((make(), builder.block))
    (ones, one_block), (others, other_block) = made
    results = [builder.phi(one.type) for one in ones]
    for result, one, other in zip(results, ones, others, strict=True):
        result.add_incoming(one, one_block)
        result.add_incoming(other, other_block)
    return results


def _lanes_of(builder: Builder, mask: Value) -> Value:
    """Return lanes by a comparison: of a mask that becomes lanes directly, LLVM would set each lane by itself."""
    octets = builder.bitcast(mask, ir.VectorType(I8, 8))
    order = words(*(lane // 8 for lane in range(GROUP)), lanes=GROUP)
    repeated = builder.shuffle_vector(octets, ir.Constant(octets.type, ir.Undefined), order)
    bits = ir.Constant(OCTETS, [1 << lane % 8 for lane in range(GROUP)])
    return builder.icmp_unsigned("!=", builder.and_(repeated, bits), every(0))


def _bits_of(builder: Builder, lanes: Value) -> Value:
    """Return a mask that LLVM keeps in one register, also where two branches meet."""
    return held(builder, builder.bitcast(lanes, I64))


def mask_of(builder: Builder, mask: Value, burst: int) -> Value:
    """Return a burst's eight bits of a mask."""
    return builder.and_(builder.lshr(mask, I64(LANES * burst)), I64(0xFF))


def _steps(builder: Builder, mask: Value) -> list[Value]:
    """Return which bits move by 1, 2, 4, ... places (Warren, Hacker's Delight, 7-4)."""
    steps = []
    odd = builder.shl(builder.not_(mask), I64(1))
    for step in range(6):
        parity = odd
        for by in (1, 2, 4, 8, 16, 32):
            parity = builder.xor(parity, builder.shl(parity, I64(by)))
        moved = builder.and_(parity, mask)
        steps.append(moved)
        mask = builder.or_(builder.xor(mask, moved), builder.lshr(moved, I64(1 << step)))
        odd = builder.and_(odd, builder.not_(parity))
    return steps


def _squeezed(builder: Builder, planes: Sequence[Value], mask: Value) -> Sequence[Value]:
    """Move the bits of words in a mask together; with a mask of all ones, nothing."""

    def squeeze() -> list[Value]:
        steps, squeezed = _steps(builder, mask), []
        for plane in planes:
            word = builder.and_(plane, mask)
            for step, moved in enumerate(steps):
                moving = builder.and_(word, moved)
                word = builder.or_(builder.xor(word, moving), builder.lshr(moving, I64(1 << step)))
            squeezed.append(word)
        return squeezed

    return _either(builder, _is_all(builder, mask), lambda: list(planes), squeeze)


def _spread_bits(builder: Builder, word: Value, mask: Value) -> Value:
    """Undo :func:`_squeezed` for one word."""

    def spread() -> list[Value]:
        spread = word
        for step, moved in reversed(list(enumerate(_steps(builder, mask)))):
            moving = builder.and_(builder.shl(spread, I64(1 << step)), moved)
            spread = builder.or_(builder.and_(spread, builder.not_(moved)), moving)
        return [builder.and_(spread, mask)]

    return _either(builder, _is_all(builder, mask), lambda: [word], spread)[0]
