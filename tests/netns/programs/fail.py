"""One rank fails, the others wait for it: ``fail.py RANK exception|exit|aborted|killed|"killed beside no peer"``."""

import os
import signal
import sys
import time

from mpi4py import MPI

how = sys.argv[2]
if MPI.COMM_WORLD.rank == int(sys.argv[1]):
    if how == "exception":
        raise ValueError("too bad")
    if how == "exit":
        sys.exit(7)
    if how == "aborted":
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)
if how == "killed beside no peer":
    time.sleep(60)
MPI.COMM_WORLD.Barrier()
