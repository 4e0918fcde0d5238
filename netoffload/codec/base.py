"""A codec: three functions from arrays to arrays, an oracle, and a number on the wire."""

import operator
from dataclasses import dataclass
from typing import Final, SupportsIndex

import numpy as np

from netoffload.codec import kernels
from netoffload.codec.packed import GROUP, RUN_MAX
from netoffload.codec.reference import Oracle
from netoffload.codec_specs import SPECS, CodecId, CodecSpec
from netoffload.compiled.arrays import Float32Array, Uint8Array, readable
from netoffload.config import check_bound_k
from netoffload.errors import CodecError, UsageError

FLOATS_PER_OCTET_MAX: Final = RUN_MAX * GROUP // 2
"""In the densest payload, ``packed`` zeros."""


@dataclass(frozen=True)
class Codec:
    """One codec over whole arrays, compiled. The engine calls the kernels directly.

    Values are contiguous float32[n], payloads uint8[n], and the error bound is 2**-bound_k, 1..16; all else is a
    ``UsageError``.
    """

    codec_id: CodecId
    oracle: Oracle

    @property
    def spec(self) -> CodecSpec:
        """Its row in the list of codecs."""
        return SPECS[self.codec_id]

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        return self.spec.name

    def encode(self, values: Float32Array, bound_k: int) -> Uint8Array:
        """Return the payload of ``values``."""
        _check_values(values)
        bound_k = check_bound_k(bound_k)
        capacity = -(-values.size // kernels.LANES) * kernels.MAX_BURST_PAYLOAD
        target = np.empty(capacity + kernels.ENCODE_SLACK, np.uint8)
        source = readable(np.asarray(values).reshape(-1).view(np.uint8))
        classes = np.zeros(4, np.int64)
        _, length = kernels.encode_fit(
            int(self.codec_id), source, 0, values.size, bound_k, target, 0, capacity, classes
        )
        return target[:length].copy()

    def decode(self, payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
        """Return the ``count`` floats of ``payload``, or raise :class:`CodecError`."""
        if not isinstance(payload, np.ndarray) or payload.dtype != np.uint8 or payload.ndim != 1:
            raise UsageError("a payload is a vector of uint8: give what encode returned")
        bound_k, given = check_bound_k(bound_k), count
        if not isinstance(given, SupportsIndex):
            raise UsageError(f"count is {given!r}: give the number of floats")
        count = operator.index(given)
        if count > FLOATS_PER_OCTET_MAX * payload.size:
            raise CodecError(f"payload of {payload.size} octets does not hold {count} floats")
        # Kernels read beyond a payload's end, and write whole bursts.
        padded = np.zeros(payload.size + kernels.DECODE_SLACK, np.uint8)
        padded[: payload.size] = payload
        target = np.empty(max(0, -(-count // kernels.LANES)) * kernels.LANES, np.float32)
        codec_id, octets = int(self.codec_id), target.view(np.uint8)
        if count < 0 or kernels.decode(codec_id, padded, 0, payload.size, count, bound_k, octets, 0) != payload.size:
            raise CodecError(f"payload of {payload.size} octets does not hold {count} floats")
        return target[:count]

    def round_trip(self, values: Float32Array, bound_k: int, out: Float32Array | None = None) -> Float32Array:
        """Return decode(encode(values)) without making the payload, in ``out`` if given.

        ``out`` has as many floats, and may be ``values``, but no other part of their memory.
        """
        _check_values(values)
        bound_k = check_bound_k(bound_k)
        target = np.empty_like(values) if out is None else out
        _check_values(target)
        if target.size != values.size or not target.flags.writeable:
            kind = "writable" if target.flags.writeable else "read-only"
            raise UsageError(f"out has {target.size} {kind} floats: give {values.size} that may be written")
        if np.may_share_memory(values, target) and values.ctypes.data != target.ctypes.data:
            raise UsageError("out overlaps the values: give the values themselves, or other memory")
        words, rounded = (np.asarray(each).reshape(-1).view(np.uint32) for each in (values, target))
        kernels.round_trip(int(self.codec_id), readable(words), bound_k, rounded)
        return target


def _check_values(values: Float32Array) -> None:
    if not isinstance(values, np.ndarray):
        raise UsageError(f"a codec takes an array of float32, not {type(values).__name__}")
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise UsageError(
            f"a codec takes contiguous float32, not {values.dtype} (contiguous: {values.flags.c_contiguous}): "
            "convert with numpy.ascontiguousarray(values, numpy.float32)"
        )
