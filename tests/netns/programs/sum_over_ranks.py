"""MPI's own sum: ``sum_over_ranks.py [VARIABLE...]``; rank 0 prints what each rank got and each wire carried."""

import json
import os
import socket
import sys

import numpy as np
from mpi4py import MPI

from netoffload import control

comm = MPI.COMM_WORLD


def sent() -> list[int]:
    comm.Barrier()
    octets = [node["tx_octets"] for node in control.request(os.environ["NETOFFLOAD_METER"], "wires")["nodes"]]
    comm.Barrier()  # nobody sends while another still reads
    return octets


values = np.full(250_000, comm.rank + 1, np.float32)
total = np.empty_like(values)
comm.Allreduce(values, total)
before = sent()
comm.Allreduce(values, total)
carried = [now - then for now, then in zip(sent(), before, strict=True)]
own = [socket.gethostname(), *map(os.environ.get, sys.argv[1:]), float(total.min()), float(total.max())]
ranks = comm.gather(own)
if comm.rank == 0:
    print(json.dumps({"ranks": ranks, "sent": carried, "library": MPI.Get_library_version()}))
