"""The slow oracle: what the collectives compute, written once, without a transport.

Every element's result is a fixed sequence of operations and roundings. The tests compare the algorithms with it bit for
bit, and so does the benchmark before it reports a time. ``round_trip`` is what a pair of NICs makes of a vector:
decode(encode(values)). If it is None, vectors stay exact.
"""

from collections.abc import Callable, Sequence

import numpy as np

from netoffload.collectives.operations import Operation, apply
from netoffload.collectives.schedule import Branch, Span, binomial, chain, partition
from netoffload.collectives.tree import BINOMIAL_FLOATS
from netoffload.compiled.arrays import Float32Array

RoundTrip = Callable[[Float32Array], Float32Array]


def ring_sum(
    vectors: Sequence[Float32Array], round_trip: RoundTrip | None = None, operation: Operation = Operation.SUM
) -> Float32Array:
    """Return what every rank holds after :func:`~netoffload.collectives.ring.ring_allreduce`."""
    size = len(vectors)
    result = np.empty_like(vectors[0])
    # Block b starts at rank b and goes once round. Each rank adds the partial sum that reaches it to its own values,
    # and the last one rounds the finished block.
    for block, span in enumerate(partition(result.size, size)):
        total = _once_round(vectors, span, block, round_trip, operation)
        result[span.start : span.stop] = _hop(total, round_trip if size > 1 else None)
    return result


def reduce_scatter(
    vectors: Sequence[Float32Array],
    spans: Sequence[Span],
    round_trip: RoundTrip | None = None,
    operation: Operation = Operation.SUM,
) -> list[Float32Array]:
    """Return each rank's block after :func:`~netoffload.collectives.ring.ring_reduce_scatter`."""
    size = len(vectors)
    return [_once_round(vectors, span, (rank + 1) % size, round_trip, operation) for rank, span in enumerate(spans)]


def tree_reduction(
    vectors: Sequence[Float32Array],
    root: int,
    round_trip: RoundTrip | None = None,
    operation: Operation = Operation.SUM,
) -> Float32Array:
    """Return what the root holds after :func:`~netoffload.collectives.tree.reduce`."""
    size = len(vectors)
    tree: Callable[[int, int], Branch] = binomial if vectors[0].size <= BINOMIAL_FLOATS else chain

    def partial(position: int) -> Float32Array:
        values = vectors[(position + root) % size].copy()
        for child in tree(position, size).children:
            apply(operation, values, _hop(partial(child), round_trip))
        return values

    return partial(0)


def aggregated(
    vectors: Sequence[Float32Array],
    aggregator: int,
    round_trip: RoundTrip | None = None,
    operation: Operation = Operation.SUM,
) -> Float32Array:
    """Return what every rank holds after ``aggregator_allreduce``."""
    result = vectors[aggregator].copy()
    others = [_hop(vector, round_trip) for rank, vector in enumerate(vectors) if rank != aggregator]
    if others:
        total = others[0].copy()
        for vector in others[1:]:
            apply(operation, total, vector)
        apply(operation, result, total)
    return result


def tree_of_aggregators(
    vectors: Sequence[Float32Array], tree: Sequence[Branch], round_trip: RoundTrip | None = None
) -> Float32Array:
    """Return the sum that the topmost rank of :func:`~netoffload.collectives.tree_exchange` passes to its update."""

    def partial(rank: int) -> Float32Array:
        below = tree[rank].children
        if not below:
            return vectors[rank]
        first, *others = (_hop(partial(child), round_trip) for child in below)
        total = first.copy()
        for other in others:
            apply(Operation.SUM, total, other)
        return total

    return partial(next(rank for rank, branch in enumerate(tree) if branch.parent is None))


def hierarchical_sum(
    vectors: Sequence[Float32Array],
    groups: Sequence[Sequence[int]],
    round_trip: RoundTrip | None = None,
    operation: Operation = Operation.SUM,
    top: str = "ring",
) -> Float32Array:
    """Return what every rank holds after :func:`~netoffload.collectives.hierarchy.hierarchical_allreduce`."""

    def between(partials: list[Float32Array]) -> Float32Array:
        if top == "wa":
            return aggregated(partials, 0, round_trip, operation)
        return ring_sum(partials, round_trip, operation)

    if len({len(group) for group in groups}) > 1:
        total = between(
            [tree_reduction([vectors[rank] for rank in group], 0, round_trip, operation) for group in groups]
        )
        return _hop(total, round_trip)
    spans = partition(vectors[0].size, len(groups[0]))
    scattered = [reduce_scatter([vectors[rank] for rank in group], spans, round_trip, operation) for group in groups]
    blocks = [between([blocks[member] for blocks in scattered]) for member in range(len(spans))]
    return np.concatenate([_hop(block, round_trip if len(spans) > 1 else None) for block in blocks])


def _once_round(
    vectors: Sequence[Float32Array], span: Span, first: int, round_trip: RoundTrip | None, operation: Operation
) -> Float32Array:
    where, size = slice(span.start, span.stop), len(vectors)
    partial = vectors[first][where].copy()
    for hop in range(1, size):
        own = vectors[(first + hop) % size][where].copy()
        apply(operation, own, _hop(partial, round_trip))
        partial = own
    return partial


def _hop(values: Float32Array, round_trip: RoundTrip | None) -> Float32Array:
    return values if round_trip is None else round_trip(values)
