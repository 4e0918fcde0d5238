"""A rank that stops while communicators are set up: the others name it in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from netoffload.testbed import run_local_ranks
from netoffload.testbed.launch_backends import find_mpiexec
from netoffload.transport.driver import prepare

pytestmark = [pytest.mark.mpi]

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from netoffload.errors import CollectiveError
from netoffload.transport import plane, wiring
from netoffload_mpi import MPI, CompComm
folder, where = Path(sys.argv[1]), sys.argv[2]
comm = CompComm(MPI.COMM_WORLD, timeout_s=2.0, late_s=3.0)
def stop(*_):
    os.kill(os.getpid(), signal.SIGSTOP)
if comm.rank == 1 and where == "before":
    stop()
elif comm.rank == 1 and where == "gathering":
    plane.Listeners = stop
elif comm.rank == 1:
    wiring.barrier = stop  # connected, and watched
try:
    comm.Allreduce_comp(MPI.IN_PLACE, np.ones(3, np.float32))
except CollectiveError as error:
    (folder / f"part.{comm.rank}").write_text(str(error))
    (folder / f"part.{comm.rank}").rename(folder / f"said.{comm.rank}")
time.sleep(60)
"""


@pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("before", "not all ranks came to the first call within 3 s"),
        ("gathering", "rank 1 did not come to the set-up within 4 s"),
        ("connecting", "rank 1 was silent for 2 s"),
    ],
)
def test_a_rank_that_stops_during_the_set_up_is_named(tmp_path: Path, where: str, said: str) -> None:
    prepare()  # the ranks find the kernels compiled
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def everybody_said_so() -> bool:
        return len(list(tmp_path.glob("said.*"))) == 2

    run_local_ranks(3, [str(program), str(tmp_path), where], timeout_s=30, until=everybody_said_so)
    for path in tmp_path.glob("said.*"):
        assert path.read_text().startswith(said)
