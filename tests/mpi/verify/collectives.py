"""The cases of every collective, in the order in which they are tried."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Operation, reference
from netoffload.collectives.hierarchy import default_groups
from netoffload.collectives.reference import RoundTrip
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.catalogue import ALGORITHMS, operation_of
from tests.mpi.verify.cases import OPS, WEIGHTS, Case, Observed, Place, Prepared, Rounding, nothing


def collectives(at: Place) -> Iterator[Case]:
    """Yield every case; the same ones in the same order on every rank."""
    yield from _allreduces(at)
    yield from _rings(at)
    yield from (_broadcast(at, root) for root in sorted({0, at.size // 2, at.size - 1}))
    placed = (at.size // 2, False), (0, True)  # a root, and whether it has its block in place
    equal, uneven = [at.count] * at.size, block_counts(at.count, at.size)
    for kind, make in (("Gather", _gather), ("Scatter", _scatter), ("Allgather", _allgather)):
        for root, in_place in placed:
            words = described("" if make is _allgather else f"root {root}", "in place" if in_place else "")
            layout = Layout.of(equal, spread=False)
            yield make(at, kind, layout, root, in_place, words)
            yield make(at, f"{kind}v", layout, root, in_place, described(words, "equal counts"))
            layout = Layout.of(uneven, spread=True)
            yield make(at, f"{kind}v", layout, root, in_place, described(words, "uneven counts, gaps"))
    for in_place in (False, True):
        yield _alltoall(at, "Alltoall", equal, False, in_place)
        yield _alltoall(at, "Alltoallv", equal, False, in_place)
        yield _alltoall(at, "Alltoallv", uneven, True, in_place)
    for op in OPS:
        yield _reduce(at, op, at.size // 2, in_place=False)
        yield _reduce(at, op, 0, in_place=True)
    blocks = [-(-at.count // at.size)] * at.size
    for op, in_place in ((MPI.SUM, False), (MPI.SUM, True), (MPI.MAX, False), (MPI.MIN, True), (MPI.PROD, False)):
        yield _reduce_scatter(at, op, _shares(at.count, at.size), in_place=in_place)
        yield _reduce_scatter(at, op, blocks, in_place=in_place)
        yield _reduce_scatter(at, op, blocks, in_place=in_place, call="Reduce_scatter_block")


def _allreduces(at: Place) -> Iterator[Case]:
    """Every algorithm with every operation, in place and not; averages; groups of all kinds."""
    # The order in which plain MPI adds is unknown, so its result is known only if every order is exact.
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


def _rings(at: Place) -> Iterator[Case]:
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
    """Return the oracle's result, rounded as owners round the blocks that they send to others."""
    if options["algorithm"] == "wa":
        return reference.aggregated(vectors, 0, at.hop, operation)
    if options["algorithm"] == "ring":
        total = reference.ring_sum(vectors, at.hop, operation)
        return at.rounding.owner(total) if at.size > 1 else total
    top, groups = options.get("top", "ring"), options.get("groups") or default_groups(at.size)
    total = reference.hierarchical_sum(vectors, groups, at.hop, operation, top)
    has_owner = at.size > 1 and (top == "ring" or max(map(len, groups)) > 1)
    return at.rounding.owner(total) if has_owner else total


@dataclass(frozen=True)
class Layout:
    """Where the blocks of all ranks are in one buffer, as spans and as mpi4py's specification."""

    spans: tuple[Span, ...]
    length: int
    uneven: bool

    @classmethod
    def of(cls, parts: Sequence[int], *, spread: bool) -> Self:
        """Put blocks one after the other, or (``spread``) in reverse order and with gaps between them."""
        if not spread:
            return cls(consecutive(list(parts)), sum(parts), False)
        starts = [sum(parts[rank + 1 :]) + 2 * (len(parts) - rank) for rank in range(len(parts))]
        spans = tuple(Span(start, start + part) for start, part in zip(starts, parts, strict=True))
        return cls(spans, sum(parts) + 2 * len(parts) + 3, True)

    def spec(self, buffer: Float32Array) -> list[Any]:
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


def block_counts(count: int, size: int) -> list[int]:
    """Return the lengths of uneven blocks: 0 to ``count``."""
    return [count * WEIGHTS[rank % len(WEIGHTS)] // 3 for rank in range(size)]


def _broadcast(at: Place, root: int) -> Case:
    def make(rounding: Rounding) -> Prepared:
        values = nothing(at.count)
        if at.rank == root:
            own = at.draw("cargo", root, at.count)
            values[:] = rounding.owner(own) if at.size > 1 else own
        return Prepared(([values, MPI.FLOAT], root), (values,))

    return Case("Bcast", f"root {root}", make)


def _whole_or(layout: Layout, call: str, buffer: Float32Array) -> Any:
    return layout.spec(buffer) if call.endswith("v") else buffer


def _gather(at: Place, call: str, layout: Layout, root: int, in_place: bool, words: str) -> Case:
    own = at.draw("cargo", at.rank, len(layout.spans[at.rank]))

    def make(rounding: Rounding) -> Prepared:
        if at.rank != root:
            return Prepared((rounding.hop(own), None, root), ())
        target = nothing(layout.length)
        if in_place:
            layout.block(target, root)[:] = own
        send = MPI.IN_PLACE if in_place else own
        return Prepared((send, _whole_or(layout, call, target), root), (target,))

    return Case(call, words, make)


def _scatter(at: Place, call: str, layout: Layout, root: int, in_place: bool, words: str) -> Case:
    everything = at.draw("cargo", root, layout.length) if at.rank == root else nothing(0)

    def make(rounding: Rounding) -> Prepared:
        target = nothing(len(layout.spans[at.rank]))
        if at.rank != root:
            return Prepared((None, target, root), (target,))
        source = layout.changed(everything, root, rounding.hop)
        if in_place:
            return Prepared((_whole_or(layout, call, source), MPI.IN_PLACE, root), (layout.block(source, root),))
        return Prepared((_whole_or(layout, call, source), target, root), (target,))

    return Case(call, words, make)


def _allgather(at: Place, call: str, layout: Layout, _: int, in_place: bool, words: str) -> Case:
    own = at.draw("cargo", at.rank, len(layout.spans[at.rank]))

    def make(rounding: Rounding) -> Prepared:
        mine, target = rounding.owner(own) if at.size > 1 else own, nothing(layout.length)
        if in_place:
            layout.block(target, at.rank)[:] = mine
        return Prepared((MPI.IN_PLACE if in_place else mine, _whole_or(layout, call, target)), (target,))

    return Case(call, words, make)


def _alltoall(at: Place, call: str, parts: Sequence[int], spread: bool, in_place: bool) -> Case:
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


def _shares(count: int, size: int) -> list[int]:
    """Cut ``count`` into uneven parts; some are empty."""
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
    own = at.vectors(op, total)[at.rank]

    def make(_: Rounding) -> Prepared:
        target = own.copy() if in_place else nothing(mine)
        counts = () if call == "Reduce_scatter_block" else (list(parts),)
        into = [target, mine, MPI.FLOAT] if in_place and not counts else target  # the count is that of a part
        return Prepared((MPI.IN_PLACE if in_place else own, into, *counts, op), (target[:mine],))

    def model() -> Observed:
        span = consecutive(list(parts))[at.rank]
        cut = [vector[span.start : span.stop] for vector in at.vectors(op, total)]
        spans = [Span(0, mine if rank == at.rank else 0) for rank in range(at.size)]
        return (reference.reduce_scatter(cut, spans, at.hop, operation)[at.rank],)

    words = f"{operation.name}, counts {list(parts)}{', in place' if in_place else ''}"
    return Case(call, words, make, model=model)


def described(*parts: str) -> str:
    return ", ".join(filter(None, parts))
