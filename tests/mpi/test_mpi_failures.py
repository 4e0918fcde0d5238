"""Ranks that are killed or stopped in the middle of a call: every other one raises an error that names them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not MPIEXEC.exists(), reason="no MPI launcher in this environment")]

PROGRAM = """
import os, sys, time
import numpy as np
from netoffload.errors import CollectiveError
from netoffload_mpi import MPI, CompComm

comm = CompComm(MPI.COMM_WORLD, timeout_s=float(sys.argv[1]))
values = np.zeros(2_000_000, np.float32)
comm.Allreduce_comp(MPI.IN_PLACE, values)
print(f"pid {comm.rank} {os.getpid()}", flush=True)
try:
    while True:
        comm.Allreduce_comp(MPI.IN_PLACE, values)
except CollectiveError as error:
    print(f"rank {comm.rank} raised {type(error).__name__}: {error}", flush=True)
    os._exit(0)  # MPI itself cannot end without the dead rank
"""


@pytest.mark.parametrize(
    ("signal_number", "timeout_s", "said"),
    [(signal.SIGKILL, 30, "rank 2 died"), (signal.SIGSTOP, 4, "rank 2 was silent for 4 s")],
)
def test_every_survivor_names_the_rank(signal_number: int, timeout_s: int, said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NETOFFLOAD_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in (".", "daemon", "mpi_ext"))
    environment["OMP_NUM_THREADS"] = "1"
    # Without -disable-auto-cleanup mpiexec would end the survivors before they can say anything.
    command = [str(MPIEXEC), "-disable-auto-cleanup", "-n", "5", sys.executable, "-m", "mpi4py", "-c", PROGRAM]
    with subprocess.Popen(
        [*command, str(timeout_s)], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        assert job.stdout is not None
        heard = ""
        pids: dict[str, str] = {}

        def next_line() -> str:
            assert job.stdout is not None
            line = job.stdout.readline()
            assert line, "mpiexec ended too early"
            return line

        try:
            while len(pids) < 5:
                heard += next_line()  # mpiexec may join what two ranks say
                pids = dict(re.findall(r"pid (\d) (\d+)(?=\D)", heard))
            os.kill(int(pids["2"]), signal_number)
            struck_s, said_since = time.monotonic(), ""
            while said_since.count("raised") < 4:
                said_since += next_line()
            took_s = time.monotonic() - struck_s
        finally:
            for pid in pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # mpiexec might wait for the dead
    told = dict(re.findall(r"rank (\d) raised PeerLostError: (rank 2 [^:\n]*)", said_since))
    assert sorted(told) == ["0", "1", "3", "4"]
    assert all(text.startswith(said) for text in told.values())
    # An upper limit, not a measure of speed: a hang would be found by nothing else.
    assert took_s < (timeout_s if signal_number == signal.SIGKILL else 3 * timeout_s)
