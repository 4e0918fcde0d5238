"""The NIC as a process: wrong arguments, and a life between a real TAP and a real wire (traffic: tests/netns)."""

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netoffload import engine
from netoffload.control import request
from netoffload.devices.packet import takes_bundles
from netoffload.engine.counters import Counter
from netoffload.errors import ControlError, SystemRefusedError
from netoffload.netlink import Namespace
from netoffload.nic_options import NicProcess
from netoffload_daemon import bypass, faults, loop, privileges, trace
from netoffload_daemon.__main__ import FAILED, Loop, _exit_code
from netoffload_daemon.table import open_table
from tests.shared.commands import netoffloadd, running_nic

DAEMON = [sys.executable, "-m", "netoffload_daemon"]
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/net/tun"), reason="needs root and TUN")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DAEMON, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "eth0", "--wire", "lo"], "host device 'eth0' is not tap:NAME or veth:NAME"),
        (["--host", "tap:", "--wire", "lo"], "is not tap:NAME"),
        (["--host", "tap:a-name-of-16-oct", "--wire", "lo"], "is not an interface name"),
        (["--host", "tap:inc%d", "--wire", "lo"], "'inc%d' is not an interface name"),
        (["--host", "tap:t0", "--wire", "a b"], "'a b' is not an interface name"),
        (["--host", "tap:t0", "--wire", "lo", "--bound", "17"], "bound 17 is outside 1..16"),
        (["--host", "tap:t0", "--wire", "lo", "--bound", "0"], "bound 0 is outside 1..16"),
        (["--host", "tap:t0", "--wire", "lo", "--codec", "gzip"], "codec 'gzip' is unknown: choose from inceptionn"),
        (["--host", "tap:t0", "--wire", "lo", "--packing", "loose"], "choose from coalesced, per-segment"),
        (["--host", "veth:t0", "--wire", "lo", "--threads", "3"], "3 threads are not possible: use 1, or 2"),
        (["--host", "veth:t0", "--wire", "lo", "--busy-poll", "-1"], "busy polling for -1 us is outside"),
        (["--host", "veth:t0", "--wire", "lo", "--fault", "loss=2"], "fault loss=2.0 is not a probability"),
        (["--host", "veth:t0", "--wire", "lo", "--user", "no-such-user"], "user 'no-such-user' is unknown"),
        (["--host", "veth:t0", "--wire", "lo", "--trace-side", "left"], "choose from host, wire, both"),
        (["--host", "veth:t0", "--wire", "lo", "--trace-side", "wire"], "a trace side goes with a trace: give --trace"),
        (
            ["--host", "tap:t0", "--wire", "lo", "--bond", "10"],
            "unrecognized arguments: --bond 10; see netoffloadd --help",
        ),
        ([], "arguments are required: --host, --wire; see netoffloadd --help"),
        (["--host", "tap:t0", "--wire", "lo", "--bypass", "kernel", "--fault", "loss=0.1"], "has to see every frame"),
        (["--host", "veth:t0", "--wire", "t0"], "t0 cannot be both the host's device and the wire"),
        (["--host", "tap:t0", "--wire", "t0", "--wire-netns", "/proc/self/ns/net"], "t0 cannot be both the host's"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = netoffloadd(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "tap:not0", "--wire", "nowire0"], "wire nowire0 cannot be opened: no such interface"),
        (["--host", "tap:not1", "--wire", "lo"], "wire lo is not an Ethernet interface"),
        (["--host", "veth:lo", "--wire", "nowire0"], "host device lo is not an Ethernet interface"),
        (["--host", "veth:not2", "--wire", "lo"], "host device not2 cannot be opened: no such interface"),
        (["--host", "tap:lo", "--wire", "nowire0"], "TAP lo cannot be opened: a device of that name exists"),
        (["--host", "tap:not3", "--host-netns", "/run/netns/none", "--wire", "lo"], "/run/netns/none cannot be opened"),
    ],
)
def test_what_the_system_refuses_is_one_line_and_leaves_nothing(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 3
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert arguments[1].partition(":")[2] not in {*os.listdir("/sys/class/net")} - {"lo"}


@pytest.mark.slow
@needs_root
def test_ready_control_and_stop(wire: str, tmp_path: Path) -> None:
    control = tmp_path / "nic.sock"
    words = ["--host", "tap:nottest0", "--ephemeral", "--wire", "w0", "--wire-netns", wire, "--control", str(control)]
    with running_nic(words, stderr=subprocess.PIPE) as nic:
        info = request(control, "info")
        assert (info["pid"], info["codec"], info["bound_k"]) == (nic.pid, "inceptionn", 10)
        assert len(request(control, "counters")["counters"]) == len(Counter)
        assert request(control, "flows") == {"flows": []}
        assert request(control, "stop") == {}
        assert (nic.communicate(timeout=10)[1], nic.returncode) == ("", 0)
    with pytest.raises(ControlError):  # the file may stay, because nobody may remove it; see netns/privileges
        request(control, "info")
    assert "nottest0" not in os.listdir("/sys/class/net")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize(("host", "ignore", "lines"), [("tap:t0", 0, 1), ("tap:t0", 1, 0), ("veth:w1", 0, 0)])
def test_a_tap_beside_its_wire_is_warned_of(wire: str, tmp_path: Path, host: str, ignore: int, lines: int) -> None:
    """The kernel would answer ARP for the TAP's address on the wire, and the peer send past the NIC."""
    with Namespace.open(Path(wire).name) as namespace:
        namespace.set_sysctl("net.ipv4.conf.w0.arp_ignore", str(ignore))
    control = tmp_path / "nic.sock"
    words = ["--host", host, "--host-netns", wire, "--wire", "w0", "--wire-netns", wire, "--control", str(control)]
    words.append("--ephemeral")
    with running_nic(words, stderr=subprocess.PIPE) as nic:
        request(control, "stop")
        said = nic.communicate(timeout=10)[1].splitlines()
    assert (nic.returncode, len(said)) == (0, lines)
    assert all("tap:t0 and wire w0 share a network namespace" in line for line in said)


def test_a_loop_that_fails_is_not_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    event = os.eventfd(0)
    no_port: Any = object()
    failing = Loop(event, no_port, no_port)
    failing.start(1)
    assert failing.join() == FAILED
    assert os.eventfd_read(event) == 1  # whoever else runs is told to stop
    os.close(event)
    assert _exit_code(FAILED, NicProcess(host="tap:t0", wire="lo")) == 1
    assert "the loop failed" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize(
    ("option", "exit_code", "said"),
    [("--ready-fd=99", 2, "descriptor 99"), ("--flow-table=/etc/passwd", 3, "/etc/passwd is not a flow table")],
)
def test_a_file_or_descriptor_that_is_not_ours_ends_it(wire: str, option: str, exit_code: int, said: str) -> None:
    name = f"nottest{exit_code}"  # other cases may run at the same time
    done = run("--host", f"tap:{name}", "--wire", "w0", "--wire-netns", wire, option)
    assert (done.returncode, done.stderr.count("\n")) == (exit_code, 1)
    assert said in done.stderr
    assert name not in os.listdir("/sys/class/net")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("is_there", [False, True])
def test_a_start_that_fails_leaves_no_flow_table_that_was_not_there(wire: str, tmp_path: Path, is_there: bool) -> None:
    table = tmp_path / "flows.bin"
    if is_there:
        open_table(table)
    words = ["--host", f"tap:notable{is_there:d}", "--wire", "w0", "--wire-netns", wire, f"--flow-table={table}"]
    done = run(*words, "--control", str(tmp_path / "no" / "such" / "folder" / "nic.sock"))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert table.exists() == is_there
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    words[-1] = f"--flow-table={link}"
    assert run(*words).returncode == 3
    assert link.is_symlink()


def test_every_counter_is_one_the_engine_or_the_loop_can_reach() -> None:
    kernels = ("lent", "pack", "path", "probation", "receive", "encapsulation", "router_errors")
    modules = [importlib.import_module(f"{engine.__name__}.{name}") for name in ("transmit", *kernels)]
    source = "".join(inspect.getsource(module) for module in (*modules, loop, faults, trace, bypass))
    unused = [counter.name for counter in Counter if f"Counter.{counter.name}" not in source]
    assert unused == ["TX_CLASS_8", "TX_CLASS_16", "TX_CLASS_32"]  # reached from TX_CLASS_0 on


def test_a_thread_that_ends_while_it_is_looked_at_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "7").mkdir()
    monkeypatch.setattr(privileges, "_TASKS", tmp_path)
    privileges._check_every_thread()
    lines = [f"{name}:\t0000000000000001\n" for name in privileges._SETS]
    (tmp_path / "7" / "status").write_text("".join(lines))
    with pytest.raises(SystemRefusedError, match="thread 7 still has capabilities"):
        privileges._check_every_thread()


@pytest.mark.parametrize("release", ["6.2.0", "6.18.44-fc-v669", "10.0-rc1"])
def test_bundles_are_for_kernels_that_cut_them(release: str) -> None:
    assert takes_bundles(release)
    assert not any(takes_bundles(older) for older in ("6.1.0-18-amd64", "5.15.0", "?"))
