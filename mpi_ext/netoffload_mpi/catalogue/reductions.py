"""The collectives that reduce to one rank, or to a part for each: plans, and cases of every operation and form."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from netoffload.collectives import (
    reduce,
    reference,
    ring_allgather,
    ring_reduce_scatter,
)
from netoffload.collectives.exchange import Exchange
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.collectives.transfer import aborting_on_error
from netoffload.errors import UsageError
from netoffload_mpi.buffers import float_vector, is_in_place
from netoffload_mpi.catalogue.rows import equal_parts, row, short
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.plans import Place, Plan, check_root, copy, not_in_place, operation_of, source_of
from netoffload_mpi.verify.cases import OPS, WEIGHTS, Case, Observed, Prepared, Rounding, nothing
from netoffload_mpi.verify.cases import Place as TriedPlace


def plan_reduce(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> Plan:
    """Reduce over all ranks, to ``root``, which alone uses ``recvbuf``."""
    operation = operation_of(op)
    check_root(place, root)
    if place.rank == root:
        target = float_vector(recvbuf, writable=True)
        source = source_of(sendbuf, target)
    else:
        target, source = None, float_vector(not_in_place(sendbuf), writable=False)

    def run(plane: MpiPlane) -> None:
        values = target
        if values is None:
            assert source is not None
            values = plane.work(source.size)
        copy(values, source)
        reduce(plane.exchange, values, root=root, tagged=True, operation=operation, chunk_floats=plane.chunk_floats())

    return Plan(run)


def plan_reduce_scatter(
    place: Place, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
) -> Plan:
    """Reduce over all ranks, and leave the next ``recvcounts[r]`` floats of the result with every rank r.

    ``recvcounts`` must be the same on all ranks. Without it each rank gets as much as its receive buffer holds.
    """
    return _plan_reduce_scatter(place, sendbuf, recvbuf, recvcounts, op, equal=False)


def plan_reduce_scatter_block(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Plan:
    """Reduce over all ranks, and leave an equal part of the result with each rank."""
    return _plan_reduce_scatter(place, sendbuf, recvbuf, None, op, equal=True)


def _plan_reduce_scatter(
    place: Place, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op, *, equal: bool
) -> Plan:
    operation = operation_of(op)
    target = float_vector(recvbuf, writable=True)
    in_place = is_in_place(sendbuf)
    source = target if in_place else float_vector(sendbuf, writable=False)
    known: list[int] | None = None
    if recvcounts is not None:
        known = [operator.index(count) for count in recvcounts]
    elif equal:
        known = [(source.size // place.size) if in_place else target.size] * place.size
    elif in_place:
        raise UsageError("give recvcounts, the number of floats that each rank receives: the buffer holds all of them")
    if known is not None:
        _check_counts(place, known, source.size, target.size)

    def run(plane: MpiPlane) -> None:
        counts = known
        if counts is None:
            counts = _gather_counts(plane.exchange, target.size)
            with aborting_on_error(plane.exchange):
                _check_counts(place, counts, source.size, target.size)
        spans = consecutive(counts)
        values, span = plane.work(source.size), spans[place.rank]
        copy(values, source)
        ring_reduce_scatter(
            plane.exchange, values, spans, tagged=True, operation=operation, chunk_floats=plane.chunk_floats()
        )
        copy(target[: len(span)], values[span.start : span.stop])

    return Plan(run)


def _check_counts(place: Place, counts: Sequence[int], sent: int, room: int) -> None:
    """Raise UsageError unless ``counts`` add up to ``sent``, and this rank's part fits into ``room``."""
    if len(counts) != place.size or min(counts) < 0 or sum(counts) != sent:
        raise UsageError(
            f"counts {counts} for {place.size} ranks do not add up to the {sent} floats of the send buffer"
        )
    if room < counts[place.rank]:
        raise UsageError(f"receive buffer of {room} floats is shorter than {counts[place.rank]}, this rank's part")


def _gather_counts(exchange: Exchange, count: int) -> list[int]:
    """Return the counts of all ranks; they travel untagged, so the octets of integers stay exact."""
    counts = np.zeros(exchange.size, np.int64)
    counts[exchange.rank] = count
    ring_allgather(exchange, counts.view(np.float32), partition(2 * exchange.size, exchange.size), tagged=False)
    return [int(number) for number in counts]


def _reduces(at: TriedPlace) -> Iterator[Case]:
    for op in OPS:
        yield _reduce(at, op, at.size // 2, in_place=False)
        yield _reduce(at, op, 0, in_place=True)


def _reduce_scatters(at: TriedPlace) -> Iterator[Case]:
    for op, in_place in _SCATTERED:
        yield _reduce_scatter(at, op, _shares(at.count, at.size), in_place=in_place)
        yield _reduce_scatter(at, op, _blocks(at), in_place=in_place)


def _reduce_scatter_blocks(at: TriedPlace) -> Iterator[Case]:
    for op, in_place in _SCATTERED:
        yield _reduce_scatter(at, op, _blocks(at), in_place=in_place, call="Reduce_scatter_block")


_SCATTERED = ((MPI.SUM, False), (MPI.SUM, True), (MPI.MAX, False), (MPI.MIN, True), (MPI.PROD, False))
"""Operations to try, and whether in place."""


def _blocks(at: TriedPlace) -> list[int]:
    return [-(-at.count // at.size)] * at.size


def _shares(count: int, size: int) -> list[int]:
    """Cut ``count`` into uneven parts; some are empty."""
    weights = [WEIGHTS[rank % len(WEIGHTS)] for rank in range(size)]
    parts = [count * weight // sum(weights) for weight in weights]
    parts[0] += count - sum(parts)
    return parts


def _reduce(at: TriedPlace, op: MPI.Op, root: int, *, in_place: bool) -> Case:
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
    at: TriedPlace, op: MPI.Op, parts: Sequence[int], *, in_place: bool, call: str = "Reduce_scatter"
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


class Reductions(PlaneComm):
    """The calls that reduce; :class:`~netoffload_mpi.comm.CompComm` says what calls have in common."""

    Reduce_comp, Ireduce_comp = row(
        "Reduce_comp",
        plan_reduce,
        _reduces,
        {
            "reduce, chain": lambda comm, values: comm.Reduce_comp(values, np.empty_like(values)),
            "reduce, tree": lambda comm, values: comm.Reduce_comp(short(values), np.empty_like(short(values))),
        },
    )
    Reduce_scatter_comp, Ireduce_scatter_comp = row("Reduce_scatter_comp", plan_reduce_scatter, _reduce_scatters, {})
    Reduce_scatter_block_comp, Ireduce_scatter_block_comp = row(
        "Reduce_scatter_block_comp",
        plan_reduce_scatter_block,
        _reduce_scatter_blocks,
        {
            "reduce-scatter": lambda comm, values: comm.Reduce_scatter_block_comp(
                MPI.IN_PLACE, equal_parts(comm, values)
            )
        },
    )
