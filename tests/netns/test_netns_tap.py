"""A TAP that a NIC makes outlives it, unless an option says otherwise; a TAP that was there stays what it is."""

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from netoffload.lab.testbed.links import TestbedNamespace
from tests.shared.beds import nic_command
from tests.shared.commands import running_nic


def running(wire: str, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A NIC that forwards between ``t0`` and ``w0`` of one namespace; whoever is still there in the end is killed."""
    words = ["--host", "tap:t0", "--host-netns", wire, "--wire", "w0", "--wire-netns", wire, *more]
    return running_nic(words, command=nic_command(), stderr=subprocess.PIPE)


def links(wire: str, *of_one: str) -> str:
    command = ["nsenter", f"--net={wire}", "ip", "link", "show", *of_one]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def end(nic: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> list[str]:
    """End a NIC; return what it said of its TAP."""
    nic.send_signal(number)
    return [line for line in nic.communicate(timeout=10)[1].splitlines() if "share a network namespace" not in line]


def test_a_tap_outlives_a_kill_and_the_next_nic_finds_it(wire: str) -> None:
    with running(wire) as first:
        index = links(wire, "t0").partition(":")[0]
        (said,) = end(first, signal.SIGKILL)
    assert said == (
        "netoffload: made the TAP t0; it stays when this NIC ends, and so do the host's connections; "
        f"`nsenter --net={wire} ip link del t0` removes it (with --ephemeral it ends with the NIC)"
    )
    with running(wire) as second:
        assert end(second) == []
    assert links(wire, "t0").startswith(f"{index}:")
    assert "qlen 4096" in links(wire, "t0")
    subprocess.run(said.partition("`")[2].partition("`")[0].split(), check=True)
    assert "t0" not in links(wire)


def test_an_ephemeral_tap_goes_with_its_nic(wire: str) -> None:
    with running(wire, "--ephemeral") as nic:
        assert "t0" in links(wire)
        assert end(nic) == []
    assert "t0" not in links(wire)


def test_a_tap_that_was_there_stays_what_it_is(wire: str) -> None:
    with TestbedNamespace.open(Path(wire).name) as namespace:
        namespace.add_tap("t0", 1500, 77)
    with running(wire, "--ephemeral") as nic:
        assert end(nic) == []
    assert "qlen 77" in links(wire)


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN], ids=["alone", "under nohup"])
def test_sighup_ends_a_nic_but_not_under_nohup(wire: str, handler: signal.Handlers) -> None:
    words = ["--host", "tap:t0", "--host-netns", wire, "--wire", "w0", "--wire-netns", wire, "--ephemeral"]
    start = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    )
    command = [sys.executable, "-c", start, str(int(handler)), sys.executable, "-m", "netoffload", "nic"]
    with running_nic(words, command=command, stderr=subprocess.PIPE) as nic:
        status = Path(f"/proc/{nic.pid}/status").read_text()
        (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        is_ignored = bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))
        assert is_ignored is (handler == signal.SIG_IGN)
        nic.send_signal(signal.SIGHUP)
        if is_ignored:
            nic.send_signal(signal.SIGTERM)
        assert (nic.wait(timeout=10), links(wire).count("t0")) == (0, 0)
