"""The primitives of every CPU: generic vectors, words of 64 bits, and tables.

The lanes of a burst are stored and loaded one by one, as words of 32 bits that overlap: each code overwrites what the
one before it has too much. A table has the places of four lanes by their tags, so no place waits for another.

Octets are squeezed together and spread in a word of 64 bits, in three steps: each moves some of them by 1, 2 or 4
places. Tables have the octets that move and those that stay.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from netoffload.codec import vectors
from netoffload.codec.bursts import LANES, TAGS_LEN
from netoffload.codec.exact import moves_by_bursts
from netoffload.codec.packed import GROUP, groups_by_bursts
from netoffload.codec.vectors import I16, I32, I64, WORDS, Isa, words
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Value


def _make_places() -> Uint8Array:
    """Return by four lanes' tags: places of lanes 1, 2 and 3, their length, lanes of 16 bits or more, lanes of 32."""
    places = np.zeros((256, 8), np.uint8)
    for tags in range(256):
        of_lanes = [tags >> 2 * lane & 3 for lane in range(4)]
        places[tags, :4] = np.cumsum([(0, 1, 2, 4)[tag] for tag in of_lanes])
        places[tags, 4:6] = sum(tag >= 2 for tag in of_lanes), sum(tag == 3 for tag in of_lanes)
    return places


_PLACES: Final = _make_places()
_EVEN: Final = np.array([sum((bits >> i & 1) << 2 * i for i in range(8)) for bits in range(256)], np.uint16)
"""Eight bits on the even ones of sixteen."""


def _octet(builder: Builder, word: Value, number: int) -> Value:
    return builder.and_(builder.lshr(word, I64(8 * number)), I64(0xFF))


def tags_of_planes(builder: Builder, planes: Sequence[Value]) -> Value:
    """Return the tag word of eight lanes."""
    even = vectors.table(builder, "even", _EVEN)
    low_plane = builder.or_(builder.xor(planes[0], planes[1]), planes[2])
    low, high = (
        vectors.entry(builder, even, vectors.bits_of_plane(builder, plane), I16, 2) for plane in (low_plane, planes[1])
    )
    return builder.zext(builder.or_(low, builder.shl(high, I16(1))), I64)


def _lane_places(builder: Builder, tags: Value, at: Value) -> tuple[list[Value], Value, list[Value]]:
    """Return where the eight lanes of a tag word begin and end, and the table's entries."""
    rows = vectors.table(builder, "places", _PLACES)
    places, entries = [], []
    for half in (0, 1):
        row = vectors.entry(builder, rows, _octet(builder, tags, half), I64, 8)
        places += [at, *(builder.add(at, _octet(builder, row, number)) for number in range(3))]
        at = builder.add(at, _octet(builder, row, 3))
        entries.append(row)
    return places, at, entries


def _put_bursts(
    builder: Builder, octets: Value, at: Value, planes: Sequence[Value], codes: Value, _limits: Sequence[Value]
) -> list[Value]:
    tags = tags_of_planes(builder, planes)
    vectors.store(builder, builder.trunc(tags, I16), octets, at)
    places, end, entries = _lane_places(builder, tags, builder.add(at, I64(TAGS_LEN)))
    for lane, place in enumerate(places):
        vectors.store(builder, builder.extract_element(codes, I32(lane)), octets, place)
    counts = builder.lshr(builder.add(*entries), I64(32))
    return [builder.sub(end, at), _octet(builder, counts, 0), _octet(builder, counts, 1)]


def _get_tops(builder: Builder, octets: Value, at: Value, tags: Value, classes: Sequence[Value]) -> Value:
    codes = ir.Constant(WORDS, ir.Undefined)
    places, _, _ = _lane_places(builder, tags, builder.add(at, I64(TAGS_LEN)))
    for lane, place in enumerate(places):
        codes = builder.insert_element(codes, vectors.load(builder, octets, place, I32), I32(lane))
    in8, in16, in32 = (builder.sext(plane, WORDS) for plane in classes)
    return builder.or_(
        builder.and_(codes, in32),
        builder.or_(
            builder.and_(builder.shl(codes, words(16)), in16), builder.and_(builder.shl(codes, words(24)), in8)
        ),
    )


def _make_moves() -> npt.NDArray[np.uint64]:
    """Return per mask: which octets stay and which come, in each of three steps that squeeze, and that spread."""
    moves = np.zeros((256, 2, 3, 2), np.uint64)
    for mask in range(256):
        lanes = [lane for lane in range(LANES) if mask >> lane & 1]
        for at, lane in enumerate(lanes):
            for step in range(3):
                down, low = lane - at, (1 << step) - 1
                here, there = lane - (down & low), lane - (down & (2 * low + 1))
                moves[mask, 0, step, int(here != there)] |= np.uint64(0xFF << 8 * there)
                moves[mask, 1, step, int(here != there)] |= np.uint64(0xFF << 8 * here)
    return moves


_MOVES: Final = _make_moves()


def _moved(builder: Builder, word: Value, mask: Value, *, up: bool) -> Value:
    """Return the octets of a word, moved in three steps."""
    rows = vectors.table(builder, "moves", _MOVES)
    at = builder.add(builder.mul(mask, I64(96)), I64(48 * up))
    for step in (2, 1, 0) if up else (0, 1, 2):
        stay, come = (vectors.load(builder, rows, builder.add(at, I64(16 * step + 8 * i)), I64) for i in (0, 1))
        shifted = (builder.shl if up else builder.lshr)(word, I64(8 << step))
        word = builder.or_(builder.and_(word, stay), builder.and_(shifted, come))
    return word


ISA: Final = Isa(_put_bursts, _get_tops, partial(_moved, up=False), partial(_moved, up=True), bursts=1)
GROUPS: Final = groups_by_bursts(ISA)


def _lane_there(builder: Builder, mask: Value, lane: int) -> Value:
    return builder.and_(builder.lshr(mask, I64(lane)), I64(1))


def _put_words(builder: Builder, target: Value, at: Value, quarters: Sequence[Value], mask: Value) -> None:
    for lane in range(GROUP):
        quarter = quarters[lane // quarters[0].type.count]
        vectors.store(builder, builder.extract_element(quarter, I32(lane % quarter.type.count)), target, at)
        at = builder.add(at, builder.mul(_lane_there(builder, mask, lane), I64(3)))


def _get_words(builder: Builder, octets: Value, at: Value, mask: Value) -> list[Value]:
    quarters = []
    for first in range(0, GROUP, 16):
        quarter = ir.Constant(ir.VectorType(I32, 16), ir.Undefined)
        for lane in range(16):
            there = _lane_there(builder, mask, first + lane)
            kept = builder.and_(builder.sub(I64(0), there), I64(0xFFFFFF))
            word = builder.and_(vectors.load(builder, octets, at, I32), builder.trunc(kept, I32))
            quarter = builder.insert_element(quarter, word, I32(lane))
            at = builder.add(at, builder.mul(there, I64(3)))
        quarters.append(quarter)
    return quarters


MOVES: Final = moves_by_bursts(ISA, _put_words, _get_words)
