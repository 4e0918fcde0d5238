"""Sum a gradient over all ranks, compressed by NICs or by the ranks themselves; print the time and the relative error.

netoffload run -n 4 --rate 1gbit -- python docs/guide/allreduce.py
mpiexec -n 4 python -m mpi4py docs/guide/allreduce.py
"""

import time

import numpy as np
from mpi4py import MPI

from netoffload_mpi import CompComm

SCALE = np.float32(64)  # the default codec of NICs turns values below 2^-7 into 0: most of this gradient, unscaled

with CompComm(MPI.COMM_WORLD) as comm:
    gradient = np.random.default_rng(comm.rank).normal(0, 0.002, 1_000_000).astype(np.float32)
    exact = np.empty_like(gradient)
    comm.Allreduce(gradient, exact)
    comm.Allreduce_comp(gradient, np.empty_like(gradient))  # connects
    start_s = time.perf_counter()
    gradient *= SCALE
    comm.Allreduce_comp(MPI.IN_PLACE, gradient)
    gradient /= SCALE
    took_ms = (time.perf_counter() - start_s) * 1e3
    error = np.linalg.norm(gradient - exact) / np.linalg.norm(exact)
    said = f"{gradient.nbytes} octets in {took_ms:.1f} ms, rounded by {comm.precision()}, relative error {error:.2g}"
    print(f"rank {comm.rank} of {comm.size}: {said}")
