"""`netoffload restart` replaces a NIC during a tagged connection, which goes on compressed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.config import TOS_COMPRESS
from netoffload.control import request
from netoffload.devices.netns import in_netns
from netoffload.errors import TestbedError
from netoffload.lab.testbed import NicSettings, NodePlan, Testbed, TestbedSettings, make_plan
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from netoffload.lab.testbed.processes import identify
from netoffload.netlink import netns_path
from tests.shared.commands import forked
from tests.shared.nic_processes import nic_pids

pytestmark = pytest.mark.netns

PORT = 5291
CODEC = get("inceptionn")


@pytest.fixture
def bed(
    run_id: str,
    left_of: Callable[[str], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Testbed]:
    """The only run of its state directory, so that its nodes need no run in their names."""
    monkeypatch.setenv(ENV_STATE_DIR, str(tmp_path_factory.mktemp("alone")))
    with Testbed(make_plan(TestbedSettings(2, nic=NicSettings()), run_id), check_rate=False) as built:
        yield built
    assert left_of(run_id) == []


def socket_on(node: NodePlan) -> socket.socket:
    with in_netns(str(netns_path(node.netns))):
        sock = socket.socket()
    sock.settimeout(20)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_COMPRESS)
    return sock


def counters(node: NodePlan) -> dict[str, int]:
    said: dict[str, int] = request(str(node.control_path), "counters")["counters"]
    return said


class Connection:
    """A tagged connection from n0 to n1."""

    def __init__(self, bed: Testbed) -> None:
        source, sink = bed.plan.nodes
        with socket_on(sink) as listening:
            listening.bind(("", PORT))
            listening.listen()
            self._near = socket_on(source)
            self._near.connect((sink.address, PORT))
            self._far = listening.accept()[0]
            self._far.settimeout(20)

    def check(self, seed: int) -> None:
        """Send values, and compare what arrives with what the codec makes of them."""
        values = np.random.default_rng(seed).normal(0, 0.05, 20_000).astype(np.float32)
        self._near.sendall(values.tobytes())
        got = b""
        while len(got) < values.nbytes:
            octets = self._far.recv(values.nbytes - len(got))
            assert octets
            got += octets
        assert np.array_equal(np.frombuffer(got, np.uint32), CODEC.round_trip(values, 10).view(np.uint32))

    def close(self) -> None:
        self._near.close()
        self._far.close()


def test_a_stream_goes_on_compressed(bed: Testbed) -> None:
    stream = Connection(bed)
    stream.check(1)
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
    stream.check(2)
    sent, received = (counters(node) for node in bed.plan.nodes)
    assert sent["tx_raw_octets"] > 0
    assert sent["bypass_unknown_flow"] == 0
    assert received["rx_blocks"] > 0
    shown = json.loads(forked("status", bed.plan.run_id, "--json").stdout)["runs"][0]
    assert [node["nic"] for node in shown["nodes"]] == [{"pid": nic["pid"], "alive": True} for nic in restarted]
    stream.close()


def test_a_graceful_restart_and_one_of_a_nic_that_has_ended(bed: Testbed) -> None:
    stream = Connection(bed)
    stream.check(3)
    done = forked("restart", "n0")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{bed.plan.run_id}/n0: NIC pid {nic_pids(bed)[0]} (was pid " in done.stdout
    stream.check(4)
    os.kill(nic_pids(bed)[0], signal.SIGKILL)
    while identify(nic_pids(bed)[0]) is not None:
        pass
    again = bed.restart_nic(0)
    assert (again.pid_before, again.pid) == (None, nic_pids(bed)[0])
    stream.check(5)
    assert counters(bed.plan.nodes[0])["tx_raw_octets"] > 0
    stream.close()


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
