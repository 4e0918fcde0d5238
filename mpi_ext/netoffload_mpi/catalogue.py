"""The catalogue of collectives: a row for each, from which its blocking and its non-blocking method are made.

A row is a name and a *plan*: the function that checks a call's arguments, and gives the methods signature and
docstring. To make a plan uses nothing but the arguments. So a wrong type is refused before an octet moves, and in the
caller's thread, even if another thread carries the plan out.

A new collective is a row here, its algorithm in ``netoffload.collectives``, its number there (``announcement.Call``),
and its cases in ``tests/mpi/verify/collectives.py``.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, cast

import numpy as np
from mpi4py import MPI

from netoffload import collectives
from netoffload.collectives import Groups, Half, Operation
from netoffload.collectives.announcement import Announcement, Call, check_root, met
from netoffload.collectives.exchange import Exchange
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.compiled.arrays import Float32Array, Uint16Array
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi.buffers import BufferTypeError, float_vector, is_in_place, numbers, uneven_blocks
from netoffload_mpi.lifecycle import Plan, PlaneComm, RankOfSize
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.requests import CompRequest

P = ParamSpec("P")

_OPERATIONS = (
    (MPI.SUM, Operation.SUM),
    (MPI.MAX, Operation.MAX),
    (MPI.MIN, Operation.MIN),
    (MPI.PROD, Operation.PROD),
)

ALGORITHMS = ("ring", "hierarchical", "wa", "mpi")
"""Algorithms of an allreduce: one ring; rings of rings; an aggregator; plain MPI, uncompressed."""


def plan_allreduce(
    place: RankOfSize,
    sendbuf: Any,
    recvbuf: Any,
    op: MPI.Op = MPI.SUM,
    *,
    algorithm: str = "ring",
    groups: Groups | None = None,
    top: str = "ring",
    average: bool = False,
) -> Plan:
    """Reduce over all ranks, to all ranks, which end with bit-identical values.

    The codec's error is added once per hop. ``op`` is ``MPI.SUM``, ``MAX``, ``MIN`` or ``PROD``; ``average`` divides
    the sum by the number of ranks. ``algorithm`` is ``ring``; ``hierarchical`` (rings of rings); ``wa`` (rank 0
    aggregates; only what goes up is tagged); or ``mpi`` (plain MPI, uncompressed).

    For ``hierarchical``, ``groups`` are lists of ranks, the same on all ranks. None: the ranks of each /24 network, or
    on one network groups of about the square root of the number of ranks. ``top`` adds the groups' sums: ``ring`` or
    ``wa``.
    """
    operation, divisor = operation_of(op, average=average), place.size if average else 1
    check_choice("algorithm", algorithm, ALGORITHMS)
    values, half = numbers(recvbuf, writable=True)
    source = source_of(sendbuf, values, half)

    def reduce_floats(plane: MpiPlane, source: Float32Array | None, values: Float32Array) -> None:
        exchange = plane.exchange
        if algorithm == "ring":
            plane.allreduce(values, operation, tagged=True, source=source)
        else:
            copy(values, source)
        if algorithm == "hierarchical":
            collectives.hierarchical_allreduce(
                exchange,
                values,
                plane.groups() if groups is None else groups,
                tagged=True,
                top=top,
                operation=operation,
                quantise=plane.quantise,
                chunk_floats=plane.chunk_floats(),
            )
        elif algorithm == "wa":
            collectives.aggregator_allreduce(exchange, values, tagged=True, operation=operation)
        elif algorithm == "mpi":
            with met(exchange, Announcement(Call.PLAIN_ALLREDUCE, values.size, False, operation)):
                plane.mpi.Allreduce(MPI.IN_PLACE, [values, MPI.FLOAT], op)
        divide(values, divisor)

    def reduce_halves(plane: MpiPlane, half: Half, halves: Uint16Array) -> None:
        copy(values, source)
        if algorithm == "ring" and plane.keeps_bits:
            plane.allreduce_halves(halves, half, operation, tagged=True, divisor=divisor)
            return
        wide = half.widened(halves)  # a codec that rounds takes fewer octets for a float than 16 bits
        reduce_floats(plane, None, wide)
        halves[:] = half.narrowed(wide)

    calling = _calling("Allreduce_comp", values.size, half, average)
    if half is None:
        # What an aggregator sends down is untagged.
        has_aggregator = algorithm == "wa" or (algorithm == "hierarchical" and top == "wa")
        lanes = (Lane.TAGGED, Lane.UNTAGGED) if has_aggregator else (Lane.TAGGED,)
        return Plan(lambda plane: reduce_floats(plane, source, values), lanes, calling)
    halves = cast("Uint16Array", values)
    return Plan(lambda plane: reduce_halves(plane, half, halves), (Lane.TAGGED, Lane.UNTAGGED), calling)


def plan_allreduce_ring(
    place: RankOfSize, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, *, average: bool = False
) -> Plan:
    """Do :meth:`Allreduce_comp` untagged: the uncompressed baseline, exact."""
    operation, divisor = operation_of(op, average=average), place.size if average else 1
    values, half = numbers(recvbuf, writable=True)
    source = source_of(sendbuf, values, half)

    def run(plane: MpiPlane) -> None:
        if half is None:
            plane.allreduce(values, operation, tagged=False, source=source)
            divide(values, divisor)
            return
        copy(values, source)
        plane.allreduce_halves(cast("Uint16Array", values), half, operation, tagged=False, divisor=divisor)

    return Plan(run, (Lane.UNTAGGED,), _calling("Allreduce_ring", values.size, half, average))


def _calling(name: str, count: int, half: Half | None, average: bool) -> str:
    """Return what ranks must agree on beyond the algorithm, in words; empty: nothing."""
    what = f"{name} of {count} {half.value if half else 'floats'}{' with average=True' * average}"
    return what if half or average else ""


def divide(values: Float32Array, divisor: int) -> None:
    """Divide in place."""
    if divisor > 1:
        np.divide(values, np.float32(divisor), out=values)


def plan_reduce(place: RankOfSize, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> Plan:
    """Reduce over all ranks, to ``root``, which alone uses ``recvbuf``."""
    operation = operation_of(op)
    check_root(root, place.size)
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
        collectives.reduce(
            plane.exchange, values, root=root, tagged=True, operation=operation, chunk_floats=plane.chunk_floats()
        )

    return Plan(run)


def plan_reduce_scatter(
    place: RankOfSize, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
) -> Plan:
    """Reduce over all ranks, and leave the next ``recvcounts[r]`` floats of the result with every rank r.

    ``recvcounts`` must be the same on all ranks. Without it each rank gets as much as its receive buffer holds.
    """
    return _plan_reduce_scatter(place, sendbuf, recvbuf, recvcounts, op, equal=False)


def plan_reduce_scatter_block(place: RankOfSize, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Plan:
    """Reduce over all ranks, and leave an equal part of the result with each rank."""
    return _plan_reduce_scatter(place, sendbuf, recvbuf, None, op, equal=True)


def _plan_reduce_scatter(
    place: RankOfSize, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op, *, equal: bool
) -> Plan:
    operation, in_place = operation_of(op), is_in_place(sendbuf)
    if equal and in_place:
        target, _ = place.blocks_of(recvbuf, place.size, writable=True)  # a count is that of a part
    else:
        target = float_vector(recvbuf, writable=True)
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
            _check_counts(place, counts, source.size, target.size)
        spans = consecutive(counts)
        values, span = plane.work(source.size), spans[place.rank]
        copy(values, source)
        collectives.ring_reduce_scatter(
            plane.exchange, values, spans, tagged=True, operation=operation, chunk_floats=plane.chunk_floats()
        )
        copy(target[: len(span)], values[span.start : span.stop])

    return Plan(run)


def _check_counts(place: RankOfSize, counts: Sequence[int], sent: int, room: int) -> None:
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
    collectives.ring_allgather(
        exchange, counts.view(np.float32), partition(2 * exchange.size, exchange.size), tagged=False
    )
    return [int(number) for number in counts]


def plan_broadcast(place: RankOfSize, buf: Any, root: int = 0) -> Plan:
    """Give every rank the values of ``root``; the root rounds its own to what the others receive."""
    check_root(root, place.size)
    values = float_vector(buf, writable=True)
    return Plan(
        lambda plane: collectives.broadcast(plane.exchange, values, root=root, tagged=True, quantise=plane.quantise)
    )


def plan_allgather(place: RankOfSize, sendbuf: Any, recvbuf: Any) -> Plan:
    """Give every rank the equal blocks of all ranks; each rank rounds its own to what the others receive."""
    values, spans = place.blocks_of(recvbuf, place.size, writable=True)
    own = values[spans[place.rank].start : spans[place.rank].stop]
    source = source_of(sendbuf, own)

    def run(plane: MpiPlane) -> None:
        copy(own, source)
        collectives.ring_allgather(plane.exchange, values, spans, tagged=True, quantise=plane.quantise)

    return Plan(run)


def plan_gather(place: RankOfSize, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Collect equal blocks on ``root``, which alone uses ``recvbuf``. The root's own block stays exact."""
    values, spans, own = _root_blocks(place, recvbuf, root, writable=True)
    source = source_of(sendbuf, own) if own is not None else float_vector(not_in_place(sendbuf), writable=False)
    block = own if source is None else source
    assert block is not None
    return Plan(lambda plane: collectives.gather(plane.exchange, block, values, spans, root=root, tagged=True))


def plan_scatter(place: RankOfSize, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Send every rank an equal block from ``root``, which alone uses ``sendbuf``. The root's own block stays exact."""
    values, spans, own = _root_blocks(place, sendbuf, root, writable=False)
    target = own if is_in_place(recvbuf) and own is not None else float_vector(not_in_place(recvbuf), writable=True)
    return Plan(lambda plane: collectives.scatter(plane.exchange, values, spans, target, root=root, tagged=True))


def plan_alltoall(place: RankOfSize, sendbuf: Any, recvbuf: Any) -> Plan:
    """Send each rank one of this rank's equal blocks. The block that stays is exact."""
    target, target_spans = place.blocks_of(recvbuf, place.size, writable=True)
    in_place = is_in_place(sendbuf)
    source, source_spans = (target, target_spans) if in_place else place.blocks_of(sendbuf, place.size, writable=False)

    def run(plane: MpiPlane) -> None:
        values = source
        if in_place:
            values = plane.work(source.size)
            copy(values, source)
        collectives.alltoall(plane.exchange, values, source_spans, target, target_spans, tagged=True)

    return Plan(run)


def plan_barrier(_place: RankOfSize) -> Plan:
    """Return when all ranks have entered. Unlike ``Barrier`` it sleeps, and leaves its core to other processes."""
    return Plan(lambda plane: collectives.barrier(plane.exchange))


def _root_blocks(
    place: RankOfSize, spec: Any, root: int, *, writable: bool
) -> tuple[Float32Array | None, tuple[Span, ...] | None, Float32Array | None]:
    """Return the root's vector, the places of its blocks, and the root's own block; on other ranks None three times."""
    check_root(root, place.size)
    if place.rank != root:
        return None, None, None
    values, spans = place.blocks_of(spec, place.size, writable=writable)
    return values, spans, values[spans[root].start : spans[root].stop]


def operation_of(op: MPI.Op, *, average: bool = False) -> Operation:
    """Return the operation for one of MPI's; only sums have an average."""
    operation = next((ours for known, ours in _OPERATIONS if op == known), None)
    if operation is None:
        raise UsageError(
            "only MPI.SUM, MAX, MIN and PROD can be reduced here: use mpi4py's own calls for other operations"
        )
    if not isinstance(average, bool):
        raise UsageError(f"average is {average!r}: give True or False")
    if average and operation is not Operation.SUM:
        raise UsageError("average=True goes with MPI.SUM only")
    return operation


def source_of(sendbuf: Any, target: Float32Array, half: Half | None = None) -> Float32Array | None:
    """Return the send buffer, of the target's length and 16-bit type; None if it is the target."""
    if is_in_place(sendbuf):
        return None
    source, own = numbers(sendbuf, writable=False) if half else (float_vector(sendbuf, writable=False), None)
    if own is not half:
        raise BufferTypeError("send buffer and receive buffer differ in their types: make them equal")
    if source.size != target.size:
        raise UsageError(f"send buffer of {source.size} floats, receive buffer of {target.size}: make them equal")
    return source


def not_in_place(spec: Any) -> Any:
    """Return a specification if it names a buffer."""
    if is_in_place(spec):
        raise UsageError("MPI.IN_PLACE and None are for the root only: give this rank's buffer")
    return spec


def copy(target: Float32Array, source: Float32Array | None) -> None:
    """Copy ``source`` to ``target``, unless they are the same memory."""
    if source is not None and target.size and target.ctypes.data != source.ctypes.data:
        np.copyto(target, source)


def row(
    name: str, plan: Callable[Concatenate[RankOfSize, P], Plan]
) -> tuple[Callable[Concatenate[PlaneComm, P], None], Callable[Concatenate[PlaneComm, P], CompRequest]]:
    """Return the blocking method of this name and the one that starts it, with the plan's arguments."""

    def call(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> None:
        planned = self._plan(plan, arguments, options, is_blocking=True)
        self.calls().run(*planned)

    def start(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> CompRequest:
        planned = self._plan(plan, arguments, options, is_blocking=False)
        # The set-up happens in the caller's thread, because it is collective and calls MPI.
        return CompRequest(self.calls().start(*planned))

    call.__name__, start.__name__ = name, f"I{name[0].lower()}{name[1:]}"
    call.__doc__, start.__doc__ = plan.__doc__, f"Start :meth:`{name}`."
    signature = inspect.signature(plan)
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *list(signature.parameters.values())[1:]]
    for method, returned in ((call, None), (start, "CompRequest")):  # help() shows the plan's arguments
        method.__dict__["__signature__"] = signature.replace(parameters=own, return_annotation=returned)
    return call, start


def uneven(equal: str, plan: Callable[Concatenate[RankOfSize, P], Plan]) -> Callable[Concatenate[RankOfSize, P], Plan]:
    """Return a plan for blocks of any length, by that of the method ``equal``."""

    @functools.wraps(plan)
    def plan_uneven(place: RankOfSize, /, *arguments: P.args, **options: P.kwargs) -> Plan:
        return plan(place._replace(blocks_of=uneven_blocks), *arguments, **options)

    plan_uneven.__doc__ = f"Do :meth:`{equal}` with blocks of any length: ``[data, counts, displs, MPI.FLOAT]``."
    return plan_uneven


class Catalogue(PlaneComm):
    """The collectives; :class:`~netoffload_mpi.comm.CompComm` says what they have in common."""

    Allreduce_comp, Iallreduce_comp = row("Allreduce_comp", plan_allreduce)
    Allreduce_ring = row("Allreduce_ring", plan_allreduce_ring)[0]
    Reduce_comp, Ireduce_comp = row("Reduce_comp", plan_reduce)
    Reduce_scatter_comp, Ireduce_scatter_comp = row("Reduce_scatter_comp", plan_reduce_scatter)
    Reduce_scatter_block_comp, Ireduce_scatter_block_comp = row("Reduce_scatter_block_comp", plan_reduce_scatter_block)
    Bcast_comp, Ibcast_comp = row("Bcast_comp", plan_broadcast)
    Gather_comp, Igather_comp = row("Gather_comp", plan_gather)
    Gatherv_comp, Igatherv_comp = row("Gatherv_comp", uneven("Gather_comp", plan_gather))
    Scatter_comp, Iscatter_comp = row("Scatter_comp", plan_scatter)
    Scatterv_comp, Iscatterv_comp = row("Scatterv_comp", uneven("Scatter_comp", plan_scatter))
    Allgather_comp, Iallgather_comp = row("Allgather_comp", plan_allgather)
    Allgatherv_comp, Iallgatherv_comp = row("Allgatherv_comp", uneven("Allgather_comp", plan_allgather))
    Alltoall_comp, Ialltoall_comp = row("Alltoall_comp", plan_alltoall)
    Alltoallv_comp, Ialltoallv_comp = row("Alltoallv_comp", uneven("Alltoall_comp", plan_alltoall))
    Barrier_comp = row("Barrier_comp", plan_barrier)[0]
