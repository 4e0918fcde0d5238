"""Intruders send blocks while a tagged flow lives: they add no octet, and the flow stays compressed.

What NICs make of forged SYNs and errors of ICMP is tested in ``tests/engine``.
"""

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from netoffload.devices.packet import open_packet
from netoffload.dissect import layers
from netoffload.lab.testbed import Testbed
from netoffload.netlink import netns_path
from netoffload.wire.encapsulation import UDP_PORT
from netoffload.wire.vnet import VNET_LEN
from tests.netns.programs.both_ways import TAGGED, connected, exchange
from tests.shared.beds import built, counters, grown
from tests.shared.formats import Vnet, emit_entries, emit_vnet, src_port
from tests.soak.events import kill_nic

N0, N1 = "10.98.1.1", "10.98.1.2"
PORTS = itertools.count(7400)
SEND_DATAGRAMS = str(Path(__file__).with_name("programs") / "send_datagrams.py")
WRONG = 123_456_789
"""Added to the sequence numbers of forged blocks."""
FORGED = np.full(256, -123_456.75, np.float32)
"""At least 1, so lossless in every codec: it is neither sent nor made by anybody else."""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    """Two nodes with NICs, and one without."""
    with built(3) as made:
        kill_nic(made, made.plan.nodes[2])
        yield made


@contextlib.contextmanager
def attacked(bed: Testbed) -> Iterator[list[bytes]]:
    """A flow from n0, and the frames of it that an intruder saw at n1; in the end every block came from n0's NIC."""
    node = bed.plan.nodes[1]
    with (
        connected(bed, next(PORTS), (TAGGED, TAGGED)) as ends,
        open_packet(node.wire_device, str(netns_path(node.wire_netns)))[0] as wire,
    ):
        before = [counters(bed, index) for index in (0, 1)]
        exchange(*ends, seed=1)
        seen = []
        with contextlib.suppress(BlockingIOError):
            while True:
                seen.append(wire.recv(70_000))
        yield [frame for frame in seen if UDP in Ether(frame[VNET_LEN:])]
        octets = sum(exchange(*ends, seed) for seed in (2, 3))
        for _ in range(100):  # a copy that TCP sent of the last segment may be between the NICs
            sent, received = (grown(bed, index, before[index]) for index in (0, 1))
            if received["rx_blocks"] == sent["tx_blocks"]:
                break
            time.sleep(0.1)
        assert received["rx_blocks"] == sent["tx_blocks"]
        assert sent["tx_raw_octets"] > octets


def forged_blocks(seen: bytes, count: int, offset: int = 0, **changed: int) -> list[Packet]:
    """Blocks behind one that was seen, with values of our own; nonces are only in the handshake, which was not seen."""
    *_, entry = layers.entries_of(Ether(seen[VNET_LEN:])[UDP])
    block, tcp = entry[layers.OffloadBlock], entry[TCP]
    ports = {"sport": tcp.sport, "dport": tcp.dport} | changed
    seqs = (tcp.seq + block.payload_len + offset + index * FORGED.nbytes for index in range(count))
    return [layers.offload(FORGED, "none", seq=seq % 2**32, ack=tcp.ack, flags="PA", **ports) for seq in seqs]


def send(bed: Testbed, frames: list[bytes]) -> None:
    """Send frames with virtio-net headers from the node without a NIC."""
    node = bed.plan.nodes[2]
    with open_packet(node.wire_device, str(netns_path(node.wire_netns)))[0] as wire:
        wire.setblocking(True)
        for frame in frames:
            wire.send(frame)


@pytest.mark.parametrize("in_udp", [False, True])
@pytest.mark.parametrize(("offset", "changed"), [(0, {}), (WRONG, {}), (0, {"dport": 2222})])
def test_forged_blocks_of_a_third_node_add_nothing(
    bed: Testbed, in_udp: bool, offset: int, changed: dict[str, int]
) -> None:
    with attacked(bed) as seen:
        ethernet = Ether(dst=Ether(seen[-1][VNET_LEN:]).dst, src="02:00:00:00:00:66") / IP(src=N0, dst=N1, tos=0x28)
        way = ethernet / UDP(sport=50_000, dport=UDP_PORT) / layers.OffloadEntry() if in_udp else ethernet
        blocks = forged_blocks(seen[-1], 100, offset, **changed)
        send(bed, [emit_vnet(Vnet(), bytes(way / block)) for block in blocks])


@pytest.mark.parametrize("node", [0, 1], ids=["sending host", "receiving host"])
def test_datagrams_of_a_user_without_rights_add_nothing(bed: Testbed, node: int) -> None:
    with attacked(bed) as seen:
        dst = (N1, N0)[node]
        tcp = layers.entries_of(Ether(seen[-1][VNET_LEN:])[UDP])[-1][TCP]
        made = [bytes(block) for block in forged_blocks(seen[-1], 50) + forged_blocks(seen[-1], 5, dport=2222)]
        entries = [emit_entries([each]) for each in made]
        whole = [bytes(8), *entries, *(bytes(8) + each for each in entries), emit_entries(made[:20], 1400)]
        whole += [(before + each).ljust(60_000, b"\0") for before in (b"", bytes(8)) for each in entries[-10:]]
        bundles = [(1400, emit_entries(made[first : first + 20], 1400)) for first in (0, 20, len(made) - 20)]
        bundles += [(1400, bytes(8).ljust(1400, b"\0") + octets) for _, octets in bundles]
        lines = [f"{size} {octets.hex()}" for size, octets in [*((0, each) for each in whole), *bundles]]
        words = [sys.executable, SEND_DATAGRAMS, dst, str(src_port(tcp.sport, tcp.dport))]
        with bed.popen(node, words, stdin=subprocess.PIPE, text=True) as user:
            user.communicate("\n".join(lines), timeout=30)
            assert user.returncode == 0
