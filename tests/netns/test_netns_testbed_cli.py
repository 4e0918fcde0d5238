"""The testbed commands end to end: one line per refusal, JSON that parses, nothing left behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from netoffload.lab.testbed.launch import ENV_OPENMPI, find_openmpi
from netoffload.netlink import netns_exists
from tests.shared.commands import forked, netoffload, refusal


@pytest.fixture
def up(run_id: str) -> Iterator[dict[str, object]]:
    made = forked("up", "-n", "2", "--no-nic", "--run-id", run_id, "--json")
    assert made.returncode == 0, made.stderr
    yield json.loads(made.stdout)
    forked("down", run_id)


def test_up_status_exec_down(up: dict[str, object], run_id: str, left_of: Callable[[str], list[str]]) -> None:
    assert up["run"] == run_id
    assert up["nic"] is None
    shown = json.loads(forked("status", run_id, "--json").stdout)["runs"]
    assert [(run["run"], run["state"]) for run in shown] == [(run_id, "up")]
    assert shown[0]["nodes"][0]["wire"]["tx_octets"] > 0  # the rate probe
    assert run_id in forked("status").stdout
    for words in (["--run", run_id, "n1"], [f"{run_id}/n1"]):
        inside = forked("exec", *words, "--", "sh", "-c", "hostname; exit 7")
        assert (inside.stdout, inside.returncode) == ("n1\n", 7)
    unlike = forked("exec", "--run", run_id, "another/n1", "--", "true")
    assert (unlike.returncode, unlike.stdout) == (2, "")
    assert f"--run {run_id} and another/n1 name two runs: give one" in unlike.stderr
    ended = forked("down", run_id, "--json")
    assert (json.loads(ended.stdout), ended.returncode) == ({"down": [run_id]}, 0)
    assert left_of(run_id) == []
    again = forked("down", run_id)
    assert (again.returncode, again.stdout, again.stderr) == (2, "", f"netoffload: no run {run_id}\n")


def test_down_takes_no_testbed_down_that_was_not_named(up: dict[str, object], run_id: str) -> None:
    other = f"{run_id}b"
    assert forked("up", "-n", "2", "--no-nic", "--run-id", other).returncode == 0
    try:
        refused = forked("down")
        assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
        assert run_id in refused.stderr
        assert other in refused.stderr
        assert netns_exists(f"no-{run_id}-sw")
    finally:
        assert json.loads(forked("down", run_id, other, "--json").stdout) == {"down": [run_id, other]}
    assert up["run"] == run_id


def test_run_on_a_testbed_that_is_up(up: dict[str, object], run_id: str) -> None:
    text = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    ran = forked("run", "--testbed", run_id, "--", "python", "-c", text)
    assert (ran.stdout.split(), ran.returncode) == (["2", "2"], 0), ran.stderr
    assert up["run"] == run_id


REFUSED = {
    "nodes": (["up", "-n", "66"], 2, "1..65"),
    "rate": (["up", "--rate", "fast"], 2, "1gbit"),
    "rates": (["up", "-n", "1", "--rate", "10mbit/5mbit,10mbit"], 2, "2 rates for 1 nodes"),
    "rate up": (["up", "--rate", "10mbit/"], 2, "rate '' is not a number"),
    "codec": (["up", "--codec", "zip"], 2, "inceptionn"),
    "bound": (["up", "--bound", "17"], 2, "1..16"),
    "packing": (["up", "--packing", "loose"], 2, "coalesced"),
    "mtu": (["up", "--mtu", "100"], 2, "576"),
    "run id": (["up", "--run-id", "A/B"], 2, "run id"),
    "unknown run": (["status", "nosuch"], 2, "nosuch"),
    "busy polling": (["up", "--busy-poll", "-1"], 2, "0..1000000"),
    "down": (["down", "nosuch"], 2, "no run nosuch"),
    "options of up": (
        ["run", "--testbed", "r", "--rate", "1gbit", "--busy-poll", "5", "--no-nic", "--", "true"],
        2,
        "--rate, --busy-poll, --no-nic belong to `netoffload up`",
    ),
    "time limit": (["run", "-n", "2", "--timeout", "-1", "--", "true"], 2, "more than 0"),
    "time limit of verify": (["verify", "collectives", "--timeout", "0"], 2, "more than 0"),
    "ranks": (["run", "--", "true"], 2, "-n 4"),
    "testbed": (["run", "--testbed", "nosuch", "--", "true"], 3, "nosuch"),
    "script": (["run", "-n", "2", "--", "python", "nosuch.py"], 2, "there is no script nosuch.py"),
    "mpi": (["run", "-n", "2", "--mpi", "lam", "--", "true"], 2, "mpich, openmpi"),
    "rate in bytes": (["up", "--rate", "100mbps"], 2, "write 100mbit for bits per second"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_input_is_one_clear_line(what: str) -> None:
    words, exit_code, hint = REFUSED[what]
    assert hint in refusal(*words, exit_code=exit_code)


@pytest.mark.parametrize("command", [["run", "-n", "2"], ["exec"]])
def test_an_unknown_option_is_not_taken_for_the_program(command: list[str]) -> None:
    refused = netoffload(*command, "--bogus", "--", "true")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "No such option: --bogus" in refused.stderr


def test_what_a_run_lacks_is_one_clear_line(up: dict[str, object], run_id: str) -> None:
    for words, exit_code, said in (
        (["exec", "--run", run_id, "n9", "--", "true"], 2, f"run {run_id} has no node 'n9': it has n0..n1\n"),
        (["run", "-n", "3", "--testbed", run_id, "--", "true"], 2, "each rank needs a node"),
        (["run", "-n", "1", "--no-nic", "--mpi", "openmpi", "--", "true"], 3, "/nowhere holds no Open MPI 5"),
    ):
        refused = forked(*words, env={ENV_OPENMPI: "/nowhere"})
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (exit_code, "", 1)
        assert said in refused.stderr
    assert up["run"] == run_id


@pytest.mark.parametrize(
    ("signal_number", "mpi"),
    [
        (signal.SIGINT, "mpich"),
        (signal.SIGTERM, "mpich"),
        pytest.param(signal.SIGINT, "openmpi", marks=pytest.mark.skipif(find_openmpi() is None, reason="no Open MPI")),
    ],
)
def test_a_signal_in_the_middle_leaves_nothing(
    signal_number: signal.Signals, mpi: str, left_of: Callable[[str], list[str]]
) -> None:
    words = ["run", "-n", "2", "--no-nic", "--mpi", mpi, "--", "sh", "-c", "echo $NETOFFLOAD_RUN; exec sleep 300"]
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", "netoffload", *words], stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        assert netns_exists(f"no-{run_id}-sw")
        process.send_signal(signal_number)
        assert process.wait(timeout=20) == 130
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[1:] == ["netoffload: interrupted"]
    assert left_of(run_id) == []
    assert f"no run {run_id}" in forked("down", run_id, "--json").stderr


def test_doctor_finds_what_these_tests_need() -> None:
    looked = forked("doctor", "--json")
    assert looked.returncode == 0, looked.stdout
    found = {check["name"]: check for check in json.loads(looked.stdout)["checks"]}
    assert all(found[name]["ok"] for name in ("root", "veth", "bridge", "tbf", "u32 filter", "/dev/net/tun"))
    assert "cubic by route" in forked("doctor").stdout
