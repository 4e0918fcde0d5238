"""A VLAN tag that the kernel took out is put back, and what carries one is nothing the engine looks into."""

from __future__ import annotations

import numpy as np
import pytest
from frames import make_segment
from nic_pair import Nic, connect
from scapy.layers.l2 import Dot1Q, Ether

from netoffload.engine.vlan import TAG_LEN, put_tag_back
from netoffload.wire.vnet import Vnet, emit_vnet, parse_vnet

ZEROS = np.zeros(500, np.float32).tobytes()


def tagged(frame: bytes, vlan: int = 5, priority: int = 3, ethertype: int = 0x8100) -> bytes:
    """Return the frame with a tag made by scapy; the virtio-net header as it was."""
    packet = Ether(frame[10:])
    inner = packet.payload
    ether = Ether(src=packet.src, dst=packet.dst, type=ethertype) / Dot1Q(vlan=vlan, prio=priority, type=packet.type)
    return frame[:10] + bytes(ether / inner)


def put_back(frame: bytes, ethertype: int, tci: int) -> bytes:
    octets = np.frombuffer(b"\xee" * TAG_LEN + frame, np.uint8).copy()
    put_tag_back(octets, ethertype, tci)
    return bytes(octets)


@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("ipv6", [True, False])
@pytest.mark.parametrize("ethertype", [0x8100, 0x88A8])
def test_the_tag_is_put_back(needs_csum: bool, ipv6: bool, ethertype: int) -> None:
    frame = make_segment(ZEROS, needs_csum=needs_csum, ipv6=ipv6)
    got_header, got = parse_vnet(put_back(frame, ethertype, 3 << 13 | 5))
    header, _ = parse_vnet(frame)
    assert got == tagged(frame, ethertype=ethertype)[10:]
    grown = TAG_LEN if needs_csum else 0
    assert got_header == Vnet(
        header.flags,
        header.gso_type,
        header.hdr_len + grown,
        header.gso_size,
        header.csum_start + grown,
        header.csum_offset,
    )


@pytest.mark.parametrize("frame", [b"", b"\0" * 3, b"\1" * 60])
def test_short_frames_get_theirs_too(frame: bytes) -> None:
    whole = emit_vnet(Vnet(), bytes(12) + frame)
    assert put_back(whole, 0x8100, 7)[22:] == b"\x81\x00\x00\x07" + frame


def test_tagged_frames_cross_both_ways_even_with_a_block_inside() -> None:
    client, server = Nic(), Nic()
    connect(client, server, 1000)
    (block,) = client.from_host(make_segment(ZEROS, seq=1001))
    before = server.counts()
    for frame in (tagged(make_segment(ZEROS, seq=1001)), tagged(make_segment(flags="S")), tagged(block)):
        assert client.from_host(frame) == [frame]
        assert server.from_wire([frame]) == [frame]
    assert client.counts()["bypass_not_tcp"] == 3
    assert server.counts()["rx_bypass"] == before["rx_bypass"] + 3
    assert "rx_blocks" not in server.counts()
