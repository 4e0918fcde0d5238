"""``half``: 16-bit floats, rounded to nearest, ties to even.

``format=fp16``  IEEE 754 binary16: 5 bits of exponent, 10 of mantissa; subnormals from 2^-24 on, at most 65,504
``format=bf16``  the upper half of a float32: 8 bits of exponent, 7 of mantissa

A value that would round to infinity (from 65,520 on, or from (2 - 2^-8) 2^127 on) is refused; it is neither sent as
infinity nor reduced to the largest number. With such a gradient a run has gone wrong, or needs ``bf16``. An infinity or
NaN from a peer is refused too: no encoder makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint16Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compressors.base import (
    HEADER_OCTETS,
    Compressor,
    MethodId,
    State,
    empty_payload,
    largest_word,
)
from netoffload.compressors.layout import Layout
from netoffload.config import check_choice
from netoffload.errors import CodecError, UsageError

FORMATS: Final = ("fp16", "bf16")

OVERFLOWS: Final = {"fp16": 0x477FF000, "bf16": 0x7F7F8000}
"""The bits of the smallest float32 that would round to infinity."""

EXPONENT_MASK: Final = {"fp16": 0x7C00, "bf16": 0x7F80}

SMALLEST_NORMAL: Final = 0x38800000
"""The bits of 2^-14, fp16's smallest number with a hidden bit."""

REBIAS: Final = (127 - 15) << 23
"""Difference between the exponents of float32 and fp16, at the exponent's place."""

ALIGNER: Final = np.float32(0.5)
"""Its last bit weighs 2^-24, like fp16's smallest number: adding it rounds a smaller float to a multiple of 2^-24."""

ALIGNER_BITS: Final = 0x3F000000
REBIAS_SCALE: Final = np.float32(2.0**112)

BLOCK: Final = 1024
"""Floats per pass; intermediate results fit the first-level cache."""


@dataclass(frozen=True)
class Half(Compressor):
    """Two octets per float."""

    format: str = "fp16"  # fp16 or bf16

    name: ClassVar[str] = "half"
    method_id: ClassVar[MethodId] = MethodId.HALF

    def __post_init__(self) -> None:
        """Refuse another format."""
        check_choice("half: format", self.format, FORMATS)

    @property
    def flags(self) -> int:
        """0 for fp16, 1 for bf16."""
        return FORMATS.index(self.format)

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        words = values.view(np.uint32)
        if largest_word(words) >= OVERFLOWS[self.format]:
            first = int(np.flatnonzero(words & np.uint32(0x7FFFFFFF) >= OVERFLOWS[self.format])[0])
            raise UsageError(f"value {first}, {values[first]}, is too large for {self.format}: scale the gradient down")
        payload = empty_payload(2 * values.size)
        halves = payload[HEADER_OCTETS:].view(np.uint16)
        if self.format == "bf16":
            encode_bf16(words, halves)
        else:
            encode_fp16(values, np.empty(BLOCK, np.float32), halves)
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if body.size != 2 * layout.count:
            raise CodecError(f"payload of {body.size} octets does not hold {layout.count} floats")
        halves, values = body.view(np.uint16), np.empty(layout.count, np.float32)
        words = values.view(np.uint32)
        if self.format == "bf16":
            decode_bf16(halves, words)
        else:
            decode_fp16(halves, values)
        if largest_word(words) >= OVERFLOWS[self.format]:
            mask = np.uint16(EXPONENT_MASK[self.format])
            raise CodecError(f"value {int(np.flatnonzero(halves & mask == mask)[0])} of the payload is not finite")
        return values


@kernel
def encode_bf16(words: Uint32Array, halves: Uint16Array) -> None:
    """Write uint16[n] for uint32[n], the bits of finite floats that do not round to infinity."""
    for i in range(words.size):
        word = words[i]
        halves[i] = (word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@kernel
def decode_bf16(halves: Uint16Array, words: Uint32Array) -> None:
    """Write uint32[n] for uint16[n]."""
    for i in range(halves.size):
        words[i] = np.uint32(halves[i]) << np.uint32(16)


@kernel
def encode_fp16(values: Float32Array, aligned: Float32Array, halves: Uint16Array) -> None:
    """Write uint16[n] for float32[n] that do not round to infinity; ``aligned``, float32[BLOCK], is scratch."""
    # Two passes: the first one's sums round what is below fp16's smallest normal number, the second one rounds the rest
    # on the bits.
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        _align(values[start:stop], aligned)
        _round_fp16(values[start:stop].view(np.uint32), aligned.view(np.uint32), halves[start:stop])


@inline_kernel
def _align(values: Float32Array, aligned: Float32Array) -> None:
    for i in range(values.size):
        aligned[i] = abs(values[i]) + ALIGNER


@inline_kernel
def _round_fp16(words: Uint32Array, aligned_words: Uint32Array, halves: Uint16Array) -> None:
    for i in range(words.size):
        magnitude = words[i] & np.uint32(0x7FFFFFFF)
        odd = (magnitude >> np.uint32(13)) & np.uint32(1)
        normal = (max(magnitude, np.uint32(SMALLEST_NORMAL)) - np.uint32(REBIAS) + np.uint32(0xFFF) + odd) >> np.uint32(
            13
        )
        subnormal = aligned_words[i] - np.uint32(ALIGNER_BITS)
        half = normal if magnitude >= np.uint32(SMALLEST_NORMAL) else subnormal
        halves[i] = half | (words[i] >> np.uint32(16)) & np.uint32(0x8000)


@kernel
def decode_fp16(halves: Uint16Array, values: Float32Array) -> None:
    """Write float32[n] for uint16[n]; an infinity or NaN becomes a float of 65,536 or more."""
    # Placed in a float32, the 15 bits without the sign are a float 2^112 times too small, also for subnormals.
    for start in range(0, halves.size, BLOCK):
        stop = min(start + BLOCK, halves.size)
        _place_fp16(halves[start:stop], values[start:stop].view(np.uint32))
        _scale(values[start:stop])


@inline_kernel
def _place_fp16(halves: Uint16Array, words: Uint32Array) -> None:
    for i in range(halves.size):
        half = np.uint32(halves[i])
        words[i] = (half & np.uint32(0x8000)) << np.uint32(16) | (half & np.uint32(0x7FFF)) << np.uint32(13)


@inline_kernel
def _scale(values: Float32Array) -> None:
    for i in range(values.size):
        values[i] *= REBIAS_SCALE
