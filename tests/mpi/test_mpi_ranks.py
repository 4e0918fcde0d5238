"""Programs on MPI's ranks on loopback: communicators, the pages' programs, mpi4py's own tests, and ranks that end."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.config import ENV_OFFLOAD
from netoffload.errors import UsageError
from netoffload.lab.testbed.launch import find_mpiexec
from netoffload.transport.rounds.driver import prepare
from tests.mpi import mpi4py_suite
from tests.shared.commands import ranks
from tests.shared.documented import blocks
from tests.shared.forked_ranks import forks_of
from tests.shared.local_ranks import run_local_ranks
from tests.shared.quick_cases import by_day

PROGRAMS = Path(__file__).with_name("programs")

pytestmark = pytest.mark.mpi
needs_mpich = pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")


@pytest.fixture(scope="module")
def _forks() -> Iterator[None]:
    with forks_of():
        yield


@pytest.mark.usefixtures("_forks")
@pytest.mark.parametrize(("size", "mpi"), [(1, "mpich"), (3, "mpich"), (3, "openmpi")])
def test_every_communicator_reduces_and_refuses(size: int, mpi: str) -> None:
    done = ranks(size, str(PROGRAMS / "ranks_check.py"), mpi=mpi)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(size):
        assert f"rank {rank} of {size} ok" in done.stdout


@pytest.mark.usefixtures("_forks")
def test_a_rank_that_dies_ends_the_job(tmp_path: Path) -> None:
    assert ranks(3, str(PROGRAMS / "stop_in_set_up.py"), str(tmp_path), "dies", timeout_s=30).returncode != 0


def test_the_programs_of_the_pages_run(tmp_path: Path) -> None:
    pages: dict[str, str] = {}
    for block in blocks():
        if block.where == "on ranks":
            pages[block.page] = f"{pages.get(block.page, '')}\n{block.instead}\n{block.text}"
    assert set(pages) == {"README.md", "docs/guide/mpi.md"}
    program = tmp_path / "pages.py"
    program.write_text("".join(f"exec(compile({text!r}, {page!r}, 'exec'), {{}})\n" for page, text in pages.items()))
    done = ranks(2, str(program), timeout_s=60)
    assert done.stdout.count("inline 4000000 ") == 2, done.stderr


@needs_mpich
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("before", "not all ranks came to the first call within 3 s"),
        ("gathering", "rank 1 did not come to the set-up within 4 s"),
        ("connecting", "rank 1 was silent for 2 s"),
    ],
)
def test_a_rank_that_stops_during_the_set_up_is_named_in_time(tmp_path: Path, where: str, said: str) -> None:
    prepare()  # the ranks find the kernels compiled

    def everybody_said_so() -> bool:
        return len(list(tmp_path.glob("said.*"))) == 2

    program = [str(PROGRAMS / "stop_in_set_up.py"), str(tmp_path), where]
    run_local_ranks(3, program, timeout_s=30, until=everybody_said_so)
    for path in tmp_path.glob("said.*"):
        assert path.read_text().startswith(said)


@pytest.mark.parametrize("mpi", by_day(["mpich", "openmpi"], ["mpich"]))
def test_a_set_up_that_failed_does_not_spoil_the_next_one(mpi: str) -> None:
    done = ranks(3, str(PROGRAMS / "fails_then_connects.py"), timeout_s=60, mpi=mpi)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        late, again, stopped, *rest = line.split("|")
        assert late == "not all ranks came to the first call within 1 s (late_s)"
        assert stopped.startswith(("rank 1 did not come to the set-up within 2 s", "rank 0, 2 did not come"))
        assert [again, *rest] == ["[3.0, 3.0, 3.0, 3.0, 3.0]"] * 3


def test_an_error_of_a_trainings_rank_is_a_line_without_a_traceback(tmp_path: Path) -> None:
    done = ranks(2, "-m", "netoffload.lab.training.rank", str(tmp_path / "none.json"), str(tmp_path))
    assert "Traceback" not in done.stderr
    assert f"{tmp_path}/none.json" in done.stderr
    assert re.search(r"failed with exit code 2; rank . said: netoffload: rank .: ", done.stderr)
    assert done.returncode == 2


@needs_mpich
def test_a_wrong_wish_in_the_environment_is_refused_before_a_rank_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_OFFLOAD, "nick")
    with pytest.raises(UsageError, match=r"\$NETOFFLOAD_OFFLOAD: offload 'nick' is unknown"):
        run_local_ranks(2, ["-m", "this"])


@pytest.fixture
def sources() -> Iterator[Path]:
    """The folder of mpi4py's tests: the given one, else the one that pip downloads."""
    try:
        with mpi4py_suite.tests_folder(mpi4py_suite.given_tests()) as folder:
            yield folder
    except mpi4py_suite.NoSourcesError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", by_day([2, 3], [2]))
def test_mpi4pys_own_tests_pass_through_comp(sources: Path, count: int) -> None:
    done = ranks(count, "-m", "tests.mpi.mpi4py_suite", "--only-float32", "--tests", str(sources), timeout_s=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
