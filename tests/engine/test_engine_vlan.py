"""A VLAN tag that the kernel took out is put back, and the engine does not look into tagged VLAN frames."""

import numpy as np
import pytest
from scapy.layers.l2 import Dot1Q, Ether

from netoffload.codec import get
from netoffload_daemon.vlan import TAG_LEN, put_tag_back
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import connected
from tests.shared.formats import Vnet, emit_vnet, parse_vnet

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
    client, server = connected()
    (block,) = client.from_host(make_segment(ZEROS, seq=1001))
    before = server.counts()
    for frame in (tagged(make_segment(ZEROS, seq=1001)), tagged(make_segment(flags="S")), tagged(block)):
        assert client.from_host(frame) == [frame]
        assert server.from_wire([frame]) == [frame]
    assert client.counts()["bypass_not_tcp"] == 3
    assert server.counts()["rx_bypass"] == before["rx_bypass"] + 3
    assert "rx_blocks" not in server.counts()


def test_what_was_sent_before_the_first_tag_stays_exact() -> None:
    client, server = connected()
    octets = np.random.default_rng(3).normal(0, 0.01, 1000).astype(np.float32).tobytes()
    for tos in (0, 0x28):  # the second time it is sent again
        sent = make_segment(octets[:1000], seq=1001, tos=tos)
        assert server.from_wire(client.from_host(sent)) == [sent]
    assert (client.counts()["bypass_untagged"], client.counts()["bypass_exact"]) == (1, 1)
    client.from_host(make_segment(octets[1000:2000], seq=2001))
    assert client.counts()["tx_segments"] == 1
    cut = make_segment(octets[602:990], seq=1603)
    assert client.from_host(cut) == [cut]
    mixed = make_segment(octets[600:1400], seq=1601)
    (crossed,) = client.from_host(mixed)
    assert tcp_of(crossed)[1][:400] == octets[600:1000]
    rounded = get("inceptionn").round_trip(np.frombuffer(octets[1000:1400], np.float32), 10)
    assert tcp_of(crossed)[1][400:] == rounded.tobytes()


def test_a_flow_that_was_untagged_is_rounded_again_once_all_has_arrived() -> None:
    client, server = connected()
    values = np.random.default_rng(3).normal(0, 0.01, 4000).astype(np.float32)
    octets, wanted = values.tobytes(), get("inceptionn").round_trip(values, 10).tobytes()
    for at, tos in ((0, 0x28), (4000, 0), (8000, 0x28), (12_000, 0x28)):
        frames = client.from_host(make_segment(octets[at : at + 4000], seq=1001 + at, tos=tos, gso_size=1448))
        client.from_wire([make_segment(seq=6, ack=1001 + at + 4000, to_client=True)])
    assert (client.counts()["tx_segments"], client.counts()["bypass_untagged"]) == (3, 1)
    assert tcp_of(server.from_wire(frames)[0])[1] == wanted[12_000:]
