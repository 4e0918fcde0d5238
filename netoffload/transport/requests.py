"""Requests: calls under way, whoever carries them out and whoever waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from netoffload.errors import NetOffloadError

ended = threading.Condition()
"""Notified when any request ends, for those who wait for any of several."""


@dataclass(frozen=True)
class Arrival:
    """What a receive got, or a probe found: from which rank, with which tag, how many floats."""

    source: int
    tag: int
    count: int


@dataclass
class Outcome:
    """How a call ended. It refers to none of the call's buffers."""

    arrival: Arrival | None = None
    error: BaseException | None = None
    saved_octets: int = 0
    """By which coding has made a message that was sent shorter."""
    cancelled: bool = False


Callback = Callable[["Request"], None]


class Request:
    """A call under way; complete when its buffers may be used again.

    Args:
        withdraw: takes the call back if it has not begun, and returns whether it did.
    """

    def __init__(self, withdraw: Callable[[Request], bool] | None = None) -> None:
        """Be under way."""
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
        """Note that all is done; for whoever drives the call."""
        self._end(Outcome(arrival=arrival))

    def fail(self, error: BaseException) -> None:
        """Note that the call ended with ``error``; for whoever drives the call."""
        self._end(Outcome(error=error))

    def cancel(self) -> bool:
        """Take the call back if it has not begun, and return whether that came in time.

        A receive without a message and a collective in the queue have not begun. A send is announced when it is posted.
        """
        if not self.test() and self._withdraw is not None and self._withdraw(self):
            self._end(Outcome(cancelled=True))
        return self.outcome.cancelled

    def test(self) -> bool:
        """Return whether the call has ended, at once and without raising its error."""
        return self._done.is_set()

    def join(self, limit_s: float | None = None) -> bool:
        """Sleep until the call has ended, however it did; return False if ``limit_s`` is over first."""
        return self._done.wait(limit_s)

    def wait(self, limit_s: float | None = None) -> bool:
        """Do the same, and raise what went wrong with the call.

        Raises:
            CollectiveError: the call's error, in every wait.
        """
        is_done = self.join(limit_s)
        if is_done and self.outcome.error is not None:
            raise self.outcome.error
        return is_done

    def add_done_callback(self, callback: Callback) -> None:
        """Call ``callback`` with this request when the call ends, at once if it has ended.

        It runs in the thread that ends the call, before anyone who waits wakes up. So it must not wait for anything,
        this request included, nor call the transport, and must not raise.
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
            # In place: what was handed out as this request's outcome stays it.
            self.outcome.arrival, self.outcome.error = outcome.arrival, outcome.error
            self.outcome.cancelled = outcome.cancelled
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
        with ended:
            self._done.set()
            ended.notify_all()


def wait_all(requests: Iterable[Request]) -> None:
    """Wait for all; the first error is raised after all have ended.

    Raises:
        CollectiveError: what went wrong with one of the calls.
    """
    failure: NetOffloadError | None = None
    for request in requests:
        try:
            request.wait()
        except NetOffloadError as error:
            failure = failure or error
    if failure is not None:
        raise failure
