"""Payloads instead of floats: what host-side compressors send, over the same channels as the ring's floats.

Only the sender knows a payload's length, so the length travels first, in 8 octets. There are three ways to make one sum
of compressed vectors, as in the papers of the compressors::

    allgather                        server (push, pull)                 ring, decode - add - encode
    every rank sends its payload     workers push, the server reduces    each hop decodes a block, adds its own
    to every other one; all          and answers all with one payload    and encodes again; finished blocks go
    decode and add in rank order                                         round as payloads, decoded once

    octets out of a rank's link, m per payload of the whole vector, p ranks
    (p-1) m                          worker m, server (p-1) m'           2(p-1)/p m

In all three, every rank adds values from the same octets in the same order, so that replicas stay bit-identical.
In ``alltoall_payloads`` each rank has a different payload for every other rank. Payloads are never tagged: a lossy NIC
must not change them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, met
from netoffload.collectives.exchange import Exchange, combine
from netoffload.collectives.operations import Operation
from netoffload.collectives.schedule import allreduce_walk, partition
from netoffload.collectives.transfer import move_all, octets_of, swap_numbers
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CollectiveError

Payload = Uint8Array
Encode = Callable[[Float32Array, int], Payload]
"""(values, block) -> payload; ``block`` is the index of the part of the vector, for state kept per block."""
Decode = Callable[[Payload, int], Float32Array]  # (payload, block) -> values

LIMIT_OCTETS = 1 << 32
"""A longer payload counts as an error, because its length alone decides how much memory the receiver takes."""


def allgather_payloads(exchange: Exchange, payload: Payload) -> list[Payload]:
    """Return the payloads of all ranks, in rank order; collective."""
    peers = [rank for rank in range(exchange.size) if rank != exchange.rank]
    with met(exchange, Announcement(Call.PAYLOAD_GATHER)):
        received = _swap(exchange, dict.fromkeys(peers, payload), peers)
    return [received.get(rank, payload) for rank in range(exchange.size)]


def alltoall_payloads(exchange: Exchange, payloads: Sequence[Payload]) -> list[Payload]:
    """Send every rank its payload; return those of all ranks for this one, in rank order; collective."""
    outgoing = {rank: payload for rank, payload in enumerate(payloads) if rank != exchange.rank}
    with met(exchange, Announcement(Call.PAYLOAD_ALLTOALL)):
        received = _swap(exchange, outgoing, tuple(outgoing))
    return [received.get(rank, payload) for rank, payload in enumerate(payloads)]


def push_pull(exchange: Exchange, payload: Payload, *, server: int) -> Payload:
    """Send ``payload`` to the server and return its answer; collective, together with :func:`serve_payloads`."""
    with met(exchange, Announcement(Call.PAYLOAD_SERVER, root=server)):
        _swap(exchange, {server: payload}, ())
        return _swap(exchange, {}, (server,))[server]


def serve_payloads(exchange: Exchange, reduce: Callable[[list[Payload]], Payload]) -> Payload:
    """Be the server of one :func:`push_pull` of all other ranks; ``reduce`` makes the answer of their payloads."""
    workers = [rank for rank in range(exchange.size) if rank != exchange.rank]
    with met(exchange, Announcement(Call.PAYLOAD_SERVER, root=exchange.rank)):
        pushed = _swap(exchange, {}, workers)
        answer = reduce([pushed[worker] for worker in workers])
        _swap(exchange, dict.fromkeys(workers, answer), ())
    return answer


def ring_payloads(exchange: Exchange, values: Float32Array, encode: Encode, decode: Decode) -> int:
    """Replace ``values`` on every rank by the sum over all ranks, encoded anew on every hop; return the octets sent."""
    rank, size = exchange.rank, exchange.size
    blocks = [slice(span.start, span.stop) for span in partition(values.size, size)]
    walk = allreduce_walk(rank, size)
    right, left = (rank + 1) % size, (rank - 1) % size
    sent = 0
    if size == 1:
        values[:] = _decoded(decode, encode(values, 0), 0, values.size)
        return 0
    with met(exchange, Announcement(Call.PAYLOAD_RING, values.size)):
        # Phase 1: rank r encodes a block, its right neighbour decodes it and adds its own term.
        for step in range(size - 1):
            payload = encode(values[blocks[walk[step]]], walk[step])
            sent += payload.size
            target = values[blocks[walk[step + 1]]]
            received = _swap(exchange, {right: payload}, (left,))[left]
            combine(exchange, Operation.SUM, target, _decoded(decode, received, walk[step + 1], target.size))
        # Phase 2: the owner encodes the finished block once; all ranks, the owner included, decode those octets.
        finished = encode(values[blocks[walk[size - 1]]], walk[size - 1])
        for step in range(size - 1, 2 * size - 1):
            target = values[blocks[walk[step]]]
            target[:] = _decoded(decode, finished, walk[step], target.size)
            if step < 2 * size - 2:
                sent += finished.size
                finished = _swap(exchange, {right: finished}, (left,))[left]
    return sent


def _decoded(decode: Decode, payload: Payload, block: int, count: int) -> Float32Array:
    values = decode(payload, block)
    if values.size != count:
        raise CollectiveError(f"a payload for block {block} holds {values.size} floats, not {count}")
    return values


def _swap(exchange: Exchange, outgoing: Mapping[int, Payload], sources: Iterable[int]) -> dict[int, Payload]:
    """Send one message to each peer of ``outgoing`` while receiving one from each of ``sources``: length, octets."""
    channels = {peer: exchange.channel(peer, tagged=False) for peer in (*outgoing, *sources)}
    sizes = {peer: payload.size for peer, payload in outgoing.items()}
    # A peer may take long to make a payload, but not to send it.
    lengths = swap_numbers(exchange, sizes, sources, may_be_late=True)
    for peer, length in lengths.items():
        if length > LIMIT_OCTETS:
            raise CollectiveError(f"rank {peer} announces a payload of {length} octets: the limit is {LIMIT_OCTETS}")
    received = {peer: np.empty(length, np.uint8) for peer, length in lengths.items()}
    move_all(
        exchange,
        [(channels[peer], octets_of(payload, "B")) for peer, payload in outgoing.items()],
        [(channels[peer], octets_of(payload, "B")) for peer, payload in received.items()],
    )
    return received
