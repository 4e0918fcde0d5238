"""Plans: a collective's arguments, checked, as a function of the data plane that will carry it.

Making a plan touches nothing but the arguments, so a wrong type is refused before an octet moves, and in the caller's
own thread even where the plan is carried out by another one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from netoffload.collectives import (
    Groups,
    Operation,
    aggregator_allreduce,
    alltoall,
    barrier,
    broadcast,
    gather,
    hierarchical_allreduce,
    is_short,
    reduce,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scatter,
)
from netoffload.collectives.announcement import Announcement, Call, digest_of, meet
from netoffload.collectives.exchange import Exchange
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.collectives.transfer import aborting_on_error
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.transport.lanes import Lane
from netoffload_mpi.buffers import equal_blocks, float_vector, is_in_place, uneven_blocks
from netoffload_mpi.plane import MpiPlane

Plan = Callable[[MpiPlane], None]

ALGORITHMS = ("ring", "hierarchical", "wa", "mpi")
"""Of an allreduce: one ring; rings of rings; an aggregator; plain MPI, uncompressed."""

AVERAGE = digest_of([1])
"""Announced by ranks that divide the sum."""

_OPERATIONS = (
    (MPI.SUM, Operation.SUM),
    (MPI.MAX, Operation.MAX),
    (MPI.MIN, Operation.MIN),
    (MPI.PROD, Operation.PROD),
)


class Place(NamedTuple):
    """Where this rank is in its communicator."""

    rank: int
    size: int


def operation_of(op: MPI.Op) -> Operation:
    """Return what an MPI operation is called here.

    Raises:
        UsageError: one that makes no sense for float32, or is the user's own.
    """
    for known, operation in _OPERATIONS:
        if op == known:
            return operation
    raise UsageError("only MPI.SUM, MAX, MIN and PROD can be reduced here: use mpi4py's own calls for other operations")


@dataclass(frozen=True)
class AllreduceOptions:
    """How an allreduce is done; ``CompComm.Allreduce_comp`` describes the fields."""

    algorithm: str = "ring"
    groups: Groups | None = None
    top: str = "ring"
    average: bool = False
    tagged: bool = True

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Which lanes data goes over; what an aggregator sends down is untagged."""
        if not self.tagged:
            return (Lane.UNTAGGED,)
        has_aggregator = self.algorithm == "wa" or (self.algorithm == "hierarchical" and self.top == "wa")
        return (Lane.TAGGED, Lane.UNTAGGED) if has_aggregator else (Lane.TAGGED,)


def plan_allreduce(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op, options: AllreduceOptions) -> Plan:
    """Plan an allreduce."""
    operation = operation_of(op)
    check_choice("algorithm", options.algorithm, ALGORITHMS)
    if options.average and operation is not Operation.SUM:
        raise UsageError("average=True goes with MPI.SUM only")
    values = float_vector(recvbuf, writable=True)
    source = _source(sendbuf, values)
    tagged, agreed = options.tagged, AVERAGE if options.average else 0
    divisor = np.float32(place.size) if options.average else None

    def run_short(plane: MpiPlane) -> None:
        call = plane.short_allreduce(values.size, operation, tagged=tagged, agreed=agreed)
        call(values if source is None else source, values)
        if divisor is not None:
            np.divide(values, divisor, out=values)

    if options.algorithm == "ring" and is_short(values.size, place.size):
        return run_short

    def run(plane: MpiPlane) -> None:
        exchange, chunk_floats = plane.exchange, plane.chunk_floats()
        quantise = plane.quantise if tagged else None
        _copy(values, source)
        if options.algorithm == "mpi":
            with aborting_on_error(exchange):
                meet(exchange, Announcement(Call.PLAIN_ALLREDUCE, values.size, False, operation, digest=agreed))
            plane.mpi.Allreduce(MPI.IN_PLACE, [values, MPI.FLOAT], op)
        elif options.algorithm == "wa":
            aggregator_allreduce(exchange, values, tagged=tagged, operation=operation, agreed=agreed)
        elif options.algorithm == "hierarchical":
            groups = plane.groups() if options.groups is None else options.groups
            hierarchical_allreduce(
                exchange,
                values,
                groups,
                tagged=tagged,
                top=options.top,
                operation=operation,
                quantise=quantise,
                chunk_floats=chunk_floats,
                agreed=agreed,
            )
        else:
            ring_allreduce(
                exchange,
                values,
                tagged=tagged,
                operation=operation,
                quantise=quantise,
                chunk_floats=chunk_floats,
                agreed=agreed,
            )
        if divisor is not None:
            np.divide(values, divisor, out=values)

    return run


def plan_reduce(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int) -> Plan:
    """Plan a reduce; ``recvbuf`` counts on the root only."""
    operation = operation_of(op)
    _check_root(place, root)
    if place.rank == root:
        target = float_vector(recvbuf, writable=True)
        source = _source(sendbuf, target)
    else:
        target, source = None, float_vector(_not_in_place(sendbuf), writable=False)

    def run(plane: MpiPlane) -> None:
        values = target
        if values is None:
            assert source is not None
            values = plane.work(source.size)
        _copy(values, source)
        reduce(plane.exchange, values, root=root, tagged=True, operation=operation, chunk_floats=plane.chunk_floats())

    return run


def plan_reduce_scatter(
    place: Place, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op, *, equal: bool
) -> Plan:
    """Plan a reduce-scatter; ``equal``: every rank gets as much as its receive buffer holds.

    Without ``recvcounts`` ranks tell each other how much their receive buffers hold.
    """
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
        _copy(values, source)
        ring_reduce_scatter(
            plane.exchange, values, spans, tagged=True, operation=operation, chunk_floats=plane.chunk_floats()
        )
        _copy(target[: len(span)], values[span.start : span.stop])

    return run


def _check_counts(place: Place, counts: Sequence[int], sent: int, room: int) -> None:
    """Raise UsageError unless ``counts`` divide what is ``sent``, and this rank's part has ``room``."""
    if len(counts) != place.size or min(counts) < 0 or sum(counts) != sent:
        raise UsageError(
            f"counts {counts} for {place.size} ranks do not add up to the {sent} floats of the send buffer"
        )
    if room < counts[place.rank]:
        raise UsageError(f"receive buffer of {room} floats is shorter than {counts[place.rank]}, this rank's part")


def _gather_counts(exchange: Exchange, count: int) -> list[int]:
    """Return the counts of all ranks; untagged, so the words of an integer travel as they are."""
    counts = np.zeros(exchange.size, np.int64)
    counts[exchange.rank] = count
    ring_allgather(exchange, counts.view(np.float32), partition(2 * exchange.size, exchange.size), tagged=False)
    return [int(number) for number in counts]


def plan_broadcast(place: Place, buf: Any, root: int) -> Plan:
    """Plan a broadcast."""
    _check_root(place, root)
    values = float_vector(buf, writable=True)

    def run(plane: MpiPlane) -> None:
        broadcast(plane.exchange, values, root=root, tagged=True, quantise=plane.quantise)

    return run


def plan_allgather(place: Place, sendbuf: Any, recvbuf: Any, *, equal: bool) -> Plan:
    """Plan an allgather, or an allgatherv if not ``equal``."""
    blocks_of = equal_blocks if equal else uneven_blocks
    values, spans = blocks_of(recvbuf, place.size, writable=True)
    own = values[spans[place.rank].start : spans[place.rank].stop]
    source = _source(sendbuf, own)

    def run(plane: MpiPlane) -> None:
        _copy(own, source)
        ring_allgather(plane.exchange, values, spans, tagged=True, quantise=plane.quantise)

    return run


def plan_gather(place: Place, sendbuf: Any, recvbuf: Any, root: int, *, equal: bool) -> Plan:
    """Plan a gather, or a gatherv if not ``equal``; ``recvbuf`` counts on the root only."""
    _check_root(place, root)
    values, spans, own = _root_blocks(place, recvbuf, root, equal=equal, writable=True)
    source = _source(sendbuf, own) if own is not None else float_vector(_not_in_place(sendbuf), writable=False)
    block = own if source is None else source
    assert block is not None

    def run(plane: MpiPlane) -> None:
        gather(plane.exchange, block, values, spans, root=root, tagged=True)

    return run


def plan_scatter(place: Place, sendbuf: Any, recvbuf: Any, root: int, *, equal: bool) -> Plan:
    """Plan a scatter, or a scatterv if not ``equal``; ``sendbuf`` counts on the root only."""
    _check_root(place, root)
    values, spans, own = _root_blocks(place, sendbuf, root, equal=equal, writable=False)
    target = own if is_in_place(recvbuf) and own is not None else float_vector(_not_in_place(recvbuf), writable=True)

    def run(plane: MpiPlane) -> None:
        scatter(plane.exchange, values, spans, target, root=root, tagged=True)

    return run


def plan_alltoall(place: Place, sendbuf: Any, recvbuf: Any, *, equal: bool) -> Plan:
    """Plan an all-to-all, or an alltoallv if not ``equal``."""
    blocks_of = equal_blocks if equal else uneven_blocks
    target, target_spans = blocks_of(recvbuf, place.size, writable=True)
    in_place = is_in_place(sendbuf)
    source, source_spans = (target, target_spans) if in_place else blocks_of(sendbuf, place.size, writable=False)

    def run(plane: MpiPlane) -> None:
        values = source
        if in_place:
            values = plane.work(source.size)
            _copy(values, source)
        alltoall(plane.exchange, values, source_spans, target, target_spans, tagged=True)

    return run


def plan_barrier(_place: Place) -> Plan:
    """Plan a barrier."""
    return lambda plane: barrier(plane.exchange)


def _root_blocks(
    place: Place, spec: Any, root: int, *, equal: bool, writable: bool
) -> tuple[Float32Array | None, tuple[Span, ...] | None, Float32Array | None]:
    """Return the root's vector, its blocks and the root's own one; None three times elsewhere."""
    if place.rank != root:
        return None, None, None
    blocks_of = equal_blocks if equal else uneven_blocks
    values, spans = blocks_of(spec, place.size, writable=writable)
    return values, spans, values[spans[root].start : spans[root].stop]


def _source(sendbuf: Any, target: Float32Array) -> Float32Array | None:
    """Return the send buffer, None if it is the target; as long as the target."""
    if is_in_place(sendbuf):
        return None
    source = float_vector(sendbuf, writable=False)
    if source.size != target.size:
        raise UsageError(f"send buffer of {source.size} floats, receive buffer of {target.size}: make them equal")
    return source


def _not_in_place(spec: Any) -> Any:
    if is_in_place(spec):
        raise UsageError("MPI.IN_PLACE and None are for the root here: give this rank's buffer")
    return spec


def _check_root(place: Place, root: int) -> None:
    if not 0 <= root < place.size:
        raise UsageError(f"root {root} is not a rank: there are {place.size}, counted from 0")


def _copy(target: Float32Array, source: Float32Array | None) -> None:
    if source is not None and target.size and target.ctypes.data != source.ctypes.data:
        np.copyto(target, source)
