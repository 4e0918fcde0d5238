"""Collectives in the background: a thread per communicator that carries calls out in the order in which they came.

MPI asks that all ranks start their collectives in the same order, so one queue and one thread are enough. Meetings and
rings are compiled and hold no interpreter lock (``driver``): the thread that computes goes on, and a computation that
holds the lock does not stop them. A blocking call while others are under way takes its turn behind them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from netoffload.errors import PeerLostError
from netoffload_mpi.requests import CompRequest

Work = Callable[[], None]


class CallQueue:
    """Calls of one communicator that were started and have not ended."""

    def __init__(self) -> None:
        """Hold nothing; the thread starts with the first call."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[CompRequest, Work]] = deque()
        self._running = False
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        with self._changed:
            return not self._waiting and not self._running

    def start(self, work: Work) -> CompRequest:
        """Carry out ``work`` after all that was started before it."""
        request = CompRequest(self._withdraw)
        with self._changed:
            self._waiting.append((request, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="collectives", daemon=True)
                self._thread.start()
            self._changed.notify()
        return request

    def end(self) -> None:
        """Fail what has not begun, and let the thread end after what has."""
        with self._changed:
            self._ended = True
            while self._waiting:
                self._waiting.popleft()[0].fail(PeerLostError("the communicator was closed before this call began"))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                request, work = self._waiting.popleft()
                self._running = True
            try:
                work()
            except BaseException as error:
                request.fail(error)
            else:
                request.complete()
            # The thread sleeps next, perhaps for long, and must not keep the call's buffers and communicator.
            del request, work

    def _withdraw(self, request: CompRequest) -> bool:
        with self._changed:
            for entry in self._waiting:
                if entry[0] is request:
                    self._waiting.remove(entry)
                    return True
        return False
