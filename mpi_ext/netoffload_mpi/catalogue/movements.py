"""The collectives that move values without combining them: plans and cases."""

from __future__ import annotations

from typing import Any, Protocol

from netoffload.collectives import alltoall, barrier, broadcast, gather, ring_allgather, scatter
from netoffload.collectives.schedule import Span
from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.buffers import equal_blocks, float_vector, is_in_place, uneven_blocks
from netoffload_mpi.catalogue.rows import row
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.plans import Place, Plan, check_root, copy, not_in_place, source_of


class BlocksOf(Protocol):
    """``equal_blocks`` or ``uneven_blocks``."""

    def __call__(self, spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
        """Return a vector, and the places of its blocks."""


def plan_broadcast(place: Place, buf: Any, root: int = 0) -> Plan:
    """Give every rank the values of ``root``; the root rounds its own to what the others receive."""
    check_root(place, root)
    values = float_vector(buf, writable=True)

    def run(plane: MpiPlane) -> None:
        broadcast(plane.exchange, values, root=root, tagged=True, quantise=plane.quantise)

    return Plan(run)


def plan_allgather(place: Place, sendbuf: Any, recvbuf: Any) -> Plan:
    """Give every rank the equal blocks of all ranks; each rank rounds its own to what the others receive."""
    return _plan_allgather(place, sendbuf, recvbuf, equal_blocks)


def plan_allgatherv(place: Place, sendbuf: Any, recvbuf: Any) -> Plan:
    """Give every rank the blocks of all ranks, of any length: ``recvbuf`` is ``[data, counts, displs, MPI.FLOAT]``."""
    return _plan_allgather(place, sendbuf, recvbuf, uneven_blocks)


def _plan_allgather(place: Place, sendbuf: Any, recvbuf: Any, blocks_of: BlocksOf) -> Plan:
    values, spans = blocks_of(recvbuf, place.size, writable=True)
    own = values[spans[place.rank].start : spans[place.rank].stop]
    source = source_of(sendbuf, own)

    def run(plane: MpiPlane) -> None:
        copy(own, source)
        ring_allgather(plane.exchange, values, spans, tagged=True, quantise=plane.quantise)

    return Plan(run)


def plan_gather(place: Place, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Collect equal blocks on ``root``, which alone uses ``recvbuf``. The root's own block stays exact."""
    return _plan_gather(place, sendbuf, recvbuf, root, equal_blocks)


def plan_gatherv(place: Place, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Collect blocks of any length on ``root``: ``recvbuf`` is ``[data, counts, displs, MPI.FLOAT]`` there."""
    return _plan_gather(place, sendbuf, recvbuf, root, uneven_blocks)


def _plan_gather(place: Place, sendbuf: Any, recvbuf: Any, root: int, blocks_of: BlocksOf) -> Plan:
    check_root(place, root)
    values, spans, own = _root_blocks(place, recvbuf, root, blocks_of=blocks_of, writable=True)
    source = source_of(sendbuf, own) if own is not None else float_vector(not_in_place(sendbuf), writable=False)
    block = own if source is None else source
    assert block is not None

    def run(plane: MpiPlane) -> None:
        gather(plane.exchange, block, values, spans, root=root, tagged=True)

    return Plan(run)


def plan_scatter(place: Place, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Send every rank an equal block from ``root``, which alone uses ``sendbuf``. The root's own block stays exact."""
    return _plan_scatter(place, sendbuf, recvbuf, root, equal_blocks)


def plan_scatterv(place: Place, sendbuf: Any, recvbuf: Any, root: int = 0) -> Plan:
    """Send every rank a block of any length: ``sendbuf`` is ``[data, counts, displs, MPI.FLOAT]`` on ``root``."""
    return _plan_scatter(place, sendbuf, recvbuf, root, uneven_blocks)


def _plan_scatter(place: Place, sendbuf: Any, recvbuf: Any, root: int, blocks_of: BlocksOf) -> Plan:
    check_root(place, root)
    values, spans, own = _root_blocks(place, sendbuf, root, blocks_of=blocks_of, writable=False)
    target = own if is_in_place(recvbuf) and own is not None else float_vector(not_in_place(recvbuf), writable=True)

    def run(plane: MpiPlane) -> None:
        scatter(plane.exchange, values, spans, target, root=root, tagged=True)

    return Plan(run)


def plan_alltoall(place: Place, sendbuf: Any, recvbuf: Any) -> Plan:
    """Send each rank one of this rank's equal blocks. The block that stays is exact."""
    return _plan_alltoall(place, sendbuf, recvbuf, equal_blocks)


def plan_alltoallv(place: Place, sendbuf: Any, recvbuf: Any) -> Plan:
    """Send each rank a block of any length: both buffers are ``[data, counts, displs, MPI.FLOAT]``."""
    return _plan_alltoall(place, sendbuf, recvbuf, uneven_blocks)


def _plan_alltoall(place: Place, sendbuf: Any, recvbuf: Any, blocks_of: BlocksOf) -> Plan:
    target, target_spans = blocks_of(recvbuf, place.size, writable=True)
    in_place = is_in_place(sendbuf)
    source, source_spans = (target, target_spans) if in_place else blocks_of(sendbuf, place.size, writable=False)

    def run(plane: MpiPlane) -> None:
        values = source
        if in_place:
            values = plane.work(source.size)
            copy(values, source)
        alltoall(plane.exchange, values, source_spans, target, target_spans, tagged=True)

    return Plan(run)


def plan_barrier(_place: Place) -> Plan:
    """Return when all ranks have entered. Unlike ``Barrier`` it sleeps, and leaves its core to other processes."""
    return Plan(lambda plane: barrier(plane.exchange))


def _root_blocks(
    place: Place, spec: Any, root: int, *, blocks_of: BlocksOf, writable: bool
) -> tuple[Float32Array | None, tuple[Span, ...] | None, Float32Array | None]:
    """Return the root's vector, the places of its blocks, and the root's own block; on other ranks None three times."""
    if place.rank != root:
        return None, None, None
    values, spans = blocks_of(spec, place.size, writable=writable)
    return values, spans, values[spans[root].start : spans[root].stop]


class Movements(PlaneComm):
    """The calls that move values; :class:`~netoffload_mpi.comm.CompComm` says what calls have in common."""

    Bcast_comp, Ibcast_comp = row("Bcast_comp", plan_broadcast)
    Gather_comp, Igather_comp = row("Gather_comp", plan_gather)
    Gatherv_comp, Igatherv_comp = row("Gatherv_comp", plan_gatherv)
    Scatter_comp, Iscatter_comp = row("Scatter_comp", plan_scatter)
    Scatterv_comp, Iscatterv_comp = row("Scatterv_comp", plan_scatterv)
    Allgather_comp, Iallgather_comp = row("Allgather_comp", plan_allgather)
    Allgatherv_comp, Iallgatherv_comp = row("Allgatherv_comp", plan_allgatherv)
    Alltoall_comp, Ialltoall_comp = row("Alltoall_comp", plan_alltoall)
    Alltoallv_comp, Ialltoallv_comp = row("Alltoallv_comp", plan_alltoallv)
    Barrier_comp = row("Barrier_comp", plan_barrier)[0]
