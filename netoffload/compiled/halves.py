"""Conversions between float32 and 16-bit floats, on bits: fp16 is IEEE 754's binary16, bf16 a float32's upper half.

Rounding is to nearest, ties to even. What is too large becomes infinite, and infinities stay. A NaN that is rounded
keeps the upper bits of its payload, and becomes quiet as in a CPU's conversion. Widened, it keeps all its bits.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint16Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import bits_float32, float32_bits, whole

_INFINITE: Final = 0x7F800000
"""The bits of float32's infinity; those of a NaN are more."""

FP16_OVERFLOWS: Final = 0x477FF000
"""The bits of 65,520, the smallest float32 that rounds to infinity."""

_SMALLEST_NORMAL: Final = 0x38800000
"""The bits of 2^-14, fp16's smallest number with a hidden bit."""

_REBIAS: Final = (127 - 15) << 23
"""Difference between the exponents of float32 and fp16, at the exponent's place."""

_REBIAS_SCALE: Final = np.float32(2.0**112)

_ALIGNER: Final = np.float32(0.5)
"""Its last bit weighs 2^-24, like fp16's smallest number: adding it rounds a smaller float to a multiple of 2^-24."""

_ALIGNER_BITS: Final = 0x3F000000


@kernel
def narrow_bf16(words: Uint32Array, halves: Uint16Array) -> None:
    """Write uint16[n] for uint32[n], the bits of float32."""
    for i in range(words.size):
        word = words[i]
        top = word >> np.uint32(16)
        rounded = (word + np.uint64(0x7FFF) + (top & np.uint32(1))) >> np.uint32(16)
        halves[i] = top | np.uint32(0x40) if word & np.uint32(0x7FFFFFFF) > np.uint32(_INFINITE) else rounded


@kernel
def widen_bf16(halves: Uint16Array, words: Uint32Array) -> None:
    """Write uint32[n] for uint16[n]."""
    for i in range(halves.size):
        words[i] = np.uint32(halves[i]) << np.uint32(16)


@kernel
def narrow_fp16(words: Uint32Array, halves: Uint16Array) -> None:
    """Write uint16[n] for uint32[n], the bits of float32."""
    for i in range(words.size):
        halves[i] = _fp16(words[i]) | (words[i] >> np.uint32(16)) & np.uint32(0x8000)


@inline_kernel
def _fp16(word: np.uint32) -> np.uint32:
    """Return fp16's bits without the sign; every case is computed, so that lanes of a vector need no branch."""
    magnitude = word & np.uint32(0x7FFFFFFF)
    odd = (magnitude >> np.uint32(13)) & np.uint32(1)
    normal = (max(magnitude, np.uint32(_SMALLEST_NORMAL)) - np.uint32(_REBIAS) + np.uint32(0xFFF) + odd) >> np.uint32(
        13
    )
    small = magnitude if magnitude < np.uint32(_SMALLEST_NORMAL) else np.uint32(0)
    subnormal = np.uint32(float32_bits(bits_float32(whole(small)) + _ALIGNER)) - np.uint32(_ALIGNER_BITS)
    half = normal if magnitude >= np.uint32(_SMALLEST_NORMAL) else subnormal
    half = half if magnitude < np.uint32(FP16_OVERFLOWS) else np.uint32(0x7C00)
    not_a_number = np.uint32(0x7E00) | (magnitude >> np.uint32(13)) & np.uint32(0x1FF)
    return not_a_number if magnitude > np.uint32(_INFINITE) else half


@kernel
def widen_fp16(halves: Uint16Array, words: Uint32Array) -> None:
    """Write uint32[n] for uint16[n]."""
    for i in range(halves.size):
        half = np.uint32(halves[i])
        magnitude = (half & np.uint32(0x7FFF)) << np.uint32(13)
        # Placed in a float32, the 15 bits without the sign are a float 2^112 times too small, also for subnormals.
        scaled = np.uint32(float32_bits(bits_float32(whole(magnitude)) * _REBIAS_SCALE))
        special = magnitude | np.uint32(_INFINITE)
        finite = (half & np.uint32(0x7C00)) != np.uint32(0x7C00)
        words[i] = (scaled if finite else special) | (half & np.uint32(0x8000)) << np.uint32(16)
