"""LLVM vector code that the AVX2 and the AVX-512 kernels share: eight lanes classified, coded and decoded at once.

Every function takes an llvmlite builder and emits instructions; nothing here runs by itself. A burst is ``<8 x i32>``,
which LLVM keeps in one 256-bit register. A *plane* is ``<8 x i1>``: plane 0, 1, 2 says which lanes take at least 1, 2,
4 octets, so a lane's tag is the number of planes it is in.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from netoffload.codec.bursts import BURST_LEN, LANES
from netoffload.codec.plain import ALL_OF_16, ROUNDER_BITS

I8: Final = ir.IntType(8)
I16: Final = ir.IntType(16)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
F32: Final = ir.FloatType()
PLANE: Final = ir.VectorType(ir.IntType(1), LANES)
WORDS: Final = ir.VectorType(I32, LANES)
FLOATS: Final = ir.VectorType(F32, LANES)
OCTETS: Final = ir.VectorType(I8, BURST_LEN)


def words(*values: int) -> ir.Constant:
    """Return a constant burst; one value stands for all lanes."""
    return ir.Constant(WORDS, list(values) * (LANES // len(values)))


def pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, pointee: Any) -> Any:
    """Return the address ``at`` octets into an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(builder.bitcast(data, I8.as_pointer()), [at]), pointee.as_pointer())


def all_lanes(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector with ``value`` in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, words(0))


def bits_of_plane(builder: Any, plane: Any) -> Any:
    """Return a plane as the low eight bits of an i64."""
    return builder.zext(builder.bitcast(plane, I8), I64)


def inceptionn_codes(builder: Any, word: Any, limits: Any) -> Any:
    """Return (planes, 8-bit codes, 16-bit codes) as ``netoffload.codec.plain.inceptionn_lane`` defines them."""
    limit8, limit16 = (all_lanes(builder, builder.trunc(limit, I32), WORDS) for limit in limits)
    exponent = builder.and_(builder.lshr(word, words(23)), words(0xFF))
    n_shift = builder.sub(words(127), exponent)
    planes = [builder.icmp_signed("<=", n_shift, limit) for limit in (limit8, limit16, words(0))]
    significand = builder.or_(builder.and_(word, words(0x7FFFFF)), words(0x800000))
    # A shift of 32 or more only happens to lanes of class 0, whose code is not used.
    shifted = builder.lshr(significand, builder.and_(n_shift, words(31)))
    return planes, *_signed(builder, word, builder.lshr(shifted, words(16)), builder.lshr(shifted, words(8)))


def bounded_codes(builder: Any, word: Any, limits: Any) -> Any:
    """Return (planes, 8-bit codes, 16-bit codes) as ``netoffload.codec.plain.bounded_lane`` defines them."""
    largest8, smallest16 = (all_lanes(builder, builder.trunc(limit, I32), WORDS) for limit in limits[:2])
    factor8 = all_lanes(builder, limits[2], FLOATS)
    factor16 = ir.Constant(FLOATS, [float(1 << 15)] * LANES)
    exponent = builder.and_(builder.lshr(word, words(23)), words(0xFF))
    is_large = builder.icmp_signed(">=", exponent, words(127))
    kept = builder.select(is_large, words(0), builder.and_(word, words(0x7FFFFFFF)))
    magnitude = builder.bitcast(kept, FLOATS)
    nearest8, nearest16 = (_rounded(builder, magnitude, factor) for factor in (factor8, factor16))
    over8 = builder.icmp_signed(">", nearest8, largest8)
    unfit16 = builder.or_(
        builder.icmp_signed("<", nearest16, smallest16), builder.icmp_signed(">", nearest16, words(ALL_OF_16))
    )
    whole = builder.or_(is_large, builder.and_(over8, unfit16))
    planes = [
        builder.or_(builder.icmp_signed(">", nearest8, words(0)), whole),
        builder.or_(over8, whole),
        whole,
    ]
    return planes, *_signed(builder, word, nearest8, nearest16)


def _rounded(builder: Any, magnitude: Any, factor: Any) -> Any:
    """Return the whole number nearest to magnitude * factor, ties to even."""
    rounder = ir.Constant(FLOATS, [float(2.0**23)] * LANES)
    scaled = builder.fadd(builder.fmul(magnitude, factor), rounder)
    return builder.sub(builder.bitcast(scaled, WORDS), words(ROUNDER_BITS))


def _signed(builder: Any, word: Any, magnitude8: Any, magnitude16: Any) -> Any:
    code8 = builder.or_(builder.and_(builder.lshr(word, words(24)), words(0x80)), magnitude8)
    code16 = builder.or_(builder.and_(builder.lshr(word, words(16)), words(0x8000)), magnitude16)
    return code8, code16


def chosen_codes(builder: Any, word: Any, planes: Any, code8: Any, code16: Any) -> Any:
    """Return every lane's code in its class."""
    return builder.select(planes[2], word, builder.select(planes[1], code16, code8))


def floats_of_codes(builder: Any, code: Any, in8: Any, in32: Any, unit8: Any) -> Any:
    """Return the float bits of eight codes as ``netoffload.codec.plain.decode_lane`` defines them.

    ``code`` has nothing above a lane's own octets; a lane of class 0 is 0. ``in8`` and ``in32`` are the lanes with tag
    1 and 3.
    """
    fraction = builder.select(in8, builder.shl(code, words(8)), code)
    magnitude = builder.and_(fraction, words(0x7FFF))
    is_negative = builder.icmp_unsigned("!=", builder.and_(fraction, words(0x8000)), words(0))
    signed = builder.select(is_negative, builder.neg(magnitude), magnitude)
    unit = builder.select(in8, all_lanes(builder, unit8, FLOATS), ir.Constant(FLOATS, [2.0**-15] * LANES))
    small = builder.bitcast(builder.fmul(builder.sitofp(signed, FLOATS), unit), WORDS)
    return builder.select(in32, code, small)
