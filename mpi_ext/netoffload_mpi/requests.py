"""Requests: what an ``I..._comp`` call returns."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpi4py import MPI


@dataclass(frozen=True)
class Arrival:
    """What a receive got: from whom, with which tag, how many floats."""

    source: int
    tag: int
    count: int


class CompRequest:
    """A call under way; complete when its buffers may be used again.

    ``Test``, ``Wait``, ``Waitall``, ``Testall`` and ``Cancel`` mean what they mean in mpi4py. An error of
    the call is raised by every ``Wait`` and by the ``Test`` that finds it.
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
        self._done.set()

    def fail(self, error: BaseException) -> None:
        """Note that the call ended with ``error``; for whoever drives the call."""
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the call is complete; never sleeps."""
        if not self._done.is_set():
            return False
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
        """Take the call back if it has not begun: a receive without a message, a call still in the queue."""
        if not self._done.is_set() and self._withdraw is not None and self._withdraw(self):
            self._cancelled = True
            self._done.set()

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
        return all(request._done.is_set() for request in requests) and CompRequest.Waitall(requests, statuses)

    def _finish(self, status: MPI.Status | None) -> None:
        if self._error is not None:
            raise self._error
        if status is not None:
            arrival = self._arrival or Arrival(MPI.PROC_NULL, MPI.ANY_TAG, 0)
            status.Set_source(arrival.source)
            status.Set_tag(arrival.tag)
            status.Set_elements(MPI.FLOAT, arrival.count)
            status.Set_cancelled(self._cancelled)
