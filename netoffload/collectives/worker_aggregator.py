"""Worker-aggregator: gradients up to one rank, parameters down from it; or through a tree of such ranks.

An aggregator receives from all ranks below it at once, but adds in rank order, element by element. So the sum is the
same in every run, in whatever order data arrives. Its scratch memory is one window per rank below it, at any length of
the vectors. A rank may be ahead of the slowest one by a window. An aggregator below another one sends a piece of its
sum up as soon as all ranks below it have contributed, and parameters down as they come (INCEPTIONN, Fig. 1 a)::

    w0  w1    w2  w3      gradients up     (may be tagged)
     ╲  │      │  ╱
      a4        a5        partial sums up  (may be tagged)
        ╲      ╱
           a6             parameters down  (never tagged)
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, check_root, in_words, met
from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange, combine
from netoffload.collectives.operations import Operation
from netoffload.collectives.schedule import Branch
from netoffload.collectives.transfer import move_all, octets_of
from netoffload.collectives.tree import pass_down
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

_ADD_FLOATS: Final = 32 * 1024
"""Floats that are added at a time, 128 KiB: few calls, and both operands stay in cache (see ``ring.CHUNK_FLOATS``)."""

_WINDOW_FLOATS: Final = 8 * _ADD_FLOATS
"""How far a rank may be ahead of the slowest: 1 MiB, several times the octets under way on a fast link."""

_NOTHING: Final = np.empty(0, np.float32)

Update = Callable[[Float32Array], None]


def worker_exchange(
    exchange: Exchange, gradient: Float32Array, parameters: Float32Array, *, aggregator: int, tagged: bool
) -> None:
    """Send this worker's gradient to the rank that calls :func:`aggregate`, and receive the parameters in place."""
    _check_lengths(gradient, parameters)
    if aggregator == exchange.rank or not 0 <= aggregator < exchange.size:
        raise UsageError(f"rank {exchange.rank} of {exchange.size} cannot be a worker of aggregator {aggregator}")
    announced = Announcement(Call.WORKER_AGGREGATOR, gradient.size, tagged, root=aggregator)
    # Another rank updates the parameters.
    _exchange(exchange, announced, Branch(aggregator, ()), gradient, parameters, lambda _: None)


def aggregate(exchange: Exchange, parameters: Float32Array, update: Update, *, tagged: bool) -> None:
    """Sum the gradients of all other ranks, let ``update`` change ``parameters`` in place, and send them to all."""
    workers = tuple(rank for rank in range(exchange.size) if rank != exchange.rank)
    if not workers:
        raise UsageError("an aggregator needs at least one worker: the exchange has one rank")
    announced = Announcement(Call.WORKER_AGGREGATOR, parameters.size, tagged, root=exchange.rank)
    _exchange(exchange, announced, Branch(None, workers), _NOTHING, parameters, update)


def tree_exchange(
    exchange: Exchange,
    tree: Sequence[Branch],
    gradient: Float32Array,
    parameters: Float32Array,
    update: Update,
    *,
    tagged: bool,
) -> None:
    """Do this rank's part in a tree of aggregators: gradients are summed upwards, parameters come down.

    The tree (``schedule.aggregator_tree``) is the same on all ranks. The topmost rank's gradient is overwritten with
    the sum, and ``update`` called with it. Aggregators may pass an empty gradient.
    """
    if len(tree) != exchange.size:
        raise UsageError(f"a tree of {len(tree)} ranks does not fit an exchange of {exchange.size}")
    if gradient.size or not tree[exchange.rank].children:
        _check_lengths(gradient, parameters)
    above = [-1 if branch.parent is None else branch.parent for branch in tree]
    top, details = above.index(-1), f"parents {in_words(above)}"
    announced = Announcement(Call.WORKER_AGGREGATOR, parameters.size, tagged, root=top, details=details)
    _exchange(exchange, announced, tree[exchange.rank], gradient, parameters, update)


def _check_lengths(gradient: Float32Array, parameters: Float32Array) -> None:
    if gradient.size != parameters.size:
        raise UsageError(f"gradient of {gradient.size} floats, parameters of {parameters.size}: lengths must be equal")


def _exchange(
    exchange: Exchange,
    announced: Announcement,
    branch: Branch,
    gradient: Float32Array,
    parameters: Float32Array,
    update: Update,
) -> None:
    upward, downward, tagged = octets_of(gradient), octets_of(parameters), announced.tagged
    with met(exchange, announced):
        above = None if branch.parent is None else exchange.channel(branch.parent, tagged=tagged)
        if above is None:
            missing = parameters.size - gradient.size
            memory = exchange.scratch(missing + len(branch.children) * _WINDOW_FLOATS)
            total = memory[:missing] if missing else gradient

            def keep(start: int, piece: Float32Array) -> None:
                total[start : start + piece.size] = piece

            _reduce(exchange, branch.children, memory[missing:], total.size, keep, tagged=tagged)
            update(total)
        elif branch.children:
            windows = exchange.scratch(len(branch.children) * _WINDOW_FLOATS)
            _reduce(
                exchange,
                branch.children,
                windows,
                parameters.size,
                lambda _, piece: move_all(exchange, [(above, octets_of(piece))], []),
                tagged=tagged,
            )
        else:
            move_all(exchange, [(above, upward)], [])
        # The rank above may be late: an update may take long.
        pass_down(exchange, downward, branch, tagged=False, may_be_late=above is not None)


def aggregator_allreduce(
    exchange: Exchange,
    values: Float32Array,
    *,
    tagged: bool,
    aggregator: int = 0,
    operation: Operation = Operation.SUM,
    have_met: bool = False,
) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, which ``aggregator`` computes."""
    # It is a worker too: its own values come first, then those of the others in rank order. The result comes down
    # untagged, so all ranks end identical.
    octets = octets_of(values)
    aggregator = check_root(aggregator, exchange.size)
    announced = Announcement(Call.AGGREGATOR_ALLREDUCE, values.size, tagged, operation, aggregator)
    with met(exchange, announced, already=have_met):
        if exchange.rank != aggregator:
            move_all(exchange, [(exchange.channel(aggregator, tagged=tagged), octets)], [])
            # The aggregator first receives from all others, over one link: that may take much longer than a time limit.
            move_all(exchange, [], [(exchange.channel(aggregator, tagged=False), octets)], may_be_late=True)
        elif below := [rank for rank in range(exchange.size) if rank != aggregator]:

            def take(start: int, piece: Float32Array) -> None:
                combine(exchange, operation, values[start : start + piece.size], piece)

            windows = exchange.scratch(len(below) * _WINDOW_FLOATS)
            _reduce(exchange, below, windows, values.size, take, tagged=tagged, operation=operation)
            move_all(exchange, [(exchange.channel(worker, tagged=False), octets) for worker in below], [])


def _reduce(
    exchange: Exchange,
    below: Sequence[int],
    memory: Float32Array,
    count: int,
    take: Callable[[int, Float32Array], None],
    *,
    tagged: bool,
    operation: Operation = Operation.SUM,
) -> None:
    """Receive a vector of ``count`` floats from each rank below, and reduce them in rank order, piece by piece.

    ``memory`` holds a window for each of these ranks. ``take`` gets the start of every finished piece and the piece
    itself, in order; it is valid only during the call.
    """
    windows = memory.reshape(len(below), _WINDOW_FLOATS)
    octets, length = [octets_of(window) for window in windows], _WINDOW_FLOATS * FLOAT_OCTETS
    channels = [exchange.channel(rank, tagged=tagged) for rank in below]
    got = [0] * len(below)  # octets of each vector
    done = 0  # floats that were taken
    while done < count:
        limit = min(count, done + _WINDOW_FLOATS) * FLOAT_OCTETS
        moved = 0
        for index, channel in enumerate(channels):
            if got[index] < limit:
                at = got[index] % length
                moved += (fresh := channel.receive_some(octets[index][at : at + limit - got[index]]))
                got[index] += fresh
        while done < count and min(got) >= FLOAT_OCTETS * (stop := min(done + _ADD_FLOATS, count)):
            first, *others = windows[:, done % _WINDOW_FLOATS :][:, : stop - done]
            for piece in others:
                combine(exchange, operation, first, piece)
            take(done, first)
            done = stop
        if not moved and done < count:
            exchange.wait([one for one, octets_in in zip(channels, got, strict=True) if octets_in < limit], [])
