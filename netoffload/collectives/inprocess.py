"""All ranks as threads of one process: the algorithms without sockets, and the arithmetic of NICs without NICs.

Every channel is a bounded queue of octets in memory. Given a codec, tagged channels encode and decode every float, as a
pair of NICs does. Codecs work float by float, so neither the sizes of the pieces nor the scheduling of the threads can
change a result: a run is deterministic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS, Channel, Gathering, Meeting, RingRound, Stopwatch
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.config import BOUND_K_DEFAULT
from netoffload.errors import CollectiveError, PeerLostError

T = TypeVar("T")

CAPACITY_OCTETS = 256 * 1024  # octets that a channel holds before its sender waits, like a socket buffer


class FloatCodec(Protocol):
    """What a tagged channel asks of a codec (``netoffload.codec.get`` returns one)."""

    def encode(self, values: Float32Array, bound_k: int) -> Uint8Array:
        """Compress a vector."""

    def decode(self, payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
        """Return the ``count`` floats of a compressed vector."""


def run_ranks(
    size: int,
    body: Callable[[InProcessExchange], T],
    *,
    codec: FloatCodec | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    capacity_octets: int = CAPACITY_OCTETS,
    timeout_s: float = 30.0,
) -> list[T]:
    """Run ``body`` once per rank, each in its own thread, and return the results in rank order.

    ``codec`` is what tagged channels do to floats; None leaves them exact. A rank gives up after ``timeout_s`` of
    silence.
    """
    fabric = _Fabric(codec, bound_k, capacity_octets)
    exchanges = [InProcessExchange(fabric, rank, size, timeout_s) for rank in range(size)]
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(exchange: InProcessExchange) -> None:
        try:
            results[exchange.rank] = body(exchange)
        except BaseException as error:
            failures.append(error)
        finally:
            exchange.close()

    threads = [threading.Thread(target=run, args=(one,), name=f"rank-{one.rank}") for one in exchanges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        # A PeerLostError only follows from another rank's failure, if there is one.
        raise next((error for error in failures if not isinstance(error, PeerLostError)), failures[0])
    return [results[rank] for rank in range(size)]


class _Pipe:
    """One direction of one channel: a bounded queue of octets that can end."""

    def __init__(self) -> None:
        self.octets = bytearray()
        self.ended = False


class _Fabric:
    """All pipes, and the one lock under which they change."""

    def __init__(self, codec: FloatCodec | None, bound_k: int, capacity_octets: int) -> None:
        self.changed = threading.Condition()
        self.capacity_octets = capacity_octets
        self._codec = codec
        self._bound_k = bound_k
        self._pipes: dict[tuple[int, int, bool], _Pipe] = {}

    def pipe(self, source: int, target: int, tagged: bool) -> _Pipe:
        with self.changed:
            return self._pipes.setdefault((source, target, tagged), _Pipe())

    def through_nic(self, data: memoryview) -> bytes | memoryview:
        """Return a tagged stream's octets as they come out of a compressing and a decompressing NIC."""
        if self._codec is None:
            return data
        values = np.frombuffer(data, dtype=np.float32)
        return self._codec.decode(self._codec.encode(values, self._bound_k), values.size, self._bound_k).tobytes()


class InProcessChannel:
    """A pair of pipes; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, fabric: _Fabric, rank: int, peer: int, tagged: bool) -> None:
        self.peer = peer
        self._fabric = fabric
        self._tagged = tagged
        self._outward = fabric.pipe(rank, peer, tagged)
        self._inward = fabric.pipe(peer, rank, tagged)

    @property
    def is_readable(self) -> bool:
        """Whether octets, or the end of the stream, are there."""
        return bool(self._inward.octets) or self._inward.ended

    @property
    def is_writable(self) -> bool:
        """Whether a float fits, or the peer is gone."""
        room = self._fabric.capacity_octets - len(self._outward.octets)
        return room >= FLOAT_OCTETS or self._inward.ended

    def send_some(self, data: memoryview) -> int:
        """Queue a prefix of ``data``; on a tagged channel whole floats only."""
        if self._tagged and len(data) % FLOAT_OCTETS:
            raise CollectiveError(f"{len(data)} octets on a tagged channel are not a whole number of float32")
        with self._fabric.changed:
            if self._inward.ended or self._outward.ended:
                raise PeerLostError(f"rank {self.peer} closed its connection")
            room = self._fabric.capacity_octets - len(self._outward.octets)
            count = min(len(data), room - room % FLOAT_OCTETS if self._tagged else room)
            if count:
                piece = data[:count]
                self._outward.octets += self._fabric.through_nic(piece) if self._tagged else piece
                self._fabric.changed.notify_all()
            return count

    def receive_some(self, into: memoryview) -> int:
        """Take queued octets."""
        with self._fabric.changed:
            count = min(len(into), len(self._inward.octets))
            if count == 0 and (self._inward.ended or self._outward.ended):
                raise PeerLostError(f"rank {self.peer} closed its connection")
            into[:count] = self._inward.octets[:count]
            del self._inward.octets[:count]
            if count:
                self._fabric.changed.notify_all()
            return count

    def ending(self) -> CollectiveError | None:
        """Return an error if the peer has ended its channel; :func:`run_ranks` finds the reason by itself."""
        return PeerLostError(f"rank {self.peer} closed its connection") if self._inward.ended else None

    def end(self) -> None:
        """Let the peer see the end once it has taken what is queued."""
        with self._fabric.changed:
            self._outward.ended = True
            self._fabric.changed.notify_all()


class InProcessExchange:
    """One rank of :func:`run_ranks`; see :class:`~netoffload.collectives.exchange.Exchange`."""

    def __init__(self, fabric: _Fabric, rank: int, size: int, timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self.calling = ""
        self._fabric = fabric
        self.stopwatch = Stopwatch(time.perf_counter)
        self._timeout_s = timeout_s
        self._scratch = np.empty(0, dtype=np.float32)
        self._channels = {
            (peer, tagged): InProcessChannel(fabric, rank, peer, tagged)
            for peer in range(size)
            if peer != rank
            for tagged in (False, True)
        }

    def channel(self, peer: int, *, tagged: bool) -> InProcessChannel:
        """Return the channel to ``peer``."""
        return self._channels[peer, tagged]

    def wait(self, readable: Sequence[Channel], writable: Sequence[Channel], *, may_be_late: bool = False) -> None:
        """Sleep until one of the channels is ready. A late thread counts as lost after the same time."""
        reading = [self._channels_of(one) for one in readable]
        writing = [self._channels_of(one) for one in writable]
        deadline = time.monotonic() + self._timeout_s
        with self._fabric.changed:
            while not (any(one.is_readable for one in reading) or any(one.is_writable for one in writing)):
                if not self._fabric.changed.wait(deadline - time.monotonic()):
                    peers = sorted({one.peer for one in (*reading, *writing)})
                    raise PeerLostError(f"rank {', '.join(map(str, peers))} was silent for {self._timeout_s:g} s")

    def drive(self, round_: RingRound | Meeting | Gathering) -> bool:
        """Return False: the algorithms do it."""
        return False

    def scratch(self, count: int) -> Float32Array:
        """Return ``count`` floats of this rank's scratch memory."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, dtype=np.float32)
        return self._scratch[:count]

    def abort(self, error: BaseException) -> None:
        """End all channels; :func:`run_ranks` finds the reason by itself."""
        self.close()

    def close(self) -> None:
        """End all channels."""
        for channel in self._channels.values():
            channel.end()

    @staticmethod
    def _channels_of(channel: Channel) -> InProcessChannel:
        if not isinstance(channel, InProcessChannel):
            raise TypeError(f"not a channel of this exchange: {channel!r}")
        return channel
