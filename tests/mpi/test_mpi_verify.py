"""Calls beside plain MPI, calls that lose a rank, and the one round that ``netoffload verify collectives`` makes."""

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
from mpi4py import MPI

from netoffload.lab.testbed.launch import find_mpiexec, find_openmpi
from netoffload.lab.testbed.processes import guarded, marked
from netoffload_mpi import CompComm
from netoffload_mpi.verify import CALLS
from tests.mpi.verify import lost_rank
from tests.mpi.verify.cases import EXACT, Place
from tests.mpi.verify.failures import FAMILIES
from tests.mpi.verify.run import Trial, first_difference
from tests.shared.commands import python, ranks
from tests.shared.forked_ranks import _forks  # noqa: F401
from tests.shared.quick_cases import by_day

pytestmark = [pytest.mark.mpi]

ROOT = Path(__file__).parents[2]
MARK = "NETOFFLOAD_TEST_OF_VERIFY"
PROGRAM = "tests.mpi.verify"
BROKEN = ("-m", "tests.mpi.programs.verify_broken")
NOT_MOVING = {"Barrier"}
"""Leaves nothing behind that could be compared; every step of the program uses it."""


@pytest.mark.parametrize(
    ("mpi", "most", "sizes"),
    by_day(
        [
            ("mpich", 8, (1024,)),
            ("mpich", 5, (1024,)),
            ("openmpi", 5, (7,)),
            ("openmpi", 3, (7,)),
            # Several chunks, and chains instead of trees.
            ("mpich", 3, (0, 1, 200_003)),
        ],
        [("mpich", 5, (1024,)), ("openmpi", 3, (7,)), ("mpich", 3, (0, 1, 200_003))],
    ),
)
def test_every_call_is_plain_mpis_and_the_codecs(mpi: str, most: int, sizes: tuple[int, ...]) -> None:
    words = [word for size in sizes for word in ("--size", str(size))]
    done = ranks(most, "-m", PROGRAM, "--offload", "nic", *words, mpi=mpi)
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
    assert trial.tallies["Bcast_comp"]["cases"] == 2  # blocking and in the background
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert first_difference((zeros,), (zeros.copy(),)) is None
    assert first_difference((-zeros,), (zeros,)) == "value 0 of 3 is -0.0 instead of 0.0 (3 differ)"
    assert first_difference((zeros[:2],), (ones,)) == "2 values came instead of 3"
    assert first_difference(((1, 2, 3),), ((1, 2, 4),)) is not None
    assert first_difference((), (zeros,)) is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "1kB"], "invalid int value: '1kB'"),
        (["--codec", "zip"], "invalid choice: 'zip'"),
        (["--call", "Exscan"], "no Exscan_comp"),
        (["--ranks", "2"], "cannot try 0 floats or 2 ranks: there are 1 ranks"),
    ],
)
def test_what_cannot_be_verified_is_one_clear_line(words: list[str], message: str) -> None:
    done = ranks(1, "-m", PROGRAM, *words)
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")
def test_a_program_that_is_ended_leaves_no_rank(number: int, tmp_path: Path) -> None:
    """Not mpiexec, its proxy and the ranks, nor the shells that would outlive their ranks."""
    command = [sys.executable, "-m", "tests.mpi.verify.lost_rank", "-n", "3", "--strike", "stop"]
    mark = f"{MARK}={os.getpid()}"
    environment = os.environ | dict([mark.split("=")]) | {"TMPDIR": str(tmp_path)}  # SIGKILL leaves its folders
    with (
        guarded(mark, 0.1),
        subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process,
    ):
        deadline_s = time.monotonic() + 20
        while len(marked(mark)) < 3 + 2 * 3:
            assert time.monotonic() < deadline_s
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == -number
        while marked(mark):  # a guard may still be ending them
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("mpi", "strike", "timeout_s"),
    by_day(
        [("mpich", "kill", 30), ("mpich", "stop", 4), ("openmpi", "kill", 30)],
        [("mpich", "kill", 30), ("mpich", "stop", 4)],
    ),
)
def test_every_survivor_of_every_call_names_the_rank(
    mpi: str, strike: str, timeout_s: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if (find_mpiexec if mpi == "mpich" else find_openmpi)() is None:
        pytest.skip(f"{mpi} is not installed (scripts/setup installs it)")
    assert lost_rank.main(["--mpi", mpi, "--strike", strike, "--timeout", str(timeout_s)]) == 0
    families = json.loads(capsys.readouterr().out)["families"]
    assert families.keys() == FAMILIES.keys()
    for told in families.values():
        assert (told["right"], told["wrong"]) == (4, [])
        assert told["calls"] >= 2


@pytest.mark.parametrize(("offload", "codec"), [("nic", "none"), ("inline", "packed:10")])
def test_one_round_over_the_ranks_at_hand_is_right(offload: str, codec: str) -> None:
    words = ("verify", "collectives", "--count", "20000", "--json", "--offload", offload)
    done = ranks(3, "-m", "netoffload", *words)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["ranks"], record["floats"], record["has_nic"]) == (3, 20_001, False)
    assert (record["offload"], record["codec"]) == (offload, codec)
    assert not any(record["wrong"].values())
    assert CALLS.keys() < record["wrong"].keys()
    ours = {name.removesuffix("_comp") for name in dir(CompComm) if re.fullmatch("[A-Z][a-z_]+_comp", name)}
    assert {name for name in ours if f"I{name.lower()}" in ours} - CALLS.keys() == {"Send", "Recv", "Probe"}


@pytest.mark.parametrize(
    ("breaks", "name"), [("Igatherv_comp", "Gatherv"), ("Allreduce_comp", "Allreduce, as the codec rounds")]
)
def test_one_round_finds_a_wrong_value(breaks: str, name: str) -> None:
    done = ranks(2, *BROKEN, breaks, "verify", "collectives", "--offload", "nic", "--count", "100")
    assert f"{name}: rank 0: value " in done.stdout
    assert "Bcast: right" in done.stdout
    assert "exit code 1" in done.stderr


def test_one_round_over_a_rank_that_is_missing_ends_the_job() -> None:
    done = ranks(2, *BROKEN, "", "verify", "collectives", "--offload", "nic", "--timeout", "2")
    assert done.stdout == ""
    assert "netoffload: rank 1: rank 0 was silent for 2 s" in done.stderr


def test_a_report_that_cannot_be_written_ends_the_job() -> None:
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    command = [str(mpiexec), "-n", "2", "sh", "-c", f"{sys.executable} -m netoffload verify collectives >/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode != 0
    assert "netoffload: rank 0: [Errno 28] No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_extension_loads_no_case() -> None:
    code = (
        "import sys, netoffload_mpi; print([name for name in sys.modules if 'verify' in name or name[:5] == 'tests'])"
    )
    assert python("-c", code).stdout == "[]\n"
