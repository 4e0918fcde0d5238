"""One float at a time: the classes and codes of ``inceptionn`` and ``bounded``, and the way back.

The definition of what ``vectors`` does to eight floats and more. Escapes are decoded here, and everything is with
``NUMBA_DISABLE_JIT=1``, where no vector code runs.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numba import types

from netoffload.codec_specs import Tagged
from netoffload.compiled.emitted import Builder, Value, emits
from netoffload.compiled.emitted import held as emit_held
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel, inlined_with
from netoffload.compiled.octets import bits_float32, float32_bits

Limits: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""What depends on the bound, and constants of a burst, computed before the loop.

The bits of the smallest |x| of the 8-bit and of the 16-bit form; what to add to a float's bits for units of the 8-bit
and of the 16-bit form; the sign of either form; the end of a hole; every fourth bit of 64.
"""

LIMITS: Final = types.UniTuple(types.int64, 8)
"""The same, as Numba's type."""

FIRST_OF_FOUR: Final = 0x1111111111111111

LaneCoder: TypeAlias = Callable[[int, Limits], tuple[int, int]]
"""From a float's bits and a codec's limits to (code, tag)."""

UNIT16: Final = np.float32(2.0**-15)
"""The weight of the last of the 15 magnitude bits of the 16-bit form, in both codecs."""

ROUNDER: Final = np.float32(2.0**23)
"""Adding it to a float below 2**22 rounds the float to an integer, ties to even, in the low bits of the mantissa."""

MAGNITUDE_BITS: Final = 0x7FFFFFFF
ONE_BITS: Final = 0x3F800000
"""The bits of 1.0. Floats of one sign have the order of their bits, so classes are told apart by comparing bits."""

SCALE16: Final = 15 << 23
"""Adding it to a float's bits multiplies the float by 2**15."""

ROUNDS_TO_ONE: Final = int(np.float32(1 - 2.0**-16).view(np.uint32))
"""The bits of the smallest float whose nearest 16-bit magnitude in ``bounded`` is 1."""

HALF_BITS: Final = 0x3F000000


if JIT_DISABLED:

    def held(number: int) -> int:
        """Return the number."""
        return number

else:

    @emits(types.int64, types.int64)
    def held(builder: Builder, number: Value) -> Value:
        """Return the number, with its value hidden from LLVM.

        LLVM loads a constant that it knows from memory for every burst, each time with an instruction of ten octets for
        the address, although registers are free. It keeps a value that it does not know in a register.
        """
        return emit_held(builder, number)


@inline_kernel
def inceptionn_limits(bound_k: int) -> Limits:
    """Return the limits of Algorithm 2: 2**-k and 2**-(k//2)."""
    from16 = (127 - (bound_k >> 1)) << 23
    return (
        (127 - bound_k) << 23,
        from16,
        held(7 << 23),
        held(SCALE16),
        held(0x80),
        held(0x8000),
        from16,
        held(FIRST_OF_FOUR),
    )


@inline_kernel
def inceptionn_lane(word: int, limits: Limits) -> tuple[int, int]:
    """Return (code, tag) of one float32's bits (Algorithm 2).

    A code of class 0 is arbitrary.
    """
    # The tag is how many of three limits |x| reaches, which is the algorithm's comparison with e. There is no branch,
    # because on mixed data it would be mispredicted.
    magnitude = word & MAGNITUDE_BITS
    in8 = int(magnitude >= limits[0])
    in16 = int(magnitude >= limits[1])
    in32 = int(magnitude >= ONE_BITS)
    dropped = 127 + 16 - 8 * in16 - (magnitude >> 23)
    shifted = ((word & 0x7FFFFF) | 0x800000) >> (dropped & 63)  # wrong from 64 on, but there the class is 0
    small = shifted | (word >> 16 & 0x8000) >> (8 - 8 * in16)
    return word if in32 else small, in8 + in16 + in32


@inline_kernel
def bounded_limits(bound_k: int) -> Limits:
    """Return the limits of ``bounded``; its 16-bit form begins half a unit above the largest 8-bit magnitude."""
    largest8 = min(127, (1 << (bound_k - 1)) - 1)
    from8 = ((127 - bound_k) << 23) + 1  # 2**-k itself is a tie, and rounds to 0
    from16 = float32_bits(np.float32(largest8 + 0.5) / np.float32(1 << (bound_k - 1)))
    hole_end = from16
    # The 256 floats above 1/2 would round to 1/2 in the 16-bit form. At k = 1 that is of class 0, so they travel whole.
    if bound_k == 1:
        from16, hole_end = HALF_BITS + 1, HALF_BITS + 1 + 256
    return from8, from16, (bound_k - 1) << 23, held(SCALE16), held(0x80), held(0x8000), hole_end, held(FIRST_OF_FOUR)


def unit8_of(form: Tagged) -> Callable[[int], np.float32]:
    """Return a compiled function from the bound k to the weight of the last bit of the 8-bit form, divided by 256."""
    places, places_per_k = 8 + form.places8[0], form.places8[1]

    @inlined_with
    def unit8(bound_k: int) -> np.float32:
        return np.float32(1.0) / np.float32(1 << (places + places_per_k * bound_k))

    return unit8


@inline_kernel
def bounded_lane(word: int, limits: Limits) -> tuple[int, int]:
    """Return (code, tag) of one float32's bits, rounded to nearest, ties to even; a code of class 0 is arbitrary."""
    magnitude = word & MAGNITUDE_BITS
    in8 = int(magnitude >= limits[0])
    in16 = int(magnitude >= limits[1])
    in32 = int(magnitude >= ROUNDS_TO_ONE) | (in16 & int(magnitude < limits[6]))
    scaled = min(magnitude, ONE_BITS) + (SCALE16 if in16 else limits[2])  # the minimum avoids NaN and its warnings
    nearest = float32_bits(bits_float32(scaled) + ROUNDER) & 0x7FFF
    small = nearest | (word >> 16 & 0x8000) >> (8 - 8 * in16)
    return word if in32 else small, in8 + in16 + in32


@inline_kernel
def decode_lane(code: int, tag: int, unit8: np.float32) -> int:
    """Return the float32 bits of one code (Algorithm 3); ``code`` may have octets of the next lane above it."""
    # The 8-bit form is read as a 16-bit form without its low octet. A magnitude is a fixed-point fraction; converting
    # an integer to a float finds its leading one and moves it to the hidden bit. The integer carries the sign. So a
    # magnitude of 0, which the paper leaves open, becomes +0 for either sign.
    in8 = int(tag == 1)
    in16 = int(tag == 2)
    in32 = int(tag == 3)
    fraction = (code << 8) & (-in8 & 0xFF00) | code & (-in16 & 0xFFFF)
    sign = fraction >> 15
    signed = ((fraction & 0x7FFF) ^ -sign) + sign
    unit = unit8 if tag == 1 else UNIT16
    small = float32_bits(np.float32(signed) * unit)
    return (code & (-in32 & 0xFFFFFFFF)) | (small & ~-in32)
