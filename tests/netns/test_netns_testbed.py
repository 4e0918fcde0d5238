"""Testbeds in the kernel: built, used, and taken down without a trace however they end."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload.errors import SystemRefusedError, TestbedError, UsageError
from netoffload.lab.testbed import (
    NicSettings,
    Testbed,
    TestbedSettings,
    build,
    down,
    find_run,
    list_runs,
    make_plan,
    nics,
    parse_links,
    reap_stale,
)
from netoffload.lab.testbed.forks import ENV_FORK_SERVER
from netoffload.lab.testbed.journal import read_run
from netoffload.lab.testbed.stream import stream
from netoffload.netlink import Namespace, netns_exists, remove_netns

Left = Callable[[str], list[str]]
PROGRAMS = Path(__file__).with_name("programs")


def kill_an_owner(run_id: str, kind: str = "plain") -> None:
    """Build a testbed in a process of its own, and kill that process without warning."""
    command = [sys.executable, str(PROGRAMS / "own_testbed.py"), run_id, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        owner.send_signal(signal.SIGKILL)


def said_on(bed: Testbed, node_index: int, *argv: str) -> str:
    process = bed.popen(node_index, argv, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return str(out)


@pytest.mark.usefixtures("_host_unchanged")
def test_up_and_down_twice_leaves_nothing(run_id: str, left_of: Left) -> None:
    plan = make_plan(TestbedSettings(3, 10**9, nic=None), run_id)
    counts = []
    for _ in range(2):
        with Testbed(plan, check_rate=False) as bed:
            assert all(netns_exists(name) for name in plan.netns_names)
            bed.wire_counters()
        assert left_of(run_id) == []
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("_host_unchanged")
@pytest.mark.parametrize("kind", ["plain", "nic"])
def test_down_cleans_up_after_a_killed_owner(run_id: str, left_of: Left, kind: str) -> None:
    kill_an_owner(run_id, kind)
    left = left_of(run_id)
    assert any(name.startswith("no-") for name in left)
    assert any(name.startswith("pid") for name in left)
    assert down(run_id)
    assert left_of(run_id) == []
    assert not down(run_id)


def test_the_next_build_reaps_what_a_dead_owner_left(run_id: str, left_of: Left) -> None:
    kill_an_owner(run_id)
    with Testbed(make_plan(TestbedSettings(1, nic=None), f"{run_id}b"), check_rate=False):
        assert [
            name for name in left_of(run_id) if not name.startswith(f"no-{run_id}b") and f"{run_id}b" not in name
        ] == []


def test_a_detached_run_stays_until_down_and_its_scratch_folders_too(run_id: str, left_of: Left) -> None:
    with Testbed(make_plan(TestbedSettings(2, nic=None), run_id), check_rate=False) as bed:
        folders = [bed.make_scratch(), bed.make_scratch()]
        (folders[0] / "file").write_text("left by a killed program")
        folders[1].rmdir()
        bed.detach()
    try:
        assert reap_stale() == []
        assert find_run(run_id).state == "up"
        with Testbed.attach(run_id) as bed:
            assert said_on(bed, 1, "hostname") == "n1\n"
        assert netns_exists(f"no-{run_id}-n0")
        assert folders[0].exists()
    finally:
        assert down(run_id)
    assert left_of(run_id) == []
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(TestbedError, match="not up"):
        Testbed.attach(run_id)


def test_a_taken_name_is_refused_and_left_alone(run_id: str, left_of: Left) -> None:
    foreign = f"no-{run_id}-n1"
    with Namespace.create(foreign):
        try:
            with (
                pytest.raises(TestbedError, match=f"{foreign} exists already"),
                Testbed(make_plan(TestbedSettings(2, nic=None), run_id)),
            ):
                pass
            assert left_of(run_id) == [foreign]
        finally:
            remove_netns(foreign)


def test_a_taken_run_id_is_refused_and_left_alone(plain_bed: Testbed) -> None:
    taken = plain_bed.plan.run_id
    with pytest.raises(TestbedError, match=f"{taken} exists already"), Testbed(plain_bed.plan):
        pass
    assert netns_exists(plain_bed.plan.switch_netns)
    assert read_run(plain_bed.plan.state_dir) is not None


@pytest.mark.usefixtures("_host_unchanged")
@pytest.mark.parametrize(
    ("module", "name", "value", "why"),
    [
        (sys, "executable", "/bin/false", "refused|ended"),
        (nics, "NIC_IMPORTS", ("nothing",), "No module named 'nothing'"),
    ],
)
def test_a_nic_that_does_not_start_undoes_everything(
    run_id: str, left_of: Left, monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object, why: str
) -> None:
    monkeypatch.delenv(ENV_FORK_SERVER)
    monkeypatch.setattr(module, name, value)
    plan = make_plan(TestbedSettings(2, nic=NicSettings()), run_id)
    with pytest.raises(TestbedError, match=f"the kernels of NICs cannot be loaded: .*{why}"), Testbed(plan):
        pass
    assert left_of(run_id) == []


def test_one_nic_that_does_not_start_ends_the_others(
    run_id: str, left_of: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(TestbedSettings(2, nic=NicSettings()), run_id)
    node = plan.nodes[1]
    delete = ["ip", "-n", node.wire_netns, "link", "del", node.wire_device]
    monkeypatch.setattr(Testbed, "_write_hosts", lambda _bed: subprocess.run(delete, check=True))
    said = "NIC of node n1 ended with exit code 3 before it was ready: .*wire0 cannot be opened"
    with pytest.raises(TestbedError, match=said), Testbed(plan):
        pass
    assert left_of(run_id) == []


def test_an_exception_inside_takes_it_down_too(run_id: str, left_of: Left) -> None:
    def build_and_interrupt() -> None:
        with Testbed(make_plan(TestbedSettings(2, nic=None), run_id), check_rate=False) as bed:
            bed.popen(0, ["/bin/sleep", "300"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_and_interrupt()
    assert left_of(run_id) == []


def test_the_achieved_rate_is_measured_and_a_wrong_one_refused(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_bps = 100_000_000
    with Testbed(make_plan(TestbedSettings(2, asked_bps, nic=None), run_id)) as bed:
        assert bed.rate_bps_measured == pytest.approx(asked_bps, rel=0.05)
        monkeypatch.setattr(build, "ATTEMPTS", 3)
        monkeypatch.setattr(build, "PAUSE_S", 0)
        bed.plan = dataclasses.replace(bed.plan, settings=TestbedSettings(2, 2 * asked_bps, nic=None))
        remarks: list[str] = []
        with pytest.raises(TestbedError, match=r"asked for 200 Mb/s, measured \d"):
            build.check_rate(bed, remarks.append)
        assert [remark[-8:] for remark in remarks] == ["(2 of 3)", "(3 of 3)"]


@pytest.mark.parametrize(("rates", "goodput_bps"), [("40mbit/10mbit,80mbit", 10e6), ("80mbit,40mbit/10mbit", 40e6)])
def test_a_wire_carries_its_rate_up_and_its_rate_down(run_id: str, rates: str, goodput_bps: float) -> None:
    plan = make_plan(TestbedSettings(2, nic=None, links=parse_links(rates)), run_id)
    with Testbed(plan, check_rate=False) as bed:
        both = [stream(bed, round(goodput_bps / 8) * 3) for _ in range(2)]  # from n0 to n1
    # The machine may have stood still during one of them. None is faster than the wire.
    assert max(sent.goodput_bps for sent in both) == pytest.approx(goodput_bps, rel=0.15)
    assert [sent.wrong for sent in both] == [0, 0]


def test_each_direction_is_measured_with_as_many_streams_as_fill_it(
    run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Testbed(make_plan(TestbedSettings(3, nic=None, links=parse_links("20mbit/10mbit")), run_id)) as bed:
        assert any(bed.rate_bps_measured == pytest.approx(rate_bps, rel=0.05) for rate_bps in (20e6, 10e6))
        monkeypatch.setattr(build, "ATTEMPTS", 3)
        monkeypatch.setattr(build, "PAUSE_S", 0)

        def refusal() -> str:
            with pytest.raises(TestbedError) as refused:
                build.check_rate(bed, print)
            return str(refused.value)

        for wrong, said in (("15mbit/10mbit", "asked for 15 Mb/s"), ("20mbit/12mbit", "asked for 12 Mb/s")):
            bed.plan = dataclasses.replace(bed.plan, settings=TestbedSettings(3, nic=None, links=parse_links(wrong)))
            assert any(said in refusal() for _ in range(5))  # a busy machine may be further off in the other direction


def test_a_node_is_a_host_of_its_own(plain_bed: Testbed) -> None:
    assert said_on(plain_bed, 2, "hostname") == "n2\n"
    assert "10.98.1.4 n3" in said_on(plain_bed, 0, "cat", "/etc/hosts")
    assert said_on(plain_bed, 0, "sh", "-c", "echo $NETOFFLOAD_ADDRESS $NETOFFLOAD_CONTROL") == "10.98.1.1\n"
    assert said_on(plain_bed, 0, "sh", "-c", "touch /dev/shm/here && ls /dev/shm") == "here\n"
    assert said_on(plain_bed, 1, "sh", "-c", "ls /dev/shm") == ""
    assert "congctl cubic" in said_on(plain_bed, 0, "ip", "route")
    assert not os.path.exists("/dev/shm/here")


def test_exit_codes_pass(plain_bed: Testbed) -> None:
    assert plain_bed.popen(0, ["sh", "-c", "exit 7"]).wait(timeout=10) == 7
    assert plain_bed.popen(0, ["no-such-program"], stderr=subprocess.DEVNULL).wait(timeout=10) == 127


def test_which_run_is_meant(plain_bed: Testbed, run_id: str) -> None:
    assert plain_bed.plan.run_id in [record.run_id for record in list_runs()]
    with pytest.raises(UsageError, match=f"no run {run_id}"):
        find_run(run_id)
    with (
        Testbed(make_plan(TestbedSettings(1, nic=None), run_id), check_rate=False),
        pytest.raises(UsageError, match="say which"),
    ):
        find_run(None)


def test_without_root_one_line_and_nothing_made(run_id: str, left_of: Left) -> None:
    command = [sys.executable, str(PROGRAMS / "build_without_root.py"), run_id]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"{SystemRefusedError.exit_code} a testbed needs root")
    assert left_of(run_id) == []
