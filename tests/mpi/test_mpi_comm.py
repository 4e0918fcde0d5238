"""CompComm under MPI ranks on loopback: one program over several communicators and numbers of ranks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.commands import ranks
from tests.shared.forked_ranks import forks_of

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    with forks_of("torch"):  # the ranks' buffers may be tensors
        yield


@pytest.mark.parametrize(("size", "mpi"), [(1, "mpich"), (3, "mpich"), (3, "openmpi")])
def test_every_communicator_reduces_and_refuses(size: int, mpi: str) -> None:
    done = ranks(size, str(PROGRAMS / "ranks_check.py"), mpi=mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(size):
        assert f"rank {rank} of {size} ok" in done.stdout


def test_a_rank_that_dies_ends_the_job() -> None:
    done = ranks(3, str(PROGRAMS / "die.py"), timeout_s=30)
    assert done.returncode != 0
