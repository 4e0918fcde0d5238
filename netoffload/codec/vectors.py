"""LLVM vector code that all kernels share: lanes classified, coded and decoded side by side.

The functions take an llvmlite builder and emit instructions of LLVM's generic vectors, which become those of any CPU. A
burst is ``<8 x i32>``: one 256-bit register of AVX2, two of SSE2 or NEON; two bursts fill a register of AVX-512. A
*plane* is ``<8 x i1>`` or ``<16 x i1>``: plane 0, 1, 2 says which lanes take at least 1, 2, 4 octets. So a lane's tag
is the number of planes that have its bit.

An :class:`Isa` is what the CPUs do in different ways: to squeeze codes together and to spread them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy.typing as npt
from llvmlite import ir

from netoffload.codec.bursts import LANES
from netoffload.codec.scalar import ESCAPE16, ESCAPE32, MAGNITUDE_BITS, ONE_BITS, ROUNDS_TO_ONE
from netoffload.compiled.emitted import Builder, LlvmType, Value

PlanesAndCodes: TypeAlias = tuple[list[Value], Value]

Coder: TypeAlias = Callable[[Builder, Value, Sequence[Value]], PlanesAndCodes]
"""Emits the code that turns lanes into planes and magnitudes of short codes, given a codec's limits."""

I8: Final = ir.IntType(8)
I16: Final = ir.IntType(16)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
F32: Final = ir.FloatType()
WORDS: Final = ir.VectorType(I32, LANES)
FLOATS: Final = ir.VectorType(F32, LANES)
OCTETS: Final = ir.VectorType(I8, 64)
"""One for each value of a group."""


class Isa(NamedTuple):
    """The primitives of an instruction set."""

    put_bursts: Callable[[Builder, Value, Value, Sequence[Value], Value, Sequence[Value]], list[Value]]
    """Emits the code that stores planes and codes of one burst or two, given a codec's limits. Returns their length,
    and how many lanes are in planes 1 and 2."""
    get_tops: Callable[[Builder, Value, Value, Value, Sequence[Value]], Value]
    """Emits the code that loads the codes of the burst at a place, given its tag word and the planes of lanes whose tag
    is 1, 2 and 3. Each code comes to the top octets of its lane, above zeros."""
    squeeze: Callable[[Builder, Value, Value], Value]
    """Emits the code that moves those octets of a word together that have a bit in a mask of eight bits."""
    spread: Callable[[Builder, Value, Value], Value]
    """Emits the code that moves them back, with 0 between them."""
    bursts: int
    """How many bursts are coded at a time."""


def words(*values: int, lanes: int = LANES) -> ir.Constant:
    """Return a constant burst, or two; one value stands for all lanes."""
    return ir.Constant(ir.VectorType(I32, lanes), list(values) * (lanes // len(values)))


def every(value: int, vector: ir.VectorType = OCTETS) -> ir.Constant:
    """Return a constant vector with ``value`` in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def members(builder: Builder, numbers: Value) -> list[Value]:
    """Return the members of a tuple."""
    return [builder.extract_value(numbers, index) for index in range(len(numbers.type))]


def place(builder: Builder, octets: Value, at: Value, pointee: LlvmType) -> Value:
    """Return the address ``at`` octets behind another."""
    return builder.bitcast(builder.gep(octets, [at]), pointee.as_pointer())


def load(builder: Builder, octets: Value, at: Value, kind: LlvmType) -> Value:
    """Return what is ``at`` octets behind an address."""
    return builder.load(place(builder, octets, at, kind), align=1)


def store(builder: Builder, value: Value, octets: Value, at: Value) -> None:
    """Store a value ``at`` octets behind an address."""
    builder.store(value, place(builder, octets, at, value.type), align=1)


def call(builder: Builder, name: str, result: ir.Type, *arguments: Value) -> Value:
    """Call an intrinsic of LLVM."""
    kinds = [argument.type for argument in arguments]
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(result, kinds))
    return builder.call(function, arguments)


def load_lanes(builder: Builder, octets: Value, at: Value, lanes: int, there: Value | None) -> Value:
    """Return floats as words; floats outside ``there`` are not read, and are 0."""
    kind = ir.VectorType(I32, lanes)
    if there is None:
        return load(builder, octets, at, kind)
    name = f"llvm.masked.load.v{lanes}i32.p0"
    return call(builder, name, kind, place(builder, octets, at, kind), I32(1), there, words(0, lanes=lanes))


def store_lanes(builder: Builder, value: Value, octets: Value, at: Value, there: Value | None) -> None:
    """Store words, all of them or only those of the lanes ``there``."""
    if there is None:
        store(builder, value, octets, at)
        return
    name = f"llvm.masked.store.v{value.type.count}i32.p0"
    call(builder, name, ir.VoidType(), value, place(builder, octets, at, value.type), I32(1), there)


def lanes_below(builder: Builder, count: Value, lanes: int) -> Value:
    """Return the mask of the first ``count`` of several lanes; ``count`` is 1 or more, and may exceed ``lanes``."""
    bits = builder.lshr(I64(-1), builder.sub(I64(64), count))
    return builder.bitcast(builder.trunc(bits, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))


def table(builder: Builder, name: str, rows: npt.NDArray[Any]) -> Value:
    """Return the address of a table that is part of the compiled code."""
    found = builder.module.globals.get(f"netoffload.{name}")
    if found is None:
        octets = rows.view("u1").reshape(-1)
        kind = ir.ArrayType(I8, octets.size)
        found = ir.GlobalVariable(builder.module, kind, f"netoffload.{name}")
        found.linkage, found.global_constant, found.unnamed_addr, found.align = "internal", True, True, 64
        found.initializer = ir.Constant(kind, bytearray(octets.tobytes()))
    return builder.bitcast(found, I8.as_pointer())


def entry(builder: Builder, rows: Value, index: Value, kind: LlvmType, size: int) -> Value:
    """Return the entry of a table whose entries have ``size`` octets."""
    return load(builder, rows, builder.mul(index, I64(size)), kind)


def all_lanes(builder: Builder, value: Value, vector: LlvmType) -> Value:
    """Return a vector with ``value`` in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, words(0, lanes=vector.count))


def part(builder: Builder, whole: Value, number: int, lanes: int) -> Value:
    """Return a run of ``lanes`` elements of a vector."""
    order = words(*range(number * lanes, (number + 1) * lanes), lanes=lanes)
    return builder.shuffle_vector(whole, ir.Constant(whole.type, ir.Undefined), order)


def join(builder: Builder, parts: Sequence[Value]) -> Value:
    """Return one vector of several vectors of equal length, in order."""
    while len(parts) > 1:
        order = words(*range(2 * parts[0].type.count), lanes=2 * parts[0].type.count)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(left, right, order) for left, right in pairs]
    return parts[0]


def bits_of_plane(builder: Builder, plane: Value) -> Value:
    """Return a plane as the low bits of an i64, one per lane."""
    return builder.zext(builder.bitcast(plane, ir.IntType(plane.type.count)), I64)


def spread(builder: Builder, limits: Sequence[Value], lanes: int = LANES) -> list[Value]:
    """Return a burst, or two, of each limit."""
    return [all_lanes(builder, builder.trunc(limit, I32), ir.VectorType(I32, lanes)) for limit in limits]


def inceptionn_magnitudes(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, magnitudes) of ``inceptionn``: Algorithm 2."""
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, scale16 = spread(builder, limits[:4], lanes)
    planes = [builder.icmp_signed(">=", magnitude, limit) for limit in (from8, from16, words(ONE_BITS, lanes=lanes))]
    # To cut bits off a fraction, it is multiplied by 2**7 or 2**15 and converted to an integer.
    scaled = builder.add(magnitude, builder.select(planes[1], scale16, scale8))
    floats = builder.bitcast(scaled, ir.VectorType(F32, lanes))
    # Of a float out of range LLVM makes poison, and ``freeze`` any integer: its class has no use for it.
    integers = ir.instructions.Instruction(builder.block, word.type, "freeze", [builder.fptosi(floats, word.type)])
    builder._insert(integers)
    return planes, integers


def bounded_magnitudes(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, magnitudes) of ``bounded``: rounded to nearest, ties to even."""
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, scale16 = spread(builder, limits[:4], lanes)
    planes = _bounded_planes(builder, magnitude, from8, from16, *spread(builder, limits[6:7], lanes))
    scaled = builder.add(magnitude, builder.select(planes[1], scale16, scale8))
    return planes, _nearest(builder, scaled)


def bounded_octets(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, an octet per lane): the 8-bit code or the mark of an escape; in class 0 it is arbitrary."""
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, hole_end = spread(builder, [*limits[:3], limits[6]], lanes)
    planes = _bounded_planes(builder, magnitude, from8, from16, hole_end)
    sign = builder.and_(builder.lshr(word, words(24, lanes=lanes)), words(0x80, lanes=lanes))
    code = builder.or_(sign, _nearest(builder, builder.add(magnitude, scale8)))
    escape = builder.select(planes[2], words(ESCAPE32, lanes=lanes), words(ESCAPE16, lanes=lanes))
    return planes, builder.trunc(builder.select(planes[1], escape, code), ir.VectorType(I8, lanes))


def _bounded_planes(builder: Builder, magnitude: Value, from8: Value, from16: Value, hole_end: Value) -> list[Value]:
    in8, in16 = (builder.icmp_signed(">=", magnitude, limit) for limit in (from8, from16))
    # Unsigned and counted from the hole's end, floats in the hole exceed all others: one comparison for both.
    beyond_hole = builder.sub(magnitude, hole_end)
    hole_len = builder.sub(words(ROUNDS_TO_ONE, lanes=magnitude.type.count), hole_end)
    return [in8, in16, builder.and_(in16, builder.icmp_unsigned(">=", beyond_hole, hole_len))]


def _nearest(builder: Builder, scaled: Value) -> Value:
    """Return floats as integers, rounded to nearest even; a float out of range gives any integer."""
    lanes = scaled.type.count
    floats = builder.bitcast(scaled, ir.VectorType(F32, lanes))
    return call(builder, f"llvm.lrint.v{lanes}i32.v{lanes}f32", scaled.type, floats)


def with_signs(
    builder: Builder, word: Value, planes: Sequence[Value], magnitude: Value, limits: Sequence[Value]
) -> Value:
    """Return every lane's code in its class; a code of class 0 is arbitrary."""
    sign8, sign16 = spread(builder, limits[4:6], word.type.count)
    # Shifted by 24 bits, both places have the sign. (By 31 bits LLVM would make a mask, of which there are few.)
    signs = builder.ashr(word, words(24, lanes=word.type.count))
    sign = builder.and_(signs, builder.select(planes[1], sign16, sign8))
    return builder.select(planes[2], word, builder.or_(sign, magnitude))


def units(builder: Builder, in16: Value | None, unit8: Value, places: int, lanes: int = LANES) -> Value:
    """Return the weight of bit 0 of each lane, where bit 0 of a 16-bit form weighs 2**``places``.

    ``in16`` are the lanes with tag 2, and perhaps 3; if None, none. ``unit8`` (float) is the weight of bit 0 of an
    8-bit form, over 256: the 8-bit form is read as a 16-bit form without its low octet.
    """
    floats = ir.VectorType(F32, lanes)
    unit8 = all_lanes(builder, builder.fmul(unit8, F32(2.0 ** (15 + places))), floats)
    return unit8 if in16 is None else builder.select(in16, ir.Constant(floats, [2.0**places] * lanes), unit8)


def floats_of_magnitudes(builder: Builder, magnitude: Value, word: Value, unit: Value) -> Value:
    """Return the float bits of magnitudes, 0 or more, with the sign that ``word`` has; a magnitude of 0 gives +0."""
    lanes, integers, floats = word.type.count, word.type, unit.type
    sign = builder.and_(word, words(1 << 31, lanes=lanes))
    signed = builder.bitcast(builder.or_(sign, builder.bitcast(unit, integers)), floats)
    nothing = ir.Constant(floats, [0.0] * lanes)
    # The weight took the sign; adding +0 to the product turns a 0 of either sign into +0. It is one instruction where
    # the CPU has it. With 0 as the summand both ways round once.
    small = call(builder, f"llvm.fmuladd.v{lanes}f32", floats, builder.sitofp(magnitude, floats), signed, nothing)
    return builder.bitcast(small, integers)


def floats_of_tops(builder: Builder, top: Value, unit: Value) -> Value:
    """Return the float bits of short codes (Algorithm 3).

    ``top`` has each code in the top octets of its lane and zeros below, so that sign and fraction of both short forms
    begin at the same bit; a lane of class 0 is 0.
    """
    return floats_of_magnitudes(builder, builder.and_(top, words(MAGNITUDE_BITS, lanes=top.type.count)), top, unit)


def floats_of_tops8(builder: Builder, top: Value, unit8: Value) -> Value:
    """Return the float bits of 8-bit codes in the top octets of their lanes; a magnitude of 0 gives +0."""
    return floats_of_tops(builder, top, units(builder, None, unit8, -31, top.type.count))
