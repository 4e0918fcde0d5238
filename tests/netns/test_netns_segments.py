"""Segments of every kind through real NICs: IPv6, jumbo frames, floats cut by odd writes, VLAN tags."""

import dataclasses
import select
import socket
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from netoffload.codec import get
from netoffload.compiled.arrays import Float32Array
from netoffload.devices.packet import open_packet
from netoffload.lab.testbed import NicSettings, Testbed
from netoffload.netlink import netns_path
from tests.shared.beds import built, counters, drops, flows, grown
from tests.shared.formats import Vnet, emit_vnet, parse_vnet
from tests.shared.transfers import transfer
from tests.soak.events import add_ipv6

VALUES = np.random.default_rng(5).normal(0, 2e-3, 1_000_000).astype(np.float32)
ROUND_TRIP = get("inceptionn").round_trip(VALUES, 10).view(np.uint32)

VLAN_VALID = 1 << 4
"""TP_STATUS_VLAN_VALID of linux/if_packet.h."""


def stream(
    bed: Testbed, values: Float32Array, address: str, tos: int = 0x28, sizes: Sequence[int] = (1_000_000,)
) -> np.ndarray:
    """Send values from n0 to ``address`` on n1 and return what arrived, as bits."""
    got = transfer(bed, values.tobytes(), [(tos, size) for size in sizes], address=address)
    return np.frombuffer(got, np.uint32)


@pytest.fixture(scope="module", params=["tap", "veth"])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Nodes with NICs on either kind of host device, and the bypass in the kernel; with IPv6 addresses too."""
    with built(nic=NicSettings(host=request.param, bypass="kernel")) as made:
        assert add_ipv6(made)
        yield made


def test_ipv6_is_compressed_as_ipv4_is(bed: Testbed) -> None:
    before, wire_before = counters(bed, 0), bed.wire_counters()
    got = stream(bed, VALUES, "fd98::2")
    assert np.array_equal(got, ROUND_TRIP)
    sent = grown(bed, 0, before)
    assert sent["tx_blocks"] > 0
    # TCP may cut off a last segment of a few floats, which a block would not make smaller.
    least_octets = VALUES.nbytes - 64 * sent.get("bypass_no_gain", 0)
    assert sent["tx_raw_octets"] >= least_octets
    assert bed.wire_counters()[0].tx_octets - wire_before[0].tx_octets < VALUES.nbytes / 3
    assert any(flow["src"] == "fd98::1" and flow["raw_octets"] >= least_octets for flow in flows(bed, 1))


def test_jumbo_frames_and_ipv6() -> None:
    with built(mtu=9000) as bed:
        assert add_ipv6(bed)
        for address in ("fd98::2", bed.plan.nodes[1].address):
            before = counters(bed, 0)
            assert np.array_equal(stream(bed, VALUES, address), ROUND_TRIP)
            sent = grown(bed, 0, before)
            assert sent["tx_payload_octets"] / sent["tx_blocks"] > 1500
            assert drops(sent) == {}


@pytest.mark.parametrize("address", ["fd98::2", "10.98.1.2"])
def test_odd_writes_give_the_round_trip_or_the_value_itself(bed: Testbed, address: str) -> None:
    values = VALUES[:200_000]
    got = stream(bed, values, address, sizes=(1, 2, 3, 4001, 30001, 70, 64, 1447, 5, 1449))
    wanted = ROUND_TRIP[: values.size]
    assert got.size == values.size
    assert ((got == wanted) | (got == values.view(np.uint32))).all()
    assert (got == wanted).mean() > 0.9


PLAIN = bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:00:99", type=0x88B5) / (b"0123456789" * 10))
LARGE = bytes(
    Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:00:99")
    / IP(src="10.98.5.1", dst="10.98.5.2", tos=0x28)
    / TCP(flags="A")
    / bytes(20_000)
)


@pytest.mark.parametrize(
    ("frame", "tci", "header"),
    [
        (PLAIN, 3 << 13 | 5, Vnet()),
        (PLAIN, 0, Vnet()),
        (PLAIN[:12] + bytes.fromhex("81000007") + PLAIN[12:], 5, Vnet()),
        (LARGE, 4094, Vnet(1, 1, 54, 1448, 34, 16)),
    ],
    ids=["priority", "vlan 0", "two tags", "tso"],
)
def test_vlan_frames_stay_with_the_nic_and_cross_with_their_tag(
    bed: Testbed, frame: bytes, tci: int, header: Vnet
) -> None:
    tagged = frame[:12] + b"\x81\x00" + tci.to_bytes(2, "big") + frame[12:]
    grown_by = 4 if header.flags else 0
    on_device = dataclasses.replace(header, hdr_len=header.hdr_len + grown_by, csum_start=header.csum_start + grown_by)
    ends = [open_packet(node.device, str(netns_path(node.netns)))[0] for node in bed.plan.nodes[:2]]
    before = counters(bed, 0)
    with ends[0] as sender, ends[1] as receiver:
        sender.send(emit_vnet(on_device, tagged))
        got, auxiliary = _next_of(receiver, frame[12:14] if header.flags == 0 else b"\x08\x00")
    got_header, got_frame = parse_vnet(got)
    assert got_frame == frame  # the host's kernel has taken the tag out once more, and says so
    assert (got_header.gso_type, got_header.gso_size) == (header.gso_type, header.gso_size)
    status, vlan = struct.unpack("=I", auxiliary[:4])[0], struct.unpack("=HH", auxiliary[16:20])
    assert status & VLAN_VALID
    assert vlan == (tci, 0x8100)
    assert grown(bed, 0, before)["bypass_not_tcp"] >= 1


def test_a_frame_without_a_vlan_tag_crosses_with_its_length(bed: Testbed) -> None:
    frame = LARGE[:154]
    ends = [open_packet(node.device, str(netns_path(node.netns)))[0] for node in bed.plan.nodes[:2]]
    with ends[0] as sender, ends[1] as receiver:
        sender.send(emit_vnet(Vnet(), frame))
        got, _ = _next_of(receiver, frame[12:14])
    assert parse_vnet(got)[1] == frame


def _next_of(receiver: socket.socket, ethertype: bytes) -> tuple[bytes, bytes]:
    """Return the next broadcast frame of a type, with virtio-net header, and its ``struct tpacket_auxdata``."""
    while True:
        assert select.select([receiver], [], [], 10)[0], "the frame did not arrive"
        octets, ancillary, _, _ = receiver.recvmsg(70_000, 64)
        if octets[10:16] == b"\xff" * 6 and octets[22:24] == ethertype:
            return octets, ancillary[0][2]
