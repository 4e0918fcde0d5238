"""``netoffload run`` with both MPIs: every rank runs on its node, talks over the wire, and ends with the others."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload.errors import RunError
from netoffload.lab.testbed import Testbed, run_ranks
from netoffload.lab.testbed.launch import ENV_OPENMPI, find_openmpi
from netoffload.lab.testbed.processes import marked
from netoffload.netlink import netns_exists
from tests.shared.commands import forked

pytestmark = pytest.mark.mpi

needs_openmpi = pytest.mark.skipif(find_openmpi() is None, reason=f"needs Open MPI 5: set {ENV_OPENMPI}")
both = pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=needs_openmpi)])
PROGRAMS = Path(__file__).with_name("programs")


def quietly(_rank: int, _lines: bytes) -> None:
    pass


@both
def test_a_sum_crosses_the_wires_under_either_mpi(plain_bed: Testbed, mpi: str) -> None:
    words = ["python", str(PROGRAMS / "sum_over_ranks.py"), "NETOFFLOAD_ADDRESS", "MINE"]
    result = run_ranks(plain_bed, [2, 0, 3], words, env={"MINE": "yes"}, timeout_s=60, capture_stdout=True, mpi=mpi)
    said = json.loads(result.stdout)
    assert said["ranks"] == [[f"n{node}", f"10.98.1.{node + 1}", "yes", 6.0, 6.0] for node in (2, 0, 3)]
    assert ("Open MPI v5" if mpi == "openmpi" else "MPICH") in said["library"]
    bound = 2 * 2 / 3 * 1_000_000  # the ring's octets per rank
    assert all(bound < said["sent"][node] < 1.2 * bound for node in (2, 0, 3)), said["sent"]
    assert said["sent"][1] < 0.01 * bound


FAILURES = {
    "exception": ("rank 1 said: ValueError", 1),
    "exit": ("exit code 7", 7),
    # Open MPI knows only what it hears first: the signal, or that a rank which lost its peer calls MPI_Abort.
    "killed": ("rank 1 was killed by signal 9|exit code", None),
    "killed beside no peer": ("rank 1 was killed by signal 9", 137),
}


@needs_openmpi
@pytest.mark.parametrize("kind", FAILURES)
def test_a_rank_of_open_mpi_that_fails_ends_all(plain_bed: Testbed, kind: str) -> None:
    message, exit_code = FAILURES[kind]
    words = [str(PROGRAMS / "fail.py"), "1", kind]
    with pytest.raises(RunError, match=message) as caught:
        run_ranks(plain_bed, range(3), words, timeout_s=60, on_stderr=quietly, mpi="openmpi")
    assert exit_code in (None, caught.value.exit_code)
    assert marked(plain_bed.plan.mark) == []


@needs_openmpi
def test_ranks_of_open_mpi_that_hang_are_ended(plain_bed: Testbed) -> None:
    with pytest.raises(RunError, match="did not end within 3 s"):
        run_ranks(plain_bed, range(2), ["sleep", "300"], timeout_s=3, on_stderr=quietly, mpi="openmpi")
    assert marked(plain_bed.plan.mark) == []


@needs_openmpi
def test_open_mpi_says_nothing_of_its_own(plain_bed: Testbed) -> None:
    heard: list[tuple[int, bytes]] = []
    run_ranks(plain_bed, range(3), ["true"], timeout_s=60, on_stderr=lambda *said: heard.append(said), mpi="openmpi")
    assert heard == []


def test_lines_begin_with_their_node_and_the_exit_code_is_the_programs() -> None:
    text = "import os,sys; print(os.environ['NETOFFLOAD_ADDRESS']); print('end', file=sys.stderr)"
    ran = forked("run", "-n", "2", "--no-nic", "--prefix", "--", "python", "-c", text + "; sys.exit(4)")
    assert sorted(ran.stdout.splitlines()) == ["n0: 10.98.1.1", "n1: 10.98.1.2"]
    assert {"n0: end", "n1: end"} <= set(ran.stderr.splitlines())
    assert ran.returncode == 4
    assert "failed with exit code 4" in ran.stderr.splitlines()[-1]


def test_torchrun_has_an_agent_on_every_node_and_a_rank_that_fails_ends_all(
    left_of: Callable[[str], list[str]],
) -> None:
    words = ["--launcher", "torchrun", "--prefix", "--", str(PROGRAMS / "fail_beside_a_sleeper.py")]
    ran = forked("run", "-n", "2", "--no-nic", *words)
    told = dict(line.split(": ") for line in ran.stdout.splitlines())
    run_id = told["n1"].split()[0]
    assert told["n1"] == f"{run_id} 1 2 10.98.1.1 10.98.1.2 inc0"
    assert told.get("n0", "") in ("", f"{run_id} 0 2 10.98.1.1 10.98.1.1 inc0")  # it may not have come to speak
    assert ran.returncode == 7
    assert "n1: end" in ran.stderr.splitlines()
    assert ran.stderr.splitlines()[-1].endswith("failed with exit code 7; rank 1 said: end")
    assert "Traceback" not in ran.stderr  # the agents' laments
    assert left_of(run_id) == []


REFUSED = {
    "mpi": (["run", "-n", "2", "--mpi", "lam", "--", "true"], 2, "mpich, openmpi"),
    "missing": (["run", "-n", "1", "--no-nic", "--mpi", "openmpi", "--", "true"], 3, "/nowhere holds no Open MPI 5"),
    "ranks": (["run", "-n", "3", "--testbed", "RUN", "--", "true"], 2, "each rank needs a node"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_run_is_one_clear_line(what: str, run_id: str) -> None:
    words, exit_code, hint = REFUSED[what]
    with contextlib.ExitStack() as stack:
        if "RUN" in words:
            assert forked("up", "-n", "2", "--no-nic", "--run-id", run_id).returncode == 0
            stack.callback(forked, "down", run_id)
        refused = forked(*(run_id if word == "RUN" else word for word in words), env={ENV_OPENMPI: "/nowhere"})
    assert refused.returncode == exit_code
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert hint in refused.stderr


@needs_openmpi
def test_a_signal_ends_open_mpi_too(left_of: Callable[[str], list[str]]) -> None:
    words = ["run", "-n", "2", "--no-nic", "--mpi", "openmpi", "--", "sh", "-c", "echo $NETOFFLOAD_RUN; sleep 300"]
    with subprocess.Popen(
        [sys.executable, "-m", "netoffload", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        assert netns_exists(f"no-{run_id}-sw")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert left_of(run_id) == []
