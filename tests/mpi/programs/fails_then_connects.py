"""Set-ups that fail because rank 1 is late, or is stopped, and then one that does not."""

import os
import signal
import subprocess
import time

import numpy as np

from netoffload.errors import PeerLostError
from netoffload.transport.plane import set_up
from netoffload.transport.rounds.driver import prepare
from netoffload_mpi import MPI, CompComm, plane


def stopped(*given: object) -> object:
    """Stop this rank for three seconds in the middle of its first set-up."""
    vars(plane)["set_up"] = set_up
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    return set_up(*given)  # type: ignore[arg-type]


def summed(comm: CompComm) -> str:
    value = np.ones(5, np.float32)
    try:
        comm.Allreduce_comp(MPI.IN_PLACE, value)
    except PeerLostError as error:
        return str(error)
    finally:
        MPI.COMM_WORLD.Barrier()
        comm.close()
        MPI.COMM_WORLD.Barrier()
    return str(value.tolist())


prepare()  # else a rank could be late by what it compiles
MPI.COMM_WORLD.Barrier()
rank = MPI.COMM_WORLD.rank
comm = CompComm(MPI.COMM_WORLD, "packed", 10, late_s=1)
if rank == 1:
    time.sleep(2)
said = [summed(comm), summed(comm)]
if rank == 1:
    vars(plane)["set_up"] = stopped
said.append(summed(CompComm(MPI.COMM_WORLD, "packed", 10, timeout_s=1)))
said += [summed(CompComm(MPI.COMM_WORLD, "packed", 10)) for _ in range(2)]
comm.Barrier_comp()
request = comm.Irecv_comp(np.zeros(1000, np.float32), source=(rank + 1) % 3)
comm.close()
del request  # whose error nobody hears of
print("|".join(said), flush=True)
