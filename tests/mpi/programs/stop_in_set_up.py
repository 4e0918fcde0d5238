"""Rank 1 stops or dies, others keep the error: ``stop_in_set_up.py FOLDER before|gathering|connecting|dies``."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from netoffload.errors import CollectiveError
from netoffload.transport import plane
from netoffload_mpi import MPI, CompComm

folder, where = Path(sys.argv[1]), sys.argv[2]
comm = CompComm(MPI.COMM_WORLD, timeout_s=2.0, late_s=3.0)


def stop(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


if comm.rank == 1 and where == "before":
    stop()
elif comm.rank == 1 and where == "gathering":
    vars(plane)["Listeners"] = stop
elif comm.rank == 1 and where == "dies":
    comm.Barrier_comp()
    os._exit(5)
elif comm.rank == 1:
    vars(plane)["barrier"] = stop  # connected, and watched
try:
    comm.Barrier_comp()
    comm.Allreduce_comp(MPI.IN_PLACE, np.ones(3, np.float32))
except CollectiveError as error:
    (folder / f"part.{comm.rank}").write_text(str(error))
    (folder / f"part.{comm.rank}").rename(folder / f"said.{comm.rank}")
time.sleep(60)
