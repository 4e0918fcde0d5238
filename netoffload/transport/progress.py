"""Collectives in the background: a thread per communicator that carries calls out in the order in which they came.

MPI requires that all ranks start their collectives in the same order, so one queue and one thread are enough. Meetings
and rings are compiled and hold no interpreter lock (``driver``). So a thread that computes goes on, and a computation
that holds the lock does not stop them. A blocking call that comes while others are under way waits for its turn.

The thread refers to the calls, but not to the queue. So the queue is freed with its communicator, and then the thread
ends.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

from netoffload.errors import PeerLostError
from netoffload.transport.requests import Request

Work = Callable[[], None]


class CallQueue:
    """Calls of one communicator that were started and have not ended."""

    def __init__(self) -> None:
        """Hold nothing; the thread starts with the first call."""
        self._calls = _Calls()
        self._end = weakref.finalize(self, self._calls.end)
        self._end.atexit = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return not self._calls.waiting and not self._calls.is_running  # in this order, see _Calls.run

    def start(self, work: Work) -> Request:
        """Carry out ``work`` after all work that was started earlier."""
        request, calls = Request(self._withdraw), self._calls
        with calls.changed:
            calls.waiting.append((request, work))
            if calls.thread is None:
                calls.thread = threading.Thread(target=calls.run, name="collectives", daemon=True)
                calls.thread.start()
            calls.changed.notify()
        return request

    def end(self) -> None:
        """Fail the calls that have not begun, and let the thread end after the one that has."""
        self._end()

    def _withdraw(self, request: Request) -> bool:
        with self._calls.changed:
            for entry in self._calls.waiting:
                if entry[0] is request:
                    self._calls.waiting.remove(entry)
                    return True
        return False


class _Calls:
    """What the queue and its thread share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[tuple[Request, Work]] = deque()
        self.is_running = False
        self.thread: threading.Thread | None = None
        self._ended = False

    def end(self) -> None:
        with self.changed:
            self._ended = True
            while self.waiting:
                self.waiting.popleft()[0].fail(PeerLostError("the communicator was closed before this call began"))
            self.changed.notify()

    def run(self) -> None:
        while True:
            with self.changed:
                self.is_running = False
                self.changed.wait_for(lambda: self.waiting or self._ended)
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
