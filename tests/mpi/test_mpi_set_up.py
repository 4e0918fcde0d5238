"""A rank that stops while communicators are set up: the others name it in time."""

from pathlib import Path

import pytest

from netoffload.lab.testbed import run_local_ranks
from netoffload.lab.testbed.launch import find_mpiexec
from netoffload.transport.rounds.driver import prepare

pytestmark = [pytest.mark.mpi]

PROGRAM = str(Path(__file__).with_name("programs") / "stop_in_set_up.py")


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

    def everybody_said_so() -> bool:
        return len(list(tmp_path.glob("said.*"))) == 2

    run_local_ranks(3, [PROGRAM, str(tmp_path), where], timeout_s=30, until=everybody_said_so)
    for path in tmp_path.glob("said.*"):
        assert path.read_text().startswith(said)
