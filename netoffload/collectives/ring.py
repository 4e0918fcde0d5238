"""The ring: INCEPTIONN, Algorithm 1, as one stream in and one stream out.

What a rank receives in step s it sends in step s+1. Laid end to end, a rank's sends are the blocks r, r-1, r-2, ...
and its receives the same list shifted by one, so the state of a call is two cursors: how far the right neighbour has
been served, and how far the left one has been reduced. The sender may go wherever the other cursor has been::

    blocks of the walk     r        r-1       r-2       r-3 ...
    received and reduced            ██████████████▌
    sent                   ██████████████████
                                             ^ may run up to here: the last whole chunk that is reduced

In phase 1 a chunk is received into scratch memory and added; in phase 2 it is received in place. Receiving in place
cannot overwrite something unsent: the finished block comes back only after our own term of it has gone all the way
round.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange, Float32Array
from netoffload.collectives.schedule import Span, is_reducing, partition, sent_block, step_count
from netoffload.collectives.transfer import Call, announce, check_announcement, closing_on_error, octets_of

Quantise = Callable[[Float32Array], None]
"""Replaces a float32 vector by what the codec makes of it, in place."""

CHUNK_FLOATS = 64 * 1024
"""Floats that are added and forwarded at a time: 256 KiB.

Four super-segments of 64 KiB, so that every send fills TSO segments; the chunk and its target together fit a
second-level cache of 512 KiB. Untagged, 4.6 MB over 4 ranks at 1 Gb/s took 1.05 to 1.07 of the bound with every chunk
from 64 KiB to 512 KiB; tagged, where the emulated NICs' cores are the limit, the same range differed by less than the
machine's noise. A multiple of 8 floats, the codec's burst, so that bursts are whole except at the ends of blocks.
"""


def ring_allreduce(
    exchange: Exchange,
    values: Float32Array,
    *,
    tagged: bool,
    quantise: Quantise | None = None,
    chunk_floats: int = CHUNK_FLOATS,
) -> None:
    """Replace ``values`` on every rank by the sum over all ranks, in place.

    Args:
        exchange: the ranks; all of them make this call.
        values: contiguous float32 vector, equally long on all ranks.
        tagged: send over the tagged channels, where a NIC may compress.
        quantise: applied by the owner of a block to its finished sum, piece by piece and once per element, before the
            block travels. Needed for bit-identical ranks when the channels are lossy. With one rank nothing travels
            and nothing is quantised.
        chunk_floats: floats that are added and forwarded at a time.

    Raises:
        UsageError: not a contiguous float32 vector.
        CollectiveError: ranks disagree on length or call.
        PeerLostError: a neighbour is gone or silent.
    """
    octets = octets_of(values)
    if exchange.size == 1:
        return
    with closing_on_error(exchange):
        call = _RingCall(exchange, values, octets, tagged, quantise, chunk_floats)
        call.run()


class _RingCall:
    """The two cursors of one call, in octets of ``values``."""

    def __init__(
        self,
        exchange: Exchange,
        values: Float32Array,
        octets: memoryview,
        tagged: bool,
        quantise: Quantise | None,
        chunk_floats: int,
    ) -> None:
        rank, size = exchange.rank, exchange.size
        blocks = partition(values.size, size)
        self._exchange = exchange
        self._values = values
        self._octets = octets
        self._tagged = tagged
        self._quantise = quantise
        self._chunk = chunk_floats * FLOAT_OCTETS
        self._steps = step_count(size)
        # walk[s] is sent in step s; walk[s + 1] is received in step s.
        self._walk = [_in_octets(blocks[sent_block(rank, size, step)]) for step in range(self._steps + 1)]
        self._right, self._left = (rank + 1) % size, (rank - 1) % size
        self._outward = exchange.channel(self._right, tagged=tagged)
        self._inward = exchange.channel(self._left, tagged=tagged)
        self._staged = exchange.scratch(chunk_floats)
        self._staging = octets_of(self._staged)
        self._sending = 0  # step
        self._sent = self._walk[0].start
        self._receiving = 0  # step
        self._received = self._walk[1].start
        self._reduced = self._walk[1].start  # of the block being received: final as far as this rank is concerned

    def run(self) -> None:
        announce(self._exchange, self._right, Call.RING, self._values.size, tagged=self._tagged)
        self._push()  # data leaves before we know that the left neighbour agrees; it checks as we do
        check_announcement(self._exchange, self._left, Call.RING, self._values.size, tagged=self._tagged)
        while self._sending < self._steps or self._receiving < self._steps:
            writable = [self._outward] if self._push() else []
            if self._receiving < self._steps:
                if not self._pull():
                    self._exchange.wait([self._inward], writable)
            elif writable:
                self._exchange.wait([], writable)

    def _push(self) -> bool:
        """Send what is ready; return whether the channel refused some of it."""
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
        """Return the end of what may be sent of the block that the sender is at: whole chunks, or all of it."""
        if self._sending <= self._receiving:
            return stop
        if self._sending > self._receiving + 1:
            return self._sent  # that block has not begun to arrive
        if self._reduced == stop:
            return stop
        start = self._walk[self._sending].start
        # Whole chunks only: had a rank to hold back a part of one, all could wait for the rest of theirs.
        return start + (self._reduced - start) // self._chunk * self._chunk

    def _pull(self) -> bool:
        """Receive once, reduce what became whole; return whether anything moved."""
        block = self._walk[self._receiving + 1]
        if self._received < block.stop:
            reducing = is_reducing(self._exchange.size, self._receiving)
            count = self._receive_added(block) if reducing else self._receive_final(block)
            if count == 0:
                return False
        if self._reduced == block.stop:
            self._receiving += 1
            if self._receiving < self._steps:
                self._received = self._reduced = self._walk[self._receiving + 1].start
        return True

    def _receive_added(self, block: Span) -> int:
        """Phase 1: receive into scratch memory; add once a chunk, or the block, is whole."""
        chunk_end = min(self._reduced + self._chunk, block.stop)
        filled = self._received - self._reduced
        count = self._inward.receive_some(self._staging[filled : chunk_end - self._reduced])
        self._received += count
        if self._received == chunk_end:
            first, last = self._reduced // FLOAT_OCTETS, chunk_end // FLOAT_OCTETS
            target = self._values[first:last]
            np.add(target, self._staged[: last - first], out=target)
            if self._quantise is not None and self._receiving == self._exchange.size - 2:
                self._quantise(target)  # the last reducing step: this rank owns the block
            self._reduced = chunk_end
        return count

    def _receive_final(self, block: Span) -> int:
        """Phase 2: what arrives is the result."""
        count = self._inward.receive_some(self._octets[self._received : block.stop])
        self._received += count
        self._reduced = self._received
        return count


def _in_octets(block: Span) -> Span:
    return Span(block.start * FLOAT_OCTETS, block.stop * FLOAT_OCTETS)
