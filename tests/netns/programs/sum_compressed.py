"""CompComm's sum: rank 0 prints what it knows of all ranks, or every rank the error.

It knows whether all have the same bits, the codec, and where each rank runs. Its NIC sent at most 18 bits a float, or
the third word is False.
"""

import os
import socket

import numpy as np

from netoffload.errors import CollectiveError
from netoffload_mpi import MPI, CompComm

with CompComm(MPI.COMM_WORLD) as comm:
    values = np.full(250_000, (comm.rank + 1) / 128, np.float32)
    try:
        comm.Allreduce_comp(MPI.IN_PLACE, values)
    except CollectiveError as error:
        print(error, flush=True)
    else:
        same = len(set(comm.allgather(values.tobytes()))) == 1
        said = comm.gather((socket.gethostname(), "NETOFFLOAD_ADDRESS" in os.environ, float(values[0]) * 128))
        precision, nic = comm.precision(), comm.totals().nic
        if comm.rank == 0:
            print(same, precision and precision.codec, nic is not None and nic.ratio > 1.7, said)
MPI.COMM_WORLD.Barrier()
