"""Bypass in the kernel: frames that no NIC would change cross past the process, and all others go through it."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from netoffload.devices.netns import in_netns
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from netoffload.lab.testbed.links import TestbedNamespace
from netoffload.lab.testbed.plan import NodePlan, nic_argv
from netoffload.lab.testbed.stream import stream
from netoffload.netlink import netns_path
from netoffload.netlink.redirect import has_clsact, remove_link
from netoffload.nic_options import NicProcess
from netoffload_daemon.bypass import kernel_bypass
from tests.shared.beds import built, counters, grown, nic_command
from tests.shared.commands import running_nic
from tests.shared.transfers import transfer
from tests.soak.events import add_ipv6, kill_nic

OCTETS = 20_000_000
RATE_BPS = 200_000_000
KERNEL = NicSettings(bypass="kernel")
ADDRESSES = ("10.98.1.2", "fd98::2")
PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(scope="module", params=["tap", "veth"])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Two nodes with the bypass in the kernel, with IPv6 addresses too."""
    with built(nic=NicSettings(host=request.param, bypass="kernel")) as made:
        assert add_ipv6(made)
        yield made


@pytest.fixture
def octets() -> bytes:
    return np.random.default_rng(4).integers(0, 256, OCTETS, dtype=np.uint8).tobytes()


@pytest.mark.parametrize("address", ADDRESSES)
def test_untagged_octets_cross_past_the_process(bed: Testbed, octets: bytes, address: str) -> None:
    before = [counters(bed, node) for node in (0, 1)]
    wire_before = bed.wire_counters()[0].tx_octets
    assert transfer(bed, octets, [(0, OCTETS)], address=address) == octets
    sent, got = (grown(bed, node, before[node]) for node in (0, 1))
    assert sent["kernel_tx_octets"] > 0.99 * OCTETS
    assert got["kernel_rx_octets"] > 0.99 * OCTETS
    # Each segment of a GSO frame counts once, and all headers are on the wire. (The last one goes with the FIN.)
    assert 0.98 * OCTETS / 1500 < sent["kernel_tx_frames"] < OCTETS / 1000
    assert bed.wire_counters()[0].tx_octets - wire_before > 1.03 * OCTETS
    # SYN, acknowledgement of it and FIN, and what was sent again of them. A FIN may carry the last segment.
    assert 0 < sent["tx_host_frames"] < 10
    assert 0 < got["rx_wire_frames"] < 10
    assert got["rx_wire_octets"] < 0.01 * OCTETS


def test_tagged_floats_are_compressed_as_ever(bed: Testbed) -> None:
    before = counters(bed, 0)
    found = stream(bed, OCTETS)
    assert (found.values, found.raw, found.wrong) == (OCTETS // 4, 0, 0)
    sent = grown(bed, 0, before)
    assert sent["tx_raw_octets"] >= OCTETS
    assert sent.get("kernel_tx_octets", 0) < 0.01 * OCTETS
    assert {name for name in sent if name.startswith("drop_")} == set()


def test_a_flow_tagged_in_the_middle_arrives_whole(bed: Testbed, octets: bytes) -> None:
    before = counters(bed, 0)
    assert transfer(bed, octets, [(0, OCTETS // 2), (0x28, OCTETS // 2)]) == octets
    sent = grown(bed, 0, before)
    assert sent["bypass_unknown_flow"] > 0
    # What waits in the socket when the tag is set gets it too.
    assert sent["kernel_tx_octets"] > 0.05 * OCTETS
    assert sent["tx_host_octets"] > 0.4 * OCTETS


@pytest.mark.parametrize("address", ADDRESSES)
def test_each_echo_is_answered_once(bed: Testbed, address: str) -> None:
    subprocess.run(["ip", "-n", bed.plan.nodes[0].netns, "neigh", "flush", "all"], check=True)
    before = counters(bed, 0)
    assert echoes(bed, address, 5) == "0 1 2 3 4\n"
    sent = grown(bed, 0, before)
    assert sent["kernel_tx_frames"] >= 5
    assert sent["kernel_rx_frames"] >= 5


def test_an_error_of_icmp_stays_with_the_nics(bed: Testbed) -> None:
    """They may be about a block, and then the NIC of the host that they are for translates them."""
    before = [counters(bed, node) for node in (0, 1)]
    with in_netns(str(netns_path(bed.plan.nodes[0].netns))):
        asking = socket.socket(type=socket.SOCK_DGRAM)
    with asking:
        asking.settimeout(10)
        asking.connect(("10.98.1.2", 9))
        asking.send(b"octets")
        with pytest.raises(ConnectionRefusedError):
            asking.recv(1)
    assert grown(bed, 1, before[1])["bypass_not_tcp"] >= 1
    assert grown(bed, 0, before[0])["rx_bypass"] >= 1


def test_the_wire_is_shaped_and_a_restart_finds_everything(run_id: str) -> None:
    # Entering the context measures the rate of an untagged stream and refuses one that is 5 % off.
    with Testbed(make_plan(TestbedSettings(2, RATE_BPS, nic=KERNEL), run_id)) as bed:
        node = bed.plan.nodes[0]
        assert counters(bed, 0)["kernel_tx_octets"] > counters(bed, 0)["tx_host_octets"]
        kill_nic(bed, node)
        for bypass in ("kernel", "user"):
            with forwarding([*nic_argv(bed.plan, node, 0), "--bypass", bypass]):
                assert echoes(bed, "10.98.1.2", 1) == "0\n"
                counted = counters(bed, 0)
                assert (counted["kernel_tx_frames"] > 0) is (bypass == "kernel")
                assert (counted["tx_host_frames"] > 0) is (bypass == "user")
                assert stream(bed, 400_000).wrong == 0
            assert (filters_of(node) != "") is (bypass == "kernel")
        assert links_of(node.netns) == []


def echoes(bed: Testbed, address: str, count: int) -> str:
    command = [sys.executable, str(PROGRAMS / "ping.py"), address, str(count)]
    with bed.popen(0, command, stdout=subprocess.PIPE, text=True) as asking:
        return str(asking.communicate(timeout=30)[0])


@contextlib.contextmanager
def forwarding(words: list[str]) -> Iterator[None]:
    """Run a NIC of its own while the body runs; it ends well."""
    with running_nic(words, command=nic_command()) as nic:
        yield
        nic.terminate()
        assert nic.wait(timeout=10) == 0


def filters_of(node: NodePlan) -> str:
    """What tc says about the wire's filters."""
    words = ["ip", "netns", "exec", node.wire_netns, "tc", "filter", "show", "dev", node.wire_device, "ingress"]
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout


def links_of(netns: str) -> list[str]:
    """The names of the veth ends in a namespace."""
    words = ["ip", "-n", netns, "-o", "link", "show", "type", "veth"]
    shown = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    return [line.split(": ")[1] for line in shown.splitlines()]


def test_a_nic_on_a_host_undoes_it_if_it_stays_root(plain_bed: Testbed) -> None:
    """TAP and wire beside each other, as on a host: a pair joins them, and goes with a NIC that may remove it."""
    node = plain_bed.plan.nodes[3]
    netns = str(netns_path(node.netns))
    before = links_of(node.netns)
    words = ["--host", "tap:t0", "--host-netns", netns, "--wire", node.device, "--wire-netns", netns]
    with forwarding([*words, "--bypass", "kernel", "--user", "root", "--ephemeral"]):
        assert len(links_of(node.netns)) == len(before) + 2
        assert filters_of(node) != ""
    assert links_of(node.netns) == before
    assert filters_of(node) == ""


@pytest.mark.parametrize("gone", ["w0", "t1"])
def test_what_a_killed_nic_left_is_found_when_a_device_was_made_anew(plain_bed: Testbed, gone: str) -> None:
    node = plain_bed.plan.nodes[2]
    netns = str(netns_path(node.netns))
    settings = NicProcess(host="tap:t1", wire="w0", host_netns=netns, wire_netns=netns, bypass="kernel")

    def make(name: str) -> None:
        if name == "w0":
            namespace.add_veth("w0", "w1", None, 1500)
        else:
            namespace.add_tap("t1", 1500, 100)

    with TestbedNamespace.open(node.netns) as namespace, contextlib.ExitStack() as stack:
        before = links_of(node.netns)
        for name in ("w0", "t1"):
            make(name)
            stack.callback(remove_link, namespace, name)
        for bypass in ("kernel", "user"):
            stack.enter_context(kernel_bypass(settings))  # its process was killed
            assert len(links_of(node.netns)) == len(before) + 4
            remove_link(namespace, gone)
            make(gone)
            with (
                forwarding(["--host", "tap:t1", "--host-netns", netns, "--wire", "w0", "--wire-netns", netns])
                if (bypass == "user")
                else kernel_bypass(settings)
            ):
                assert len(links_of(node.netns)) == len(before) + (2 if bypass == "user" else 4)
            assert len(links_of(node.netns)) == len(before) + 2
            assert not any(namespace.call(partial(has_clsact, name)) for name in ("w0", "t1"))
    assert links_of(node.netns) == before
