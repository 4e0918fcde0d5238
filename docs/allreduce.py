"""Sum a gradient over all ranks, compressed where there are NICs, and say what it took.

netoffload run -n 4 --rate 1gbit -- python docs/allreduce.py
mpiexec -n 4 python -m mpi4py docs/allreduce.py
"""

import time

import numpy as np
from mpi4py import MPI

from netoffload_mpi import CompComm

with CompComm(MPI.COMM_WORLD) as comm:
    gradient = np.random.default_rng(comm.rank).normal(0, 0.002, 1_000_000).astype(np.float32)
    exact = np.empty_like(gradient)
    comm.Allreduce(gradient, exact)
    comm.Allreduce_comp(gradient.copy(), gradient)  # connects
    start_s = time.perf_counter()
    comm.Allreduce_comp(MPI.IN_PLACE, gradient)
    took_ms = (time.perf_counter() - start_s) * 1e3
    rounded_by = comm.precision()
    print(f"rank {comm.rank} of {comm.size}: {gradient.nbytes} octets in {took_ms:.1f} ms, rounded by {rounded_by}")
