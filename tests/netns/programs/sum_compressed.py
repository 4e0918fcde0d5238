"""CompComm's sum: rank 0 prints whether all ranks have the same bits, the codec, and where each rank runs."""

import os
import socket

import numpy as np

from netoffload_mpi import MPI, CompComm

with CompComm(MPI.COMM_WORLD) as comm:
    values = np.full(250_000, (comm.rank + 1) / 8, np.float32)
    comm.Allreduce_comp(MPI.IN_PLACE, values)
    same = len(set(comm.allgather(values.tobytes()))) == 1
    said = comm.gather((socket.gethostname(), "NETOFFLOAD_ADDRESS" in os.environ, float(values[0]) * 8))
    precision = comm.precision()
    if comm.rank == 0:
        print(same, precision and precision.codec, said)
