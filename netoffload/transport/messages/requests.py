"""Requests: calls under way. One thread carries a call out and completes its request; others may wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from netoffload.errors import NetOffloadError

ended = threading.Condition()  # notified when any request ends, for threads that wait for one of several


@dataclass(frozen=True)
class Arrival:
    """What a receive got, or a probe found: source rank, tag, number of floats, and the sender's words for it."""

    source: int
    tag: int
    count: int
    words: str = ""


@dataclass
class Outcome:
    """How a call ended. It holds no reference to the call's buffers."""

    arrival: Arrival | None = None
    error: BaseException | None = None
    saved_octets: int = 0  # octets that coding has saved of a message that was sent
    cancelled: bool = False


Callback = Callable[["Request"], None]


class Request:
    """A call under way; complete when its buffers may be used again.

    ``withdraw`` takes the call back if it has not begun, and returns whether it did.
    """

    def __init__(self, withdraw: Callable[[Request], bool] | None = None) -> None:
        self.outcome = Outcome()
        self._withdraw = withdraw
        self._is_decided = False
        self._done = threading.Event()
        self._callbacks: list[Callback] = []

    @staticmethod
    def done(arrival: Arrival | None = None) -> Request:
        """Return a request that is complete."""
        request = Request()
        request.complete(arrival)
        return request

    @property
    def arrival(self) -> Arrival | None:
        """What a receive got; None for other calls, and while the call is under way."""
        return self.outcome.arrival

    @property
    def error(self) -> BaseException | None:
        """What went wrong with the call."""
        return self.outcome.error

    def complete(self, arrival: Arrival | None = None) -> None:
        """Note that all is done; called by the thread that carries the call out."""
        self._end(Outcome(arrival=arrival))

    def fail(self, error: BaseException) -> None:
        """Note that the call ended with ``error``; called by the thread that carries the call out."""
        self._end(Outcome(error=error))

    def cancel(self) -> bool:
        """Cancel the call if it has not begun; return whether it is cancelled."""
        # A receive without a message and a collective in the queue have not begun. A send begins when it is posted.
        if not self.test() and self._withdraw is not None and self._withdraw(self):
            self._end(Outcome(cancelled=True))
        return self.outcome.cancelled

    def test(self) -> bool:
        """Return at once whether the call has ended; its error is not raised."""
        return self._done.is_set()

    def join(self, limit_s: float | None = None) -> bool:
        """Sleep until the call has ended, well or with an error; return False if ``limit_s`` is over first."""
        return self._done.wait(limit_s)

    def wait(self, limit_s: float | None = None) -> bool:
        """Do the same as :meth:`join`, and raise the call's error if it has one; every wait raises it."""
        is_done = self.join(limit_s)
        if is_done and self.outcome.error is not None:
            raise self.outcome.error
        return is_done

    def add_done_callback(self, callback: Callback) -> None:
        """Call ``callback`` with this request when the call ends, at once if it has ended.

        It runs in the thread that ends the call, before waiting threads wake up. So it must not wait for anything, this
        request included, nor call the transport, nor raise.
        """
        with ended:
            if not self._is_decided:
                self._callbacks.append(callback)
                return
        callback(self)

    def _end(self, outcome: Outcome) -> None:
        with ended:
            if self._is_decided:
                return
            self._is_decided = True
            # In place, because a caller may hold this Outcome.
            self.outcome.arrival, self.outcome.error = outcome.arrival, outcome.error
            self.outcome.cancelled = outcome.cancelled
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        with ended:
            self._done.set()
            ended.notify_all()


def wait_all(requests: Iterable[Request]) -> None:
    """Wait for all requests, and raise the first error after all have ended.

    An interrupt cancels those that have not begun: a receive that stayed posted would take the next message.
    """
    failure: NetOffloadError | None = None
    requests = list(requests)
    try:
        for request in requests:
            try:
                request.wait()
            except NetOffloadError as error:
                failure = failure or error
    except BaseException:
        for request in requests:
            request.cancel()
        raise
    if failure is not None:
        raise failure
