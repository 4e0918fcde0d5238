"""``netoffload run`` with both MPIs: every rank runs on its node, talks over the wire, and ends with the others."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from netoffload import control
from netoffload.errors import RunError, UsageError
from netoffload.lab.testbed import Testbed, metered, run_ranks
from netoffload.lab.testbed.launch import ENV_OPENMPI, RanksOutput, find_openmpi, pass_on_stdout
from netoffload.lab.testbed.processes import marked
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import output_of
from tests.shared.commands import forked

pytestmark = pytest.mark.mpi

needs_openmpi = pytest.mark.skipif(find_openmpi() is None, reason=f"needs Open MPI 5: set {ENV_OPENMPI}")
BOTH = ["mpich", pytest.param("openmpi", marks=needs_openmpi)]
PROGRAMS = Path(__file__).with_name("programs")


def OPENMPI(*values: object) -> Any:  # noqa: N802 - a case of a table
    return pytest.param("openmpi", *values, marks=needs_openmpi)


def quietly(_rank: int, _lines: bytes) -> None:
    pass


@pytest.mark.parametrize(("mpi", "nodes"), [("mpich", (0, 1, 2, 3)), ("mpich", (2, 0, 3)), OPENMPI((2, 0, 3))])
def test_a_sum_crosses_the_wires(plain_bed: Testbed, mpi: str, nodes: Sequence[int]) -> None:
    words = ["python", str(PROGRAMS / "sum_over_ranks.py"), "NETOFFLOAD_ADDRESS", "MINE"]
    heard: list[tuple[int, bytes]] = []
    options: dict[str, Any] = {"timeout_s": 60, "on_stderr": lambda *said: heard.append(said), "mpi": mpi}
    result = output_of(plain_bed, nodes, words, env={"MINE": "yes"}, **options)
    said = json.loads(result)
    total = sum(range(1, len(nodes) + 1))
    assert said["ranks"] == [[f"n{node}", f"10.98.1.{node + 1}", "yes", total, total] for node in nodes]
    assert ("Open MPI v5" if mpi == "openmpi" else "MPICH") in said["library"]
    bound = 2 * (len(nodes) - 1) / len(nodes) * 1_000_000  # the ring's octets per rank
    for node, octets in enumerate(said["sent"]):
        assert bound < octets < 1.2 * bound if node in nodes else octets < 0.01 * bound, said["sent"]
    assert mpi == "mpich" or heard == []  # a launcher says nothing of its own


@pytest.mark.parametrize(
    ("mpi", "rank", "kind", "message", "exit_code"),
    [
        ("mpich", 2, "exception", "rank 2 said: ValueError: too bad", None),
        # MPI_Finalize waits for the other ranks, ten seconds at full speed.
        pytest.param("mpich", 1, "exit", "exit code 7", None, marks=pytest.mark.night),
        ("mpich", 0, "killed", "failed: rank 0 was killed by signal 9", 137),
        ("mpich", 2, "aborted", "failed: rank 2 was killed by signal 6", 134),
        OPENMPI(1, "exception", "rank 1 said: ValueError", 1),
        OPENMPI(1, "exit", "exit code 7", 7),
        # Open MPI knows only what it hears first: the signal, or that a rank which lost its peer calls MPI_Abort.
        OPENMPI(1, "killed", "rank 1 was killed by signal 9|exit code", None),
        OPENMPI(1, "killed beside no peer", "rank 1 was killed by signal 9", 137),
    ],
)
def test_a_rank_that_fails_ends_all(
    plain_bed: Testbed, mpi: str, rank: int, kind: str, message: str, exit_code: int | None
) -> None:
    words = ["python", str(PROGRAMS / "fail.py"), str(rank), kind]
    with pytest.raises(RunError, match=message) as caught:
        run_ranks(plain_bed, range(3), words, timeout_s=60, on_stderr=quietly, mpi=mpi)
    assert exit_code in (None, caught.value.exit_code)
    assert marked(plain_bed.plan.mark) == []


@pytest.mark.parametrize("mpi", BOTH)
def test_a_rank_that_hangs_is_ended(plain_bed: Testbed, mpi: str) -> None:
    text = "import sys, time; print('waiting', file=sys.stderr, flush=True); time.sleep(300)"
    heard: list[tuple[int, bytes]] = []
    options: dict[str, Any] = {"timeout_s": 20, "on_stderr": lambda *said: heard.append(said), "mpi": mpi}
    with pytest.raises(RunError, match=r"did not end within 20 s; rank \d said: waiting"):
        run_ranks(plain_bed, range(2), ["-c", text], **options)
    assert sorted(heard) == [(0, b"waiting\n"), (1, b"waiting\n")]  # and nothing from the launcher
    assert marked(plain_bed.plan.mark) == []
    assert list(plain_bed.plan.state_dir.glob("meter-*")) == []


def test_every_rank_has_its_environment_and_an_empty_input(plain_bed: Testbed) -> None:
    text = "import os, sys; e = os.environ.get; print(e('OMP_NUM_THREADS'), e('MINE'), e('NETOFFLOAD_CONTROL'))"
    words = ["-c", f"{text}; print(repr(sys.stdin.read()))"]
    result = output_of(plain_bed, [0, 1], words, env={"MINE": "yes"}, timeout_s=60)
    assert sorted(result.splitlines()) == ["''", "''", "1 yes None", "1 yes None"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "note\nTraceback (most recent call last):\n  File 'a'\n    f()\nValueError: no\n",
            "rank 0 said: ValueError: no",
        ),
        (
            "Traceback (most recent call last):\n    f()\nValueError: no\nwrite_line failure: Broken pipe\n",
            "rank 0 said: ValueError: no",
        ),
        ("note\nTraceback (most recent call last):\n  File 'a', line 277, in _hear\n", ""),
        ("one\ntwo\nAbort(3) on node 1\n", "rank 0 said: two"),
    ],
)
def test_a_traceback_cut_short_is_not_quoted(written: str, said: str) -> None:
    with RanksOutput(1, quietly, quietly) as output:
        subprocess.run(output.argv(0, ["sh", "-c", 'printf %s "$0" >&2', written]), check=True)
        output.drain()
    assert output.last_words().removeprefix("; ") == said


def test_what_cannot_be_run_is_refused(plain_bed: Testbed) -> None:
    with pytest.raises(RunError, match="no-such-program"):
        run_ranks(plain_bed, [0], ["no-such-program"], timeout_s=20, on_stderr=quietly)
    with pytest.raises(UsageError, match="nothing to run"):
        run_ranks(plain_bed, [0], [])


def test_the_ends_of_a_stream_do_not_hear_a_ctrl_c(plain_bed: Testbed) -> None:
    sessions: set[int] = set()
    stream(
        plain_bed,
        4 << 20,
        on_progress=lambda _: sessions.update(os.getsid(process.pid) for process in marked(plain_bed.plan.mark)),
    )
    assert len(sessions) == 2
    assert os.getsid(0) not in sessions


def test_lines_of_different_ranks_stay_whole(plain_bed: Testbed) -> None:
    words = [str(PROGRAMS / "say_in_parts.py")]
    heard: list[tuple[int, bytes]] = []
    run_ranks(plain_bed, [0, 1], words, timeout_s=60, on_stderr=lambda *said: heard.append(said))
    for rank in (0, 1):
        mine = b"".join(octets for said_by, octets in heard if said_by == rank)
        assert mine == b"one two three\n" * 20 + b"end"
    assert all(octets.endswith((b"\n", b"end")) for _, octets in heard)


def test_the_meter_answers_anybody(plain_bed: Testbed) -> None:
    with metered(plain_bed) as meter:
        program = (
            "import json,sys;from netoffload.control import request;print(json.dumps(request(sys.argv[1],'wires')))"
        )
        argv = [sys.executable, "-c", program, str(meter)]
        asked = plain_bed.popen(3, argv, stdout=subprocess.PIPE, text=True)
        nodes = json.loads(asked.communicate(timeout=20)[0])["nodes"]
        assert [node["name"] for node in nodes] == ["n0", "n1", "n2", "n3"]
        ours = control.request(meter, "wires")["nodes"]  # later: a kernel may have asked for an address meanwhile
        for node, later in zip(nodes, ours, strict=True):
            assert {name for name in node if node[name] != later[name]} <= {name for name in node if "x_" in name}
            assert all(node[name] <= later[name] for name in node if "x_" in name)
        assert nodes[0]["nic_control"] is None
        assert set(nodes[0]) >= {"address", "tx_octets", "tx_frames"}
    assert not meter.exists()


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


def test_gloo_takes_the_interface_of_the_route_to_the_store() -> None:
    ran = forked("run", "-n", "2", "--no-nic", "--launcher", "torchrun", "--", str(PROGRAMS / "gloo_by_route.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["inc0 2"] * 2


def test_ranks_whose_output_nobody_takes_are_ended(plain_bed: Testbed) -> None:
    def refuse(_rank: int, _lines: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    endless = ["python", "-c", "while True: print(1000 * 'x')"]
    with pytest.raises(OSError, match="No space left on device"):
        run_ranks(plain_bed, [0, 1], endless, on_stdout=refuse, timeout_s=90)
    few = ["python", "-c", "print('a few words')"]
    with pytest.raises(OSError, match="No space left on device"):
        run_ranks(plain_bed, [0], few, on_stdout=refuse, timeout_s=90)


def test_output_that_is_no_text_is_passed_on_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    pass_on_stdout(0, b"\xff\xfeabc\n")
    assert capfdbinary.readouterr().out == b"\xff\xfeabc\n"
