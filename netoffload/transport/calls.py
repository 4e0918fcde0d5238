"""Calls over one data plane: carries them out in the order in which they came, and accounts for them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic

from netoffload.collectives.announcement import refuse
from netoffload.config import Offload
from netoffload.errors import NetOffloadError, UsageError
from netoffload.transport.info import CommInfo, NicShare, with_nic
from netoffload.transport.lanes import Lane
from netoffload.transport.plane import Plane
from netoffload.transport.progress import CallQueue
from netoffload.transport.requests import Request

_forks = 0
"""How often this process is a fork of a fork: 0 in the first one that imports this."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Calls(Generic[Plane]):
    """The calls of one communicator. :meth:`start` may be called from any thread.

    Args:
        plane: what calls work with; :meth:`close` closes it.
    """

    def __init__(self, plane: Plane) -> None:
        """Begin a new account."""
        self.plane = plane
        self._forks = _forks
        self.totals = CommInfo()
        """What all calls did, without the NIC's part."""
        self.last_info = CommInfo()
        """What the latest call did."""
        self._queue = CallQueue()
        self._share: NicShare | None = None
        # Held while a call is added to the totals: a call in the background and a message may end at the same time.
        self._accounting = threading.Lock()

    def run(self, call: Callable[[Plane], None], lanes: Sequence[Lane], calling: str = "") -> None:
        """Carry out a call, after those under way if there are any, and return when it has ended.

        Args:
            call: what to do.
            lanes: the lanes that carry the call's data.
            calling: the call in words, for errors; ranks whose words differ do not go on. Empty: the algorithm's own.

        Raises:
            CollectiveError: what went wrong with the call.
        """
        if self._forks != _forks:  # takes a tenth of os.getpid()
            self.plane.exchange.watch.refuse_in_fork()
        if self._queue.is_idle:
            self._carry_out(call, lanes, calling)
        else:
            self.start(call, lanes, calling).wait()

    def start(self, call: Callable[[Plane], None], lanes: Sequence[Lane], calling: str = "") -> Request:
        """Carry out a call in the background, after those under way; arguments as for :meth:`run`."""
        self.plane.exchange.watch.refuse_in_fork()
        return self._queue.start(lambda: self._carry_out(call, lanes, calling))

    def refuse(self) -> Request:
        """Tell the other ranks, in their meeting, that this rank does not make the call that they make."""
        exchange = self.plane.exchange
        exchange.watch.refuse_in_fork()
        return self._queue.start(lambda: refuse(exchange))

    def give_up(self, error: BaseException) -> None:
        """End the connections after the calls under way, so that every rank hears of ``error``; return at once."""
        exchange = self.plane.exchange
        self._queue.start(lambda: exchange.abort(error))

    def account(self, done: CommInfo) -> None:
        """Add what a call did to the totals, and check that it was compressed if the settings require that.

        Raises:
            CollectiveError: it was not compressed; the connections end, so that every rank hears of it.
            ControlError: the NIC does not answer.
        """
        plane = self.plane
        with self._accounting:
            self.totals += done
        self.last_info = done
        if not plane.settings.per_call:
            return
        reading = plane.account.read()
        self.last_info = with_nic(done, reading, self._share)
        self._share = reading[0] if reading else None
        if plane.settings.require and plane.offload is Offload.NIC:
            try:
                plane.account.require_compression(plane.exchange.stopwatch.aside_octets)
            except NetOffloadError as error:  # only this rank knows: the others must not wait for it in their next call
                plane.exchange.abort(error)
                raise

    def close(self) -> None:
        """Fail the calls that have not begun, and close the connections."""
        self._queue.end()
        self.plane.exchange.close()

    def _carry_out(self, call: Callable[[Plane], None], lanes: Sequence[Lane], calling: str) -> None:
        plane, exchange = self.plane, self.plane.exchange
        watch, sent = exchange.stopwatch, exchange.sent_octets(lanes)
        saved, coding_s = exchange.coding()
        start_s, wire_s, reduce_s, codec_s = watch.now_s(), watch.wire_s, watch.reduce_s, watch.codec_s
        late_s, aside = watch.late_s, watch.aside_octets
        try:
            reserved = exchange.begin_call()
            try:
                if calling:
                    exchange.calling = calling
                call(plane)
            finally:
                if calling:
                    exchange.calling = ""
                reserved.release()
        except (UsageError, MemoryError):  # raised before the meeting, or inside a call that closed the connections
            with contextlib.suppress(NetOffloadError):
                refuse(exchange)
            raise
        saved_until, coding_until_s = exchange.coding()
        raw_octets = exchange.sent_octets(lanes) - sent + watch.aside_octets - aside
        done = CommInfo(
            1,
            raw_octets,
            watch.now_s() - start_s,
            watch.wire_s - wire_s,
            watch.reduce_s - reduce_s,
            watch.codec_s - codec_s + coding_until_s - coding_s,
            raw_octets - saved_until + saved,
            plane.offload,
        )
        plane.learn_rate(done.raw_octets, done.seconds - (watch.late_s - late_s))
        self.account(done)
