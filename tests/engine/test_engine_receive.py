"""Wire to host: good blocks become the segment from which they were cut; bad ones are dropped under their reason."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine.flows import IP_VERSION, SLOTS
from netoffload.wire.checksum import crc32c, ones_sum
from netoffload.wire.offload import CPI, CRC, FLAGS, HEAD_TAIL
from netoffload.wire.vnet import GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM
from tests.engine.frames import IPV4_ADDRESSES, IPV6_ADDRESSES, MSS, make_segment, parsed, tcp_of
from tests.engine.nic_pair import FAMILIES, FIRST, FIRST_NONCE, ISN, Nic, connect, connected
from tests.shared import formats

ORACLE = get("inceptionn").oracle
RNG = np.random.default_rng(12)
VALUES = RNG.normal(0, 2e-3, 5000 if JIT_DISABLED else 15000).astype(np.float32)
GRADIENT = VALUES.tobytes()
DECODED = ORACLE.round_trip(VALUES, 10).tobytes()


def segment_of(frame: bytes) -> tuple[formats.Vnet, formats.Ipv4 | formats.Ipv6, formats.Tcp, bytes]:
    """Read what the host gets; its TCP checksum field must hold the sum of the pseudo-header."""
    header, _, ip, segment = parsed(frame)
    tcp, payload = formats.parse_tcp(segment)
    assert tcp.checksum == ones_sum(ip.src + ip.dst + bytes((0, 6)) + len(segment).to_bytes(2, "big"))
    start = 34 if isinstance(ip, formats.Ipv4) else 54
    assert (header.flags, header.csum_start, header.csum_offset) == (NEEDS_CSUM, start, 16)
    assert header.hdr_len == len(frame) - 10 - len(payload)
    return header, ip, tcp, payload


@FAMILIES
@pytest.mark.parametrize("per_segment", [False, True])
def test_the_host_gets_one_large_segment(per_segment: bool, ipv6: bool) -> None:
    sender, receiver = connected(ipv6, per_segment=per_segment)
    sent = make_segment(GRADIENT, seq=FIRST, flags="FPA", ipv6=ipv6, tos=0x2A)
    (got,) = receiver.from_wire(sender.from_host(sent))
    header, ip, tcp, payload = segment_of(got)
    assert payload == DECODED
    assert (header.gso_type, header.gso_size) == (GSO_TCPV6 if ipv6 else GSO_TCPV4, MSS)
    _, _, sent_ip, _ = parsed(sent)
    assert (ip, dataclasses.replace(tcp, checksum=0)) == (sent_ip, dataclasses.replace(tcp_of(sent)[0], checksum=0))
    assert receiver.counts()["rx_raw_octets"] == len(GRADIENT)


def test_blocks_are_merged_only_where_they_continue_each_other() -> None:
    sender, receiver = connected()
    frames = sender.from_host(make_segment(GRADIENT, seq=FIRST))
    assert len(frames) >= 3
    assert len(receiver.from_wire(frames)) == 1
    assert len(receiver.from_wire([frames[0], frames[2]])) == 2  # a gap
    assert len(receiver.from_wire([frames[1], frames[0]])) == 2  # reordered
    other_ack = sender.from_host(make_segment(GRADIENT, seq=FIRST, ack=10))
    assert len(receiver.from_wire([frames[0], other_ack[1]])) == 2
    raw = make_segment(b"raw", seq=1, tos=0)
    delivered = receiver.from_wire([frames[0], raw, frames[1]])
    assert len(delivered) == 3
    assert delivered[1] == raw


@pytest.mark.parametrize("changes", [{"traffic_class": 0x2A}, {"flow_label": 5}, {"hop_limit": 9}])
def test_blocks_of_another_path_are_not_merged(changes: dict[str, Any]) -> None:
    sender, receiver = connected(ipv6=True)
    frames = sender.from_host(make_segment(GRADIENT, seq=FIRST, ipv6=True))
    assert len(receiver.from_wire(frames[:2])) == 1
    _, ethernet, ip, payload = parsed(frames[1])
    block = formats.parse_block(payload, ip.src, ip.dst, FIRST_NONCE)
    changed = dataclasses.replace(ip, **changes)
    assert isinstance(changed, formats.Ipv6)
    octets = formats.emit_ipv6(changed, formats.emit_block(block, changed.src, changed.dst))
    other = formats.emit_vnet(formats.Vnet(), formats.emit_ethernet(ethernet, octets))
    assert len(receiver.from_wire([frames[0], other])) == 2


def test_blocks_of_the_other_family_are_not_merged() -> None:
    sender, receiver = connected(ipv6=True)
    connect(sender, receiver)
    six = sender.from_host(make_segment(GRADIENT, seq=FIRST, ipv6=True))
    four = sender.from_host(make_segment(GRADIENT, seq=FIRST))
    assert len(receiver.from_wire([six[0], four[1]])) == 2
    assert len(receiver.from_wire([four[0], six[1]])) == 2


BEHIND_IPV6 = 10 + 14 + 40


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        *((BEHIND_IPV6 + at, "drop_bad_crc") for at in (0, 20 + 4)),
        (-1, "drop_bad_crc"),
        *((BEHIND_IPV6 - at, "drop_unknown_flow") for at in (32, 17, 16, 1)),  # its addresses
    ],
)
def test_a_changed_octet_of_a_block_or_its_addresses_is_noticed(at: int, reason: str) -> None:
    sender, receiver = connected(ipv6=True)
    frame = bytearray(sender.from_host(make_segment(GRADIENT[:1000], seq=FIRST, ipv6=True))[0])
    frame[at] ^= 1
    assert receiver.from_wire([bytes(frame)]) == []
    assert receiver.counts()[reason] == 1


def test_a_segment_never_outgrows_ipv4() -> None:
    sender, receiver = connected()
    zeros = np.zeros(16000, np.float32).tobytes()
    frames = [
        frame for first in range(3) for frame in sender.from_host(make_segment(zeros, seq=FIRST + first * len(zeros)))
    ]
    delivered = receiver.from_wire(frames)
    assert sum(len(segment_of(frame)[3]) for frame in delivered) == 3 * len(zeros)
    assert all(len(frame) <= 10 + 14 + 65535 for frame in delivered)


def good_block() -> tuple[bytes, formats.Block]:
    """Return a good wire frame, and its block."""
    sender, _ = connected()
    (frame,) = sender.from_host(make_segment(GRADIENT[:1000], seq=FIRST))
    _, _, ip, payload = parsed(frame)
    return frame, formats.parse_block(payload, ip.src, ip.dst, FIRST_NONCE)


def wire_frame(
    block: formats.Block, change: dict[int, int] | None = None, fragment: int = 0x4000, nonce: int = FIRST_NONCE
) -> bytes:
    """Return the wire frame of a block; ``change`` sets octets of it and mends the CRC."""
    _, ethernet, ip, _ = parsed(good_block()[0])
    assert isinstance(ip, formats.Ipv4)
    octets = bytearray(formats.emit_block(block, ip.src, ip.dst))
    for at, value in (change or {}).items():
        octets[at] = value
    length = bytes((0, 108)) + len(octets).to_bytes(2, "big")
    crc = crc32c(ip.src + ip.dst + bytes(octets[:CRC]) + length + bytes(octets[CRC + 4 :]))
    octets[CRC : CRC + 4] = (crc ^ nonce).to_bytes(4, "big")
    header = dataclasses.replace(ip, fragment=fragment)
    return formats.emit_vnet(formats.Vnet(), formats.emit_ethernet(ethernet, formats.emit_ipv4(header, bytes(octets))))


def shortened(frame: bytes, block_len: int) -> bytes:
    """Return a frame that ends within the headers of its block, and says so."""
    ethernet, rest = formats.parse_ethernet(frame[10:])
    ip, octets = formats.parse_ipv4(rest)
    return formats.emit_vnet(formats.Vnet(), formats.emit_ethernet(ethernet, formats.emit_ipv4(ip, octets[:block_len])))


def _bad_frames() -> list[tuple[str, bytes]]:
    frame, block = good_block()
    flipped = bytearray(frame)
    flipped[-5] ^= 1
    short = dataclasses.replace(block, payload=block.payload[:-9])
    long = dataclasses.replace(block, payload=block.payload + b"1234")
    return [
        ("drop_bad_crc", bytes(flipped)),
        ("drop_runt", frame[:-1]),
        ("drop_runt", frame[:60]),
        ("drop_runt", shortened(frame, 8)),
        ("drop_bad_header", wire_frame(block, fragment=0x2000)),
        ("drop_bad_header", wire_frame(block, {20 + 12: 0x40})),
        ("drop_bad_header", wire_frame(dataclasses.replace(block, payload=b""), {20 + 12: 0xF0})),
        ("drop_bad_version", wire_frame(block, {4: 1 << 4 | 1})),
        ("drop_bad_version", wire_frame(block, {FLAGS: 2})),
        ("drop_bad_crc", wire_frame(block, {FLAGS: 1})),  # it says that it ends with a MAC, which it does not
        ("drop_bad_version", wire_frame(block, {0: 17})),
        ("drop_unknown_codec", wire_frame(dataclasses.replace(block, codec=9))),
        ("drop_unknown_codec", wire_frame(dataclasses.replace(block, bound_k=17))),
        ("drop_unknown_codec", wire_frame(dataclasses.replace(block, bound_k=0))),
        ("drop_bad_lengths", wire_frame(block, {HEAD_TAIL: 4 << 4 | 3})),
        ("drop_bad_lengths", wire_frame(dataclasses.replace(block, payload_len=999))),
        ("drop_bad_lengths", wire_frame(dataclasses.replace(block, payload_len=0))),
        ("drop_bad_crc", wire_frame(block, nonce=FIRST_NONCE ^ 1)),
        ("drop_bad_crc", wire_frame(block, nonce=0)),
        ("drop_unknown_flow", wire_frame(block, {20: block.tcp_header[0] ^ 1})),
        ("drop_unknown_flow", wire_frame(block, {23: block.tcp_header[3] ^ 1})),
        ("drop_bad_lengths", wire_frame(dataclasses.replace(block, payload_len=65535))),
        ("drop_bad_lengths", wire_frame(dataclasses.replace(block, half_bursts=32))),
        ("drop_bad_lengths", wire_frame(dataclasses.replace(block, half_len=len(block.payload) + 1))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, half_len=len(block.payload)))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, half_len=block.half_len + 1))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, half_bursts=block.half_bursts - 1))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, half_bursts=0))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, half_len=0))),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, codec=3, half_len=block.half_len))),
        ("drop_malformed_payload", wire_frame(short)),
        ("drop_malformed_payload", wire_frame(long)),
        ("drop_malformed_payload", wire_frame(dataclasses.replace(block, payload_len=1000 - 64))),
    ]


@pytest.mark.parametrize(("reason", "frame"), _bad_frames())
def test_every_reason_to_drop(reason: str, frame: bytes) -> None:
    receiver = connected()[1]
    before, table = receiver.counts(), receiver.table.copy()
    assert receiver.from_wire([frame]) == []
    assert receiver.counts() == {**before, reason: 1}
    # What has the nonce is the peer's, and may count.
    assert reason == "drop_malformed_payload" or np.array_equal(receiver.table, table)


def test_a_block_of_a_connection_that_this_nic_did_not_see_is_dropped() -> None:
    receiver = Nic()
    assert receiver.from_wire([good_block()[0]]) == []
    assert receiver.counts() == {"drop_unknown_flow": 1}
    receiver.from_wire([make_segment(flags="S", seq=ISN)])  # a SYN that the host has not answered changes nothing
    assert receiver.from_wire([good_block()[0]]) == []
    assert receiver.counts()["drop_unknown_flow"] == 2


@pytest.mark.parametrize(("head", "tail"), [(3, 0), (0, 2), (1, 3)])
def test_a_block_with_raw_octets_around_its_floats_is_decoded(head: int, tail: int) -> None:
    """This engine makes none, but the format has them."""
    _, block = good_block()
    payload = b"abc"[:head] + block.payload + b"xyz"[:tail]
    other = dataclasses.replace(block, head=head, tail=tail, payload=payload, payload_len=1000 + head + tail)
    (got,) = connected()[1].from_wire([wire_frame(other)])
    assert segment_of(got)[3] == b"abc"[:head] + DECODED[:1000] + b"xyz"[:tail]


@pytest.mark.parametrize(("sizes", "segments"), [((1000, 1000), 1), ((1000, 996), 2), ((0, 0), 2)])
def test_blocks_are_merged_where_they_were_cut_from_segments_of_one_size(sizes: tuple[int, int], segments: int) -> None:
    _, block = good_block()
    header = block.tcp_header
    behind = header[:4] + (ISN + 1 + 1000).to_bytes(4, "big") + header[8:]
    blocks = [
        dataclasses.replace(block, gso_size=size, tcp_header=bytes(words[:13]) + b"\x10" + words[14:])  # ACK alone
        for size, words in zip(sizes, (header, behind), strict=True)
    ]
    delivered = connected()[1].from_wire([wire_frame(one) for one in blocks])
    assert b"".join(segment_of(frame)[3] for frame in delivered) == 2 * DECODED[:1000]
    assert len(delivered) == segments


@pytest.mark.parametrize("change", [{CPI: 0}, {CPI + 1: 0x27}])
def test_ipcomp_of_somebody_else_belongs_to_the_host(change: dict[int, int]) -> None:
    frame = wire_frame(good_block()[1], change)
    assert Nic().from_wire([frame]) == [frame]


def closed(nic: Nic) -> list[bool]:
    return [flow["closed"] for flow in nic.flows("rx")]


@FAMILIES
def test_a_block_with_fin_ends_its_flow_and_a_syn_begins_another(ipv6: bool) -> None:
    sender, receiver = connected(ipv6)
    receiver.from_wire(sender.from_host(make_segment(GRADIENT[:4000], seq=FIRST, ipv6=ipv6)))
    assert closed(receiver) == [False]
    last = sender.from_host(make_segment(GRADIENT[4000:8000], seq=ISN + 4001, flags="FA", ipv6=ipv6))
    receiver.from_wire(last[:-1])
    assert closed(receiver) == [False]
    receiver.from_wire(last[-1:])
    assert closed(receiver) == [True]
    receiver.from_wire(last[:1])  # a late copy does not open it again
    assert closed(receiver) == [True]
    connect(sender, receiver, ISN + 100_000, ipv6=ipv6)
    assert closed(receiver) == []
    receiver.from_wire(sender.from_host(make_segment(GRADIENT[:4000], seq=ISN + 100_001, ipv6=ipv6)))
    (flow,) = receiver.flows("rx")
    assert (flow["closed"], flow["raw_octets"]) == (False, 4000)


@pytest.mark.parametrize("flags", ["FA", "R", "RA", "FPA"])
@pytest.mark.parametrize("tos", [0x28, 0])
def test_fin_or_rst_of_a_frame_that_is_no_block_ends_its_flow(flags: str, tos: int) -> None:
    sender, receiver = connected()
    receiver.from_wire(sender.from_host(make_segment(GRADIENT[:4000], seq=FIRST)))
    end = make_segment(b"odd" if flags == "FPA" else b"", seq=ISN + 4001, flags=flags, tos=tos)
    for other in (
        make_segment(seq=ISN + 4001, flags=flags, sport=40001),
        make_segment(seq=8, flags=flags, to_client=True),
        make_segment(seq=ISN + 4001, flags="A"),
        make_segment(seq=ISN, flags="S"),  # a copy of a SYN, while the flow goes on
        end[:-1] if flags == "FPA" else end[:60],  # cut short
    ):
        receiver.from_wire([other])
        assert closed(receiver) == [False]
    assert receiver.from_wire([end]) == [end]
    assert closed(receiver) == [True]
    receiver.from_wire([end])
    assert int((receiver.table[:SLOTS, IP_VERSION] != 0).sum()) == 1


@FAMILIES
def test_what_arrived_is_counted_for_its_connection(ipv6: bool) -> None:
    sender, receiver = connected(ipv6)
    frames = sender.from_host(make_segment(GRADIENT, seq=FIRST, ipv6=ipv6))
    receiver.from_wire(frames)
    (flow,) = receiver.flows("rx")
    (src, dst), (sent,) = IPV6_ADDRESSES if ipv6 else IPV4_ADDRESSES, sender.flows()
    assert (flow["src"], flow["sport"], flow["dst"], flow["dport"]) == (src, 40000, dst, 5001)
    assert (sent["src"], sent["dst"], sent["raw_octets"]) == (src, dst, len(GRADIENT))
    assert (flow["raw_octets"], flow["blocks"], flow["closed"]) == (len(GRADIENT), len(frames), False)
    assert flow["segments"] == receiver.counts()["rx_segments"] < len(frames)
    assert flow["payload_octets"] == sent["payload_octets"]
    receiver.from_wire([_bad_frames()[0][1]])
    assert receiver.flows("rx") == [flow]
    assert sender.flows("rx") == []
