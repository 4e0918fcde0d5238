"""The wire's MTU changes while a NIC runs, and the NIC's blocks fit it."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netoffload.devices.mtu import watched_mtu
from netoffload.devices.packet import open_packet
from netoffload.lab.testbed import NicSettings, Testbed
from netoffload.netlink import netns_path
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.vnet import VNET_LEN
from tests.netns.programs.both_ways import TAGGED, connected, exchange
from tests.shared.beds import asked, built, counters
from tests.soak.events import add_ipv6, ip
from tests.soak.flows import Flow, await_progress
from tests.soak.options import Direction, FlowOptions, Values

PORT = 5292
IPCOMP = 108
IP_AT = VNET_LEN + ETHERNET_LEN


@pytest.fixture
def bed() -> Iterator[Testbed]:
    """Blocks in IPComp cross one by one, so that a packet socket sees them as long as they are."""
    with built(nic=NicSettings(encapsulation="ipcomp")) as made:
        yield made


def set_mtu(bed: Testbed, mtu: int) -> None:
    """Change the wire's MTU at n0's end, and return when its NIC knows."""
    node = bed.plan.nodes[0]
    subprocess.run(["ip", "-n", node.wire_netns, "link", "set", node.wire_device, "mtu", str(mtu)], check=True)
    deadline = time.monotonic() + 10
    while asked(bed, 0, "info")["mtu"] != mtu:
        assert time.monotonic() < deadline


def block_lens(port: socket.socket) -> list[int]:
    """The lengths of the IP datagrams with blocks that arrived since the last call."""
    lens: list[int] = []
    while True:
        try:
            frame = port.recv(70_000)
        except BlockingIOError:
            return lens
        if frame[VNET_LEN + 12 : IP_AT] == b"\x08\x00" and frame[IP_AT + 9] == IPCOMP:
            lens.append(int.from_bytes(frame[IP_AT + 2 : IP_AT + 4], "big"))


def test_blocks_fit_a_wire_that_became_smaller(bed: Testbed) -> None:
    with (
        open_packet(bed.plan.nodes[0].port, str(netns_path(bed.plan.switch_netns)))[0] as switch_port,
        connected(bed, PORT, (TAGGED, TAGGED)) as (near, far),
    ):
        for seed, mtu in enumerate((1500, 1300, 1400, 1500)):
            set_mtu(bed, mtu)
            block_lens(switch_port)
            for _ in range(10):
                exchange(near, far, seed, "wide")
            assert mtu - 100 < max(block_lens(switch_port)) <= mtu


def test_the_watch_sees_the_mtu_at_its_start_and_every_change(wire: str) -> None:
    seen: list[int] = []

    def wait_for(mtu: int) -> None:
        deadline = time.monotonic() + 10
        while not seen or seen[-1] != mtu:
            assert time.monotonic() < deadline

    with watched_mtu("w0", wire, seen.append):
        wait_for(1500)
        for name, mtu in (("w1", 1000), ("w0", 1280), ("w0", 9000)):
            subprocess.run(["nsenter", f"--net={wire}", "ip", "link", "set", name, "mtu", str(mtu)], check=True)
            if name == "w0":
                wait_for(mtu)
    assert set(seen) == {1500, 1280, 9000}


def test_a_flow_goes_on_where_its_route_is_locked_above_a_wire_that_became_smaller(
    bed: Testbed, tmp_path: Path
) -> None:
    """Untagged flows stop there. The blocks fit, so what has to leave plain is cut to fit too."""
    assert add_ipv6(bed)
    node, plan = bed.plan.nodes[0], bed.plan
    links = [(plan.switch_netns, plan.bridge)]
    for each in plan.nodes:
        links += [(plan.switch_netns, each.port), (each.wire_netns, each.wire_device), (each.netns, each.device)]
    direction = Direction(octets=1_000_002, write_octets=(4095, 4095, 1), rate_octets_per_s=400_000)
    values = Values(tmp_path, "inceptionn", 10, seed=3)
    with contextlib.ExitStack() as stack:
        options = [
            FlowOptions(1, 0, (direction, replace(direction, octets=0)), is_ipv6=is_ipv6) for is_ipv6 in (False, True)
        ]
        flows = [stack.enter_context(Flow(bed, each, values, 7100 + port)) for port, each in enumerate(options)]
        for flow in flows:
            await_progress(flow, 200_000, timeout_s=30)
        for netns, device in links:
            ip("-n", netns, "link", "set", device, "mtu", "1400")
        for family, network in (("-4", plan.network), ("-6", "fd98::/64")):
            shown = ip("-n", node.netns, family, "route", "show", network).split()
            ip("-n", node.netns, family, "route", "change", *shown, "mtu", "lock", "1450")
        for flow in flows:
            (found,) = [each for each in flow.finish(timeout_s=30) if each.sent_octets]
            assert (found.received_octets, found.wrong) == (direction.octets, 0)
    assert counters(bed)["bypass_exact"] > 1
