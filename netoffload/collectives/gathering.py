"""Short vectors: they travel with the announcement, and every rank makes the ring's sum by itself.

A ring of a few floats takes a meeting, and then 2(p-1) messages that wait for each other. So short vectors go into the
meeting (``announcement``): in round k a rank sends all vectors that it has to rank + 2^k and gets as many from
rank - 2^k. After ceil(log2 p) rounds each rank has all vectors::

    rank r    places 0        1        2        3        4 ...      place j: the vector of rank r - j
              own      │ r-1    │ r-2      r-3   │ r-4 ...
              round 0: send 1   round 1: send 2   round 2: send 4

Then it adds them as the ring does: block b in the order of the ranks b, b+1, ... It rounds on the hops on which NICs
would round, and at last as the block's owner would. So the result has the bits that
:func:`~netoffload.collectives.ring.ring_allreduce` gives. Every message begins with the announcement, which is not
float32, so everything goes over the untagged channels, exact.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, carry_out, pairs_of
from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange, Gathering, Quantise, combine, quantise_own
from netoffload.collectives.operations import Operation
from netoffload.collectives.schedule import partition
from netoffload.collectives.transfer import aborting_on_error
from netoffload.compiled.arrays import Float32Array

SHORT_OCTETS: Final = 32 * 1024
"""Most octets that a rank may get from all others together: 0.26 ms on a link of 1 Gb/s, about as long as a few hops
between processes. With longer vectors the links are the limit, and a ring sends less."""


def is_short(count: int, size: int) -> bool:
    """Return whether an allreduce of ``count`` floats over ``size`` ranks is gathered, instead of taking a ring."""
    return size > 1 and (size - 1) * count * FLOAT_OCTETS <= SHORT_OCTETS


class ShortAllreduce:
    """An allreduce of one length, to carry out as often as needed; its plan is made once.

    Arguments are as for :func:`~netoffload.collectives.ring.ring_allreduce`. ``rounded_hops`` says, per rank, whether
    NICs round by ``quantise`` what it sends to its right neighbour on the tagged channel; empty: nowhere.
    """

    def __init__(
        self,
        exchange: Exchange,
        count: int,
        *,
        tagged: bool,
        operation: Operation = Operation.SUM,
        quantise: Quantise | None = None,
        rounded_hops: Sequence[bool] = (),
    ) -> None:
        size = exchange.size
        quantise = quantise if size > 1 else None  # with one rank nothing travels, so nothing is rounded
        self._exchange = exchange
        self._announcement = Announcement(Call.RING_ALLREDUCE, count, tagged, operation, calling=exchange.calling)
        word = self._announcement.to_octets()
        places = np.zeros(size * count * FLOAT_OCTETS, np.uint8)
        outgoing = np.concatenate([np.frombuffer(word, np.uint8), places])
        incoming = np.zeros(len(word) + (size + 1) // 2 * count * FLOAT_OCTETS, np.uint8)
        with aborting_on_error(exchange):
            pairs = pairs_of(exchange)
        self._round = Gathering(
            word,
            outgoing,
            incoming,
            outgoing[len(word) :].view(np.float32).reshape(size, count),
            np.empty(count, np.float32),
            exchange.rank,
            pairs,
            partition(count, size),
            operation,
            quantise,
            [bool(rounded_hops) and quantise is not None and rounded_hops[rank] for rank in range(size)],
        )
        self._own: Float32Array = self._round.values[0]
        sent_octets = sum(self._round.octets_in(number) for number in range(len(self._round.pairs)))
        self._aside_octets = sent_octets if tagged else 0

    def __call__(self, source: Float32Array, target: Float32Array) -> None:
        """Replace ``target`` by the reduction of every rank's ``source``, which may be the same vector."""
        round_ = self._round
        try:
            self._own[...] = source  # takes half as long as np.copyto
            if not carry_out(self._exchange, round_, self._announcement):
                _add_up(self._exchange, round_)
        except BaseException as error:
            self._exchange.abort(error)
            raise
        self._exchange.stopwatch.aside_octets += self._aside_octets
        target[...] = round_.result


def _add_up(exchange: Exchange, round_: Gathering) -> None:
    """Reduce each block in the ring's order, with the ring's roundings."""
    size = len(round_.spans)
    for block, span in enumerate(round_.spans):
        of_rank = [
            round_.values[(round_.rank - block - hop) % size][span.start : span.stop] for hop in range(size)
        ]  # in the ring's order
        for hop in range(1, size):
            if round_.rounded_hops[(block + hop - 1) % size]:
                quantise_own(exchange, round_.quantise, of_rank[hop - 1])
            combine(exchange, round_.operation, of_rank[hop], of_rank[hop - 1])
        quantise_own(exchange, round_.quantise, of_rank[-1])
        round_.result[span.start : span.stop] = of_rank[-1]
