"""Ranks on nodes: their octets cross the wire, their failures are reported, and none of them stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload import control
from netoffload.errors import RunError, UsageError
from netoffload.lab.testbed import Meter, Testbed, run_ranks
from netoffload.lab.testbed.launch import RanksOutput
from netoffload.lab.testbed.processes import marked
from netoffload.lab.testbed.stream import stream

pytestmark = pytest.mark.mpi

PROGRAMS = Path(__file__).with_name("programs")


def written(folder: Path, text: str) -> str:
    path = folder / "app.py"
    path.write_text(text)
    return str(path)


def quietly(_rank: int, _octets: bytes) -> None:
    pass


def test_a_sum_of_four_ranks_crosses_the_wires(plain_bed: Testbed) -> None:
    words = ["python", str(PROGRAMS / "sum_over_ranks.py"), "NETOFFLOAD_ADDRESS"]
    result = run_ranks(plain_bed, range(4), words, timeout_s=60, capture_stdout=True, on_stderr=quietly)
    said = json.loads(result.stdout)
    assert said["ranks"] == [[f"n{rank}", f"10.98.1.{rank + 1}", 10.0, 10.0] for rank in range(4)]
    bound = 2 * 3 / 4 * 1_000_000  # the ring's octets per rank
    assert all(bound < octets < 1.2 * bound for octets in said["sent"]), said["sent"]


def test_ranks_run_where_they_are_put(plain_bed: Testbed, tmp_path: Path) -> None:
    text = "import socket\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, socket.gethostname())\n"
    result = run_ranks(plain_bed, [3, 1], [written(tmp_path, text)], timeout_s=60, capture_stdout=True)
    assert sorted(result.stdout.splitlines()) == ["0 n3", "1 n1"]


def test_environment_reaches_every_rank(plain_bed: Testbed, tmp_path: Path) -> None:
    text = "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['MINE'], os.environ.get('NETOFFLOAD_CONTROL'))\n"
    words = ["-c", text]
    result = run_ranks(plain_bed, [0, 1], words, env={"MINE": "yes"}, timeout_s=60, capture_stdout=True)
    assert result.stdout.splitlines() == ["1 yes None", "1 yes None"]  # two lines: ranks are not mixed


FAILURES = {
    "exception": (2, "rank 2 said: ValueError: too bad"),
    "exit": (1, "exit code 7"),
    "killed": (0, "failed: rank 0 was killed by signal 9"),
    "aborted": (2, "failed: rank 2 was killed by signal 6"),
}


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


@pytest.mark.parametrize("kind", FAILURES)
def test_a_rank_that_fails_ends_all(plain_bed: Testbed, kind: str) -> None:
    rank, message = FAILURES[kind]
    words = ["python", str(PROGRAMS / "fail.py"), str(rank), kind]
    with pytest.raises(RunError, match=message) as caught:
        run_ranks(plain_bed, range(3), words, timeout_s=60, on_stderr=quietly)
    if "signal" in message:
        assert caught.value.exit_code == 128 + int(message[-1])
    assert marked(plain_bed.plan.mark) == []


def test_a_rank_that_hangs_is_ended(plain_bed: Testbed, tmp_path: Path) -> None:
    app = written(tmp_path, "import sys, time\nprint('waiting', file=sys.stderr, flush=True)\ntime.sleep(300)\n")
    heard: list[tuple[int, bytes]] = []
    with pytest.raises(RunError, match=r"did not end within 2 s; rank \d said: waiting"):
        run_ranks(plain_bed, range(2), ["python", app], timeout_s=2, on_stderr=lambda *said: heard.append(said))
    assert sorted(heard) == [(0, b"waiting\n"), (1, b"waiting\n")]  # and nothing from the launcher
    assert marked(plain_bed.plan.mark) == []
    assert list(plain_bed.plan.state_dir.glob("meter-*")) == []


def test_a_rank_that_reads_its_input_finds_the_end_of_it(plain_bed: Testbed) -> None:
    result = run_ranks(plain_bed, [0, 1], ["-c", "import sys; print(repr(sys.stdin.read()))"], capture_stdout=True)
    assert result.stdout == "''\n''\n"


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
    with Meter(plain_bed) as meter:
        program = (
            "import json,sys;from netoffload.control import request;print(json.dumps(request(sys.argv[1],'wires')))"
        )
        argv = [sys.executable, "-c", program, str(meter.path)]
        asked = plain_bed.popen(3, argv, stdout=subprocess.PIPE, text=True)
        nodes = json.loads(asked.communicate(timeout=20)[0])["nodes"]
        assert [node["name"] for node in nodes] == ["n0", "n1", "n2", "n3"]
        assert nodes == control.request(meter.path, "wires")["nodes"]
        assert nodes[0]["nic_control"] is None
        assert set(nodes[0]) >= {"address", "tx_octets", "tx_frames"}
    assert not meter.path.exists()
