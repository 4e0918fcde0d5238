"""A communicator's data plane, set up through a private duplicate, so that its MPI calls never meet the user's.

MPI's own collectives wait without limit for a stopped rank, and poll at full speed. The set-up's sleep between two
polls, have a time limit, name the missing ranks, and tell the others. They are needed only before the first socket:
from then on the watch knows which ranks live.
"""

import functools
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from mpi4py import MPI

from netoffload.errors import PeerLostError
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rendezvous import missing
from netoffload.transport.rounds.driver import prepare

PAUSE_S_MIN: Final = 1e-5
PAUSE_S_MAX: Final = 0.01  # shortest and longest pause between two polls; each pause is twice the one before

SET_UP_TIMEOUTS: Final = 2
"""How many times ``timeout_s`` a gather of the set-up may take: a rank may wait for one connection in vain."""

_TAG: Final = 0
# Requests of messages that a rank never took, whose buffers MPI may still read; and their communicators.
_abandoned: list[MPI.Request | MPI.Intracomm] = []


@dataclass
class MpiPlane(DataPlane):
    """A data plane of MPI's ranks."""

    # A duplicate of the communicator. Only this plane uses it, so its MPI calls never meet the user's.
    mpi: MPI.Intracomm = field(default_factory=MPI.Intracomm)


def connect(comm: MPI.Intracomm, settings: Settings) -> MpiPlane:
    """Agree with all ranks of a communicator and connect; collective."""
    prepare()  # before duplicate(), which waits longer for a rank that compiles than a gather does
    # The first set-up over a communicator duplicates it, later ones use that duplicate.
    mpi = duplicate(_duplicate_of(comm, settings.late_s), settings.late_s)
    try:
        gather = MpiRendezvous(mpi, SET_UP_TIMEOUTS * settings.timeout_s)
        plane = set_up(gather, MPI.Get_processor_name(), settings, MpiPlane)
    except BaseException:
        # Never freed: MPI would give its context to the next duplicate, with the messages that nobody took.
        _abandoned.append(mpi)
        raise
    plane.mpi = mpi
    # Freed with the plane and not in close(): a call under way keeps the plane, and may be inside MPI.
    weakref.finalize(plane, _free, mpi, os.getpid()).atexit = False
    return plane


def _free(mpi: MPI.Intracomm, owner: int) -> None:
    if os.getpid() == owner and not MPI.Is_finalized():
        mpi.Free()


def _duplicate_of(comm: MPI.Intracomm, limit_s: float) -> MPI.Intracomm:
    """Return this package's duplicate of a communicator; collective if there is none yet."""
    # An attribute of the communicator, as MPI recommends for libraries. All objects with the same handle share it, no
    # duplicate inherits it, and it ends with the communicator.
    found = comm.Get_attr(_duplicate_key())
    if found is None:
        found = duplicate(comm, limit_s)
        comm.Set_attr(_duplicate_key(), found)
    assert isinstance(found, MPI.Intracomm)
    return found


@functools.cache
def _duplicate_key() -> int:
    def end(comm: MPI.Comm, _key: int, duplicate: MPI.Intracomm) -> None:
        if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):  # these end in MPI_Finalize, which frees the duplicate itself
            duplicate.Free()

    return MPI.Intracomm.Create_keyval(delete_fn=end)


def duplicate(comm: MPI.Intracomm, limit_s: float) -> MPI.Intracomm:
    """Return a duplicate of ``comm``; collective. MPI does not say which ranks did not come within ``limit_s``.

    A late rank meets the duplicate that the others began, so their next call goes on with it.
    """
    begun: Any = comm.Get_attr(_begun_key()) or MPI.Intracomm(comm).Idup()  # and the request
    comm.Set_attr(_begun_key(), begun)
    if not _wait(begun[1].Test, limit_s):
        raise PeerLostError(f"not all ranks came to the first call within {limit_s:g} s (late_s)")
    comm.Delete_attr(_begun_key())
    return MPI.Intracomm(begun[0])


@functools.cache
def _begun_key() -> int:
    return MPI.Intracomm.Create_keyval()


class MpiRendezvous:
    """Allgathers over a private communicator; a :class:`~netoffload.transport.rendezvous.Rendezvous`."""

    def __init__(self, comm: MPI.Intracomm, limit_s: float) -> None:
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        world = MPI.COMM_WORLD.Get_group()
        ranks = comm.Get_group().Translate_ranks(None, world)
        self.group = None if MPI.UNDEFINED in ranks else tuple(ranks)
        self._comm = comm
        self._limit_s = limit_s
        self._came: dict[int, deque[Any]] = {rank: deque() for rank in range(self.size)}

    def __call__(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order. If a rank does not come, all ranks that came raise."""
        sent = self._send(value, None)
        self._came[self.rank].append(value)
        try:
            if not _wait(lambda: self._look() and all(request.Test() for request in sent), self._limit_s):
                raise self._missing()
        except PeerLostError:
            _abandoned.extend(sent)
            raise
        return [came.popleft() for came in self._came.values()]

    def _send(self, value: Any, reason: str | None) -> list[MPI.Request]:
        """Send a value, or the reason for a failure, to all others."""
        others = [peer for peer in self._came if peer != self.rank]
        return [self._comm.isend((value, reason), peer, _TAG) for peer in others]

    def _look(self) -> bool:
        """Take the messages that have come; return whether every rank's value is there."""
        status = MPI.Status()
        while (message := self._comm.improbe(MPI.ANY_SOURCE, _TAG, status)) is not None:
            value, reason = message.recv()
            if reason is not None:
                raise PeerLostError(reason)
            self._came[status.source].append(value)
        return all(self._came.values())

    def _missing(self) -> PeerLostError:
        """Return the error that names the missing ranks, and send it to the others."""
        error = PeerLostError(
            f"a rank received nothing for {self._limit_s:g} s during the set-up: its process is stopped"
        )
        if absent := [peer for peer, came in self._came.items() if not came]:
            error = missing(absent, self._limit_s)
        _abandoned.extend(self._send(None, str(error)))
        return error


def _wait(is_done: Callable[[], bool], limit_s: float) -> bool:
    """Call ``is_done`` until it returns True; return False if the limit is over first."""
    deadline_s, pause_s = time.monotonic() + limit_s, PAUSE_S_MIN
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
    return True
