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

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.halves import FP16_OVERFLOWS, narrow_bf16, narrow_fp16, widen_bf16, widen_fp16
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
from netoffload.errors import CodecError, NotFiniteError

FORMATS: Final = ("fp16", "bf16")

OVERFLOWS: Final = {"fp16": FP16_OVERFLOWS, "bf16": 0x7F7F8000}
"""The bits of the smallest float32 that would round to infinity."""

_NARROW: Final = {"fp16": narrow_fp16, "bf16": narrow_bf16}
_WIDEN: Final = {"fp16": widen_fp16, "bf16": widen_bf16}


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
            raise NotFiniteError(
                f"value {first}, {values[first]}, is too large for {self.format}: scale the gradient down"
            )
        payload = empty_payload(2 * values.size)
        _NARROW[self.format](words, payload[HEADER_OCTETS:].view(np.uint16))
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if body.size != 2 * layout.count:
            raise CodecError(f"payload of {body.size} octets does not hold {layout.count} floats")
        values = np.empty(layout.count, np.float32)
        _WIDEN[self.format](body.view(np.uint16), values.view(np.uint32))
        return values
