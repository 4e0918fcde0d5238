"""A testbed with NICs: untagged traffic crosses both of them, and their counters agree."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload import control
from netoffload.errors import TestbedError
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, nics, run_ranks
from netoffload.lab.testbed.journal import read_run
from netoffload.lab.testbed.processes import identify

pytestmark = pytest.mark.netns

OCTETS = 1_000_000
PROGRAMS = Path(__file__).with_name("programs")


def test_every_nic_runs_as_asked(nic_bed: Testbed) -> None:
    record = read_run(nic_bed.plan.state_dir)
    assert record is not None
    states = nics.states(record)
    assert set(states) == {"n0", "n1", "n2", "n3"}
    for node in nic_bed.plan.nodes:
        assert node.control_path is not None
        info = control.request(node.control_path, "info")
        assert (info["pid"], True) == (states[node.name]["pid"], states[node.name]["alive"])
        assert (info["codec"], info["bound_k"], info["packing"]) == ("inceptionn", 10, "coalesced")


def test_an_echo_crosses_both_nics_bit_exact_and_is_counted(nic_bed: Testbed) -> None:
    address = nic_bed.plan.nodes[1].address
    before = nic_bed.wire_counters()
    words = [sys.executable, str(PROGRAMS / "echo.py"), address]
    with nic_bed.popen(1, words, stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == "listening\n"
        words = [sys.executable, str(PROGRAMS / "ask_echo.py"), address, str(OCTETS)]
        ask = nic_bed.popen(0, words, stdout=subprocess.PIPE, text=True)
        assert ask.communicate(timeout=30)[0] == "same\n"
        assert echo.wait(timeout=10) == 0
    after = nic_bed.wire_counters()
    mss_octets = nic_bed.plan.settings.mtu - 20 - 20
    for index in (0, 1):
        octets = after[index].tx_octets - before[index].tx_octets
        frames = after[index].tx_frames - before[index].tx_frames
        assert OCTETS * 1.02 < octets < OCTETS * 1.2  # every header of every segment
        assert OCTETS / mss_octets < frames < 3 * OCTETS / mss_octets  # segments, not super-segments
    assert after[2].tx_octets == before[2].tx_octets  # the bridge knows who lives where


def test_a_run_with_nics_ends_them_and_leaves_nothing(run_id: str, left_of: Callable[[str], list[str]]) -> None:
    plan = make_plan(TestbedSettings(2, nic=NicSettings(bound_k=6, packing="per-segment")), run_id)
    with Testbed(plan, check_rate=False):
        record = read_run(plan.state_dir)
        assert record is not None
        pids = [state["pid"] for state in nics.states(record).values()]
        info = control.request(str(plan.nodes[0].control_path), "info")
        assert (info["bound_k"], info["packing"]) == (6, "per-segment")
    assert left_of(run_id) == []
    assert [identify(pid) for pid in pids] == [None, None]


def test_a_nic_that_died_is_seen_before_anything_starts(run_id: str) -> None:
    plan = make_plan(TestbedSettings(1), run_id)
    with Testbed(plan) as bed:
        record = read_run(plan.state_dir)
        assert record is not None
        os.kill(nics.states(record)["n0"]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 5
        while nics.states(record)["n0"]["alive"]:
            assert time.monotonic() < deadline
        with pytest.raises(TestbedError, match=rf"the NIC of n0 in run {run_id} has ended"):
            run_ranks(bed, [0], ["true"], timeout_s=20)
