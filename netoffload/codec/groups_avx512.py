"""Masks and codes of groups for CPUs with AVX-512 VBMI2: 64 floats fill four registers, their codes one.

Encoding compares and codes 16 lanes at a time (``vectors``) and gathers the low octets of all 64 codes. One byte
compression in a register drops the zeros. All 64 octets are stored, and the next group overwrites the surplus. The
masks of the format come straight from the CPU's mask registers: ``pext`` drops the empty lane masks, ``pdep`` brings
them back. Decoding is the mirror image: one byte expansion, then four conversions. Escapes go one by one.

The place of the next group follows from burst mask, lane masks and a population count. This takes time once per 64
floats, so it does not limit decoding.

Only imported where the CPU has the instructions: LLVM aborts the process otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import vectors
from netoffload.codec.escapes import ESCAPE16, Coded, with_escapes
from netoffload.codec.groups import GROUP, GroupEncoder
from netoffload.codec.vectors import I8, I32, I64, words
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import inlined_with
from netoffload.compiled.octets import popcount_u64

_QUARTER: Final = GROUP // 4
_WORDS: Final = ir.VectorType(I32, _QUARTER)
OCTETS: Final = ir.VectorType(I8, GROUP)
MASK: Final = ir.VectorType(ir.IntType(1), GROUP)
NO_OCTETS: Final = ir.Constant(OCTETS, [0] * GROUP)
_LAST_BITS: Final = 0x8080808080808080
_OTHER_BITS: Final = 0x7F7F7F7F7F7F7F7F


def call(builder: Builder, name: str, result: ir.Type, *arguments: Value) -> Value:
    """Call an intrinsic of LLVM."""
    kinds = [argument.type for argument in arguments]
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(result, kinds))
    return builder.call(function, arguments)


def _join(builder: Builder, parts: Sequence[Value]) -> Value:
    """Return one vector of several vectors of equal length, in order."""
    while len(parts) > 1:
        lanes = 2 * parts[0].type.count
        order = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(left, right, order) for left, right in pairs]
    return parts[0]


def _part(builder: Builder, whole: Value, number: int, lanes: int) -> Value:
    """Return a run of ``lanes`` elements of a vector."""
    order = ir.Constant(ir.VectorType(I32, lanes), list(range(number * lanes, (number + 1) * lanes)))
    return builder.shuffle_vector(whole, ir.Constant(whole.type, ir.Undefined), order)


def lanes_below(builder: Builder, count: Value) -> Value:
    """Return the mask of the first ``count`` (1 to 64) of 64 lanes."""
    bits = builder.lshr(I64(-1), builder.sub(I64(GROUP), count))
    return builder.bitcast(bits, MASK)


def _full_octets(builder: Builder, top_bits: Value) -> Value:
    """Return 0xFF for every octet whose top bit is set; the other bits are 0."""
    return builder.sub(builder.shl(top_bits, I64(1)), builder.lshr(top_bits, I64(7)))


def _octets_not_0(builder: Builder, word: Value) -> Value:
    """Return the top bit of every octet of a word that is not 0."""
    carried = builder.add(builder.and_(word, I64(_OTHER_BITS)), I64(_OTHER_BITS))
    return builder.and_(builder.or_(carried, word), I64(_LAST_BITS))


def _load_words(
    context: Context, builder: Builder, kind: NumbaType, octets: Value, at: Value, lanes: Value | None
) -> list[Value]:
    """Return a group in four registers; floats outside ``lanes`` are not read, and are 0."""
    quarters = []
    for number in range(4):
        place = builder.add(at, I64(4 * _QUARTER * number))
        pointer = vectors.pointer(context, builder, kind, octets, place, _WORDS)
        if lanes is None:
            quarters.append(builder.load(pointer, align=1))
        else:
            quarter = _part(builder, lanes, number, _QUARTER)
            nothing = ir.Constant(_WORDS, [0] * _QUARTER)
            name = "llvm.masked.load.v16i32.p0"
            quarters.append(call(builder, name, _WORDS, pointer, I32(1), quarter, nothing))
    return quarters


GroupCode: TypeAlias = Callable[[Context, Builder, tuple[NumbaType, Value], Value, Value, Value], Value]
"""Emits the code that stores codes: an array, a place in it, 64 codes, their lanes, how many; returns their length."""


def encoder_of_group(put_codes: GroupCode) -> GroupEncoder:
    """Return a function that writes a group: masks, codes in the form of ``put_codes``, escapes."""
    encode_full, encode_part = _make_encode(put_codes, full=True), _make_encode(put_codes, full=False)

    @inlined_with
    def encode_group(
        source: Uint8Array, first: int, lanes: int, limits: tuple[int, ...], target: Uint8Array, at: int
    ) -> Coded:
        if lanes == GROUP:
            length, there, longs, wholes = encode_full(source, first, lanes, limits, target, at)
        else:
            length, there, longs, wholes = encode_part(source, first, lanes, limits, target, at)
        return with_escapes(source, first, longs, wholes, target, at, at + length, popcount_u64(there))

    return encode_group


def _make_encode(put_codes: GroupCode, *, full: bool) -> Callable[..., tuple[int, int, int, int]]:
    # Seven parameters: the first is Numba's.
    @intrinsic
    def encode(
        typing_context: TypingContext,
        source: NumbaType,
        source_at: NumbaType,
        count: NumbaType,
        limits: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
    ) -> Intrinsic:
        """Store masks and codes of a group; return their length, and which lanes are in planes 0, 1 and 2."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            kinds = signature.args
            lanes = None if full else lanes_below(builder, args[2])
            unpacked = [builder.extract_value(args[3], index) for index in range(len(vectors.LIMITS["bounded"]))]
            planes: list[list[Value]] = []
            octets = []
            for word in _load_words(context, builder, kinds[0], args[0], args[1], lanes):
                in_planes, codes = vectors.bounded_octets(builder, word, unpacked)
                octets.append(codes)
                planes.append(in_planes)
            joined = [_join(builder, [quarter[plane] for quarter in planes]) for plane in range(3)]
            bits = [builder.bitcast(plane, I64) for plane in joined]
            target, at = (kinds[4], args[4]), args[5]
            codes_at = builder.add(at, _put_masks(context, builder, target, at, bits[0]))
            length = put_codes(context, builder, target, codes_at, _join(builder, octets), joined[0])
            length = builder.sub(builder.add(codes_at, length), at)
            return context.make_tuple(builder, signature.return_type, [length, *bits])

        arguments = (source, types.int64, types.int64, types.Tuple(vectors.LIMITS["bounded"]), target, types.int64)
        return types.UniTuple(types.int64, 4)(*arguments), codegen

    return encode


def _put_masks(context: Context, builder: Builder, target: tuple[NumbaType, Value], at: Value, lanes: Value) -> Value:
    there = _octets_not_0(builder, lanes)
    present = call(builder, "llvm.x86.bmi.pext.64", I64, there, I64(_LAST_BITS))
    lane_masks = call(builder, "llvm.x86.bmi.pext.64", I64, lanes, _full_octets(builder, there))
    builder.store(builder.trunc(present, I8), vectors.pointer(context, builder, *target, at, I8), align=1)
    builder.store(lane_masks, vectors.pointer(context, builder, *target, builder.add(at, I64(1)), I64), align=1)
    return builder.add(builder.ctpop(present), I64(1))


def squeezed(builder: Builder, octets: Value, lanes: Value) -> Value:
    """Return the octets of the lanes side by side, and zeros behind them."""
    return call(builder, "llvm.x86.avx512.mask.compress.v64i8", OCTETS, octets, NO_OCTETS, lanes)


@intrinsic
def read_masks(typing_context: TypingContext, payload: NumbaType, at: NumbaType) -> Intrinsic:
    """Return the burst mask at ``at``, which of 64 lanes are not 0, and whether every lane mask has a bit."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        source = signature.args[0], args[0]
        present = builder.zext(builder.load(vectors.pointer(context, builder, *source, args[1], I8), align=1), I64)
        packed_at = builder.add(args[1], I64(1))
        packed = builder.load(vectors.pointer(context, builder, *source, packed_at, I64), align=1)
        tops = call(builder, "llvm.x86.bmi.pdep.64", I64, present, I64(_LAST_BITS))
        lanes = call(builder, "llvm.x86.bmi.pdep.64", I64, packed, _full_octets(builder, tops))
        is_whole = builder.zext(builder.icmp_unsigned("==", _octets_not_0(builder, lanes), tops), I64)
        return context.make_tuple(builder, signature.return_type, [present, lanes, is_whole])

    return types.UniTuple(types.int64, 3)(payload, types.int64), codegen


def put_floats(
    context: Context,
    builder: Builder,
    target: tuple[NumbaType, Value],
    at: Value,
    codes: Value,
    unit8: Value,
    written: Value | None,
) -> None:
    """Store the floats of 64 codes, all of them or only the lanes ``written``; 0 for an escape."""
    for number in range(4):
        octets = _part(builder, codes, number, _QUARTER)
        top = builder.shl(builder.zext(octets, _WORDS), words(24, lanes=_QUARTER))
        floats = vectors.floats_of_tops8(builder, top, unit8)
        pointer = vectors.pointer(context, builder, *target, builder.add(at, I64(4 * _QUARTER * number)), _WORDS)
        if written is None:
            builder.store(floats, pointer, align=1)
        else:
            quarter = _part(builder, written, number, _QUARTER)
            call(builder, "llvm.masked.store.v16i32.p0", ir.VoidType(), floats, pointer, I32(1), quarter)


def spread(builder: Builder, codes: Value, lanes: Value) -> tuple[Value, list[Value]]:
    """Return the first codes in their ``lanes`` (i64), with 0 elsewhere, and the lanes of escapes to 16 and 32 bits."""
    there = builder.bitcast(lanes, MASK)
    codes = call(builder, "llvm.x86.avx512.mask.expand.v64i8", OCTETS, codes, NO_OCTETS, there)
    escapes16 = builder.icmp_unsigned("==", codes, ir.Constant(OCTETS, [ESCAPE16] * GROUP))
    zeros = builder.icmp_unsigned("==", codes, NO_OCTETS)
    return codes, [builder.bitcast(escapes16, I64), builder.and_(builder.bitcast(zeros, I64), lanes)]
