"""The slow oracle: what the collectives compute, said once, without a transport.

Every element's sum is a fixed sequence of additions and roundings; the tests hold the algorithms to it bit for bit,
and so does the benchmark before it reports a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from netoffload.collectives.exchange import Float32Array
from netoffload.collectives.schedule import partition

RoundTrip = Callable[[Float32Array], Float32Array]
"""What a pair of NICs makes of a vector: decode(encode(values))."""


def ring_sum(vectors: Sequence[Float32Array], round_trip: RoundTrip | None = None) -> Float32Array:
    """Return what every rank holds after :func:`~netoffload.collectives.ring.ring_allreduce`.

    Block b starts at rank b and goes once round: each rank adds the partial sum that reaches it to its own values.

    Args:
        vectors: one float32[n] per rank.
        round_trip: what a hop does to a partial sum, and what the owner does to the finished block; None: nothing.
    """
    size = len(vectors)
    if size == 1:
        return vectors[0].copy()
    result = np.empty_like(vectors[0])
    for block, span in enumerate(partition(result.size, size)):
        where = slice(span.start, span.stop)
        partial = vectors[block][where]
        for hop in range(1, size):
            partial = vectors[(block + hop) % size][where] + (partial if round_trip is None else round_trip(partial))
        result[where] = partial if round_trip is None else round_trip(partial)
    return result
