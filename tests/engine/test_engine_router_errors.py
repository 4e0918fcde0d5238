"""ICMP errors about blocks: which ones count, and what the host gets of them, which scapy parses."""

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, IPerror, TCPerror
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    ICMPv6TimeExceeded,
    IPerror6,
    IPv6,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from netoffload.engine.path import SMALL
from netoffload.wire.checksum import internet_checksum
from tests.engine.frames import IPV4_ADDRESSES, IPV6_ADDRESSES, make_segment
from tests.engine.nic_pair import FAMILIES, FIRST, Nic, connect
from tests.shared.formats import Vnet, emit_vnet, parse_vnet

PAYLOAD = np.random.default_rng(3).normal(0, 0.02, 4000).astype(np.float32).tobytes()
SENT_LEN = 8000
WAYS = pytest.mark.parametrize("in_udp", [False, True])


class Path:
    """A host that has sent blocks, and a router on their way."""

    def __init__(self, ipv6: bool, in_udp: bool = False, sport: int = 40_000) -> None:
        self.nic, self.ipv6, self.sport = Nic(in_udp=in_udp), ipv6, sport
        connect(self.nic, Nic(), sport=sport, ipv6=ipv6)
        self.blocks = [frame[24:] for frame in self.send(0, SENT_LEN)]
        assert len(self.blocks) > 1

    def send(self, start: int, end: int, **how: str | int) -> list[bytes]:
        segment = make_segment(
            PAYLOAD[start:end],
            seq=FIRST + start,
            sport=self.sport,
            ipv6=self.ipv6,
            **how,  # type: ignore[arg-type]
        )
        return self.nic.from_host(segment)

    def acknowledge(self, octets: int) -> None:
        ack = make_segment(seq=6, ack=FIRST + octets, sport=self.sport, to_client=True, ipv6=self.ipv6)
        self.nic.from_wire([ack])

    def error(self, message: Packet, datagram: bytes, quoted_len: int | None = None) -> bytes:
        """Return a router's error that quotes so many octets behind the IP header of a datagram."""
        headers_len = 40 if self.ipv6 else 20
        quoted = datagram if quoted_len is None else datagram[: headers_len + quoted_len]
        if self.ipv6:
            network = IPv6(src="fd00:77::1", dst=IPV6_ADDRESSES[0], hlim=60) / message / quoted
        else:
            network = IP(src="192.0.2.1", dst=IPV4_ADDRESSES[0], id=9) / message / quoted
        return emit_vnet(Vnet(), bytes(Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:09") / network))

    def too_big(self, mtu: int) -> Packet:
        return ICMPv6PacketTooBig(mtu=mtu) if self.ipv6 else ICMP(type=3, code=4, nexthopmtu=mtu)

    @property
    def limit(self) -> int | None:
        limit: int | None = self.nic.flows()[0]["datagram_max_octets"]
        return limit

    def count(self, name: str) -> int:
        return self.nic.counts().get(name, 0)

    def translated(self, frame: bytes) -> Packet:
        """Return the only frame that the host gets, as scapy reads it; all its sums must be right."""
        (got,) = self.nic.from_wire([frame])
        header, octets = parse_vnet(got)
        assert header == Vnet()
        packet = Ether(octets)
        message = octets[54:] if self.ipv6 else octets[34:]
        if self.ipv6:
            assert packet[IPv6].plen == len(message)
            pseudo = octets[22:54] + len(message).to_bytes(4, "big") + bytes((0, 0, 0, 58))
            assert internet_checksum(pseudo + message) == 0
        else:
            assert packet[IP].len == len(octets) - 14
            assert internet_checksum(octets[14:34]) == internet_checksum(message) == 0
            assert internet_checksum(message[8:28]) == 0  # of the quoted header
        quoted = packet[IPerror6 if self.ipv6 else IPerror]
        assert (quoted.nh if self.ipv6 else quoted.proto) == 6
        ends = IPV6_ADDRESSES if self.ipv6 else IPV4_ADDRESSES
        assert (quoted.src, quoted.dst) == ends
        quoted_tcp = bytes(quoted.payload)
        assert quoted_tcp[:4] == self.sport.to_bytes(2, "big") + (5001).to_bytes(2, "big")
        if len(quoted_tcp) in (8, 20):  # scapy reads no parts of fields
            assert (packet[TCPerror].sport, packet[TCPerror].dport) == (self.sport, 5001)
            assert packet[TCPerror].seq == seq_of(packet)
        return packet


def seq_of(packet: Packet) -> int:
    """Return the sequence number that an error quotes."""
    quoted = packet[IPerror6] if IPerror6 in packet else packet[IPerror]
    return int.from_bytes(bytes(quoted.payload)[4:8], "big")


@FAMILIES
@WAYS
@pytest.mark.parametrize("number", [0, 1])
def test_a_quoted_block_becomes_the_segment_it_stands_for(ipv6: bool, in_udp: bool, number: int) -> None:
    path = Path(ipv6, in_udp)
    for message, layer in (
        (ICMPv6TimeExceeded() if ipv6 else ICMP(type=11), ICMPv6TimeExceeded if ipv6 else ICMP),
        (ICMPv6DestUnreach(code=1) if ipv6 else ICMP(type=3, code=1), ICMPv6DestUnreach if ipv6 else ICMP),
    ):
        packet = path.translated(path.error(message, path.blocks[number]))
        assert (packet[layer].type, packet[layer].code) == (message.type, message.code)
        block_at = 40 if ipv6 else 20
        tcp_at = block_at + (12 if in_udp else 0) + 20
        seq = int.from_bytes(path.blocks[number][tcp_at + 4 : tcp_at + 8], "big")
        assert seq >= FIRST + (1 if number else 0)
        assert seq_of(packet) == seq
        assert bytes(packet[TCPerror])[:20] == path.blocks[number][tcp_at : tcp_at + 20]
    assert path.count("rx_errors_translated") == 2
    assert not path.nic.flows()[0]["on_probation"]


@FAMILIES
@WAYS
@pytest.mark.parametrize("quoted", ["8 octets", -18, -1, 0, 1, 2, 14, "all"])
def test_an_error_counts_if_it_quotes_the_proof(ipv6: bool, in_udp: bool, quoted: int | str) -> None:
    """It ends with the TCP header's checksum; errors that do not count change nothing."""
    path = Path(ipv6, in_udp)
    proof_end = (12 if in_udp else 0) + 20 + 18
    quoted_len = {"8 octets": 8, "all": None}[quoted] if isinstance(quoted, str) else proof_end + quoted
    counts = quoted_len is None or quoted_len >= proof_end
    before = path.nic.table.copy()
    for block in path.blocks:
        assert path.nic.from_wire([path.error(path.too_big(1300), block, quoted_len)]) == []
    assert path.limit == (1300 if counts else None)
    assert counts or np.array_equal(path.nic.table, before)
    assert path.count("drop_path_error" if counts else "drop_bad_error") == len(path.blocks)
    unreachable = path.error(ICMPv6TimeExceeded() if ipv6 else ICMP(type=11), path.blocks[0], quoted_len)
    assert len(path.nic.from_wire([unreachable])) == counts


@pytest.mark.slow
@FAMILIES
@WAYS
def test_a_guessed_sequence_number_in_flight_does_not_count(ipv6: bool, in_udp: bool) -> None:
    path = Path(ipv6, in_udp)
    tcp_at = (40 if ipv6 else 20) + (12 if in_udp else 0) + 20
    seq = int.from_bytes(path.blocks[0][tcp_at + 4 : tcp_at + 8], "big")
    believed = 0
    for guess in range(512):
        forged = bytearray(path.blocks[0])
        forged[tcp_at + 4 : tcp_at + 8] = (seq + 1 + guess).to_bytes(4, "big")
        path.nic.from_wire([path.error(path.too_big(1300), bytes(forged))])
        believed += path.limit is not None
    assert believed == 0
    assert path.count("drop_bad_error") == 512


@FAMILIES
@WAYS
def test_too_big_about_a_block_shrinks_blocks_at_once_and_never_reaches_the_host(ipv6: bool, in_udp: bool) -> None:
    path = Path(ipv6, in_udp)
    assert path.nic.from_wire([path.error(path.too_big(1399), path.blocks[0])]) == []
    assert path.limit == 1399
    assert 1300 < max(len(frame) - 24 for frame in path.send(SENT_LEN, 2 * SENT_LEN)) <= 1399


def test_an_mtu_that_cannot_be_is_not_believed() -> None:
    path = Path(False)
    assert path.nic.from_wire([path.error(path.too_big(68), path.blocks[0])]) == []
    assert path.limit == SMALL


@FAMILIES
def test_the_one_of_several_connections_that_is_quoted(ipv6: bool) -> None:
    path = Path(ipv6, in_udp=True)
    other = Path(ipv6, in_udp=True, sport=40_007)
    other.nic = path.nic
    connect(path.nic, Nic(), sport=40_007, ipv6=ipv6)
    path.nic.judge()
    blocks = [frame[24:] for frame in other.send(0, SENT_LEN)]
    assert path.nic.from_wire([path.error(path.too_big(1300), blocks[0])]) == []
    limits = {row["sport"]: row["datagram_max_octets"] for row in path.nic.flows()}
    assert limits == {40_000: None, 40_007: 1300}


@FAMILIES
@WAYS
def test_a_peer_that_knows_no_blocks_puts_the_connection_on_probation(ipv6: bool, in_udp: bool) -> None:
    path = Path(ipv6, in_udp)
    if ipv6:
        message = ICMPv6DestUnreach(code=4) if in_udp else ICMPv6ParamProblem(code=1, ptr=6)
    else:
        message = ICMP(type=3, code=3 if in_udp else 2)
    assert path.nic.from_wire([path.error(message, path.blocks[0])]) == []
    assert path.count("drop_peer_refuses") == 1
    assert path.count("rx_errors_translated") == 0
    assert path.nic.flows()[0]["on_probation"]
    (frame,) = path.send(SENT_LEN, SENT_LEN + 1000)
    assert frame[24 + (6 if ipv6 else 9)] == 6


@FAMILIES
def test_too_big_about_a_plain_segment_is_the_hosts_and_is_rounded(ipv6: bool) -> None:
    path = Path(ipv6)
    (plain,) = path.send(SENT_LEN, SENT_LEN + 1000, flags="CA", needs_csum=False)
    packet = path.translated(path.error(path.too_big(1399), plain[24:]))
    assert (packet[ICMPv6PacketTooBig].mtu if ipv6 else packet[ICMP].nexthopmtu) == 1396
    assert seq_of(packet) == FIRST + SENT_LEN
    assert path.limit is None
    assert path.count("rx_errors_translated") == 0


def dropped(path: Path, frame: bytes) -> None:
    """Check that an error ends here and changes nothing."""
    before, count = path.nic.table.copy(), path.count("drop_bad_error")
    assert path.nic.from_wire([frame]) == []
    assert np.array_equal(path.nic.table, before)
    assert path.count("drop_bad_error") == count + 1


def untouched(path: Path, frame: bytes) -> None:
    before = path.nic.table.copy()
    assert path.nic.from_wire([frame]) == [frame]
    assert np.array_equal(path.nic.table, before)
    assert path.count("rx_errors_translated") == path.count("drop_peer_refuses") == 0


@FAMILIES
@WAYS
@pytest.mark.parametrize("at", [1, 3, 7, 30, -1])
def test_an_error_with_a_wrong_checksum_is_not_touched(ipv6: bool, in_udp: bool, at: int) -> None:
    path = Path(ipv6, in_udp)
    frame = bytearray(path.error(path.too_big(1300), path.blocks[0]))
    frame[at if at < 0 else 24 + (40 if ipv6 else 20) + at] ^= 1
    untouched(path, bytes(frame))


def test_an_error_with_a_wrong_ip_checksum_is_not_touched() -> None:
    path = Path(False)
    frame = bytearray(path.error(path.too_big(1300), path.blocks[0]))
    frame[24 + 8] ^= 1
    untouched(path, bytes(frame))


@FAMILIES
@WAYS
def test_errors_about_other_connections_blocks_end_and_other_errors_cross(ipv6: bool, in_udp: bool) -> None:
    path = Path(ipv6, in_udp)
    headers_len = 40 if ipv6 else 20
    ports_at = headers_len + (12 if in_udp else 0) + 20
    messages = [path.too_big(1300), ICMPv6DestUnreach(code=4) if ipv6 else ICMP(type=3, code=3)]
    for message in messages:
        for change_at in (headers_len - 1, headers_len - (17 if ipv6 else 5), ports_at + 1, ports_at + 3):
            foreign = bytearray(path.blocks[0])
            foreign[change_at] ^= 1
            dropped(path, path.error(message, bytes(foreign)))
        other = bytearray(path.blocks[0])
        other[headers_len + 3] ^= 1  # another port, or another CPI
        untouched(path, path.error(message, bytes(other)))
        untouched(path, path.error(message, bytes(other), 8))
        untouched(path, path.error(message, path.blocks[0], 7))
    echo = ICMPv6EchoRequest() if ipv6 else ICMP(type=8)
    untouched(path, path.error(echo, path.blocks[0]))


@FAMILIES
@WAYS
def test_errors_about_what_is_not_on_its_way_end(ipv6: bool, in_udp: bool) -> None:
    path = Path(ipv6, in_udp)
    seq_at = (40 if ipv6 else 20) + (12 if in_udp else 0) + 20 + 4
    messages = [path.too_big(1300), ICMPv6DestUnreach(code=4) if ipv6 else ICMP(type=3, code=3)]
    for message in messages:
        for seq in (FIRST - 1, FIRST + SENT_LEN, FIRST + 2**31 - 1, FIRST - 2**30):
            old = path.blocks[0][:seq_at] + (seq % 2**32).to_bytes(4, "big") + path.blocks[0][seq_at + 4 :]
            dropped(path, path.error(message, old))
    path.acknowledge(SENT_LEN)
    for message in messages:
        dropped(path, path.error(message, path.blocks[0]))
        dropped(path, path.error(message, path.blocks[0], 8))


def test_errors_in_pieces_or_cut_short_are_not_touched() -> None:
    path = Path(False)
    frame = path.error(path.too_big(1300), path.blocks[0])
    for changes in ({"flags": "MF"}, {"frag": 3}):
        packet = Ether(frame[10:])
        for name, value in changes.items():
            setattr(packet[IP], name, value)
        del packet[IP].chksum
        untouched(path, frame[:10] + bytes(packet))
    for length in range(24, len(frame), 7):
        untouched(path, frame[:length])
