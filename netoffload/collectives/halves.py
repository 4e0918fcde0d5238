"""Reductions of bfloat16 and float16: 16 bits travel, float32 is added, and the result is rounded once.

The partial sums of a ring would be rounded on each hop, or travel in 32 bits. So every rank sends each block straight
to the rank that owns it, which combines float32 in the order of a ring, and rounds. Finished blocks go round a ring::

    block b of rank r ── 16 bits ──► owner of b: float32 of all ranks ── rounded to 16 bits, round a ring ──► all ranks

Each half of the way carries (p-1)/p of the vector out of a rank's link, as a ring's does. Blocks, their owners and the
order of additions are those of :mod:`~netoffload.collectives.ring`. So the result has the bits of a ring's float32 sum,
rounded.

Channels carry float32. So blocks travel in rows of whole words. NICs and ranks may compress them by a codec that keeps
every bit; another one would take two of these values for a float.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, met
from netoffload.collectives.exchange import Exchange, RingRound, combine
from netoffload.collectives.operations import Operation
from netoffload.collectives.ring import CHUNK_FLOATS, go_round, spans_in_words
from netoffload.collectives.schedule import Span, allgather_walk, partition
from netoffload.compiled.arrays import Float32Array, Uint16Array
from netoffload.compiled.halves import narrow_bf16, narrow_fp16, widen_bf16, widen_fp16


class Half(enum.Enum):
    """A type of 16 bits; its values are uint16 here."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    def widened(self, halves: Uint16Array) -> Float32Array:
        """Return values as float32, exact."""
        values = np.empty(halves.size, np.float32)
        _WIDEN[self](halves, values.view(np.uint32))
        return values

    def narrowed(self, values: Float32Array) -> Uint16Array:
        """Return float32 rounded to nearest even; what is too large becomes infinite, a NaN stays one."""
        halves = np.empty(values.size, np.uint16)
        _NARROW[self](values.view(np.uint32), halves)
        return halves


_WIDEN: Final = {Half.FLOAT16: widen_fp16, Half.BFLOAT16: widen_bf16}
_NARROW: Final = {Half.FLOAT16: narrow_fp16, Half.BFLOAT16: narrow_bf16}


def allreduce_halves(
    exchange: Exchange,
    halves: Uint16Array,
    half: Half,
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
    divisor: int = 1,
) -> None:
    """Replace ``halves`` on every rank by the reduction over all ranks, divided by ``divisor`` and rounded once.

    ``tagged`` channels must keep every bit.
    """
    rank, size = exchange.rank, exchange.size
    announced = Announcement(Call.RING_ALLREDUCE, halves.size, tagged, operation, details=half.value)
    blocks = partition(halves.size, size)
    spans = [blocks[(owner + 1) % size] for owner in range(size)]
    with met(exchange, announced):
        rows = _Rows(exchange, spans, tagged)
        for part, total in rows.reduced(halves, half, operation, divisor):
            rows.going[rank, part] = half.narrowed(total)
        rows.gather()
        for span, row in zip(spans, rows.going, strict=True):
            halves[span.start : span.stop] = row[: len(span)]


def reduce_scatter_halves(
    exchange: Exchange,
    halves: Uint16Array,
    spans: Sequence[Span],
    half: Half,
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
    divisor: int = 1,
) -> Float32Array:
    """Return the reduction of ``halves[spans[r]]`` on rank r, divided and not rounded; arguments as above."""
    details = f"{half.value} parts {spans_in_words(spans)}"
    announced = Announcement(Call.REDUCE_SCATTER, halves.size, tagged, operation, details=details)
    with met(exchange, announced):
        own = np.empty(len(spans[exchange.rank]), np.float32)
        for part, total in _Rows(exchange, spans, tagged).reduced(halves, half, operation, divisor):
            own[part] = total
    return own


class _Rows:
    """Two rows of whole words for each rank, in scratch memory: what goes to it, and what comes from it.

    In step s a rank sends to rank + s and receives from rank - s, as in ``direct``.
    """

    def __init__(self, exchange: Exchange, spans: Sequence[Span], tagged: bool) -> None:
        self._exchange, self._spans, self._tagged = exchange, spans, tagged
        self._width = max(map(len, spans)) // 2 + 1
        self._words = exchange.scratch(2 * exchange.size * self._width)
        self.going, self._coming = self._words.view(np.uint16).reshape(2, exchange.size, 2 * self._width)

    def reduced(
        self, halves: Uint16Array, half: Half, operation: Operation, divisor: int
    ) -> Iterator[tuple[slice, Float32Array]]:
        """Send every rank its block, and reduce this rank's own; return places in it and results, part by part."""
        exchange, rank, size = self._exchange, self._exchange.rank, self._exchange.size
        for row, span in zip(self.going, self._spans, strict=True):
            row[: len(span)] = halves[span.start : span.stop]
            row[len(span) : len(span) + 1] = 0
        for step in range(1, size):
            to, start = (rank + step) % size, (rank - step) % size
            self._go([self._row(to, to), self._row(size + start, rank)], to, start)
        own = self._spans[rank]
        self._coming[rank, : len(own)] = halves[own.start : own.stop]
        for start in range(0, len(own), CHUNK_FLOATS):
            part = slice(start, min(start + CHUNK_FLOATS, len(own)))
            total = half.widened(self._coming[(rank + 1) % size, part])
            for hop in range(2, size + 1):
                wide = half.widened(self._coming[(rank + hop) % size, part])
                combine(exchange, operation, wide, total)
                total = wide
            if divisor > 1:
                with np.errstate(invalid="ignore"):  # a NaN that signals
                    np.divide(total, np.float32(divisor), out=total)
            yield part, total

    def gather(self) -> None:
        """Give all ranks, in :attr:`going`, what each one has in its own row there."""
        rank, size = self._exchange.rank, self._exchange.size
        if size > 1:
            walk = [self._row(owner, owner) for owner in allgather_walk(rank, size)]
            self._go(walk, (rank + 1) % size, (rank - 1) % size)

    def _row(self, row: int, owner: int) -> Span:
        """Return the words of a row that holds the block of ``owner``."""
        return Span(row * self._width, row * self._width + (len(self._spans[owner]) + 1) // 2)

    def _go(self, walk: Sequence[Span], to: int, start: int) -> None:
        outward, inward = (self._exchange.channel(peer, tagged=self._tagged) for peer in (to, start))
        staged = self._words[:CHUNK_FLOATS]  # nothing is reduced on the way: only its length counts
        ring = RingRound(self._words, walk, 0, Operation.SUM, None, outward, inward, staged, is_crossing=True)
        go_round(self._exchange, ring)
