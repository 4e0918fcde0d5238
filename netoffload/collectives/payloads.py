"""Payloads instead of floats: what host-side compressors send, over the same channels as the ring's floats.

A payload's length is known only to who made it, so every message carries it::

    magic 4 | kind 1 | reserved 3 | length 8 | payload            network order, untagged channel

Three ways to make one sum of compressed vectors, as the papers of the compressors have them::

    allgather                        server (push, pull)                 ring, decode - add - encode
    every rank sends its payload     workers push, the server reduces    each hop decodes a block, adds its own
    to every other one; all          and answers all with one payload    and encodes again; finished blocks go
    decode and add in rank order                                         round as payloads, decoded once

    octets out of a rank's link, m per payload of the whole vector, p ranks
    (p-1) m                          worker m, server (p-1) m'           2(p-1)/p m

In all three, what every rank adds comes from the same octets in the same order, so that replicas stay bit-identical.
These octets are never tagged: a lossy NIC must not touch them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from netoffload.collectives.exchange import Exchange, Float32Array
from netoffload.collectives.schedule import owned_block, partition, received_block, sent_block
from netoffload.collectives.transfer import closing_on_error
from netoffload.errors import CollectiveError

Payload = npt.NDArray[np.uint8]
Encode = Callable[[Float32Array, int], Payload]
"""(values, block) -> payload; ``block`` is the index of the part of the vector, for state kept per block."""
Decode = Callable[[Payload, int], Float32Array]
"""(payload, block) -> values."""

LIMIT_OCTETS = 1 << 32
"""A length above this is a mistake: the announcement of a peer decides how much memory is taken."""

_HEADER = struct.Struct("!4sB3xQ")
_MAGIC = b"NOFP"


class Kind(enum.IntEnum):
    """What a message belongs to."""

    GATHERED = 1
    PUSHED = 2
    PULLED = 3
    REDUCED = 4
    FINISHED = 5


def allgather_payloads(exchange: Exchange, payload: Payload) -> list[Payload]:
    """Return the payloads of all ranks, in rank order; collective.

    Raises:
        CollectiveError: a rank is in another call.
        PeerLostError: a rank is gone or silent.
    """
    peers = [rank for rank in range(exchange.size) if rank != exchange.rank]
    with closing_on_error(exchange):
        received = _swap(exchange, dict.fromkeys(peers, payload), peers, Kind.GATHERED)
    return [received.get(rank, payload) for rank in range(exchange.size)]


def push_pull(exchange: Exchange, payload: Payload, *, server: int) -> Payload:
    """Give ``payload`` to the server and return its answer; collective, together with :func:`serve_payloads`.

    Raises:
        CollectiveError: the server is in another call.
        PeerLostError: it is gone or silent.
    """
    with closing_on_error(exchange):
        _swap(exchange, {server: payload}, (), Kind.PUSHED)
        return _swap(exchange, {}, (server,), Kind.PULLED)[server]


def serve_payloads(exchange: Exchange, reduce: Callable[[list[Payload]], Payload]) -> Payload:
    """Be the server of one :func:`push_pull` of all other ranks; return the answer they got.

    Args:
        exchange: the workers and this server.
        reduce: from the workers' payloads, in rank order, to the answer.

    Raises:
        CollectiveError: a worker is in another call.
        PeerLostError: a worker is gone or silent.
    """
    workers = [rank for rank in range(exchange.size) if rank != exchange.rank]
    with closing_on_error(exchange):
        pushed = _swap(exchange, {}, workers, Kind.PUSHED)
        answer = reduce([pushed[worker] for worker in workers])
        _swap(exchange, dict.fromkeys(workers, answer), (), Kind.PULLED)
    return answer


def ring_payloads(exchange: Exchange, values: Float32Array, encode: Encode, decode: Decode) -> int:
    """Replace ``values`` on every rank by the sum over all ranks, encoded anew on every hop; in place.

    Phase 1: rank r encodes a block, its right neighbour decodes it and adds its own term. Phase 2: the owner encodes
    the finished block once, everybody (the owner as well) decodes those octets.

    Args:
        exchange: the ranks; all of them make this call.
        values: float32[n], equally long on all ranks.
        encode: makes a payload of a block.
        decode: its inverse, as far as there is one.

    Returns:
        Octets this rank sent.

    Raises:
        CollectiveError: ranks disagree on the call, or a block came with another length.
        PeerLostError: a neighbour is gone or silent.
    """
    rank, size = exchange.rank, exchange.size
    blocks = [slice(span.start, span.stop) for span in partition(values.size, size)]
    right, left = (rank + 1) % size, (rank - 1) % size
    sent = 0
    if size == 1:
        values[:] = _decoded(decode, encode(values, 0), 0, values.size)
        return 0
    with closing_on_error(exchange):
        for step in range(size - 1):
            outward, inward = sent_block(rank, size, step), received_block(rank, size, step)
            payload = encode(values[blocks[outward]], outward)
            sent += payload.size
            received = _swap(exchange, {right: payload}, (left,), Kind.REDUCED)[left]
            target = values[blocks[inward]]
            np.add(target, _decoded(decode, received, inward, target.size), out=target)
        travelling, block = encode(values[blocks[owned_block(rank, size)]], owned_block(rank, size)), rank + 1
        for _ in range(size - 1):
            values[blocks[block % size]] = _decoded(
                decode, travelling, block % size, blocks[block % size].stop - blocks[block % size].start
            )
            sent += travelling.size
            travelling = _swap(exchange, {right: travelling}, (left,), Kind.FINISHED)[left]
            block -= 1
        last = blocks[block % size]
        values[last] = _decoded(decode, travelling, block % size, last.stop - last.start)
    return sent


def _decoded(decode: Decode, payload: Payload, block: int, count: int) -> Float32Array:
    values = decode(payload, block)
    if values.size != count:
        raise CollectiveError(f"a payload for block {block} holds {values.size} floats, not {count}")
    return values


def _swap(
    exchange: Exchange, outgoing: Mapping[int, Payload], sources: Iterable[int], kind: Kind
) -> dict[int, Payload]:
    """Send one message to each peer of ``outgoing`` while receiving one from each of ``sources``."""
    sending = {peer: _Outgoing(exchange, peer, payload, kind) for peer, payload in outgoing.items()}
    receiving = {peer: _Incoming(exchange, peer, kind) for peer in sources}
    while unsent := [message for message in sending.values() if not message.is_done]:
        waiting = [message for message in receiving.values() if not message.is_done]
        if not _advance([*unsent, *waiting]):
            exchange.wait([message.channel for message in waiting], [message.channel for message in unsent])
    while waiting := [message for message in receiving.values() if not message.is_done]:
        if not _advance(waiting):
            exchange.wait([message.channel for message in waiting], [])
    return {peer: message.payload for peer, message in receiving.items()}


def _advance(messages: Iterable[_Outgoing | _Incoming]) -> bool:
    return sum(message.advance() for message in messages) > 0


class _Outgoing:
    """A message on its way out: header, then payload, as far as the channel takes them."""

    def __init__(self, exchange: Exchange, peer: int, payload: Payload, kind: Kind) -> None:
        self.channel = exchange.channel(peer, tagged=False)
        self._parts = [memoryview(_HEADER.pack(_MAGIC, kind, payload.size))]
        if payload.size:
            self._parts.append(payload.data.cast("B"))

    @property
    def is_done(self) -> bool:
        return not self._parts

    def advance(self) -> bool:
        count = self.channel.send_some(self._parts[0])
        self._parts[0] = self._parts[0][count:]
        if not len(self._parts[0]):
            self._parts.pop(0)
        return count > 0


class _Incoming:
    """A message on its way in; its header says how much memory it needs."""

    def __init__(self, exchange: Exchange, peer: int, kind: Kind) -> None:
        self.channel = exchange.channel(peer, tagged=False)
        self.payload: Payload = np.empty(0, np.uint8)
        self._rank, self._peer, self._kind = exchange.rank, peer, kind
        self._header = bytearray(_HEADER.size)
        self._missing = memoryview(self._header)
        self._has_header = False

    @property
    def is_done(self) -> bool:
        return self._has_header and not len(self._missing)

    def advance(self) -> bool:
        count = self.channel.receive_some(self._missing)
        self._missing = self._missing[count:]
        if not self._has_header and not len(self._missing):
            self._has_header = True
            self.payload = np.empty(self._length(), np.uint8)
            self._missing = self.payload.data.cast("B") if self.payload.size else memoryview(bytearray())
        return count > 0

    def _length(self) -> int:
        magic, kind, length = _HEADER.unpack(self._header)
        if magic != _MAGIC or kind != self._kind:
            raise CollectiveError(
                f"ranks disagree: rank {self._rank} waits for a payload ({self._kind.name.lower()}), rank {self._peer} "
                "is in another call; every rank must make the same calls"
            )
        if length > LIMIT_OCTETS:
            raise CollectiveError(f"rank {self._peer} announces a payload of {length} octets")
        return int(length)
