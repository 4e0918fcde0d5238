"""The collectives that move values without combining them: plans and cases."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from netoffload.collectives import alltoall, barrier, broadcast, gather, ring_allgather, scatter
from netoffload.collectives.reference import RoundTrip
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.buffers import equal_blocks, float_vector, is_in_place, uneven_blocks
from netoffload_mpi.catalogue.rows import described, equal_parts, row, short
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.plans import Place, Plan, check_root, copy, not_in_place, source_of
from netoffload_mpi.verify.cases import WEIGHTS, Case, Prepared, Rounding, nothing
from netoffload_mpi.verify.cases import Place as TriedPlace


class BlocksOf(Protocol):
    """``equal_blocks`` or ``uneven_blocks``."""

    def __call__(self, spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
        """Return a vector, and the places of its blocks."""
        ...


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


@dataclass(frozen=True)
class Layout:
    """Where the blocks of all ranks are in one buffer, as spans and as mpi4py's specification."""

    spans: tuple[Span, ...]
    length: int
    uneven: bool

    @classmethod
    def of(cls, parts: Sequence[int], *, spread: bool) -> Layout:
        """Put blocks one after the other, or (``spread``) in reverse order and with gaps between them."""
        if not spread:
            return cls(consecutive(list(parts)), sum(parts), False)
        starts = [sum(parts[rank + 1 :]) + 2 * (len(parts) - rank) for rank in range(len(parts))]
        spans = tuple(Span(start, start + part) for start, part in zip(starts, parts, strict=True))
        return cls(spans, sum(parts) + 2 * len(parts) + 3, True)

    def spec(self, buffer: Float32Array) -> list[Any]:
        """Return the buffer specification."""
        counts = [len(span) for span in self.spans]
        return [buffer, counts, [span.start for span in self.spans], MPI.FLOAT] if self.uneven else [buffer, counts]

    def block(self, buffer: Float32Array, rank: int) -> Float32Array:
        """Return the block of ``rank``, sharing memory."""
        return buffer[self.spans[rank].start : self.spans[rank].stop]

    def changed(self, buffer: Float32Array, keep: int | None, change: RoundTrip) -> Float32Array:
        """Return a copy with all blocks changed except the block of rank ``keep``."""
        after = buffer.copy()
        for rank in range(len(self.spans)):
            if rank != keep:
                self.block(after, rank)[:] = change(self.block(buffer, rank))
        return after


def _layouts(at: TriedPlace, call: str) -> Iterator[tuple[str, Layout]]:
    """Yield the layouts to try: equal blocks; for calls with counts also uneven ones, out of order and with gaps."""
    equal = Layout.of([at.count] * at.size, spread=False)
    if call.endswith("v"):
        yield "equal counts", equal
        yield "uneven counts, gaps", Layout.of(block_counts(at.count, at.size), spread=True)
    else:
        yield "", equal


def block_counts(count: int, size: int) -> list[int]:
    """Return the lengths of uneven blocks: 0 to ``count``."""
    return [count * WEIGHTS[rank % len(WEIGHTS)] // 3 for rank in range(size)]


def _broadcasts(at: TriedPlace) -> Iterator[Case]:
    for root in sorted({0, at.size // 2, at.size - 1}):
        yield _broadcast(at, root)


def _placed(at: TriedPlace) -> Iterator[tuple[int, bool]]:
    """Yield a root, and whether it has its block in place."""
    yield at.size // 2, False
    yield 0, True


def _gathers(at: TriedPlace, call: str) -> Iterator[Case]:
    for root, in_place in _placed(at):
        for words, layout in _layouts(at, call):
            yield _gather(at, call, layout, root, in_place, words)


def _scatters(at: TriedPlace, call: str) -> Iterator[Case]:
    for root, in_place in _placed(at):
        for words, layout in _layouts(at, call):
            yield _scatter(at, call, layout, root, in_place, words)


def _allgathers(at: TriedPlace, call: str) -> Iterator[Case]:
    for _, in_place in _placed(at):
        for words, layout in _layouts(at, call):
            yield _allgather(at, call, layout, in_place, words)


def _alltoalls(at: TriedPlace, call: str) -> Iterator[Case]:
    for _, in_place in _placed(at):
        yield _alltoall(at, call, [at.count] * at.size, False, in_place)
        if call == "Alltoallv":
            yield _alltoall(at, call, block_counts(at.count, at.size), True, in_place)


def _broadcast(at: TriedPlace, root: int) -> Case:
    def make(rounding: Rounding) -> Prepared:
        values = nothing(at.count)
        if at.rank == root:
            own = at.draw("cargo", root, at.count)
            values[:] = rounding.owner(own) if at.size > 1 else own
        return Prepared(([values, MPI.FLOAT], root), (values,))

    return Case("Bcast", f"root {root}", make)


def _whole_or(layout: Layout, call: str, buffer: Float32Array) -> Any:
    return layout.spec(buffer) if call.endswith("v") else buffer


def _gather(at: TriedPlace, call: str, layout: Layout, root: int, in_place: bool, words: str) -> Case:
    own = at.draw("cargo", at.rank, len(layout.spans[at.rank]))

    def make(rounding: Rounding) -> Prepared:
        if at.rank != root:
            return Prepared((rounding.hop(own), None, root), ())
        target = nothing(layout.length)
        if in_place:
            layout.block(target, root)[:] = own
        send = MPI.IN_PLACE if in_place else own
        return Prepared((send, _whole_or(layout, call, target), root), (target,))

    return Case(call, described(f"root {root}", "in place" if in_place else "", words), make)


def _scatter(at: TriedPlace, call: str, layout: Layout, root: int, in_place: bool, words: str) -> Case:
    everything = at.draw("cargo", root, layout.length) if at.rank == root else nothing(0)

    def make(rounding: Rounding) -> Prepared:
        target = nothing(len(layout.spans[at.rank]))
        if at.rank != root:
            return Prepared((None, target, root), (target,))
        source = layout.changed(everything, root, rounding.hop)
        if in_place:
            return Prepared((_whole_or(layout, call, source), MPI.IN_PLACE, root), (layout.block(source, root),))
        return Prepared((_whole_or(layout, call, source), target, root), (target,))

    return Case(call, described(f"root {root}", "in place" if in_place else "", words), make)


def _allgather(at: TriedPlace, call: str, layout: Layout, in_place: bool, words: str) -> Case:
    own = at.draw("cargo", at.rank, len(layout.spans[at.rank]))

    def make(rounding: Rounding) -> Prepared:
        mine, target = rounding.owner(own) if at.size > 1 else own, nothing(layout.length)
        if in_place:
            layout.block(target, at.rank)[:] = mine
        return Prepared((MPI.IN_PLACE if in_place else mine, _whole_or(layout, call, target)), (target,))

    return Case(call, described("in place" if in_place else "", words), make)


def _alltoall(at: TriedPlace, call: str, parts: Sequence[int], spread: bool, in_place: bool) -> Case:
    # Blocks between two ranks have equal lengths in both directions, which MPI requires for calls in place.
    lengths = [parts[(at.rank + peer) % at.size] for peer in range(at.size)]
    outward, inward = Layout.of(lengths, spread=spread), Layout.of(lengths, spread=spread and in_place)
    everything = at.draw("cargo", at.rank, outward.length)

    def make(rounding: Rounding) -> Prepared:
        source = outward.changed(everything, at.rank, rounding.hop)
        if in_place:
            return Prepared((MPI.IN_PLACE, _whole_or(outward, call, source)), (source,))
        target = nothing(inward.length)
        return Prepared((_whole_or(outward, call, source), _whole_or(inward, call, target)), (target,))

    words = "" if call == "Alltoall" else "uneven counts, gaps" if spread else "equal counts"
    return Case(call, described("in place" if in_place else "", words), make)


def _scatter_all(comm: Movements, values: Float32Array) -> None:
    everything = np.concatenate([values] * comm.size) if comm.rank == 0 else None
    comm.Scatter_comp(everything, values)


class Movements(PlaneComm):
    """The calls that move values; :class:`~netoffload_mpi.comm.CompComm` says what calls have in common."""

    Bcast_comp, Ibcast_comp = row(
        "Bcast_comp",
        plan_broadcast,
        _broadcasts,
        {
            "broadcast, chain": lambda comm, values: comm.Bcast_comp(values),
            "broadcast, tree": lambda comm, values: comm.Bcast_comp(short(values)),
        },
    )
    Gather_comp, Igather_comp = row(
        "Gather_comp",
        plan_gather,
        functools.partial(_gathers, call="Gather"),
        {"gather": lambda comm, values: comm.Gather_comp(values, np.empty(values.size * comm.size, np.float32))},
    )
    Gatherv_comp, Igatherv_comp = row("Gatherv_comp", plan_gatherv, functools.partial(_gathers, call="Gatherv"), {})
    Scatter_comp, Iscatter_comp = row(
        "Scatter_comp", plan_scatter, functools.partial(_scatters, call="Scatter"), {"scatter": _scatter_all}
    )
    Scatterv_comp, Iscatterv_comp = row(
        "Scatterv_comp", plan_scatterv, functools.partial(_scatters, call="Scatterv"), {}
    )
    Allgather_comp, Iallgather_comp = row(
        "Allgather_comp",
        plan_allgather,
        functools.partial(_allgathers, call="Allgather"),
        {"allgather": lambda comm, values: comm.Allgather_comp(MPI.IN_PLACE, equal_parts(comm, values))},
    )
    Allgatherv_comp, Iallgatherv_comp = row(
        "Allgatherv_comp", plan_allgatherv, functools.partial(_allgathers, call="Allgatherv"), {}
    )
    Alltoall_comp, Ialltoall_comp = row(
        "Alltoall_comp",
        plan_alltoall,
        functools.partial(_alltoalls, call="Alltoall"),
        {"all-to-all": lambda comm, values: comm.Alltoall_comp(MPI.IN_PLACE, equal_parts(comm, values))},
    )
    Alltoallv_comp, Ialltoallv_comp = row(
        "Alltoallv_comp", plan_alltoallv, functools.partial(_alltoalls, call="Alltoallv"), {}
    )
    Barrier_comp = row(
        "Barrier_comp", plan_barrier, lambda _: iter(()), {"barrier": lambda comm, _: comm.Barrier_comp()}
    )[0]
