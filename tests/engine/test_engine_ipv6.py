"""IPv6: the same blocks and segments with other headers. The common parts are tested over IPv4."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from netoffload.codec import get
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.wire.checksum import internet_checksum, ones_sum
from netoffload.wire.ethernet import Ethernet, emit_ethernet, parse_ethernet
from netoffload.wire.ipv6 import Ipv6, emit_ipv6, parse_ipv6
from netoffload.wire.offload import Block, emit_block, parse_block
from netoffload.wire.tcp import Tcp, parse_tcp
from netoffload.wire.vnet import GSO_TCPV6, NEEDS_CSUM, Vnet, emit_vnet, parse_vnet
from tests.engine.frames import IPV6_ADDRESSES, MSS, make_segment
from tests.engine.nic_pair import FIRST_NONCE, Nic, connect
from tests.shared.example_counts import examples

ISN = 1000
ORACLE = get("inceptionn").oracle
VALUES = np.random.default_rng(16).normal(0, 2e-3, 3000 if JIT_DISABLED else 15000).astype(np.float32)
GRADIENT = VALUES.tobytes()
DECODED = ORACLE.round_trip(VALUES, 10).tobytes()


def make_pair(per_segment: bool = False) -> tuple[Nic, Nic]:
    sender, receiver = Nic(per_segment=per_segment), Nic()
    connect(sender, receiver, ISN, ipv6=True)
    return sender, receiver


def dissect(frame: bytes) -> tuple[Vnet, Ethernet, Ipv6, bytes]:
    header, octets = parse_vnet(frame)
    ethernet, rest = parse_ethernet(octets)
    return header, ethernet, *parse_ipv6(rest)


def block_of(frame: bytes) -> Block:
    _, _, ip, payload = dissect(frame)
    return parse_block(payload, ip.src, ip.dst, FIRST_NONCE)


def segment_of(frame: bytes) -> tuple[Vnet, Ipv6, Tcp, bytes]:
    header, _, ip, segment = dissect(frame)
    tcp, payload = parse_tcp(segment)
    assert tcp.checksum == ones_sum(ip.src + ip.dst + bytes((0, 6)) + len(segment).to_bytes(2, "big"))
    assert (header.flags, header.csum_start, header.csum_offset) == (NEEDS_CSUM, 54, 16)
    assert header.hdr_len == len(frame) - 10 - len(payload)
    return header, ip, tcp, payload


@pytest.mark.parametrize("per_segment", [False, True])
def test_a_large_segment_crosses_as_blocks(per_segment: bool) -> None:
    sender, receiver = make_pair(per_segment)
    sent = make_segment(GRADIENT, seq=ISN + 1, flags="FPA", ipv6=True, tos=0x2A)
    frames = sender.from_host(sent)
    pieces = -(-len(GRADIENT) // MSS)
    assert len(frames) == pieces if per_segment else 1 < len(frames) < pieces / 3
    for frame in frames:
        header, ethernet, ip, _ = dissect(frame)
        assert (header, ethernet.ethertype, len(frame) <= 10 + 14 + 1500) == (Vnet(), 0x86DD, True)
        assert (ip.traffic_class, ip.flow_label, ip.next_header, ip.hop_limit) == (0x2A, 0xBEEF, 108, 64)
        assert (block_of(frame).bound_k, block_of(frame).gso_size) == (10, MSS)
    (got,) = receiver.from_wire(frames)
    header, ip, tcp, payload = segment_of(got)
    assert payload == DECODED
    assert (header.gso_type, header.gso_size) == (GSO_TCPV6, MSS)
    sent_header = segment_of(sent)
    assert (ip, dataclasses.replace(tcp, checksum=0)) == (
        sent_header[1],
        dataclasses.replace(sent_header[2], checksum=0),
    )


def test_scapy_agrees_with_the_checksum_once_it_is_filled_in() -> None:
    sender, receiver = make_pair()
    (got,) = receiver.from_wire(sender.from_host(make_segment(GRADIENT[:1000], seq=ISN + 1, ipv6=True)))
    filled = bytearray(got[10:])
    filled[54 + 16 : 54 + 18] = (~ones_sum(bytes(filled[54:])) & 0xFFFF).to_bytes(2, "big")
    packet = Ether(bytes(filled))
    del packet[TCP].chksum, packet[IPv6].plen
    assert bytes(packet) == bytes(filled)


@pytest.mark.parametrize("needs_csum", [True, False])
def test_a_syn_carries_the_word(needs_csum: bool) -> None:
    client, server = Nic(), Nic()
    syn = make_segment(flags="S", seq=ISN, ipv6=True, needs_csum=needs_csum)
    (on_wire,) = client.from_host(syn)
    header, _, ip, segment = dissect(on_wire)
    assert len(on_wire) == len(syn) + 12
    pseudo = ip.src + ip.dst + bytes((0, 6)) + len(segment).to_bytes(2, "big")
    checksum = parse_tcp(segment)[0].checksum
    assert checksum == ones_sum(pseudo) if needs_csum else internet_checksum(pseudo + segment) == 0
    assert header.hdr_len == (len(on_wire) - 10 if needs_csum else 0)
    assert server.from_wire([on_wire]) == [syn]


@settings(max_examples=examples(100))
@given(start=st.integers(1, 4000), length=st.integers(100, 3000), mtu=st.sampled_from([1280, 1500, 9000]))
def test_any_segment_crosses_as_the_codec_says(start: int, length: int, mtu: int) -> None:
    sender, receiver = Nic(mtu=mtu), Nic()
    connect(sender, receiver, ISN, ipv6=True)
    mss = mtu - 72
    payload = b""
    for first, last in ((0, start), (start, start + length)):
        gso_size = mss if last - first > mss else 0
        sent = make_segment(GRADIENT[first:last], seq=ISN + 1 + first, gso_size=gso_size, ipv6=True)
        frames = sender.from_host(sent)
        assert all(len(frame) <= 24 + mtu or parse_vnet(frame)[0].gso_size for frame in frames)
        payload += b"".join(segment_of(frame)[3] for frame in receiver.from_wire(frames))
    assert payload == DECODED[: (start + length) & ~3]


def _with_header(frame: bytes, **changes: object) -> bytes:
    """Return a frame with a block under a changed IPv6 header; its CRC is right."""
    _, ethernet, ip, payload = dissect(frame)
    block = parse_block(payload, ip.src, ip.dst, FIRST_NONCE)
    changed = dataclasses.replace(ip, **changes)  # type: ignore[arg-type]
    octets = emit_ipv6(changed, emit_block(block, changed.src, changed.dst))
    return emit_vnet(Vnet(), emit_ethernet(ethernet, octets))


@pytest.mark.parametrize("changes", [{"traffic_class": 0x2A}, {"flow_label": 5}, {"hop_limit": 9}])
def test_blocks_of_another_path_are_not_merged(changes: dict[str, object]) -> None:
    sender, receiver = make_pair()
    frames = sender.from_host(make_segment(GRADIENT, seq=ISN + 1, ipv6=True))
    assert len(receiver.from_wire(frames[:2])) == 1
    assert len(receiver.from_wire([frames[0], _with_header(frames[1], **changes)])) == 2


def test_blocks_of_the_other_family_are_not_merged() -> None:
    sender, receiver = make_pair()
    connect(sender, receiver, ISN)
    six = sender.from_host(make_segment(GRADIENT, seq=ISN + 1, ipv6=True))
    four = sender.from_host(make_segment(GRADIENT, seq=ISN + 1))
    assert len(receiver.from_wire([six[0], four[1]])) == 2
    assert len(receiver.from_wire([four[0], six[1]])) == 2


@pytest.mark.parametrize("at", [10 + 14 + 40, 10 + 14 + 40 + 20 + 4, -1])
def test_the_whole_block_is_under_the_crc(at: int) -> None:
    sender, receiver = make_pair()
    frame = bytearray(sender.from_host(make_segment(GRADIENT[:1000], seq=ISN + 1, ipv6=True))[0])
    frame[at] ^= 1
    assert receiver.from_wire([bytes(frame)]) == []
    assert receiver.counts()["drop_bad_crc"] == 1


@pytest.mark.parametrize("at", [10 + 14 + 8, 10 + 14 + 23, 10 + 14 + 24, 10 + 14 + 39])
def test_a_block_with_another_address_is_of_no_connection(at: int) -> None:
    sender, receiver = make_pair()
    frame = bytearray(sender.from_host(make_segment(GRADIENT[:1000], seq=ISN + 1, ipv6=True))[0])
    frame[at] ^= 1
    assert receiver.from_wire([bytes(frame)]) == []
    assert receiver.counts()["drop_unknown_flow"] == 1


def test_the_flow_is_shown_with_its_addresses() -> None:
    sender, _ = make_pair()
    sender.from_host(make_segment(GRADIENT[:4000], seq=ISN + 1, ipv6=True))
    (flow,) = sender.flows()
    assert (flow["src"], flow["dst"], flow["raw_octets"]) == (*IPV6_ADDRESSES, 4000)
