"""Methods without state and randomness: float32 unchanged, and a codec of the NIC on the host's side.

``none``  the floats themselves: the baseline of every comparison. Body: 4 n octets.

``nic``   the octets that a netoffload NIC would put on the wire for this vector, without the NIC (INCEPTIONN,
Algorithms 2 and 3, and the other codecs of ``netoffload.codec``). The codecs take NaN and infinities, but a compressor
refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from netoffload import codec as codecs
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compressors.base import HEADER_OCTETS, Compressor, MethodId, State, empty_payload
from netoffload.compressors.layout import Layout
from netoffload.config import BOUND_K_DEFAULT, check_bound_k
from netoffload.errors import CodecError


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
