"""Octets <-> values against scapy, and the contract: the parsers return a value or raise WireError, nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from netoffload.errors import WireError
from netoffload.wire.capability import Capability, emit_capability, parse_capability
from netoffload.wire.checksum import crc32c, internet_checksum, ones_sum
from netoffload.wire.offload import SEGMENT_FLAGS
from tests.shared.formats import (
    Block,
    Ethernet,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Vnet,
    emit_block,
    emit_entries,
    emit_ethernet,
    emit_ipv4,
    emit_ipv6,
    emit_tcp,
    emit_udp,
    emit_vnet,
    parse_block,
    parse_entries,
    parse_ethernet,
    parse_ipv4,
    parse_ipv6,
    parse_tcp,
    parse_udp,
    parse_vnet,
)

SRC, DST = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))

u8s, u16s, u32s = st.integers(0, 255), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
addresses, long_addresses = st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)
options = st.integers(0, 10).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words))
tcps = st.builds(Tcp, u16s, u16s, u32s, u32s, u8s, u16s, u16s, u16s, options)
ipv4s = st.builds(Ipv4, u8s, u16s, u16s, u8s, u8s, addresses, addresses, options)
ipv6s = st.builds(Ipv6, u8s, st.integers(0, 2**20 - 1), u8s, u8s, long_addresses, long_addresses)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    head, tail = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    floats = draw(st.integers(0, 300))
    header = draw(tcps)
    return Block(
        codec=draw(st.integers(0, 15)),
        bound_k=draw(u8s),
        head=head,
        tail=tail,
        payload_len=head + tail + 4 * floats,
        gso_size=draw(u16s),
        tcp_header=emit_tcp(replace(header, flags=header.flags & SEGMENT_FLAGS), b""),
        payload=draw(st.binary(min_size=head + tail, max_size=head + tail + 100)),
        nonce=draw(u32s),
    )


@given(st.binary(max_size=100), tcps, ipv4s, ipv6s)
def test_what_is_emitted_parses_to_the_same_values(payload: bytes, tcp: Tcp, ip: Ipv4, ip6: Ipv6) -> None:
    assert parse_tcp(emit_tcp(tcp, payload)) == (tcp, payload)
    assert parse_ipv4(emit_ipv4(ip, payload) + b"padding") == (ip, payload)
    assert parse_ipv6(emit_ipv6(ip6, payload) + b"padding") == (ip6, payload)
    frame = Ethernet(SRC + b"ab", DST + b"cd", 0x0800)
    assert parse_ethernet(emit_ethernet(frame, payload)) == (frame, payload)
    header = Vnet(1, 1, 66, 1448, 34, 16)
    assert parse_vnet(emit_vnet(header, payload)) == (header, payload)


@given(blocks(), addresses | long_addresses, addresses | long_addresses)
def test_a_block_survives_the_wire(block: Block, src: bytes, dst: bytes) -> None:
    assert parse_block(emit_block(block, src, dst), src, dst, block.nonce) == block


@given(blocks(), u32s)
def test_a_block_with_another_nonce_is_refused(block: Block, nonce: int) -> None:
    assume(nonce != block.nonce)
    with pytest.raises(WireError, match="CRC"):
        parse_block(emit_block(block, SRC, DST), SRC, DST, nonce)


@given(u16s, u8s, u8s, u32s)
def test_a_capability_word_survives_the_wire(codecs: int, version: int, ways: int, nonce: int) -> None:
    octets = emit_capability(codecs, version, ways, nonce)
    assert octets[:4] == bytes((253, len(octets), 0x4E, 0x4F))  # RFC 6994, 2
    assert len(octets) == 12
    assert parse_capability(octets) == Capability(version, codecs, ways, nonce)
    for length in range(len(octets)):
        with pytest.raises(WireError):
            parse_capability(octets[:length])
    for at in range(4):
        with pytest.raises(WireError):
            parse_capability(octets[:at] + bytes((octets[at] ^ 1,)) + octets[at + 1 :])


@given(blocks(), st.data())
def test_one_flipped_bit_is_noticed(block: Block, data: st.DataObject) -> None:
    octets = bytearray(emit_block(block, SRC, DST))
    bit = data.draw(st.integers(0, 8 * len(octets) - 1))
    octets[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        parse_block(bytes(octets), SRC, DST, block.nonce)


@given(blocks())
def test_a_block_for_another_address_is_refused(block: Block) -> None:
    with pytest.raises(WireError, match="CRC"):
        parse_block(emit_block(block, SRC, DST), SRC, SRC, block.nonce)


@given(st.lists(blocks(), min_size=1, max_size=4), st.integers(0, 3000))
def test_entries_of_a_bundle_survive_padding(many: list[Block], datagram_len: int) -> None:
    octets = [emit_block(block, SRC, DST) for block in many]
    assert parse_entries(emit_entries(octets, datagram_len)) == octets


@given(blocks(), u8s, u16s, u16s, st.binary(max_size=40))
def test_udp_survives_the_wire(block: Block, version: int, port: int, checksum: int, rest: bytes) -> None:
    payload = emit_entries([emit_block(block, SRC, DST)])
    header = Udp(port, port ^ 1, checksum)
    assert parse_udp(emit_udp(header, payload) + rest) == (header, payload)
    if version != 1:
        with pytest.raises(WireError):
            parse_entries(bytes((version,)) + payload[1:])


def test_a_block_with_flags_that_bypass_is_refused() -> None:
    block = Block(1, 10, 0, 0, 4, 0, emit_tcp(Tcp(1, 2, 3, 4, 0x12, 5), b""), b"1234")
    with pytest.raises(WireError, match="SYN"):
        parse_block(emit_block(block, SRC, DST), SRC, DST)


@pytest.mark.parametrize(("tcp_len", "is_refused"), [(16, True), (20, False), (40, False), (44, True)])
def test_a_block_with_an_impossible_tcp_header_is_refused(tcp_len: int, is_refused: bool) -> None:
    header = bytearray(emit_tcp(Tcp(1, 2, 3, 4, 0x10, 5), b""))
    header[12] = tcp_len // 4 << 4
    octets = emit_block(Block(1, 10, 0, 0, 4, 0, bytes(header), bytes(20)), SRC, DST)
    if is_refused:
        with pytest.raises(WireError, match=f"TCP header of {tcp_len} octets"):
            parse_block(octets, SRC, DST)
    else:
        assert len(parse_block(octets, SRC, DST).tcp_header) == tcp_len


@pytest.mark.parametrize(
    ("floats", "half_bursts", "half_len", "fits"),
    [(16, 0, 0, True), (16, 2, 5, True), (24, 3, 5, True), (23, 3, 5, False), (16, 2, 6, False)],
)
def test_a_half_that_is_larger_than_the_whole_is_refused(
    floats: int, half_bursts: int, half_len: int, fits: bool
) -> None:
    header = emit_tcp(Tcp(1, 2, 3, 4, 0x10, 5), b"")
    block = Block(1, 10, 1, 2, 1 + 4 * floats + 2, 0, header, bytes(1 + 5 + 2), half_bursts, half_len)
    octets = emit_block(block, SRC, DST)
    if fits:
        assert parse_block(octets, SRC, DST) == block
    else:
        with pytest.raises(WireError, match="lengths contradict"):
            parse_block(octets, SRC, DST)


def test_a_datagram_may_be_a_header_alone() -> None:
    ip = Ipv4(0, 1, 0, 64, 6, SRC, DST)
    assert len(emit_ipv4(ip, b"")) == 20
    assert parse_ipv4(emit_ipv4(ip, b"")) == (ip, b"")
    with pytest.raises(WireError, match="not an IPv4 header"):
        parse_ipv4(emit_ipv4(ip, b"")[:19])


def _parse_block(octets: bytes) -> Block:
    return parse_block(octets, SRC, DST)


@pytest.mark.parametrize(
    "parse", [parse_ethernet, parse_ipv4, parse_ipv6, parse_tcp, parse_udp, parse_entries, parse_vnet, _parse_block]
)
@given(octets=st.binary(max_size=120))
def test_random_octets_parse_or_raise_wire_error(parse: Callable[[bytes], object], octets: bytes) -> None:
    try:
        assert parse(octets) is not None
    except WireError as error:
        assert str(error)


@given(blocks(), ipv4s, ipv6s, tcps)
def test_every_truncation_parses_or_raises_wire_error(block: Block, ip: Ipv4, ip6: Ipv6, tcp: Tcp) -> None:
    for parse, octets in (
        (_parse_block, emit_block(replace(block, nonce=0), SRC, DST)),
        (parse_ipv4, emit_ipv4(ip, b"")),
        (parse_ipv6, emit_ipv6(ip6, b"12345678")),
        (parse_tcp, emit_tcp(tcp, b"")),
        (parse_udp, emit_udp(Udp(1, 2), b"payload")),
        (parse_entries, emit_entries([emit_block(block, SRC, DST)])),
    ):
        for length in range(0, len(octets), 3):
            with pytest.raises(WireError):
                parse(octets[:length])


def test_headers_agree_with_scapy() -> None:
    packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(
        src="10.0.0.1", dst="10.0.0.2", tos=0x28, id=4711, ttl=61, flags="DF"
    )
    packet /= TCP(sport=1, dport=2, seq=3, ack=4, flags="PA", window=5, options=[("MSS", 1460)])
    octets = bytes(packet / b"payload")
    ethernet, rest = parse_ethernet(octets)
    ip, segment = parse_ipv4(rest)
    tcp, payload = parse_tcp(segment)
    assert (ip.tos, ip.ident, ip.ttl, ip.fragment, ip.src, ip.dst) == (0x28, 4711, 61, 0x4000, SRC, DST)
    assert (tcp.sport, tcp.dport, tcp.seq, tcp.ack, tcp.flags, tcp.window) == (1, 2, 3, 4, 0x18, 5)
    assert payload == b"payload"
    assert emit_ethernet(ethernet, emit_ipv4(ip, emit_tcp(tcp, payload))) == octets


def test_the_ipv6_header_agrees_with_scapy() -> None:
    packet = IPv6(src="fd00::1", dst="fd00::2", tc=0x2A, fl=0x12345, hlim=61, nh=108) / b"payload"
    ip, payload = parse_ipv6(bytes(packet))
    assert (ip.traffic_class, ip.flow_label, ip.hop_limit, ip.next_header) == (0x2A, 0x12345, 61, 108)
    assert (ip.src[:2], ip.dst[-1], payload) == (b"\xfd\x00", 2, b"payload")
    assert emit_ipv6(ip, payload) == bytes(packet)


def test_sums_agree_with_their_rfcs() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"56789", crc32c(b"1234")) == crc32c(b"123456789")
    assert ones_sum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2  # RFC 1071, 3
    assert internet_checksum(b"\x01") == 0xFEFF
    assert internet_checksum(b"\x01\x02\x03") == 0xFBFD
