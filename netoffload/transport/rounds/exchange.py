"""TCP connections as an ``Exchange``: the lanes of collectives, which the thread that calls drives.

A rank that lives but has not come to a call is *late*, for example because it evaluates its model. The others wait for
it up to ``late_s``. A rank is *lost* if its process or host is silent for ``timeout_s``, or if its connections closed
without a farewell. A call is *stuck* if all ranks have met and live, but no data moves for ``timeout_s``. A lost rank
and a stuck call end the exchange on every rank.
"""

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from typing import cast

import numpy as np

from netoffload.collectives.exchange import Channel, Gathering, RingRound, Scratch, Stopwatch
from netoffload.compiled.arrays import Int64Array
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages.watch import Context
from netoffload.transport.rounds.driver import CLOSED, Driver, TcpChannel, standstill
from netoffload.transport.wiring.coded_socket import CodedSocket
from netoffload.transport.wiring.lanes import TAGGED_LANES, Lane

TIMEOUT_S_DEFAULT = 30.0

LATE_S_DEFAULT = 1800.0  # half an hour, as long as `torch.distributed` waits for a rank


class TcpExchange:
    """One rank's connections; see :class:`~netoffload.collectives.exchange.Exchange`. Made by ``plane.wire_up``."""

    def __init__(self, watch: Context, timeout_s: float, late_s: float) -> None:
        self.rank = watch.shared.rank
        self.size = watch.shared.links.size
        self.calling = ""
        self.stopwatch = Stopwatch(time.perf_counter)
        self.meeting: Gathering | None = None
        self._timeout_s = timeout_s
        self.late_s = late_s
        self.scratch = Scratch()
        self.watch = watch
        self._channels: dict[Lane, dict[int, TcpChannel]] = {lane: {} for lane in Lane}
        self._coded: list[CodedSocket] = []
        self._calling = threading.Lock()
        driving = threading.RLock()
        self._driver = Driver(self.stopwatch, self.watch, timeout_s, late_s, driving)
        # Nothing above refers to this object, so it is closed when its user drops it, or when the process ends.
        self._close = weakref.finalize(self, _forget, self.watch, driving, os.getpid())

    def channel(self, peer: int, *, tagged: bool) -> TcpChannel:
        """Return the connection to ``peer``, and make it if there is none."""
        self._refuse_if_closed()
        lane = Lane.TAGGED if tagged else Lane.UNTAGGED
        if (found := self._channels[lane].get(peer)) is None:
            start_s = self.stopwatch.now_s()
            found = self._channels[lane][peer] = TcpChannel(self.watch.connection(peer, lane).conn, peer, self.watch)
            if found.coded is not None:
                self._coded.append(found.coded)
            took_s = self.stopwatch.now_s() - start_s
            self.stopwatch.wire_s += took_s
            self.stopwatch.late_s += took_s
        return found

    def _refuse_if_closed(self) -> None:
        self.watch.refuse_in_fork()
        if not self._close.alive:
            reason = f": {self.watch.failure}" if self.watch.failure else ""
            raise PeerLostError(f"rank {self.rank} has closed its connections, by request or after an error{reason}")

    def begin_call(self) -> threading.Lock:
        """Reserve the channels of collectives for one call; the caller releases the lock that is returned."""
        if not self._calling.acquire(blocking=False):
            error = CollectiveError(
                f"rank {self.rank} calls collectives of one communicator from two threads at the same time: MPI "
                "forbids it, give each thread its own Dup()"
            )
            # All ranks raise, because they cannot know which call comes first.
            self.abort(error)
            raise error
        return self._calling

    def sent_octets(self, lanes: Sequence[Lane]) -> int:
        """Return the octets that collectives have sent on all connections of these lanes so far."""
        octets = 0
        for lane in lanes:
            for channel in self._channels[lane].values():
                octets += channel.sent_octets
        return octets

    def coding(self) -> tuple[int, float]:
        """Return the octets that this rank's coding has saved in collectives so far, and the seconds that it took."""
        if not self._coded:
            return 0, 0.0
        return sum(one.saved_octets for one in self._coded), sum(one.codec_s for one in self._coded)

    def coded_classes(self) -> Int64Array:
        """Return int64[4], the floats of collectives coded so far by the octets that they took (0, 1, 2, 4)."""
        return sum((coded.coding.classes for coded in self._coded), np.zeros(4, np.int64))

    def tagged_connections(self) -> list[tuple[int, tuple[str, int], tuple[str, int], int]]:
        """Return peer, own and other (address, port), and octets sent, of each tagged connection; [] once closed."""
        if not self._close.alive:
            return []
        return [
            (peer, one.own, one.other, self._sent_octets(peer, lane))
            for (peer, lane), one in self.watch.connections(TAGGED_LANES)
        ]

    def _sent_octets(self, peer: int, lane: Lane) -> int:
        if lane is Lane.MESSAGES:
            return self.watch.sent_octets(peer)
        channel = self._channels[lane].get(peer)
        return 0 if channel is None else channel.sent_octets

    def round_trip_s(self) -> float:
        """Return the shortest round-trip time that the kernel saw to the right neighbour; 0.0 if it saw none yet."""
        right = (self.rank + 1) % self.size
        if right not in self._channels[Lane.TAGGED]:
            return 0.0
        info = self.channel(right, tagged=True).conn.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_MIN_RTT + 4
        )
        rtt_us = int.from_bytes(info[_TCP_INFO_MIN_RTT:], "little")
        return 0.0 if rtt_us == _NO_RTT else rtt_us * 1e-6

    def wait(self, readable: Sequence[Channel], writable: Sequence[Channel], *, may_be_late: bool = False) -> None:
        """Sleep in poll(2) until one of the channels is ready."""
        events: dict[TcpChannel, int] = {}
        for channels, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for channel in cast("Sequence[TcpChannel]", channels):
                events[channel] = events.get(channel, 0) | event
        poller = select.poll()
        for channel, event in events.items():
            if (descriptor := channel.conn.fileno()) < 0:
                raise self.watch.explain(channel.peer, CLOSED)  # another thread has closed it
            poller.register(descriptor, event)
        limit_s = max(self.late_s, self._timeout_s) if may_be_late else self._timeout_s
        start_s = self.stopwatch.now_s()
        is_ready = poller.poll(limit_s * 1000)
        slept_s = self.stopwatch.now_s() - start_s
        self.stopwatch.wire_s += slept_s
        self.stopwatch.late_s += slept_s if may_be_late else 0.0
        if (failure := self.watch.failure if is_ready else self.watch.verdict()) is not None:
            raise failure
        if not is_ready:
            raise standstill([channel.peer for channel in events], limit_s, may_be_late)

    def drive(self, round_: RingRound | Gathering) -> bool:
        """Carry a round out without the interpreter lock; return False if only Python can handle its operands."""
        if isinstance(round_, RingRound):
            return self._driver.go_round(round_)
        self._refuse_if_closed()  # its channels were found for an earlier call
        return self._driver.gather(round_)

    def abort(self, error: BaseException) -> None:
        """Say farewell with the reason, and close all connections."""
        if self._close.alive and not self.watch.is_forked:  # the parent of a forked child uses the connections
            try:
                self.watch.give_up(error)
            finally:
                self.close()

    def close(self) -> None:
        """Say farewell if :meth:`abort` has not done so, and close all connections; sent data is still delivered."""
        if (ending := self._close.detach()) is not None:
            _close(*ending[2])


def _forget(watch: Context, driving: threading.RLock, owner: int) -> None:
    """Close an exchange that its user dropped."""
    # The garbage collector may run in a thread that holds the watch's lock. Then another thread closes, or it would
    # wait for itself.
    if os.getpid() != owner or watch.shared.is_free():
        _close(watch, driving, owner)
    else:
        threading.Thread(target=_close, args=(watch, driving, owner), name="watch-end").start()


def _close(watch: Context, driving: threading.RLock, owner: int) -> None:
    if os.getpid() != owner:  # a forked child: its parent uses the connections, and a copied lock may stay locked
        watch.close(is_forked=True)
        return
    if watch.shared.thread is threading.current_thread():  # the watch's thread cannot wait for its own end
        threading.Thread(target=_close, args=(watch, driving, owner), name="watch-end").start()
        return
    watch.stop()
    watch.shut_down()
    with driving:  # shut_down has ended the compiled code that uses these descriptors
        watch.close()


_TCP_INFO_MIN_RTT = 148
"""Offset of ``tcpi_min_rtt`` (uint32, microseconds) in struct tcp_info, linux/tcp.h, which only grows at its end."""

_NO_RTT = 0xFFFFFFFF
