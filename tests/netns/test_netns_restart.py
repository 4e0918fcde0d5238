"""`netoffload restart` replaces a NIC during a tagged connection, which goes on compressed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from netoffload.errors import TestbedError
from netoffload.lab.testbed import Testbed, build
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from netoffload.lab.testbed.processes import identify
from tests.netns.programs.both_ways import TAGGED, connected, exchange
from tests.shared.beds import built, counters, nic_pids, wait_for_end_of_nic
from tests.shared.commands import forked

PORT = 5291


@pytest.fixture
def bed(
    run_id: str,
    left_of: Callable[[str], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Testbed]:
    """The only run of its state directory, so that its nodes need no run in their names."""
    monkeypatch.setenv(ENV_STATE_DIR, str(tmp_path_factory.mktemp("alone")))
    with built(run_id=run_id) as made:
        yield made
    assert left_of(run_id) == []


def test_a_stream_goes_on_compressed(bed: Testbed) -> None:
    with connected(bed, PORT, (TAGGED, TAGGED)) as ends:
        exchange(*ends, 1)
        old = nic_pids(bed)
        done = forked("restart", "n0", f"{bed.plan.run_id}/n1", "--kill", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        restarted = json.loads(done.stdout)["restarted"]
        assert [(nic["run"], nic["node"], nic["pid_before"]) for nic in restarted] == [
            (bed.plan.run_id, f"n{index}", old[index]) for index in (0, 1)
        ]
        assert [nic["pid"] for nic in restarted] == nic_pids(bed)
        assert set(nic_pids(bed)).isdisjoint(old)
        assert all(0 < nic["gone_s"] < 60 for nic in restarted)
        exchange(*ends, 2)
        sent, received = counters(bed, 0), counters(bed, 1)
        assert sent["tx_raw_octets"] > 0
        assert sent["bypass_unknown_flow"] == 0
        assert received["rx_blocks"] > 0
        log = (bed.plan.state_dir / "n0.log").read_text()
        assert log.count("this NIC is started again") == 1
        shown = json.loads(forked("status", bed.plan.run_id, "--json").stdout)["runs"][0]
        assert [node["nic"] for node in shown["nodes"]] == [{"pid": nic["pid"], "alive": True} for nic in restarted]


def test_a_graceful_restart_and_one_of_a_nic_that_has_ended(bed: Testbed) -> None:
    with connected(bed, PORT, (TAGGED, TAGGED)) as ends:
        exchange(*ends, 3)
        done = forked("restart", "n0")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{bed.plan.run_id}/n0: NIC pid {nic_pids(bed)[0]} (was pid " in done.stdout
        exchange(*ends, 4)
        os.kill(nic_pids(bed)[0], signal.SIGKILL)
        wait_for_end_of_nic(bed, 0)  # and all of its threads, which hold the TAP
        with pytest.raises(TestbedError, match=r"no traffic passes from n0 to n1 .*: the NIC of n0 has ended"):
            build.check_rate(bed, lambda _: None)
        again = bed.restart_nic(0)
        assert (again.pid_before, again.pid) == (None, nic_pids(bed)[0])
        exchange(*ends, 5)
        os.kill(again.pid, signal.SIGKILL)
        wait_for_end_of_nic(bed, 0)
        bed.replace_ended_nics()
        assert nic_pids(bed)[0] != again.pid
        exchange(*ends, 6)
        assert counters(bed)["tx_raw_octets"] > 0


def test_restarts_at_the_same_time_take_turns(bed: Testbed) -> None:
    [old, _] = nic_pids(bed)
    words = [sys.executable, "-m", "netoffload", "restart", "n0", "--json"]
    commands = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [json.loads(command.communicate(timeout=100)[0])["restarted"][0] for command in commands]
    first, second = sorted(told, key=lambda nic: bool(nic["pid_before"] != old))
    assert (first["pid_before"], second["pid_before"]) == (old, first["pid"])
    assert nic_pids(bed)[0] == second["pid"]
    assert identify(first["pid"]) is None


def test_a_nic_that_cannot_start_again_is_one_clear_error(bed: Testbed) -> None:
    node = bed.plan.nodes[0]
    subprocess.run(["ip", "-n", node.wire_netns, "link", "del", node.wire_device], check=True)
    with pytest.raises(TestbedError, match=r"n0 ended .*before it was ready: .*wire0 cannot be opened: no such interf"):
        bed.restart_nic(0)


def test_wrong_names_are_one_clear_line(plain_bed: Testbed) -> None:
    run = plain_bed.plan.run_id
    for words, said in (
        (["nosuch/n0"], "no run nosuch"),
        ([f"{run}/n0", f"{run}/n9"], f"run {run} has no node 'n9': it has n0..n3"),
        ([f"{run}/n0"], f"run {run} has no NICs: it was built with --no-nic"),
    ):
        done = forked("restart", *words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"netoffload: {said}\n")
