"""LLVM vector code that the AVX2 and the AVX-512 kernels share: eight lanes classified, coded and decoded at once.

The functions take an llvmlite builder and emit instructions. A burst is ``<8 x i32>``, which LLVM keeps in one 256-bit
register; two bursts, ``<16 x i32>``, fill a register of AVX-512. A *plane* is ``<8 x i1>`` or ``<16 x i1>``: plane 0,
1, 2 says which lanes take at least 1, 2, 4 octets. So a lane's tag is the number of planes that have its bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec import plain
from netoffload.codec.bursts import BURST_LEN, LANES
from netoffload.codec.escapes import ESCAPE16, ESCAPE32
from netoffload.codec.plain import MAGNITUDE_BITS, ONE_BITS, ROUNDS_TO_ONE
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import (
    Builder,
    Context,
    Intrinsic,
    LlvmType,
    NumbaType,
    Signature,
    TypingContext,
    Value,
)
from netoffload.compiled.jit import inline_kernel

PlanesAndCodes: TypeAlias = tuple[list[Value], Value]

Coder: TypeAlias = Callable[[Builder, Value, Sequence[Value]], PlanesAndCodes]
"""Emits the code that turns lanes into planes and codes, given a codec's limits."""

R = TypeVar("R")

BurstCoder: TypeAlias = Callable[[Uint8Array, int, tuple[int, ...], Uint8Array, int], R]
"""Encodes one burst, or two: source, its place, limits, target, its place."""

I8: Final = ir.IntType(8)
I16: Final = ir.IntType(16)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
F32: Final = ir.FloatType()
WORDS: Final = ir.VectorType(I32, LANES)
FLOATS: Final = ir.VectorType(F32, LANES)
LIMITS: Final = {"inceptionn": (types.int64,) * 6, "bounded": (types.int64,) * 7}
"""Types of a codec's limits and constants."""

OCTETS: Final = ir.VectorType(I8, BURST_LEN)

_ROUND_AS_SET: Final = 4
"""Rounding operand of AVX-512: as the control register says, which is to nearest even by default."""


def held(builder: Builder, number: Value) -> Value:
    """Return an i64 that LLVM must keep in a general register, because its origin is hidden from LLVM."""
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [number], side_effect=False)


@intrinsic
def _held(typing_context: TypingContext, number: NumbaType) -> Intrinsic:
    """Return the number, with its value hidden from LLVM."""

    def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
        return held(builder, args[0])

    return types.int64(types.int64), codegen


@inline_kernel
def inceptionn_limits(bound_k: int) -> tuple[int, ...]:
    """Return the limits of ``plain`` and the constants of a burst, to be computed before the loop.

    LLVM loads a constant that it knows from memory for every burst, each time with an instruction of ten octets for the
    address, although registers are free. It keeps a value that it does not know in a register.
    """
    from8, from16 = plain.inceptionn_limits(bound_k)
    return from8, from16, _held(7 << 23), _held(plain.SCALE16), _held(24), _held(16)


@inline_kernel
def bounded_limits(bound_k: int) -> tuple[int, ...]:
    """Like :func:`inceptionn_limits`, with the end of the hole (``plain.bounded_limits``)."""
    from8, from16, hole_end, scale8 = plain.bounded_limits(bound_k)
    return from8, from16, scale8, _held(plain.SCALE16), _held(24), _held(16), hole_end


def words(*values: int, lanes: int = LANES) -> ir.Constant:
    """Return a constant burst, or two; one value stands for all lanes."""
    return ir.Constant(ir.VectorType(I32, lanes), list(values) * (lanes // len(values)))


def pointer(
    context: Context, builder: Builder, array_type: NumbaType, array: Value, at: Value, pointee: LlvmType
) -> Value:
    """Return the address ``at`` octets into an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(builder.bitcast(data, I8.as_pointer()), [at]), pointee.as_pointer())


def all_lanes(builder: Builder, value: Value, vector: LlvmType) -> Value:
    """Return a vector with ``value`` in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, words(0, lanes=vector.count))


def bits_of_plane(builder: Builder, plane: Value) -> Value:
    """Return a plane as the low bits of an i64, one per lane."""
    return builder.zext(builder.bitcast(plane, ir.IntType(plane.type.count)), I64)


def inceptionn_codes(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, codes) as ``netoffload.codec.plain.inceptionn_lane`` defines them.

    To cut bits off a fraction, the code multiplies it by 2**7 or 2**15 and converts it to an integer.
    """
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, scale16, down8, down16 = spread(builder, limits, lanes)
    planes = [builder.icmp_signed(">=", magnitude, limit) for limit in (from8, from16, words(ONE_BITS, lanes=lanes))]
    scale = builder.select(planes[1], scale16, scale8)
    shift = builder.select(planes[1], down16, down8)
    return planes, _codes(builder, word, planes, shift, _integer(builder, "cvtt", builder.add(magnitude, scale)))


def bounded_codes(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, codes) as ``netoffload.codec.plain.bounded_lane`` defines them."""
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, scale16, down8, down16, hole_end = spread(builder, limits, lanes)
    planes = _bounded_planes(builder, magnitude, from8, from16, hole_end)
    scale = builder.select(planes[1], scale16, scale8)
    shift = builder.select(planes[1], down16, down8)
    return planes, _codes(builder, word, planes, shift, _integer(builder, "cvt", builder.add(magnitude, scale)))


def bounded_octets(builder: Builder, word: Value, limits: Sequence[Value]) -> PlanesAndCodes:
    """Return (planes, an octet per lane): the 8-bit code or the mark of an escape; in class 0 it is arbitrary."""
    lanes = word.type.count
    magnitude = builder.and_(word, words(MAGNITUDE_BITS, lanes=lanes))
    from8, from16, scale8, _, _, _, hole_end = spread(builder, limits, lanes)
    planes = _bounded_planes(builder, magnitude, from8, from16, hole_end)
    sign = builder.and_(builder.lshr(word, words(24, lanes=lanes)), words(0x80, lanes=lanes))
    code = builder.or_(sign, _integer(builder, "cvt", builder.add(magnitude, scale8)))
    escape = builder.select(planes[2], words(ESCAPE32, lanes=lanes), words(ESCAPE16, lanes=lanes))
    return planes, builder.trunc(builder.select(planes[1], escape, code), ir.VectorType(I8, lanes))


def _bounded_planes(builder: Builder, magnitude: Value, from8: Value, from16: Value, hole_end: Value) -> list[Value]:
    in8, in16 = (builder.icmp_signed(">=", magnitude, limit) for limit in (from8, from16))
    # Unsigned and counted from the hole's end, floats in the hole exceed all others: one comparison for both.
    beyond_hole = builder.sub(magnitude, hole_end)
    hole_len = builder.sub(words(ROUNDS_TO_ONE, lanes=magnitude.type.count), hole_end)
    return [in8, in16, builder.and_(in16, builder.icmp_unsigned(">=", beyond_hole, hole_len))]


def spread(builder: Builder, limits: Sequence[Value], lanes: int = LANES) -> list[Value]:
    """Return a burst, or two, of each limit."""
    return [all_lanes(builder, builder.trunc(limit, I32), ir.VectorType(I32, lanes)) for limit in limits]


def _integer(builder: Builder, conversion: str, scaled: Value) -> Value:
    """Convert floats to integers: ``cvtt`` cuts off, ``cvt`` rounds to nearest even.

    A float out of range gives an arbitrary integer; LLVM's own ``fptosi`` would be undefined.
    """
    if scaled.type == WORDS:
        name = f"llvm.x86.avx.{conversion}.ps2dq.256"
        function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(WORDS, [FLOATS]))
        return builder.call(function, [builder.bitcast(scaled, FLOATS)])
    integers, floats = scaled.type, ir.VectorType(F32, scaled.type.count)
    name = f"llvm.x86.avx512.mask.{conversion}ps2dq.512"
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(integers, [floats, integers, I16, I32]))
    arguments = [builder.bitcast(scaled, floats), words(0, lanes=integers.count), I16(0xFFFF), I32(_ROUND_AS_SET)]
    return builder.call(function, arguments)


def _codes(builder: Builder, word: Value, planes: Sequence[Value], shift: Value, magnitude: Value) -> Value:
    """Return every lane's code in its class; a code of class 0 is arbitrary. ``shift`` moves the sign."""
    sign = builder.lshr(builder.and_(word, words(1 << 31, lanes=word.type.count)), shift)
    return builder.select(planes[2], word, builder.or_(sign, magnitude))


def units(builder: Builder, in8: Value | None, unit8: Value) -> Value:
    """Return the weight of bit 0 of each lane for :func:`floats_of_tops`.

    ``in8`` are the lanes with tag 1; ``unit8`` (float) is as in ``netoffload.codec.plain.decode_lane``. If ``in8`` is
    None, both short forms have the same weight, as in ``inceptionn``, and ``unit8`` is ignored.
    """
    unit16 = ir.Constant(FLOATS, [2.0**-31] * LANES)
    if in8 is None:
        return unit16
    return builder.select(in8, all_lanes(builder, builder.fmul(unit8, F32(2.0**-16)), FLOATS), unit16)


def floats_of_tops(builder: Builder, top: Value, unit: Value, in32: Value) -> Value:
    """Return the float bits of the codes as ``netoffload.codec.plain.decode_lane`` defines them.

    ``top`` has each code in the top octets of its lane and zeros below, so that sign and fraction of both short forms
    begin at the same bit; a lane of class 0 is 0. The weight takes the sign. Adding +0 to the product turns a 0 of
    either sign into +0. ``in32`` are the lanes with tag 3.
    """
    return builder.select(in32, top, _signed_product(builder, top, unit))


def floats_of_tops8(builder: Builder, top: Value, unit8: Value) -> Value:
    """Return the float bits of 8-bit codes in the top octets of their lanes; a magnitude of 0 gives +0."""
    floats = ir.VectorType(F32, top.type.count)
    unit = all_lanes(builder, builder.fmul(unit8, F32(2.0**-16)), floats)
    return _signed_product(builder, top, unit)


def _signed_product(builder: Builder, top: Value, unit: Value) -> Value:
    lanes, integers, floats = top.type.count, top.type, unit.type
    magnitude = builder.and_(top, words(MAGNITUDE_BITS, lanes=lanes))
    sign = builder.and_(top, words(1 << 31, lanes=lanes))
    signed = builder.bitcast(builder.or_(sign, builder.bitcast(unit, integers)), floats)
    fused = builder.module.declare_intrinsic(f"llvm.fma.v{lanes}f32", fnty=ir.FunctionType(floats, [floats] * 3))
    small = builder.call(fused, [builder.sitofp(magnitude, floats), signed, ir.Constant(floats, [0.0] * lanes)])
    return builder.bitcast(small, integers)
