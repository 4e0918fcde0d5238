"""Ranks that are killed or stopped in the middle of a call: every other one raises an error that names them."""

from __future__ import annotations

import contextlib
import os
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
import os, pathlib, sys, time
import numpy as np
from netoffload.errors import CollectiveError
from netoffload_mpi import MPI, CompComm

comm = CompComm(MPI.COMM_WORLD, timeout_s=float(sys.argv[1]))
folder = pathlib.Path(sys.argv[2])

def say(what, text):
    (folder / f"{comm.rank}.part").write_text(text)
    (folder / f"{comm.rank}.part").rename(folder / f"{comm.rank}.{what}")

values = np.zeros(2_000_000, np.float32)
comm.Allreduce_comp(MPI.IN_PLACE, values)
say("pid", str(os.getpid()))
try:
    while True:
        comm.Allreduce_comp(MPI.IN_PLACE, values)
except CollectiveError as error:
    say("raised", f"{type(error).__name__}: {error}")
    time.sleep(600)  # mpiexec might end the others, were one to go before they have spoken; the test ends all
"""

LIMIT_S = 60.0


def read_all(folder: Path, what: str, count: int) -> dict[int, str]:
    """Return what ranks have said, when ``count`` of them have."""
    deadline_s = time.monotonic() + LIMIT_S
    while len(found := list(folder.glob(f"*.{what}"))) < count:
        assert time.monotonic() < deadline_s, f"only {found} after {LIMIT_S} s"
        time.sleep(0.05)
    return {int(path.stem): path.read_text() for path in found}


def parent_of(pid: int) -> int:
    """Return the launcher's process that started a rank; proc(5), field 4 of stat."""
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("signal_number", "timeout_s", "said"),
    [(signal.SIGKILL, 30, "rank 2 died"), (signal.SIGSTOP, 4, "rank 2 was silent for 4 s")],
)
def test_every_survivor_names_the_rank(signal_number: int, timeout_s: int, said: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NETOFFLOAD_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in (".", "daemon", "mpi_ext"))
    environment["OMP_NUM_THREADS"] = "1"
    # Without -disable-auto-cleanup mpiexec would end the survivors before they can say anything.
    command = [str(MPIEXEC), "-disable-auto-cleanup", "-n", "5", sys.executable, "-m", "mpi4py", "-c", PROGRAM]
    parents: set[int] = set()
    with subprocess.Popen([*command, str(timeout_s), str(tmp_path)], env=environment, start_new_session=True) as job:
        try:
            pids = read_all(tmp_path, "pid", 5)
            parents = {parent_of(int(pid)) for pid in pids.values()}
            for parent in parents:
                os.kill(parent, signal.SIGSTOP)  # it would end the survivors, often before they have spoken
            os.kill(int(pids[2]), signal_number)
            struck_s = time.monotonic()
            told = read_all(tmp_path, "raised", 4)
            took_s = time.monotonic() - struck_s
        finally:
            for path in tmp_path.glob("*.pid"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGKILL)
            for parent in parents:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(parent, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # mpiexec might wait for the dead
    assert sorted(told) == [0, 1, 3, 4]
    assert all(text.startswith(f"PeerLostError: {said}") for text in told.values())
    # An upper limit, not a measure of speed: a hang would be found by nothing else.
    assert took_s < (timeout_s if signal_number == signal.SIGKILL else 3 * timeout_s)
