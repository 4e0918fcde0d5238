"""Worker-aggregator: gradients up to one rank, parameters down from it.

The aggregator listens to all workers at once, but adds in rank order, element by element: as far as worker i has been
added, worker i+1 may be. The sum is then the same in every run whatever the order of arrival. Its price is scratch
memory for one gradient per worker, kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS, Channel, Exchange, Float32Array
from netoffload.collectives.transfer import (
    Call,
    announce,
    check_announcement,
    closing_on_error,
    octets_of,
    receive_all,
    send_all,
)
from netoffload.errors import UsageError

_ADD_FLOATS = 32 * 1024
"""Floats that are added at a time, 128 KiB: few calls, and both operands stay in cache (see ``ring.CHUNK_FLOATS``)."""


def worker_exchange(
    exchange: Exchange, gradient: Float32Array, parameters: Float32Array, *, aggregator: int, tagged: bool
) -> None:
    """Send this worker's gradient, and receive the updated parameters in place.

    Args:
        exchange: the workers and the aggregator.
        gradient: contiguous float32 vector.
        parameters: contiguous float32 vector of the same length; overwritten.
        aggregator: rank that calls :func:`aggregate`.
        tagged: send the gradient over the tagged channel. The parameters never are.

    Raises:
        UsageError: vectors that do not fit each other, or a worker that is its own aggregator.
        PeerLostError: the aggregator is gone or silent, or found that ranks disagree.
    """
    upward, downward = octets_of(gradient), octets_of(parameters)
    if gradient.size != parameters.size:
        raise UsageError(f"gradient of {gradient.size} floats, parameters of {parameters.size}: lengths must be equal")
    if aggregator == exchange.rank or not 0 <= aggregator < exchange.size:
        raise UsageError(f"rank {exchange.rank} of {exchange.size} cannot be a worker of aggregator {aggregator}")
    with closing_on_error(exchange):
        announce(exchange, aggregator, Call.WORKER_AGGREGATOR, gradient.size, tagged=tagged)
        send_all(exchange, exchange.channel(aggregator, tagged=tagged), upward)
        receive_all(exchange, exchange.channel(aggregator, tagged=False), downward)


def aggregate(
    exchange: Exchange, parameters: Float32Array, update: Callable[[Float32Array], None], *, tagged: bool
) -> None:
    """Sum the gradients of all other ranks, let ``update`` change ``parameters``, and send them to all.

    Args:
        exchange: the workers and this aggregator.
        parameters: contiguous float32 vector.
        update: called once with the sum of the gradients (float32 vector, only valid during the call); changes
            ``parameters`` in place.
        tagged: receive the gradients over the tagged channels.

    Raises:
        UsageError: not a contiguous float32 vector, or no workers.
        CollectiveError: a worker's length or call differs.
        PeerLostError: a worker is gone or silent.
    """
    downward = octets_of(parameters)
    workers = [rank for rank in range(exchange.size) if rank != exchange.rank]
    if not workers:
        raise UsageError("an aggregator needs at least one worker: the exchange has one rank")
    with closing_on_error(exchange):
        for worker in workers:
            check_announcement(exchange, worker, Call.WORKER_AGGREGATOR, parameters.size, tagged=tagged)
        update(_sum_of_gradients(exchange, workers, parameters.size, tagged=tagged))
        _send_to_all(exchange, [exchange.channel(worker, tagged=False) for worker in workers], downward)


def _sum_of_gradients(exchange: Exchange, workers: list[int], count: int, *, tagged: bool) -> Float32Array:
    """Receive one gradient per worker and return their sum, added in rank order, in scratch memory."""
    gradients = exchange.scratch(len(workers) * count).reshape(len(workers), count)
    memory = [octets_of(gradient) for gradient in gradients]
    channels = [exchange.channel(worker, tagged=tagged) for worker in workers]
    got = [0] * len(workers)  # octets received of each gradient
    added = [0] * len(workers)  # floats of each gradient that are part of gradients[0], the running sum
    while added[-1] < count:
        missing = [index for index in range(len(workers)) if got[index] < len(memory[index])]
        moved = 0
        for index in missing:
            moved += (fresh := channels[index].receive_some(memory[index][got[index] :]))
            got[index] += fresh
        _add_in_order(gradients, got, added)
        if not moved and added[-1] < count:
            exchange.wait([channels[index] for index in missing], [])
    total: Float32Array = gradients[0]
    return total


def _add_in_order(gradients: Float32Array, got: list[int], added: list[int]) -> None:
    """Add what has arrived of each gradient, as far as the one before it has been added."""
    count = gradients.shape[1]
    added[0] = got[0] // FLOAT_OCTETS
    for index in range(1, len(got)):
        first, last = added[index], min(added[index - 1], got[index] // FLOAT_OCTETS)
        if last - first >= _ADD_FLOATS or last == count:
            for start in range(first, last, _ADD_FLOATS):
                target = gradients[0, start : min(start + _ADD_FLOATS, last)]
                np.add(target, gradients[index, start : start + target.size], out=target)
            added[index] = last


def _send_to_all(exchange: Exchange, channels: list[Channel], data: memoryview) -> None:
    """Send ``data`` to every peer at once, each as fast as it takes it."""
    sent = [0] * len(channels)
    while unfinished := [index for index in range(len(channels)) if sent[index] < len(data)]:
        moved = 0
        for index in unfinished:
            moved += (fresh := channels[index].send_some(data[sent[index] :]))
            sent[index] += fresh
        if not moved:
            exchange.wait([], [channels[index] for index in unfinished])
