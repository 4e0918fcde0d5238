"""The ring: INCEPTIONN, Algorithm 1, as one stream in and one stream out; and its two halves by themselves.

A rank sends in step s+1 what it receives in step s. Laid end to end, rank r sends the blocks r, r-1, r-2, ... and
receives the same list shifted by one::

    blocks of the walk     r        r-1       r-2       r-3 ...
    received and reduced            ██████████████▌
    sent                   ██████████████████
                                             ^ may run up to here: the last whole chunk that is reduced

In phase 1 a chunk is received into scratch memory and added; in phase 2 it is received in place. Receiving in place
cannot overwrite unsent data: the finished block comes back only after this rank's own term has gone all the way round.

Reduce-scatter is phase 1 alone. Its walk begins one block earlier, so that rank r ends with block r. Allgather is
phase 2 alone.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from netoffload.collectives.announcement import Announcement, Call, in_words, met
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
from netoffload.collectives.transfer import EXACT_TYPES, move_all, octets_of
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
    have_met: bool = False,
) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, in place.

    Vectors are contiguous and equally long on all ranks; tagged ones are float32, untagged ones any of ``EXACT_TYPES``.
    The owner of a block applies ``quantise`` to its finished sum, piece by piece and once per element, before the block
    travels: only so do ranks end bit-identical on lossy channels. ``chunk_floats`` may differ between ranks. Ranks that
    ``have_met`` know by another meeting that all make this call, with equal lengths.
    """
    rank, size = exchange.rank, exchange.size
    details = _type_in_words(values, tagged=tagged)
    announced = Announcement(Call.RING_ALLREDUCE, values.size, tagged, operation, details=details)
    with met(exchange, announced, already=have_met):
        blocks = partition(values.size, size)
        walk = [blocks[block] for block in allreduce_walk(rank, size)]
        _run(exchange, values, walk, size - 1, tagged, operation, quantise, chunk_floats)


def ring_reduce_scatter(
    exchange: Exchange,
    values: Vector,
    spans: Sequence[Span],
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
    chunk_floats: int = CHUNK_FLOATS,
    have_met: bool = False,
) -> None:
    """Leave on rank r, in ``values[spans[r]]``, the reduction of that span over all ranks; the rest is overwritten."""
    # Nothing is quantised, because a rank keeps its result.
    rank, size = exchange.rank, exchange.size
    details = f"{_type_in_words(values, tagged=tagged)} parts {spans_in_words(spans)}".lstrip()
    announced = Announcement(Call.REDUCE_SCATTER, values.size, tagged, operation, details=details)
    with met(exchange, announced, already=have_met):
        walk = [spans[block] for block in reduce_scatter_walk(rank, size)]
        _run(exchange, values, walk, size - 1, tagged, operation, None, chunk_floats)


def ring_allgather(
    exchange: Exchange,
    values: Vector,
    spans: Sequence[Span],
    *,
    tagged: bool,
    quantise: Quantise | None = None,
    have_met: bool = False,
) -> None:
    """Fill ``values`` on every rank with ``values[spans[r]]`` of every rank r, who rounds it by ``quantise`` first."""
    rank, size = exchange.rank, exchange.size
    details = f"{_type_in_words(values, tagged=tagged)} counts {in_words(map(len, spans))}".lstrip()
    announced = Announcement(Call.ALLGATHER, sum(map(len, spans)), tagged, details=details)
    with met(exchange, announced, already=have_met):
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
    rank, size = exchange.rank, exchange.size
    if size == 1:
        return
    outward = exchange.channel((rank + 1) % size, tagged=tagged)
    inward = exchange.channel((rank - 1) % size, tagged=tagged)
    staged: Vector = exchange.scratch(chunk_floats)
    if values.dtype.char != "f":
        staged = exchange.scratch(2 * chunk_floats).view(values.dtype)
    go_round(exchange, RingRound(values, walk, reducing, operation, quantise, outward, inward, staged))


def go_round(exchange: Exchange, ring: RingRound) -> None:
    """Carry a round out, by the transport's own means if it has some."""
    if not exchange.drive(ring):
        _go_round(exchange, ring)


def _go_round(exchange: Exchange, ring: RingRound) -> None:
    """Do what :class:`~netoffload.collectives.exchange.RingRound` describes, a chunk in each direction at a time.

    No rank waits for ever: of all ranks, the one that has come the shortest way sends what its right neighbour awaits,
    and its left neighbour has offered what it awaits itself. So chunks may differ in length between ranks.
    """
    chunk = ring.staged.size
    for step, (sending, receiving) in enumerate(pairwise(ring.walk)):
        is_reducing = step < ring.reducing
        for at in range(0, max(len(sending), len(receiving)), chunk):
            going = ring.values[sending.start + at : min(sending.start + at + chunk, sending.stop)]
            own = _floats(ring.values[receiving.start + at : min(receiving.start + at + chunk, receiving.stop)])
            coming = _floats(ring.staged[: own.size]) if is_reducing else own
            sends = [(ring.outward, octets_of(going, EXACT_TYPES))]
            receives = [(ring.inward, octets_of(coming, EXACT_TYPES))]
            move_all(exchange, sends, receives, may_be_late=ring.is_crossing)
            if is_reducing:
                combine(exchange, ring.operation, own, coming)
                if step == ring.reducing - 1:  # this rank owns the block
                    quantise_own(exchange, ring.quantise, own)


def _type_in_words(values: Vector, *, tagged: bool) -> str:
    """Refuse a vector that cannot travel; name its type if it is not float32."""
    octets_of(values, "f" if tagged else EXACT_TYPES)
    return "" if values.dtype.char == "f" else f"{values.dtype}"


def _floats(values: Vector) -> Float32Array:
    """Return a vector as float32, for the type checker: NumPy adds every type, and only float32 is rounded."""
    return cast("Float32Array", values)


def spans_in_words(spans: Sequence[Span]) -> str:
    """Return the lengths of spans, or their limits if they do not follow one another from 0."""
    lengths = [len(span) for span in spans]
    if tuple(spans) == consecutive(lengths):
        return in_words(lengths)
    return ", ".join(f"{span.start}-{span.stop}" for span in spans)
