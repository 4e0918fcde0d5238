"""The numbers of the codecs ``inceptionn`` and ``bounded``: limits of the classes, weights of bits; and one escape."""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numba import types

from netoffload.codec_specs import Tagged
from netoffload.compiled.emitted import Builder, Value, emits
from netoffload.compiled.emitted import held as emit_held
from netoffload.compiled.jit import inline_kernel, inlined_with
from netoffload.compiled.octets import float32_bits

Limits: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""What depends on the bound, and constants of a burst, computed before the loop.

The bits of the smallest |x| of the 8-bit and of the 16-bit form; what to add to a float's bits for units of the 8-bit
and of the 16-bit form; the sign of either form; the end of a hole; every fourth bit of 64.
"""

LIMITS: Final = types.UniTuple(types.int64, 8)
"""The same, as Numba's type."""

FIRST_OF_FOUR: Final = 0x1111111111111111

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

ESCAPE16: Final = 0x80
ESCAPE32: Final = 0x00
"""8-bit codes of -0 and +0, which floats other than 0 never have: in ``packed`` they mark the longer forms."""


@emits(types.int64, types.int64)
def held(builder: Builder, number: Value) -> Value:
    """Return the number, with its value hidden from LLVM.

    LLVM loads a constant that it knows from memory for every burst, each time with an instruction of ten octets for the
    address, although registers are free. It keeps a value that it does not know in a register.
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
def decode_short(code: int, unit: np.float32) -> int:
    """Return the float32 bits of a sign and 15 bits of magnitude in ``unit`` (Algorithm 3)."""
    # A magnitude is a fixed-point fraction; converting an integer to a float finds its leading one and moves it to the
    # hidden bit. The integer carries the sign. So a magnitude of 0, which the paper leaves open, becomes +0 for either
    # sign.
    sign = code >> 15
    return float32_bits(np.float32(((code & 0x7FFF) ^ -sign) + sign) * unit)
