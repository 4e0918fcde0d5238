"""Calls over one data plane: carried out in the order in which they came, and accounted."""

from __future__ import annotations

import contextlib
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


class Calls(Generic[Plane]):
    """The calls of one communicator. :meth:`start` may be called from any thread.

    Args:
        plane: what calls work with; owned from now on.
    """

    def __init__(self, plane: Plane) -> None:
        """Begin a new account."""
        self.plane = plane
        self.totals = CommInfo()
        """What all calls did, without the NIC's part."""
        self.last_info = CommInfo()
        """What the latest call did."""
        self._queue = CallQueue()
        self._share: NicShare | None = None
        # Held while a call is added to the totals: one in the background may end beside a message.
        self._accounting = threading.Lock()

    def run(self, call: Callable[[Plane], None], lanes: Sequence[Lane]) -> None:
        """Carry out a call in this thread, or behind those under way, and return when it has ended.

        Args:
            call: what to do.
            lanes: that the call's data goes over.

        Raises:
            CollectiveError: what went wrong with the call.
        """
        if self._queue.is_idle:
            self._carry_out(call, lanes)
        else:
            self.start(call, lanes).wait()

    def start(self, call: Callable[[Plane], None], lanes: Sequence[Lane]) -> Request:
        """Carry out a call in the background, behind those under way; arguments as of :meth:`run`."""
        return self._queue.start(lambda: self._carry_out(call, lanes))

    def refuse(self) -> Request:
        """Let the other ranks hear, in their meeting, that this one does not make the call that they make."""
        exchange = self.plane.exchange
        return self._queue.start(lambda: refuse(exchange))

    def account(self, done: CommInfo) -> None:
        """Add what a call did, and see whether it was compressed where that is required.

        Raises:
            CollectiveError: it was not; the connections end, so that every rank hears of it.
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
            except NetOffloadError as error:  # this rank's alone: the others must not wait for it in their next call
                plane.exchange.abort(error)
                raise

    def close(self) -> None:
        """Fail what has not begun, and close the connections."""
        self._queue.end()
        self.plane.exchange.close()

    def _carry_out(self, call: Callable[[Plane], None], lanes: Sequence[Lane]) -> None:
        plane, exchange = self.plane, self.plane.exchange
        watch, sent = exchange.stopwatch, exchange.sent_octets(lanes)
        saved, coding_s = exchange.coding()
        start_s, wire_s, reduce_s, codec_s = watch.now_s(), watch.wire_s, watch.reduce_s, watch.codec_s
        late_s, aside = watch.late_s, watch.aside_octets
        try:
            calling = exchange.begin_call()
            try:
                call(plane)
            finally:
                calling.release()
        except (UsageError, MemoryError):  # before the meeting; or inside the call, which has closed the connections
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
