"""The codecs with tags or groups without a compiler (``NUMBA_DISABLE_JIT=1``): the oracle behind the kernels' contract.

``netoffload.codec.bursts`` has the contract. Decoding takes the bound k itself as its parameter.
"""

from bisect import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

from netoffload.codec import packed
from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec.reference import Oracle
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.errors import CodecError


def kernels_of(oracle: Oracle) -> tuple[Callable[..., Any], ...]:
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
        firsts = [min(first, count) for first in range(LANES, count + LANES, LANES)]
        fitting = bisect(firsts, capacity, key=lambda first: oracle.encode(values[:first], bound_k).size)
        done = firsts[fitting - 1] if fitting else 0
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
