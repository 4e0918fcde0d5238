"""A communicator's data plane, set up through a private duplicate, so that its MPI calls never meet the user's."""

from __future__ import annotations

import functools
import os
import weakref
from dataclasses import dataclass, field

from mpi4py import MPI

from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.rounds.exchange import LATE_S_DEFAULT
from netoffload_mpi.rendezvous import SET_UP_TIMEOUTS, MpiRendezvous, duplicate


@dataclass
class MpiPlane(DataPlane):
    """A data plane of MPI's ranks."""

    # A duplicate of the communicator. Only this plane uses it, so its MPI calls never meet the user's.
    mpi: MPI.Intracomm = field(default_factory=MPI.Intracomm)


def connect(comm: MPI.Intracomm, settings: Settings) -> MpiPlane:
    """Agree with all ranks of a communicator and connect; collective.

    The first set-up over a communicator duplicates it, later ones use that duplicate.
    """
    prepare()  # before duplicate(), which waits longer for a rank that compiles than a gather does
    mpi = duplicate(_duplicate_of(comm, settings.late_s), settings.late_s)
    try:
        gather = MpiRendezvous(mpi, SET_UP_TIMEOUTS * settings.timeout_s)
        plane = set_up(gather, MPI.Get_processor_name(), settings, MpiPlane)
    except BaseException:
        mpi.Free()
        raise
    plane.mpi = mpi
    # Freed with the plane and not in close(): a call under way keeps the plane, and may be inside MPI.
    weakref.finalize(plane, _free, mpi, os.getpid()).atexit = False
    return plane


def _free(mpi: MPI.Intracomm, owner: int) -> None:
    if os.getpid() == owner and not MPI.Is_finalized():
        mpi.Free()


def _duplicate_of(comm: MPI.Intracomm, limit_s: float = LATE_S_DEFAULT) -> MPI.Intracomm:
    """Return this package's duplicate of a communicator; collective if there is none yet.

    It is an attribute of the communicator, as MPI recommends for libraries. All objects with the same handle share it,
    no duplicate inherits it, and it ends with the communicator.
    """
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
