"""Worker-aggregator: gradients up to one rank, parameters down from it.

The aggregator listens to all workers at once, but adds in rank order, element by element: as far as worker i has been
added, worker i+1 may be. The sum is then the same in every run whatever the order of arrival. Its price is scratch
memory for one gradient per worker, kept between calls.
"""

from __future__ import annotations

from collections.abc import Callable

from netoffload.collectives.announcement import Announcement, Call, check_root, meet
from netoffload.collectives.exchange import FLOAT_OCTETS, Exchange
from netoffload.collectives.operations import Operation, combine
from netoffload.collectives.transfer import aborting_on_error, move_all, octets_of, send_all
from netoffload.compiled.arrays import Float32Array
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
    with aborting_on_error(exchange):
        meet(exchange, Announcement(Call.WORKER_AGGREGATOR, gradient.size, tagged, root=aggregator))
        send_all(exchange, exchange.channel(aggregator, tagged=tagged), upward)
        # The aggregator's update may take its time.
        move_all(exchange, [], [(exchange.channel(aggregator, tagged=False), downward)], may_be_late=True)


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
    with aborting_on_error(exchange):
        meet(exchange, Announcement(Call.WORKER_AGGREGATOR, parameters.size, tagged, root=exchange.rank))
        update(_reduced_gradients(exchange, workers, parameters.size, tagged=tagged, operation=Operation.SUM))
        move_all(exchange, [(exchange.channel(worker, tagged=False), downward) for worker in workers], [])


def aggregator_allreduce(
    exchange: Exchange,
    values: Float32Array,
    *,
    tagged: bool,
    aggregator: int = 0,
    operation: Operation = Operation.SUM,
    agreed: int = 0,
) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, which ``aggregator``, a worker too, computes.

    Args:
        exchange: the ranks; all of them make this call.
        values: contiguous float32 vector, equally long on all ranks.
        tagged: send what goes up over the tagged channels. What comes down is untagged, so all ranks end identical.
        aggregator: who computes: its own values first, then those of the others in rank order.
        operation: what two values become.
        agreed: as in :func:`~netoffload.collectives.ring.ring_allreduce`.

    Raises:
        UsageError: not a contiguous float32 vector, or no such rank.
        CollectiveError: ranks disagree on length or call.
        PeerLostError: a rank is gone or silent.
    """
    octets_of(values)
    check_root(exchange, aggregator)
    with aborting_on_error(exchange):
        meet(exchange, Announcement(Call.AGGREGATOR_ALLREDUCE, values.size, tagged, operation, aggregator, agreed))
        aggregator_round(exchange, values, aggregator=aggregator, tagged=tagged, operation=operation)


def aggregator_round(
    exchange: Exchange, values: Float32Array, *, aggregator: int, tagged: bool, operation: Operation
) -> None:
    """Do :func:`aggregator_allreduce` for ranks that have met."""
    octets = octets_of(values)
    if exchange.rank != aggregator:
        send_all(exchange, exchange.channel(aggregator, tagged=tagged), octets)
        # The aggregator first receives from all others, over one link: that may take much longer than a time limit.
        move_all(exchange, [], [(exchange.channel(aggregator, tagged=False), octets)], may_be_late=True)
    elif workers := [rank for rank in range(exchange.size) if rank != aggregator]:
        combine(
            exchange,
            operation,
            values,
            _reduced_gradients(exchange, workers, values.size, tagged=tagged, operation=operation),
        )
        move_all(exchange, [(exchange.channel(worker, tagged=False), octets) for worker in workers], [])


def _reduced_gradients(
    exchange: Exchange, workers: list[int], count: int, *, tagged: bool, operation: Operation
) -> Float32Array:
    """Receive one gradient per worker and return their reduction, in rank order, in scratch memory."""
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
        _add_in_order(exchange, gradients, got, added, operation)
        if not moved and added[-1] < count:
            exchange.wait([channels[index] for index in missing], [])
    total: Float32Array = gradients[0]
    return total


def _add_in_order(
    exchange: Exchange, gradients: Float32Array, got: list[int], added: list[int], operation: Operation
) -> None:
    """Add what has arrived of each gradient, as far as the one before it has been added."""
    count = gradients.shape[1]
    added[0] = got[0] // FLOAT_OCTETS
    for index in range(1, len(got)):
        first, last = added[index], min(added[index - 1], got[index] // FLOAT_OCTETS)
        if last - first >= _ADD_FLOATS or last == count:
            for start in range(first, last, _ADD_FLOATS):
                target = gradients[0, start : min(start + _ADD_FLOATS, last)]
                combine(exchange, operation, target, gradients[index, start : start + target.size])
            added[index] = last
