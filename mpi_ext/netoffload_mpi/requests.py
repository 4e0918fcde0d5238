"""Requests: what an ``I..._comp`` call returns."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpi4py import MPI

_ended = threading.Condition()
"""Told of every request that ends, for whoever waits for any of several; ``CompRequest._done`` says which."""


@dataclass(frozen=True)
class Arrival:
    """What a receive got, or a probe found: from whom, with which tag, how many floats."""

    source: int
    tag: int
    count: int

    def describe_in(self, status: MPI.Status | None) -> None:
        """Write this into a status, where there is one."""
        if status is not None:
            status.Set_source(self.source)
            status.Set_tag(self.tag)
            status.Set_elements(MPI.FLOAT, self.count)
            status.Set_cancelled(False)


NOBODY = Arrival(MPI.PROC_NULL, MPI.ANY_TAG, 0)
"""What comes from ``MPI.PROC_NULL``."""


class CompRequest:
    """A call under way; complete when its buffers may be used again.

    Its methods mean what they mean in mpi4py. An error of the call is raised by every ``Wait`` and by the ``Test`` that
    finds it. What takes several requests and tells some of them from others (``Waitany``, ``Waitsome``, ``Testany``,
    ``Testsome``) passes over those whose end was told or raised already: MPI's inactive requests.
    """

    def __init__(self, withdraw: Callable[[CompRequest], bool] | None = None) -> None:
        """Be under way.

        Args:
            withdraw: takes the call back if it has not begun, and returns whether it did.
        """
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._arrival: Arrival | None = None
        self._cancelled = False
        self._told = False
        self._withdraw = withdraw

    @staticmethod
    def done(arrival: Arrival | None = None) -> CompRequest:
        """Return a request that is complete."""
        request = CompRequest()
        request.complete(arrival)
        return request

    def complete(self, arrival: Arrival | None = None) -> None:
        """Note that all is done; for whoever drives the call."""
        self._arrival = arrival
        self._end()

    def fail(self, error: BaseException) -> None:
        """Note that the call ended with ``error``; for whoever drives the call."""
        if not self._done.is_set():
            self._error = error
            self._end()

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the call is complete; never waits for it, but lets others go on (:func:`_incomplete`)."""
        if not self._done.is_set():
            return _incomplete()
        self._finish(status)
        return True

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Sleep until the call is complete, and return True.

        Raises:
            CollectiveError: what went wrong with the call.
        """
        self._done.wait()
        self._finish(status)
        return True

    def Cancel(self) -> None:
        """Take the call back if it has not begun: a receive without a message, a collective still in the queue.

        A send is announced when it is posted, and stays.
        """
        if not self._done.is_set() and self._withdraw is not None and self._withdraw(self):
            self._cancelled = True
            self._end()

    def Is_cancelled(self) -> bool:
        """Return whether :meth:`Cancel` came in time."""
        return self._cancelled

    @staticmethod
    def Waitall(requests: Sequence[CompRequest], statuses: Sequence[MPI.Status] | None = None) -> bool:
        """Wait for all; the first error is raised after all have ended."""
        for request in requests:
            request._done.wait()
        for index, request in enumerate(requests):
            request._finish(None if statuses is None else statuses[index])
        return True

    @staticmethod
    def Testall(requests: Sequence[CompRequest], statuses: Sequence[MPI.Status] | None = None) -> bool:
        """Return whether all are complete."""
        if not all(request._done.is_set() for request in requests):
            return _incomplete()
        return CompRequest.Waitall(requests, statuses)

    @staticmethod
    def Waitany(requests: Sequence[CompRequest], status: MPI.Status | None = None) -> int:
        """Wait until one is complete and return its index; ``MPI.UNDEFINED`` if none is active.

        Raises:
            CollectiveError: what went wrong with the one that ended.
        """
        with _ended:
            _ended.wait_for(lambda: not _active(requests) or _newly_ended(requests))
        return CompRequest.Testany(requests, status)[0]

    @staticmethod
    def Testany(requests: Sequence[CompRequest], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return the index of one that is complete, and True; else ``MPI.UNDEFINED``, and whether none is active."""
        if not _active(requests):
            return MPI.UNDEFINED, True
        for index in _newly_ended(requests)[:1]:
            requests[index]._finish(status)
            return index, True
        return MPI.UNDEFINED, _incomplete()

    @staticmethod
    def Waitsome(requests: Sequence[CompRequest], statuses: Sequence[MPI.Status] | None = None) -> list[int] | None:
        """Wait until some are complete and return their indices; None if none is active.

        Args:
            requests: calls under way, or not.
            statuses: the i-th is that of the i-th index returned.

        Raises:
            CollectiveError: what went wrong with the first of them, after all that have ended were told.
        """
        with _ended:
            _ended.wait_for(lambda: not _active(requests) or _newly_ended(requests))
        return CompRequest.Testsome(requests, statuses)

    @staticmethod
    def Testsome(requests: Sequence[CompRequest], statuses: Sequence[MPI.Status] | None = None) -> list[int] | None:
        """Do the same without waiting: the list may be empty."""
        if not _active(requests):
            return None
        indices = _newly_ended(requests)
        if not indices:
            _incomplete()
        for index in indices:
            requests[index]._told = True
        for place, index in enumerate(indices):
            requests[index]._finish(None if statuses is None else statuses[place])
        return indices

    def _end(self) -> None:
        self._done.set()
        with _ended:
            _ended.notify_all()

    def _finish(self, status: MPI.Status | None) -> None:
        self._told = True
        if self._error is not None:
            raise self._error
        (self._arrival or NOBODY).describe_in(status)
        if status is not None:
            status.Set_cancelled(self._cancelled)


def _incomplete() -> bool:
    """Return False, and let go of the interpreter, or a caller that asks in a loop keeps it from the call's thread."""
    time.sleep(0)
    return False


def _active(requests: Sequence[CompRequest]) -> list[int]:
    return [index for index, request in enumerate(requests) if not request._told]


def _newly_ended(requests: Sequence[CompRequest]) -> list[int]:
    return [index for index in _active(requests) if requests[index]._done.is_set()]
