"""All ranks as threads of one process: the algorithms without sockets, and the arithmetic of NICs without NICs.

Every channel is a bounded queue of octets in memory. Given a codec, tagged channels encode and decode every float, as a
pair of NICs does. Codecs work float by float, so neither the sizes of the pieces nor the scheduling of the threads can
change a result: a run is deterministic.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from netoffload.codec import Codec
from netoffload.collectives.exchange import FLOAT_OCTETS, Channel, Gathering, RingRound, Scratch, Stopwatch
from netoffload.config import BOUND_K_DEFAULT
from netoffload.errors import CollectiveError, PeerLostError

T = TypeVar("T")

CAPACITY_OCTETS = 256 * 1024  # octets that a channel holds before its sender waits, like a socket buffer


def run_ranks(
    size: int,
    body: Callable[[InProcessExchange], T],
    *,
    codec: Codec | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    capacity_octets: int = CAPACITY_OCTETS,
    timeout_s: float = 30.0,
) -> list[T]:
    """Run ``body`` once per rank, each in its own thread, and return the results in rank order.

    ``codec`` is what tagged channels do to floats; None leaves them exact. A rank gives up after ``timeout_s`` of
    silence. What interrupts the caller ends the ranks at their next call; a rank alone runs in the caller's thread.
    """
    fabric = _Fabric(codec, bound_k, capacity_octets)
    exchanges = [InProcessExchange(fabric, rank, size, timeout_s) for rank in range(size)]

    def run(exchange: InProcessExchange) -> T:
        with contextlib.closing(exchange):
            return body(exchange)

    if size == 1:
        return [run(exchanges[0])]
    with ThreadPoolExecutor(size, "rank") as threads:
        ranks: list[Future[T]] = []
        try:
            for exchange in exchanges:
                ranks.append(threads.submit(run, exchange))
            wait(ranks)
        except BaseException:
            for exchange in exchanges:
                exchange.close()
            raise
    if failures := [error for rank in ranks if (error := rank.exception()) is not None]:
        # A PeerLostError only follows from another rank's failure, if there is one.
        raise next((error for error in failures if not isinstance(error, PeerLostError)), failures[0])
    return [rank.result() for rank in ranks]


@dataclass
class _Pipe:
    """One direction of one channel: a bounded queue of octets that can end."""

    octets: bytearray = field(default_factory=bytearray)
    ended: bool = False


class _Fabric:
    """All pipes, and the one lock under which they change."""

    def __init__(self, codec: Codec | None, bound_k: int, capacity_octets: int) -> None:
        self.changed = threading.Condition()
        self.capacity_octets = capacity_octets
        self.pipes: defaultdict[tuple[int, int, bool], _Pipe] = defaultdict(_Pipe)
        self._codec, self._bound_k = codec, bound_k

    def through_nic(self, data: memoryview) -> bytes | memoryview:
        """Return a tagged stream's octets as they come out of a compressing and a decompressing NIC."""
        if self._codec is None:
            return data
        return self._codec.round_trip(np.frombuffer(data, np.float32), self._bound_k).tobytes()


class InProcessChannel:
    """A pair of pipes; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, fabric: _Fabric, rank: int, peer: int, tagged: bool) -> None:
        self.peer = peer
        self._fabric, self._tagged = fabric, tagged
        self._outward, self._inward = fabric.pipes[rank, peer, tagged], fabric.pipes[peer, rank, tagged]

    @property
    def is_readable(self) -> bool:
        """Whether octets, or the end of the stream, are there."""
        return bool(self._inward.octets) or self._inward.ended

    @property
    def is_writable(self) -> bool:
        """Whether a float fits, or the peer is gone."""
        return self._room >= FLOAT_OCTETS or self._inward.ended

    @property
    def _room(self) -> int:
        return self._fabric.capacity_octets - len(self._outward.octets)

    def send_some(self, data: memoryview) -> int:
        """Queue a prefix of ``data``; on a tagged channel whole floats only."""
        if self._tagged and len(data) % FLOAT_OCTETS:
            raise CollectiveError(f"{len(data)} octets on a tagged channel are not a whole number of float32")
        with self._fabric.changed:
            self._check()
            room = self._room
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
            if count == 0:
                self._check()
            into[:count] = self._inward.octets[:count]
            del self._inward.octets[:count]
            if count:
                self._fabric.changed.notify_all()
            return count

    def _check(self) -> None:
        if self._inward.ended or self._outward.ended:
            raise PeerLostError(f"rank {self.peer} closed its connection")

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
        self.rank, self.size, self.calling = rank, size, ""
        self.stopwatch = Stopwatch(time.perf_counter)
        self.meeting: Gathering | None = None
        self._fabric, self._timeout_s = fabric, timeout_s
        self.scratch = Scratch()
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
        reading, writing = cast("list[list[InProcessChannel]]", [readable, writable])
        deadline = time.monotonic() + self._timeout_s
        with self._fabric.changed:
            while not (any(one.is_readable for one in reading) or any(one.is_writable for one in writing)):
                if not self._fabric.changed.wait(deadline - time.monotonic()):
                    peers = sorted({one.peer for one in (*reading, *writing)})
                    raise PeerLostError(f"rank {', '.join(map(str, peers))} was silent for {self._timeout_s:g} s")

    def drive(self, round_: RingRound | Gathering) -> bool:
        """Return False: the algorithms do it."""
        return False

    def abort(self, error: BaseException) -> None:
        """End all channels; :func:`run_ranks` finds the reason by itself."""
        self.close()

    def close(self) -> None:
        """End all channels."""
        for channel in self._channels.values():
            channel.end()
