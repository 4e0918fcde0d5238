"""Everything that reduces: every operation, algorithm and form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Operation, reference
from netoffload.collectives.hierarchy import default_groups
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.plans import ALGORITHMS, operation_of
from netoffload_mpi.verify.cases import OPS, WEIGHTS, Case, Observed, Place, Prepared, Rounding, nothing


def allreduces(at: Place) -> Iterator[Case]:
    """Every algorithm with every operation, in place and not; averages; groups of all kinds."""
    # Of plain MPI nobody knows in which order it adds.
    for algorithm in ALGORITHMS if at.exact else ALGORITHMS[:-1]:
        for op in OPS:
            yield _allreduce(at, op, in_place=False, algorithm=algorithm)
        yield _allreduce(at, MPI.SUM, in_place=True, algorithm=algorithm)
        yield _allreduce(at, MPI.SUM, in_place=True, algorithm=algorithm, average=True)
    yield _allreduce(at, MPI.SUM, in_place=False, algorithm="hierarchical", top="wa")
    for groups in ([[0], list(range(at.size - 1, 0, -1))], [list(range(at.size))]):
        if all(groups):
            yield _allreduce(at, MPI.MAX, in_place=True, algorithm="hierarchical", groups=groups)
            yield _allreduce(at, MPI.SUM, in_place=False, algorithm="hierarchical", groups=groups)
            yield _allreduce(at, MPI.SUM, in_place=True, algorithm="hierarchical", groups=groups, top="wa")
    for op in OPS:
        case = _allreduce(at, op, in_place=op == MPI.MIN, algorithm="ring")
        model: Callable[[], Observed] = functools.partial(_untagged_sum, at, op)
        yield Case("Allreduce", case.variant, case.make, model=model, label="Allreduce_ring", ours="Allreduce_ring")


def _untagged_sum(at: Place, op: MPI.Op) -> Observed:
    return (reference.ring_sum(at.vectors(op), None, operation_of(op)),)


def _allreduce(at: Place, op: MPI.Op, *, in_place: bool, **options: Any) -> Case:
    own, operation = at.own(op), operation_of(op)

    def make(_: Rounding) -> Prepared:
        target = own.copy() if in_place else nothing(at.count)
        return Prepared((MPI.IN_PLACE if in_place else own, target, op), (target,))

    def model() -> Observed:
        total = _allreduced(at, at.vectors(op), operation, options)
        return (total / np.float32(at.size) if options.get("average") else total,)

    words = [operation.name, "in place" if in_place else "", *(f"{name}={value}" for name, value in options.items())]
    return Case(
        "Allreduce",
        ", ".join(filter(None, words)),
        make,
        options,
        None if options["algorithm"] == "mpi" else model,
        at.size if options.get("average") else 1,
        f"Allreduce_comp {options['algorithm']}",
    )


def _allreduced(
    at: Place, vectors: Sequence[Float32Array], operation: Operation, options: Mapping[str, Any]
) -> Float32Array:
    """Return what the oracle says, with the owners' rounding where an owner sends its block to others."""
    if options["algorithm"] == "wa":
        return reference.aggregated(vectors, 0, at.hop, operation)
    if options["algorithm"] == "ring":
        total = reference.ring_sum(vectors, at.hop, operation)
        return at.rounding.owner(total) if at.size > 1 else total
    top, groups = options.get("top", "ring"), options.get("groups") or default_groups(at.size)
    total = reference.hierarchical_sum(vectors, groups, at.hop, operation, top)
    has_owner = at.size > 1 and (top == "ring" or max(map(len, groups)) > 1)
    return at.rounding.owner(total) if has_owner else total


def reductions(at: Place) -> Iterator[Case]:
    """Reduce, Reduce_scatter and Reduce_scatter_block."""
    for op in OPS:
        yield _reduce(at, op, at.size // 2, in_place=False)
        yield _reduce(at, op, 0, in_place=True)
    parts = shares(at.count, at.size)
    block = -(-at.count // at.size)
    for op, in_place in ((MPI.SUM, False), (MPI.SUM, True), (MPI.MAX, False), (MPI.MIN, True), (MPI.PROD, False)):
        yield _reduce_scatter(at, op, parts, in_place=in_place)
        yield _reduce_scatter(at, op, [block] * at.size, in_place=in_place)
        yield _reduce_scatter(at, op, [block] * at.size, in_place=in_place, call="Reduce_scatter_block")


def shares(count: int, size: int) -> list[int]:
    """Cut ``count`` into uneven parts, nothing among them."""
    weights = [WEIGHTS[rank % len(WEIGHTS)] for rank in range(size)]
    parts = [count * weight // sum(weights) for weight in weights]
    parts[0] += count - sum(parts)
    return parts


def _reduce(at: Place, op: MPI.Op, root: int, *, in_place: bool) -> Case:
    own, operation = at.own(op), operation_of(op)

    def make(_: Rounding) -> Prepared:
        if at.rank != root:
            return Prepared((own, None, op, root), ())
        target = own.copy() if in_place else nothing(at.count)
        return Prepared((MPI.IN_PLACE if in_place else own, target, op, root), (target,))

    def model() -> Observed:
        return (reference.tree_reduction(at.vectors(op), root, at.hop, operation),) if at.rank == root else ()

    return Case("Reduce", f"{operation.name}, root {root}{', in place' if in_place else ''}", make, model=model)


def _reduce_scatter(
    at: Place, op: MPI.Op, parts: Sequence[int], *, in_place: bool, call: str = "Reduce_scatter"
) -> Case:
    operation, total, mine = operation_of(op), sum(parts), parts[at.rank]
    own = at.wide_vectors(op, total)[at.rank]

    def make(_: Rounding) -> Prepared:
        target = own.copy() if in_place else nothing(mine)
        counts = () if call == "Reduce_scatter_block" else (list(parts),)
        return Prepared((MPI.IN_PLACE if in_place else own, target, *counts, op), (target[:mine],))

    def model() -> Observed:
        span = consecutive(list(parts))[at.rank]
        cut = [vector[span.start : span.stop] for vector in at.wide_vectors(op, total)]
        spans = [Span(0, mine if rank == at.rank else 0) for rank in range(at.size)]
        return (reference.reduce_scatter(cut, spans, at.hop, operation)[at.rank],)

    words = f"{operation.name}, counts {list(parts)}{', in place' if in_place else ''}"
    return Case(call, words, make, model=model)
