"""The wire's MTU changes while a NIC runs: its blocks fit from then on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.config import TOS_COMPRESS
from netoffload.control import request
from netoffload.devices.mtu import MtuWatch
from netoffload.devices.netns import in_netns
from netoffload.devices.packet import open_packet
from netoffload.netlink import netns_path
from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.vnet import VNET_LEN

pytestmark = pytest.mark.netns

PORT = 5292
IPCOMP = 108
IP_AT = VNET_LEN + ETHERNET_LEN


@pytest.fixture
def bed(run_id: str) -> Iterator[Testbed]:
    """Blocks in IPComp cross one by one, so that a packet socket sees them as long as they are."""
    nic = NicSettings(encapsulation="ipcomp")
    with Testbed(make_plan(TestbedSettings(2, nic=nic), run_id), check_rate=False) as built:
        yield built


def set_mtu(bed: Testbed, mtu: int) -> None:
    """Change the wire's MTU at n0's end, and return when its NIC knows."""
    node = bed.plan.nodes[0]
    subprocess.run(["ip", "-n", node.wire_netns, "link", "set", node.wire_device, "mtu", str(mtu)], check=True)
    deadline = time.monotonic() + 10
    while request(str(node.control_path), "info")["mtu"] != mtu:
        assert time.monotonic() < deadline


def send(near: socket.socket, far: socket.socket, seed: int) -> None:
    """Send values, and compare what arrives with what the codec makes of them."""
    values = np.random.default_rng(seed).normal(0, 0.05, 200_000).astype(np.float32)
    got = bytearray()
    for at in range(0, values.nbytes, 100_000):
        near.sendall(values.tobytes()[at : at + 100_000])
        while len(got) < min(at + 100_000, values.nbytes):
            got += far.recv(100_000)
    assert np.array_equal(np.frombuffer(got, np.uint32), get("inceptionn").round_trip(values, 10).view(np.uint32))


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
    near_node, far_node = bed.plan.nodes
    with in_netns(str(netns_path(near_node.netns))):
        near = socket.socket()
    with in_netns(str(netns_path(far_node.netns))):
        listening = socket.socket()
    for sock in (near, listening):
        sock.settimeout(20)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_COMPRESS)
    with near, listening, open_packet(near_node.port, str(netns_path(bed.plan.switch_netns)))[0] as switch_port:
        listening.bind(("", PORT))
        listening.listen()
        near.connect((far_node.address, PORT))
        with listening.accept()[0] as far:
            far.settimeout(20)
            for seed, mtu in enumerate((1500, 1300, 1400, 1500)):
                set_mtu(bed, mtu)
                block_lens(switch_port)
                send(near, far, seed)
                lens = block_lens(switch_port)
                assert mtu - 100 < max(lens) <= mtu


def test_the_watch_sees_the_mtu_at_its_start_and_every_change(wire: str) -> None:
    seen: list[int] = []

    def wait_for(mtu: int) -> None:
        deadline = time.monotonic() + 10
        while not seen or seen[-1] != mtu:
            assert time.monotonic() < deadline

    with MtuWatch("w0", wire, seen.append):
        wait_for(1500)
        for name, mtu in (("w1", 1000), ("w0", 1280), ("w0", 9000)):
            subprocess.run(["nsenter", f"--net={wire}", "ip", "link", "set", name, "mtu", str(mtu)], check=True)
            if name == "w0":
                wait_for(mtu)
    assert set(seen) == {1500, 1280, 9000}
