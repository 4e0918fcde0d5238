"""The primitives of CPUs with AVX2: byte shuffles from a table of 256 move lanes, the StreamVByte way.

The eight tag bits of four lanes select one of 256 shuffles of 16 octets, so a burst takes two lookups and two shuffles.
They squeeze the codes together when encoding, and spread them when decoding. A lane mask likewise selects the shuffle
of eight octets.

Lemire, Kurz, Rupp: Stream VByte: Faster byte-oriented integer compression (2018).
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
from llvmlite import ir

from netoffload.codec import vectors
from netoffload.codec.bursts import LANES, TAGS_LEN
from netoffload.codec.exact import mask_of, moves_by_bursts, quarters_of, threes, words_of_threes
from netoffload.codec.packed import GROUP, groups_by_bursts
from netoffload.codec.plain import tags_of_planes
from netoffload.codec.tagged import LENGTHS
from netoffload.codec.vectors import I8, I16, I32, I64, WORDS, Isa, words
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Value
from netoffload.compiled.jit import has_fast_bit_moves

_HALF: Final = ir.VectorType(I8, 16)
_NO_OCTET: Final = 0x80
"""A shuffle control with the top bit set gives 0."""


def _make_tables() -> tuple[Uint8Array, Uint8Array]:
    """Return (squeeze, spread) by tag octet; ``spread`` puts a code into the top octets of its lane."""
    squeeze = np.full((256, 16), _NO_OCTET, np.uint8)
    spread = np.full((256, 16), _NO_OCTET, np.uint8)
    for tags in range(256):
        at = 0
        for lane in range(4):
            octets = (0, 1, 2, 4)[tags >> 2 * lane & 3]
            for octet in range(octets):
                squeeze[tags, at] = 4 * lane + octet
                spread[tags, 4 * (lane + 1) - octets + octet] = at
                at += 1
    return squeeze, spread


_SQUEEZE_LANES, _SPREAD_LANES = _make_tables()


def _shuffle(builder: Builder, octets: Value, control: Value) -> Value:
    """Return 16 octets: each octet of ``control`` selects one of ``octets``, or 0 (SSSE3)."""
    return vectors.call(builder, "llvm.x86.ssse3.pshuf.b.128", _HALF, octets, control)


def _put_bursts(
    builder: Builder, octets: Value, at: Value, planes: Sequence[Value], codes: Value, _limits: Sequence[Value]
) -> list[Value]:
    squeeze, length = vectors.table(builder, "squeeze", _SQUEEZE_LANES), vectors.table(builder, "length", LENGTHS)
    tags = tags_of_planes(builder, planes)
    vectors.store(builder, builder.trunc(tags, I16), octets, at)
    end = builder.add(at, I64(TAGS_LEN))
    for half in (0, 1):
        tag_octet = builder.and_(builder.lshr(tags, I64(8 * half)), I64(0xFF))
        control = vectors.entry(builder, squeeze, tag_octet, _HALF, 16)
        code = builder.bitcast(vectors.part(builder, codes, half, LANES // 2), _HALF)
        vectors.store(builder, _shuffle(builder, code, control), octets, end)
        end = builder.add(end, builder.zext(vectors.entry(builder, length, tag_octet, I8, 1), I64))
    in16, in32 = (builder.ctpop(vectors.bits_of_plane(builder, plane)) for plane in planes[1:])
    return [builder.sub(end, at), in16, in32]


def _get_tops(builder: Builder, octets: Value, at: Value, tags: Value, classes: Sequence[Value]) -> Value:
    spread, length = vectors.table(builder, "spread", _SPREAD_LANES), vectors.table(builder, "length", LENGTHS)
    halves, at = [], builder.add(at, I64(TAGS_LEN))
    for tag_octet in (builder.and_(tags, I64(0xFF)), builder.lshr(tags, I64(8))):
        control = vectors.entry(builder, spread, tag_octet, _HALF, 16)
        code = vectors.load(builder, octets, at, _HALF)
        halves.append(builder.bitcast(_shuffle(builder, code, control), ir.VectorType(I32, 4)))
        at = builder.add(at, builder.zext(vectors.entry(builder, length, tag_octet, I8, 1), I64))
    return builder.shuffle_vector(halves[0], halves[1], words(*range(LANES)))


def _make_moves() -> tuple[Uint8Array, Uint8Array]:
    """Return (squeeze, spread): per mask the shuffle controls of eight octets."""
    squeeze = np.full((256, LANES), _NO_OCTET, np.uint8)
    spread = np.full((256, LANES), _NO_OCTET, np.uint8)
    for mask in range(256):
        for at, lane in enumerate(lane for lane in range(LANES) if mask >> lane & 1):
            squeeze[mask, at] = lane
            spread[mask, lane] = at
    return squeeze, spread


_SQUEEZE_OCTETS, _SPREAD_OCTETS = _make_moves()


def _moved(builder: Builder, word: Value, mask: Value, *, name: str, rows: Uint8Array) -> Value:
    """Return the octets of a word, moved by the table's shuffle for a mask."""
    pair = ir.VectorType(I64, 2)
    controls = vectors.table(builder, name, rows)
    both = [
        builder.bitcast(builder.insert_element(ir.Constant(pair, [0, 0]), half, I32(0)), _HALF)
        for half in (word, vectors.entry(builder, controls, mask, I64, LANES))
    ]
    return builder.extract_element(builder.bitcast(_shuffle(builder, *both), pair), I32(0))


_squeeze = partial(_moved, name="squeeze_octets", rows=_SQUEEZE_OCTETS)
_spread = partial(_moved, name="spread_octets", rows=_SPREAD_OCTETS)

ISA: Final = Isa(_put_bursts, _get_tops, _squeeze, _spread, bursts=1)
GROUPS: Final = groups_by_bursts(ISA)


def _permuted(builder: Builder, lanes: Value, mask: Value, name: str, rows: Uint8Array) -> Value:
    """Return the words of a burst, moved as the octets of a table's entry."""
    order = vectors.entry(builder, vectors.table(builder, name, rows), mask, ir.VectorType(I8, LANES), LANES)
    return vectors.call(builder, "llvm.x86.avx2.permd", WORDS, lanes, builder.zext(order, WORDS))


def _put_words(builder: Builder, target: Value, at: Value, quarters: Sequence[Value], mask: Value) -> None:
    for burst in range(GROUP // LANES):
        here = mask_of(builder, mask, burst)
        lanes = vectors.part(builder, quarters[burst // 2], burst % 2, LANES)
        moved = _permuted(builder, lanes, here, "squeeze_octets", _SQUEEZE_OCTETS)
        vectors.store(builder, threes(builder, moved), target, at)
        at = builder.add(at, builder.mul(builder.ctpop(here), I64(3)))


def _get_words(builder: Builder, octets: Value, at: Value, mask: Value) -> list[Value]:
    bursts = []
    for burst in range(GROUP // LANES):
        here = mask_of(builder, mask, burst)
        moved = _permuted(builder, words_of_threes(builder, octets, at), here, "spread_octets", _SPREAD_OCTETS)
        there = builder.bitcast(builder.trunc(here, I8), ir.VectorType(ir.IntType(1), LANES))
        bursts.append(builder.select(there, moved, words(0)))
        at = builder.add(at, builder.mul(builder.ctpop(here), I64(3)))
    return quarters_of(builder, bursts)


def bmi2(builder: Builder, name: str, word: Value, mask: Value) -> Value:
    """``pdep``: the low bits of a word onto the bits of ``mask``; ``pext``: the bits of ``mask`` to the low end."""
    return vectors.call(builder, f"llvm.x86.bmi.{name}.64", I64, word, mask)


def squeeze_bits(builder: Builder, planes: Sequence[Value], mask: Value) -> list[Value]:
    """For ``netoffload.codec.exact.Moves``."""
    return [bmi2(builder, "pext", plane, mask) for plane in planes]


def spread_bits(builder: Builder, word: Value, mask: Value) -> Value:
    """For ``netoffload.codec.exact.Moves``."""
    return bmi2(builder, "pdep", word, mask)


_BY_BURSTS: Final = moves_by_bursts(ISA, _put_words, _get_words)
MOVES: Final = (
    _BY_BURSTS._replace(spread_bits=spread_bits, squeeze_bits=squeeze_bits) if has_fast_bit_moves() else _BY_BURSTS
)
