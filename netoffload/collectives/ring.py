"""The ring: INCEPTIONN, Algorithm 1, as one stream in and one stream out; and its two halves by themselves.

A rank sends in step s+1 what it receives in step s. Laid end to end, rank r sends the blocks r, r-1, r-2, ... and
receives the same list shifted by one. So two cursors are the whole state of a call: how far it has sent, and how far
it has received and reduced. The sender may go as far as the other cursor has been::

    blocks of the walk     r        r-1       r-2       r-3 ...
    received and reduced            ██████████████▌
    sent                   ██████████████████
                                             ^ may run up to here: the last whole chunk that is reduced

In phase 1 a chunk is received into scratch memory and added; in phase 2 it is received in place. Receiving in place
cannot overwrite unsent data: the finished block comes back only after this rank's own term has gone all the way round.

Reduce-scatter is phase 1 alone. Its walk begins one block earlier, so that rank r ends with block r. Allgather is
phase 2 alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from netoffload.collectives.announcement import Announcement, Call, counts_in_words, met
from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange, Quantise, RingRound, Vector, combine, quantise_own
from netoffload.collectives.operations import Operation
from netoffload.collectives.schedule import (
    Span,
    allgather_walk,
    allreduce_walk,
    consecutive,
    partition,
    reduce_scatter_walk,
)
from netoffload.collectives.transfer import EXACT_TYPES, octets_of
from netoffload.compiled.arrays import Float32Array

CHUNK_FLOATS = 64 * 1024
"""Floats that are added and forwarded at a time: 256 KiB.

These are four frames of 64 KiB for TSO, so that every send fills them. The chunk and its target together fit a
second-level cache of 512 KiB. Untagged, 4.6 MB over 4 ranks at 1 Gb/s took 1.05 to 1.07 of the bound with every chunk
from 64 KiB to 512 KiB. Tagged, where the emulated NICs' cores are the limit, these chunks differed by less than the
noise. It is a multiple of 8 floats, the codec's burst, so that bursts are whole except at the ends of blocks.
"""

CHUNK_FLOATS_MIN = 16 * 1024  # 64 KiB, the most that segmentation offload (TSO) hands over as one frame

CHUNK_FLOATS_MAX = 128 * 1024  # 512 KiB: chunk and target together fit most second-level caches

CHUNK_S = 1e-3
"""A chunk holds about 1 ms of data. Handling it costs the host about 50 us at any length, a twentieth of that, while
the next chunk arrives."""


def chunk_for(rate_bps: float, round_trip_s: float) -> int:
    """Return how many floats to add and forward at a time on a path: 1 ms of data, or a round-trip time if longer."""
    floats = round(rate_bps / 8 / FLOAT_OCTETS * max(CHUNK_S, round_trip_s))
    return min(max(floats, CHUNK_FLOATS_MIN), CHUNK_FLOATS_MAX) // 8 * 8


def ring_allreduce(
    exchange: Exchange,
    values: Vector,
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
    quantise: Quantise | None = None,
    chunk_floats: int = CHUNK_FLOATS,
) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, in place.

    Vectors are contiguous and equally long on all ranks; tagged ones are float32, untagged ones any of ``EXACT_TYPES``.
    The owner of a block applies ``quantise`` to its finished sum, piece by piece and once per element, before the block
    travels: only so do ranks end bit-identical on lossy channels. ``chunk_floats`` may differ between ranks.
    """
    details = _type_in_words(values, tagged=tagged)
    with met(exchange, Announcement(Call.RING_ALLREDUCE, values.size, tagged, operation, details=details)):
        allreduce_round(
            exchange, values, tagged=tagged, operation=operation, quantise=quantise, chunk_floats=chunk_floats
        )


def ring_reduce_scatter(
    exchange: Exchange,
    values: Vector,
    spans: Sequence[Span],
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
    chunk_floats: int = CHUNK_FLOATS,
) -> None:
    """Leave on rank r, in ``values[spans[r]]``, the reduction of that span over all ranks; the rest is overwritten."""
    # Nothing is quantised, because a rank keeps its result.
    details = f"{_type_in_words(values, tagged=tagged)} parts {_in_words(spans)}".lstrip()
    with met(exchange, Announcement(Call.REDUCE_SCATTER, values.size, tagged, operation, details=details)):
        reduce_scatter_round(exchange, values, spans, tagged=tagged, operation=operation, chunk_floats=chunk_floats)


def ring_allgather(
    exchange: Exchange,
    values: Vector,
    spans: Sequence[Span],
    *,
    tagged: bool,
    quantise: Quantise | None = None,
) -> None:
    """Fill ``values`` on every rank with ``values[spans[r]]`` of every rank r, who rounds it by ``quantise`` first."""
    details = f"{_type_in_words(values, tagged=tagged)} counts {counts_in_words(map(len, spans))}".lstrip()
    with met(exchange, Announcement(Call.ALLGATHER, sum(map(len, spans)), tagged, details=details)):
        allgather_round(exchange, values, spans, tagged=tagged, quantise=quantise)


def allreduce_round(
    exchange: Exchange,
    values: Vector,
    *,
    tagged: bool,
    operation: Operation,
    quantise: Quantise | None,
    chunk_floats: int,
) -> None:
    """Do :func:`ring_allreduce` for ranks that have met."""
    rank, size = exchange.rank, exchange.size
    blocks = partition(values.size, size)
    walk = [blocks[block] for block in allreduce_walk(rank, size)]
    _run(exchange, values, walk, size - 1, tagged, operation, quantise, chunk_floats)


def reduce_scatter_round(
    exchange: Exchange,
    values: Vector,
    spans: Sequence[Span],
    *,
    tagged: bool,
    operation: Operation,
    chunk_floats: int,
) -> None:
    """Do :func:`ring_reduce_scatter` for ranks that have met."""
    rank, size = exchange.rank, exchange.size
    walk = [spans[block] for block in reduce_scatter_walk(rank, size)]
    _run(exchange, values, walk, size - 1, tagged, operation, None, chunk_floats)


def allgather_round(
    exchange: Exchange, values: Vector, spans: Sequence[Span], *, tagged: bool, quantise: Quantise | None
) -> None:
    """Do :func:`ring_allgather` for ranks that have met."""
    rank, size = exchange.rank, exchange.size
    walk = [spans[block] for block in allgather_walk(rank, size)]
    if size > 1:
        quantise_own(exchange, quantise, _floats(values[walk[0].start : walk[0].stop]))
    _run(exchange, values, walk, 0, tagged, Operation.SUM, None, CHUNK_FLOATS)


def _run(
    exchange: Exchange,
    values: Vector,
    walk: Sequence[Span],
    reducing: int,
    tagged: bool,
    operation: Operation,
    quantise: Quantise | None,
    chunk_floats: int,
) -> None:
    """Carry the ring out, by the transport's own means if it has some."""
    rank, size = exchange.rank, exchange.size
    if size == 1:
        return
    outward = exchange.channel((rank + 1) % size, tagged=tagged)
    inward = exchange.channel((rank - 1) % size, tagged=tagged)
    staged: Vector = exchange.scratch(chunk_floats)
    if values.dtype.char != "f":
        staged = exchange.scratch(2 * chunk_floats).view(values.dtype)
    ring = RingRound(values, walk, reducing, operation, quantise, outward, inward, staged)
    if not exchange.drive(ring):
        _Round(exchange, ring).run()


class _Round:
    """The two cursors of one call, in octets of ``values``; the oracle for transports that drive rings by themselves.

    ``walk[s]`` is sent in step s, ``walk[s + 1]`` is received in step s; the first ``reducing`` steps combine.
    """

    def __init__(self, exchange: Exchange, ring: RingRound) -> None:
        self._exchange = exchange
        self._values = ring.values
        self._octets = octets_of(ring.values, EXACT_TYPES)
        self._operation = ring.operation
        self._quantise = ring.quantise
        self._width = ring.values.itemsize
        self._chunk = ring.staged.nbytes
        self._steps = len(ring.walk) - 1
        self._reducing = ring.reducing
        self._walk = [Span(span.start * self._width, span.stop * self._width) for span in ring.walk]
        self._outward = ring.outward
        self._inward = ring.inward
        self._staged = ring.staged
        self._staging = octets_of(ring.staged, EXACT_TYPES)
        self._sending = 0  # step
        self._sent = self._walk[0].start
        self._receiving = 0  # step
        self._received = self._walk[1].start
        self._reduced = self._walk[1].start  # up to here this rank has finished the block that it receives

    def run(self) -> None:
        while self._sending < self._steps or self._receiving < self._steps:
            writable = [self._outward] if self._push() else []
            if self._receiving < self._steps:
                if not self._pull():
                    self._exchange.wait([self._inward], writable)
            elif writable:
                self._exchange.wait([], writable)

    def _push(self) -> bool:
        """Send what is ready; return whether the channel refused a part."""
        while self._sending < self._steps:
            stop = self._walk[self._sending].stop
            if self._sent < (ready := self._ready_until(stop)):
                count = self._outward.send_some(self._octets[self._sent : ready])
                if count == 0:
                    return True
                self._sent += count
            elif self._sent < stop:
                return False
            if self._sent == stop:
                self._sending += 1
                self._sent = self._walk[self._sending].start
        return False

    def _ready_until(self, stop: int) -> int:
        """Return the octet up to which the sender's block may be sent: whole chunks, or all of it."""
        if self._sending <= self._receiving:
            return stop
        if self._sending > self._receiving + 1:
            return self._sent  # that block has not begun to arrive
        if self._reduced == stop:
            return stop
        start = self._walk[self._sending].start
        # Whole chunks only: if every rank held back a part of a chunk, all could wait for the rest of theirs.
        return start + (self._reduced - start) // self._chunk * self._chunk

    def _pull(self) -> bool:
        """Receive once, reduce a chunk that became whole; return whether anything moved."""
        block = self._walk[self._receiving + 1]
        if self._received < block.stop:
            if self._receiving < self._reducing:
                count = self._receive_added(block)
            else:  # finished values, in place
                count = self._inward.receive_some(self._octets[self._received : block.stop])
                self._received = self._reduced = self._received + count
            if count == 0:
                return False
        if self._reduced == block.stop:
            self._receiving += 1
            if self._receiving < self._steps:
                self._received = self._reduced = self._walk[self._receiving + 1].start
        return True

    def _receive_added(self, block: Span) -> int:
        """Receive into scratch memory; combine once a chunk, or the block, is whole."""
        chunk_end = min(self._reduced + self._chunk, block.stop)
        filled = self._received - self._reduced
        count = self._inward.receive_some(self._staging[filled : chunk_end - self._reduced])
        self._received += count
        if self._received == chunk_end:
            first, last = self._reduced // self._width, chunk_end // self._width
            target = _floats(self._values[first:last])
            combine(self._exchange, self._operation, target, _floats(self._staged[: last - first]))
            if self._receiving == self._reducing - 1:  # the last step that reduces: this rank owns the block
                quantise_own(self._exchange, self._quantise, target)
            self._reduced = chunk_end
        return count


def _type_in_words(values: Vector, *, tagged: bool) -> str:
    """Refuse a vector that cannot travel; name its type if it is not float32."""
    octets_of(values, "f" if tagged else EXACT_TYPES)
    return "" if values.dtype.char == "f" else f"{values.dtype}"


def _floats(values: Vector) -> Float32Array:
    """Return a vector as float32, for the type checker: NumPy adds every type, and only float32 is rounded."""
    return cast("Float32Array", values)


def _in_words(spans: Sequence[Span]) -> str:
    """Return the lengths of spans, or their limits if they do not follow one another from 0."""
    lengths = [len(span) for span in spans]
    if tuple(spans) == consecutive(lengths):
        return counts_in_words(lengths)
    return ", ".join(f"{span.start}-{span.stop}" for span in spans)
