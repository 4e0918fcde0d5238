"""CompComm under MPI ranks on loopback: one program over several communicators and numbers of ranks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed.fork_client import RANK_ENV
from netoffload.lab.testbed.forks import python_argv
from netoffload.lab.testbed.launch_backends import OPENMPI_LOCAL_ENV, find_openmpi
from tests.shared.forked_ranks import forks_of

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")
MPIEXEC = Path(sys.executable).parent / "mpiexec"

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not MPIEXEC.exists(), reason="no MPI launcher in this environment")]


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    with forks_of("torch"):  # the ranks' buffers may be tensors
        yield


def openmpi() -> tuple[list[str], dict[str, str]]:
    """The launcher of an Open MPI 5, and the environment in which mpi4py takes its library."""
    prefix = find_openmpi()
    if prefix is None:
        pytest.skip("no Open MPI 5 (scripts/setup installs one)")
    homes = dict.fromkeys(("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"), str(prefix))
    launcher = [str(prefix / "bin/prterun"), "--personality", "ompi", "--map-by", ":OVERSUBSCRIBE"]
    return launcher, {**OPENMPI_LOCAL_ENV, **homes, "MPI4PY_LIBMPI": str(prefix / "lib/libmpi.so.40")}


def run_ranks(size: int, *program: str, timeout_s: float = 110, mpi: str = "mpich") -> subprocess.CompletedProcess[str]:
    launcher, settings = openmpi() if mpi == "openmpi" else ([str(MPIEXEC)], {})
    environment = {**RANK_ENV, **os.environ, **settings}
    forks = environment if mpi == "mpich" else {}
    command = [*launcher, "-n", str(size), *python_argv(forks), *program]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.parametrize(("size", "mpi"), [(1, "mpich"), (3, "mpich"), (3, "openmpi")])
def test_every_communicator_reduces_and_refuses(size: int, mpi: str) -> None:
    done = run_ranks(size, str(PROGRAMS / "ranks_check.py"), mpi=mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(size):
        assert f"rank {rank} of {size} ok" in done.stdout


def test_a_rank_that_dies_ends_the_job() -> None:
    done = run_ranks(3, str(PROGRAMS / "die.py"), timeout_s=30)
    assert done.returncode != 0
