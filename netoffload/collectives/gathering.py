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

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, disagreement, pairs_of
from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange, Gathering, Quantise, combine, quantise_own
from netoffload.collectives.operations import Operation
from netoffload.collectives.schedule import partition
from netoffload.collectives.transfer import aborting_on_error, move_all
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
        self._word = self._announcement.to_octets()
        places = np.zeros(size * count * FLOAT_OCTETS, np.uint8)
        outgoing = np.concatenate([np.frombuffer(self._word, np.uint8), places])
        incoming = np.zeros(len(self._word) + (size + 1) // 2 * count * FLOAT_OCTETS, np.uint8)
        with aborting_on_error(exchange):
            pairs = pairs_of(exchange)
        self._round = Gathering(
            outgoing,
            incoming,
            len(self._word),
            outgoing[len(self._word) :].view(np.float32).reshape(size, count),
            np.empty(count, np.float32),
            exchange.rank,
            partition(count, size),
            operation,
            quantise,
            [bool(rounded_hops) and quantise is not None and rounded_hops[rank] for rank in range(size)],
            pairs,
        )
        self._own: Float32Array = self._round.values[0]
        sent_octets = sum(self._round.octets_in(number) for number in range(len(self._round.pairs)))
        self._aside_octets = sent_octets if tagged else 0
        self._incoming = incoming.data[: len(self._word)]

    def __call__(self, source: Float32Array, target: Float32Array) -> None:
        """Replace ``target`` by the reduction of every rank's ``source``, which may be the same vector."""
        round_ = self._round
        try:
            self._own[...] = source  # takes half as long as np.copyto
            if not self._exchange.drive(round_):
                _gather(self._exchange, round_)
            if round_.pairs and self._incoming.tobytes() != self._word:  # quicker than to compare a memoryview
                behind = round_.pairs[round_.done - 1][1]
                raise disagreement(self._exchange.rank, self._announcement, behind, bytes(self._incoming))
        except BaseException as error:
            self._exchange.abort(error)
            raise
        self._exchange.stopwatch.aside_octets += self._aside_octets
        target[...] = round_.result


def _gather(exchange: Exchange, round_: Gathering) -> None:
    """Do what :class:`~netoffload.collectives.exchange.Gathering` describes."""
    word, count = round_.announcement_octets, round_.result.nbytes
    outgoing, incoming = round_.outgoing.data, round_.incoming.data
    for number, (ahead, behind) in enumerate(round_.pairs):
        round_.done = number + 1
        length = round_.octets_in(number)
        move_all(exchange, [(ahead, outgoing[:word])], [(behind, incoming[:word])], may_be_late=True)
        if incoming[:word] != outgoing[:word]:  # perhaps a call without values behind its announcement
            return
        move_all(exchange, [(ahead, outgoing[word:length])], [(behind, incoming[word:length])], may_be_late=True)
        start = word + (1 << number) * count
        outgoing[start : start + length - word] = incoming[word:length]
    _add_up(exchange, round_)


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
