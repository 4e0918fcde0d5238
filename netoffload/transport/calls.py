"""Calls over one data plane: carries them out in the order in which they came, and accounts for them.

MPI requires that all ranks start their collectives in the same order, so one queue and one thread are enough. A
blocking call that comes while others are under way waits for its turn. The thread refers to the calls, but not to the
queue. So the queue is freed with its communicator, and then the thread ends.

A thread that completes torch's Futures is in C++ for a moment after it woke whoever waited. If the interpreter ended
meanwhile, C++ would end the process by SIGABRT. So a close, and the end of the program, wait for the thread.
"""

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic

from netoffload.collectives.announcement import refuse
from netoffload.config import Offload
from netoffload.errors import ControlError, NetOffloadError, PeerLostError, UsageError
from netoffload.transport.info import CommInfo, NicShare, with_nic
from netoffload.transport.messages.requests import Request
from netoffload.transport.messages.watch import fork_count
from netoffload.transport.plane import Plane
from netoffload.transport.wiring.lanes import Lane

Work = Callable[[], None]

ENDING_S: Final = 2.0
"""Longest time to wait for the thread; a call that hangs keeps it longer."""


class Calls(Generic[Plane]):
    """The calls of one communicator; :meth:`close` closes its plane. :meth:`start` may be called from any thread."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.totals = CommInfo()  # what all calls did, without the NIC's part
        self.last_info = CommInfo()  # what the latest call did
        self._queue = CallQueue()
        self._share: NicShare | None = None
        # Held while a call is added to the totals: a call in the background and a message may end at the same time.
        self._accounting = threading.Lock()

    def run(self, call: Callable[[Plane], None], lanes: Sequence[Lane], calling: str = "") -> None:
        """Carry out a call, after those under way if there are any, and return when it has ended.

        ``lanes`` carry its data. ``calling`` is the call in words, for errors; ranks whose words differ do not go on.
        """
        self.plane.exchange.watch.refuse_in_fork()
        if self._queue.is_idle:
            self._carry_out(call, lanes, calling)
        else:
            request = self.start(call, lanes, calling)
            try:
                request.wait()
            except BaseException as error:
                if not request.test():  # Ctrl-C: it ends the connections, as of a call that waits for no other
                    self.plane.exchange.abort(error)
                raise

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
        """Add what a call did to the totals, and check that it was compressed if the settings require that."""
        plane = self.plane
        with self._accounting:
            self.totals += done
        self.last_info = done
        if not plane.settings.per_call:
            return
        try:
            reading = plane.account.read()
            self.last_info = with_nic(done, reading, self._share)
            self._share = reading[0] if reading else None
            if plane.settings.require and plane.offload is Offload.NIC:
                plane.account.require_compression(plane.exchange.stopwatch.aside_octets)
        except NetOffloadError as error:
            if isinstance(error, ControlError) and not plane.settings.require:
                return  # the call is over on all ranks, and its info lacks the NIC's part
            plane.exchange.abort(error)  # only this rank knows: the others must not wait for it in their next call
            raise

    def close(self) -> None:
        """Fail the calls that have not begun, and close the connections."""
        self._queue.end()
        self.plane.exchange.close()
        self._queue.join()

    def _carry_out(self, call: Callable[[Plane], None], lanes: Sequence[Lane], calling: str) -> None:
        plane, exchange = self.plane, self.plane.exchange
        watch, sent = exchange.stopwatch, exchange.sent_octets(lanes)
        saved, coding_s = exchange.coding()
        start_s, wire_s, reduce_s, codec_s = watch.now_s(), watch.wire_s, watch.reduce_s, watch.codec_s
        late_s, aside = watch.late_s, watch.aside_octets
        try:
            reserved = exchange.begin_call()
            try:
                exchange.calling = calling
                call(plane)
            finally:
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


class CallQueue:
    """Calls of one communicator that were started and have not ended."""

    def __init__(self) -> None:
        self._calls = _Queued()
        # Fails the calls that have not begun, and lets the thread end after the one that has.
        self.end = weakref.finalize(self, self._calls.end)
        self.end.atexit = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._calls.waiting and not self._calls.is_running  # in this order, see _Queued.run

    def start(self, work: Work) -> Request:
        """Carry out ``work`` after all work that was started earlier."""
        request, calls = Request(self._withdraw), self._calls
        with calls.changed:
            if not (has_ended := calls.has_ended):
                if calls.thread is None:
                    thread = threading.Thread(target=calls.run, name="collectives", daemon=True)
                    thread.start()  # may fail, and then nothing waits
                    calls.thread = thread
                calls.waiting.append((request, work))
                calls.changed.notify()
        if has_ended:
            request.fail(_too_late())
        return request

    def join(self) -> None:
        """Wait until the thread has ended, after :attr:`end`."""
        self._calls.join()

    def _withdraw(self, request: Request) -> bool:
        with self._calls.changed:
            for entry in self._calls.waiting:
                if entry[0] is request:
                    self._calls.waiting.remove(entry)
                    return True
        return False


def _too_late() -> PeerLostError:
    return PeerLostError("the communicator was closed before this call began")


class _Queued:
    """What the queue and its thread share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[tuple[Request, Work]] = deque()
        self.is_running = False
        self.thread: threading.Thread | None = None
        self.has_ended = False
        self._forks = fork_count()
        _queues.add(self)

    def end(self) -> None:
        with self.changed:
            self.has_ended = True
            while self.waiting:
                self.waiting.popleft()[0].fail(_too_late())
            self.changed.notify()

    def join(self) -> None:
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(ENDING_S)

    def finish(self) -> None:
        """Wait for the calls that have begun or wait, and for the thread, at the end of the program."""
        if self._forks == fork_count():  # a child of a fork has no such thread, and perhaps a lock that nobody releases
            with self.changed:
                self.has_ended = True
                self.changed.notify()
            self.join()

    def run(self) -> None:
        while True:
            with self.changed:
                self.is_running = False
                self.changed.wait_for(lambda: self.waiting or self.has_ended)
                if not self.waiting:
                    return
                self.is_running = True  # set before the call leaves the queue: is_idle reads both without the lock
                request, work = self.waiting.popleft()
            try:
                work()
            except BaseException as error:
                request.fail(error)
            else:
                request.complete()
            # The thread may sleep long, and must not keep the call's buffers and communicator alive.
            del request, work


_queues: weakref.WeakSet[_Queued] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    for one in list(_queues):
        one.finish()
