"""Methods without state and randomness: float32 unchanged, 16-bit floats, and a codec of the NIC on the host's side.

``none``  the floats themselves: the baseline of every comparison. Body: 4 n octets.

``half``  16-bit floats, rounded to nearest, ties to even:

``format=fp16``  IEEE 754 binary16: 5 bits of exponent, 10 of mantissa; subnormals from 2^-24 on, at most 65,504
``format=bf16``  the upper half of a float32: 8 bits of exponent, 7 of mantissa

A value that would round to infinity (from 65,520 on, or from (2 - 2^-8) 2^127 on) is refused; it is neither sent as
infinity nor reduced to the largest number. With such a gradient a run has gone wrong, or needs ``bf16``. An infinity or
NaN from a peer is refused too: no encoder makes one.

``nic``   the octets that a netoffload NIC would put on the wire for this vector, without the NIC (INCEPTIONN,
Algorithms 2 and 3, and the other codecs of ``netoffload.codec``). The codecs take NaN and infinities, but a compressor
refuses them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netoffload import codec as codecs
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.halves import FP16_OVERFLOWS, narrow_bf16, narrow_fp16, widen_bf16, widen_fp16
from netoffload.compressors.base import HEADER_OCTETS, Compressor, Layout, MethodId, State, empty_payload, largest_word
from netoffload.config import BOUND_K_DEFAULT, check_bound_k, check_choice
from netoffload.errors import CodecError, NotFiniteError

FORMATS: Final = ("fp16", "bf16")

OVERFLOWS: Final = {"fp16": FP16_OVERFLOWS, "bf16": 0x7F7F8000}
"""The bits of the smallest float32 that would round to infinity."""

_NARROW: Final = {"fp16": narrow_fp16, "bf16": narrow_bf16}
_WIDEN: Final = {"fp16": widen_fp16, "bf16": widen_bf16}


@dataclass(frozen=True)
class NoCompression(Compressor):
    """float32 unchanged."""

    name: ClassVar[str] = "none"
    method_id: ClassVar[MethodId] = MethodId.NONE

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        payload = empty_payload(values.nbytes)
        payload[HEADER_OCTETS:] = values.view(np.uint8)
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if body.size != 4 * layout.count:
            raise CodecError(f"payload of {body.size} octets does not hold {layout.count} floats")
        return np.frombuffer(body, np.float32).copy()


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


@dataclass(frozen=True)
class Nic(Compressor):
    """A codec of the NIC."""

    codec: str = "inceptionn"  # inceptionn, bounded, truncate16, truncate22, truncate24, packed or none
    bound: int = BOUND_K_DEFAULT  # the error bound is 2^-bound, 1..16

    name: ClassVar[str] = "nic"
    method_id: ClassVar[MethodId] = MethodId.NIC

    def __post_init__(self) -> None:
        """Refuse an unknown codec and a bound out of range."""
        codecs.get(self.codec)
        check_bound_k(self.bound)

    @property
    def flags(self) -> int:
        """Codec id in the high, bound - 1 in the low four bits."""
        return int(codecs.get(self.codec).codec_id) << 4 | self.bound - 1

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        bursts = codecs.get(self.codec).encode(values, self.bound)
        payload = empty_payload(bursts.size)
        payload[HEADER_OCTETS:] = bursts
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        return codecs.get(self.codec).decode(body, layout.count, self.bound)
