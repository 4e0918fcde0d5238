"""The collectives that reduce to one rank, or to a part for each: plans, and cases of every operation and form."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from netoffload.collectives import (
    reduce,
    ring_allgather,
    ring_reduce_scatter,
)
from netoffload.collectives.exchange import Exchange
from netoffload.collectives.schedule import consecutive, partition
from netoffload.collectives.transfer import aborting_on_error
from netoffload.errors import UsageError
from netoffload_mpi.buffers import float_vector, is_in_place
from netoffload_mpi.catalogue.rows import row
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.plans import Place, Plan, check_root, copy, not_in_place, operation_of, source_of


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


class Reductions(PlaneComm):
    """The calls that reduce; :class:`~netoffload_mpi.comm.CompComm` says what calls have in common."""

    Reduce_comp, Ireduce_comp = row("Reduce_comp", plan_reduce)
    Reduce_scatter_comp, Ireduce_scatter_comp = row("Reduce_scatter_comp", plan_reduce_scatter)
    Reduce_scatter_block_comp, Ireduce_scatter_block_comp = row("Reduce_scatter_block_comp", plan_reduce_scatter_block)
