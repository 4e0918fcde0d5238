"""The codecs with tags or groups without a compiler (``NUMBA_DISABLE_JIT=1``): the oracle behind the kernels' contract.

``netoffload.codec.bursts`` has the contract. Decoding takes the bound k itself as its parameter.
"""

from bisect import bisect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from netoffload.codec import packed
from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.reference import Oracle
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.errors import CodecError

Kernel: TypeAlias = Callable[..., Any]


def kernels_of(oracle: Oracle) -> tuple[Kernel, Kernel, Kernel, Kernel]:
    """Return ``encode_fit``, ``decode``, ``decode_halves`` and ``round_trip``."""

    def encode(
        source: Uint8Array,
        source_at: int,
        count: int,
        bound_k: int,
        target: Uint8Array,
        target_at: int,
        capacity: int,
        classes: Int64Array,
    ) -> tuple[int, int]:
        values = source[source_at : source_at + 4 * count].copy().view(np.float32)
        done, payload = count, oracle.encode(values, bound_k)
        if payload.size > capacity:
            bursts = range(1, count // LANES + 1)
            done = LANES * bisect(bursts, capacity, key=lambda n: oracle.encode(values[: LANES * n], bound_k).size)
            payload = oracle.encode(values[:done], bound_k)
        target[target_at : target_at + payload.size] = payload
        assert oracle.classes is not None
        classes += oracle.classes(payload, done)
        return done, payload.size

    def decode(
        payload: Uint8Array, at: int, available: int, count: int, bound_k: int, target: Uint8Array, target_at: int
    ) -> int:
        try:
            values = oracle.decode(payload[at : at + available], count, int(bound_k))
        except CodecError:
            return MALFORMED
        target[target_at : target_at + 4 * count] = values.view(np.uint8)
        return available

    def decode_halves(
        payload: Uint8Array,
        at: int,
        available: int,
        count: int,
        middle: Middle,
        bound_k: Any,
        target: Uint8Array,
        target_at: int,
    ) -> int:
        coded = Stretch(payload, at, available)
        return packed.decode_halves(decode, coded, count, middle, bound_k, target, target_at)

    def round_trip(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
        target[:] = oracle.round_trip(source.view(np.float32), bound_k).view(np.uint32)

    return encode, decode, decode_halves, round_trip
