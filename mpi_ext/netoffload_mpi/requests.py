"""Requests in MPI's shape: what an ``I..._comp`` call returns."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from mpi4py import MPI

from netoffload.errors import NetOffloadError
from netoffload.transport.messages.requests import Arrival, Outcome, Request, ended

NOBODY = Arrival(MPI.PROC_NULL, MPI.ANY_TAG, 0)  # what a receive from `MPI.PROC_NULL` gets


def describe(arrival: Arrival, status: MPI.Status | None, *, cancelled: bool = False) -> None:
    """Write what arrived into a status, unless it is None."""
    if status is not None:
        status.Set_source(arrival.source)
        status.Set_tag(arrival.tag)
        status.Set_elements(MPI.FLOAT, arrival.count)
        status.Set_cancelled(cancelled)


@dataclass
class _Ending:
    """How a call ended, and whether its caller knows. MPI's part of a request refers to this, and to no buffer."""

    outcome: Outcome
    is_reported: bool = False

    def describe_in(self, status: MPI.Status | None) -> None:
        """Write this into a status, unless it is None."""
        describe(self.outcome.arrival or NOBODY, status, cancelled=self.outcome.cancelled)


def _answer_mpi(status: MPI.Status, ending: _Ending) -> None:
    """Tell an MPI call that found the request complete how it ended; mpi4py prints an error and turns it into MPI's."""
    ending.describe_in(status)
    if ending.outcome.error is not None and not ending.is_reported:
        raise ending.outcome.error


def _cancel_nothing(_completed: bool, _ending: _Ending) -> None:
    """Do nothing: :meth:`CompRequest.Cancel` cancels. Without such a function mpi4py clears ``cancelled``."""


class CompRequest(MPI.Request):
    """A call under way; complete when its buffers may be used again.

    To MPI it is a generalised request: ``MPI.Request.Waitall`` and similar calls take it together with MPI's own
    requests. MPI's calls spin, the methods of this class sleep. Every ``Wait``, and the ``Test`` that finds the end,
    raises the call's error. MPI's calls raise ``MPI.Exception``, and mpi4py prints the cause. ``Waitany``,
    ``Waitsome``, ``Testany`` and ``Testsome`` skip requests whose end they have reported already, as MPI does with
    inactive requests.

    If MPI was started with less than ``THREAD_MULTIPLE``, no other thread may tell it that a call has ended. Then these
    requests are inactive to MPI, and only the methods of this class wait for them.
    """

    def __new__(cls, *_: object) -> Self:
        """Make an object that is MPI's null request at first."""
        return super().__new__(cls)

    def __init__(self, request: Request) -> None:
        self._request = request
        self._ending = _Ending(request.outcome)
        self._finishing = threading.Lock()  # MPI ends its part once, though several threads may wait
        self._is_mpis = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        if self._is_mpis:
            part = MPI.Grequest.Start(_answer_mpi, None, _cancel_nothing, args=(self._ending,))
            # Python cannot set the handle of an existing request, but mpi4py gives its address.
            ctypes.memmove(MPI._addressof(self), MPI._addressof(part), MPI._sizeof(part))
            request.add_done_callback(lambda _: None if MPI.Is_finalized() else part.Complete())

    def __del__(self) -> None:
        """Free MPI's part if no call has waited for it."""
        if self and not MPI.Is_finalized():
            part = MPI.Request(self)
            self._ending.is_reported = True  # nobody is left to hear of an error
            self._request.add_done_callback(lambda _: None if MPI.Is_finalized() else part.Free())

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the call is complete, without waiting; if not, let other threads run (:func:`_incomplete`)."""
        if not self._request.test():
            return _incomplete()
        self._finish(status)
        return True

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Sleep until the call is complete, and return True."""
        self._request.join()
        self._finish(status)
        return True

    def Cancel(self) -> None:
        """Cancel the call if it has not begun: a receive without a message, a collective still in the queue; never a
        send.
        """
        self._request.cancel()

    def Is_cancelled(self) -> bool:
        """Return whether :meth:`Cancel` cancelled the call."""
        return self._request.outcome.cancelled

    @classmethod
    def Waitall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> Literal[True]:
        """Wait for all requests, and raise the first error after all have ended."""
        failure: Exception | None = None
        for index, request in enumerate(requests):
            try:
                request.Wait(_status(statuses, index))
            except (NetOffloadError, MPI.Exception) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return True

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        """Return whether all requests are complete."""
        for request in requests:
            if not (request._request.test() if isinstance(request, CompRequest) else request.Get_status()):
                return _incomplete()
        return cls.Waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """Wait until a request is complete and return its index; ``MPI.UNDEFINED`` if no request is active."""
        ours = _all_ours(requests)
        if ours is None:
            return super().Waitany(requests, status)
        with ended:
            ended.wait_for(lambda: not _active(ours) or _newly_ended(ours))
        return cls.Testany(ours, status)[0]

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return the index of a complete request and True; else ``MPI.UNDEFINED``, and whether no request is active."""
        ours = _all_ours(requests)
        if ours is None:
            return super().Testany(requests, status)
        if not _active(ours):
            return MPI.UNDEFINED, True
        for index in _newly_ended(ours)[:1]:
            ours[index]._finish(status)
            return index, True
        return MPI.UNDEFINED, _incomplete()

    @classmethod
    def Waitsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Wait until some requests are complete and return their indices; None if no request is active.

        The i-th status describes the request of the i-th index. All of these requests become inactive before the first
        error among them is raised.
        """
        ours = _all_ours(requests)
        if ours is None:
            return super().Waitsome(requests, statuses)
        with ended:
            ended.wait_for(lambda: not _active(ours) or _newly_ended(ours))
        return cls.Testsome(ours, statuses)

    @classmethod
    def Testsome(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> list[int] | None:
        """Do :meth:`Waitsome` without waiting: the list may be empty."""
        ours = _all_ours(requests)
        if ours is None:
            return super().Testsome(requests, statuses)
        if not _active(ours):
            return None
        indices = _newly_ended(ours)
        if not indices:
            _incomplete()
        cls.Waitall([ours[index] for index in indices], statuses)
        return indices

    def _finish(self, status: MPI.Status | None) -> None:
        self._ending.is_reported = True
        with self._finishing:
            if self and not MPI.Is_finalized():
                super().Wait()  # ends MPI's part, which is complete
        if self._request.error is not None:
            raise self._request.error
        self._ending.describe_in(status)


def _incomplete() -> bool:
    """Return False, and release the interpreter lock, which a caller that tests in a loop would keep from the call."""
    time.sleep(0)
    return False


def _status(statuses: list[MPI.Status] | None, index: int) -> MPI.Status | None:
    """Return the status at ``index``; if the list is too short, extend it as mpi4py does."""
    if statuses is None:
        return None
    statuses.extend(MPI.Status() for _ in range(len(statuses), index + 1))
    return statuses[index]


def _all_ours(requests: Sequence[MPI.Request]) -> list[CompRequest] | None:
    """Return the requests if all are CompRequests; None if there is one that only MPI can wait for."""
    ours = [request for request in requests if isinstance(request, CompRequest)]
    return ours if len(ours) == len(requests) else None


def _active(requests: Sequence[CompRequest]) -> list[int]:
    return [
        index
        for index, request in enumerate(requests)
        if not request._ending.is_reported and (request or not request._is_mpis)
    ]


def _newly_ended(requests: Sequence[CompRequest]) -> list[int]:
    return [index for index in _active(requests) if requests[index]._request.test()]
