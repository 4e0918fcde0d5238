"""Everything that moves values between all ranks without changing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from netoffload.collectives.reference import RoundTrip
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.verify.cases import WEIGHTS, Case, Place, Prepared, Rounding, nothing


@dataclass(frozen=True)
class Layout:
    """Where the blocks of all ranks are in one buffer, as mpi4py and as this package say it."""

    spans: tuple[Span, ...]
    length: int
    uneven: bool

    @classmethod
    def of(cls, parts: Sequence[int], *, spread: bool) -> Layout:
        """Put blocks one behind the other, or (``spread``) the last one first and with gaps between them."""
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
        """Return a copy whose blocks are changed, except that of ``keep``."""
        after = buffer.copy()
        for rank in range(len(self.spans)):
            if rank != keep:
                self.block(after, rank)[:] = change(self.block(buffer, rank))
        return after


def layouts(at: Place) -> Iterator[tuple[str, Layout]]:
    """Yield what a call with counts is tried on: equal blocks, and uneven ones out of order with gaps."""
    yield "equal counts", Layout.of([at.count] * at.size, spread=False)
    yield "uneven counts, gaps", Layout.of(block_counts(at.count, at.size), spread=True)


def block_counts(count: int, size: int) -> list[int]:
    """Return the lengths of uneven blocks: up to ``count``, nothing among them."""
    return [count * WEIGHTS[rank % len(WEIGHTS)] // 3 for rank in range(size)]


def movements(at: Place) -> Iterator[Case]:
    """Everything that moves values without changing them."""
    for root in sorted({0, at.size // 2, at.size - 1}):
        yield _broadcast(at, root)
    whole = Layout.of([at.count] * at.size, spread=False)
    for in_place in (False, True):
        root = 0 if in_place else at.size // 2
        yield _gather(at, "Gather", whole, root, in_place, "")
        yield _scatter(at, "Scatter", whole, root, in_place, "")
        yield _allgather(at, "Allgather", whole, in_place, "")
        yield _alltoall(at, "Alltoall", [at.count] * at.size, False, in_place)
        for words, layout in layouts(at):
            yield _gather(at, "Gatherv", layout, root, in_place, words)
            yield _scatter(at, "Scatterv", layout, root, in_place, words)
            yield _allgather(at, "Allgatherv", layout, in_place, words)
        yield _alltoall(at, "Alltoallv", [at.count] * at.size, False, in_place)
        yield _alltoall(at, "Alltoallv", block_counts(at.count, at.size), True, in_place)


def _words(*words: str) -> str:
    return ", ".join(filter(None, words))


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

    return Case(call, _words(f"root {root}", "in place" if in_place else "", words), make)


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

    return Case(call, _words(f"root {root}", "in place" if in_place else "", words), make)


def _allgather(at: Place, call: str, layout: Layout, in_place: bool, words: str) -> Case:
    own = at.draw("cargo", at.rank, len(layout.spans[at.rank]))

    def make(rounding: Rounding) -> Prepared:
        mine, target = rounding.owner(own) if at.size > 1 else own, nothing(layout.length)
        if in_place:
            layout.block(target, at.rank)[:] = mine
        return Prepared((MPI.IN_PLACE if in_place else mine, _whole_or(layout, call, target)), (target,))

    return Case(call, _words("in place" if in_place else "", words), make)


def _alltoall(at: Place, call: str, parts: Sequence[int], spread: bool, in_place: bool) -> Case:
    # What i sends to j is as long as what j sends to i, as MPI asks where it is done in place.
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
    return Case(call, _words("in place" if in_place else "", words), make)
