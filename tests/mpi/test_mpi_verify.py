"""``netoffload verify collectives`` and ``verify failures``: calls beside plain MPI, and calls that lose a rank."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import netoffload
from forked_ranks import _forks  # noqa: F401
from mpi4py import MPI

from netoffload.lab.testbed.launch import find_mpiexec, find_openmpi
from netoffload.lab.testbed.processes import guarded, marked
from netoffload_mpi import CompComm
from netoffload_mpi.verify.__main__ import packed
from netoffload_mpi.verify.cases import EXACT, Place
from netoffload_mpi.verify.failures import FAMILIES
from netoffload_mpi.verify.run import Trial, first_difference

pytestmark = [pytest.mark.mpi]

ROOT = Path(__file__).parents[2]
MARK = "NETOFFLOAD_TEST_OF_VERIFY"
NOT_MOVING = {"Barrier"}
"""Leaves nothing behind that could be compared; every step of the program uses it."""


def verify_command(*words: str) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "netoffload", "verify", *words], dict(os.environ)


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    command, environment = verify_command(*words)
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


def need(mpi: str) -> None:
    if (find_mpiexec if mpi == "mpich" else find_openmpi)() is None:
        pytest.skip(f"{mpi} is not installed (scripts/setup installs it)")


@pytest.mark.parametrize(
    ("mpi", "most", "sizes"),
    [
        ("mpich", 8, (1024,)),
        ("openmpi", 5, (7,)),
        # Several chunks, and chains instead of trees.
        ("mpich", 3, (0, 1, 200_003)),
    ],
)
def test_every_call_is_plain_mpis_and_the_codecs(mpi: str, most: int, sizes: tuple[int, ...]) -> None:
    need(mpi)
    done = verify("collectives", "--mpi", mpi, "--sizes", ",".join(map(str, sizes)), "-n", str(most), "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["mismatch"] is None
    assert record["sizes"] == list(sizes)
    assert record["ranks"] == [ranks for ranks in (1, 2, 3, 4, 5, 8) if ranks <= most]
    assert ("Open MPI" if mpi == "openmpi" else "MPICH") in record["versions"]["mpi"]
    calls = {name for row in record["calls"] for name in re.findall(r"(\w+)_comp", row["call"])}
    ours = {name.removesuffix("_comp") for name in dir(CompComm) if re.fullmatch("[A-Z][a-z_]+_comp", name)}
    in_background = {name for name in ours if name[0] == "I" and name[1:].capitalize() in ours}
    assert calls | NOT_MOVING >= ours - in_background
    assert all(row["cases"] and row["values"] for row in record["calls"])


def place(count: int = 7) -> Place:
    return Place(0, 1, count, EXACT, exact=True, is_coded=False, seed=1)


def test_a_value_a_length_or_a_status_that_is_wrong_is_found() -> None:
    class Wrong(CompComm):
        def Bcast_comp(self, buf: Any, root: int = 0) -> None:  # noqa: N802
            super().Bcast_comp(buf, root)
            buf[0][3] = 0.5

    with Wrong(MPI.COMM_SELF) as comm:
        trial = Trial(comm, MPI.COMM_SELF, place())
        said = trial.run()
    assert said is not None
    assert re.match(
        r"Bcast_comp\(root 0\) of 7 floats on 1 ranks, exact: on rank 0 value 3 of 7 is .* instead of", said
    )
    assert trial.tallies["Bcast_comp"].cases == 2  # blocking and in the background
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert first_difference((zeros,), (zeros.copy(),)) is None
    assert first_difference((-zeros,), (zeros,)) == "value 0 of 3 is -0.0 instead of 0.0 (3 differ)"
    assert first_difference((zeros[:2],), (ones,)) == "2 values came instead of 3"
    assert first_difference(((1, 2, 3),), ((1, 2, 4),)) is not None
    assert first_difference((), (zeros,)) is not None


def test_communicators_share_rounds() -> None:
    assert packed([1, 2, 3, 4, 5, 8], 8) == [[8], [5, 3], [4, 2, 1]]
    assert packed([2, 2, 1], 3) == [[2, 1]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collectives", "--sizes", "1kB"], "size '1kB' is no number of floats"),
        (["collectives", "--codec", "zip"], "codec 'zip'"),
        (["collectives", "-n", "1", "--call", "Exscan"], "no Exscan_comp"),
        (["collectives", "-n", "0"], "0 ranks"),
        (["collectives", "--mpi", "lam"], "MPI 'lam'"),
        (["failures", "--victim", "5"], "cannot lose rank 5 of 5"),
        (["failures", "--strike", "stop", "--timeout", "0"], "--timeout 0: a rank is lost after some seconds"),
        (["failures", "--strike", "hug"], "strike 'hug'"),
    ],
)
def test_what_cannot_be_verified_is_one_clear_line(words: list[str], message: str) -> None:
    done = netoffload("verify", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["collectives", "failures", "programs"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: netoffload verify {command}" in netoffload("verify", command, "--help").stdout


@pytest.mark.parametrize(
    ("words", "processes", "number", "code"),
    [
        # The command, mpiexec and its proxy, and the ranks; then also shells that would outlive their ranks.
        (("collectives", "-n", "2", "--sizes", "1000003"), 3 + 2, signal.SIGINT, 130),
        (("failures", "-n", "3", "--strike", "stop"), 3 + 2 * 3, signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_command_that_is_ended_leaves_no_rank(words: tuple[str, ...], processes: int, number: int, code: int) -> None:
    need("mpich")
    command, environment = verify_command(*words)
    mark = f"{MARK}={os.getpid()}"
    environment |= dict([mark.split("=")])
    with (
        guarded(mark, 0.1),
        subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process,
    ):
        deadline_s = time.monotonic() + 20
        while len(marked(mark)) < processes:
            assert time.monotonic() < deadline_s
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert process.returncode == code
        assert said.endswith("netoffload: interrupted\n" if code > 0 else "")
        while marked(mark):  # a guard may still be ending them
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("mpi", "strike", "timeout_s"), [("mpich", "kill", 30), ("mpich", "stop", 4), ("openmpi", "kill", 30)]
)
def test_every_survivor_of_every_call_names_the_rank(mpi: str, strike: str, timeout_s: int) -> None:
    need(mpi)
    done = verify("failures", "--mpi", mpi, "--strike", strike, "--timeout", str(timeout_s), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    families = json.loads(done.stdout)["families"]
    assert families.keys() == FAMILIES.keys()
    for told in families.values():
        assert (told["right"], told["wrong"]) == (4, [])
        assert told["calls"] >= 2
