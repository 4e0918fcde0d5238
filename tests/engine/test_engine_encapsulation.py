"""Blocks in UDP carry the same as in IPComp, however the datagrams of a bundle arrive."""

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from netoffload.codec_specs import ALL_CODECS
from netoffload.engine.encapsulation import DATAGRAMS_MAX
from netoffload.wire import encapsulation, vnet
from netoffload.wire.capability import OPTION_LEN, emit_capability
from netoffload.wire.checksum import internet_checksum
from tests.engine.frames import MSS, make_segment
from tests.engine.nic_pair import FAMILIES, FIRST_NONCE, ISN, Nic, connected
from tests.shared.formats import Vnet, emit_vnet, parse_block, parse_entries, parse_vnet, src_port

PAYLOAD = np.random.default_rng(3).normal(0, 0.02, 16_000).astype(np.float32).tobytes()


def datagrams_of(frame: bytes) -> list[bytes]:
    """Cut a bundle apart as the kernel does, and fill in the checksums."""
    header, octets = parse_vnet(frame)
    ether = Ether(octets)
    payload = bytes(ether[UDP].payload)
    step = header.gso_size or len(payload)
    ether[UDP].remove_payload()
    frames = []
    for index, start in enumerate(range(0, len(payload), step)):
        one = ether.copy() / payload[start : start + step]
        if IP in one:
            one[IP].id += index
            del one[IP].len, one[IP].chksum
        else:
            del one[IPv6].plen
        del one[UDP].len, one[UDP].chksum
        frames.append(emit_vnet(Vnet(), bytes(one)))
    return frames


@FAMILIES
@pytest.mark.parametrize("length", [4, 64, 256, 1448, 9000, 64_000])
@pytest.mark.parametrize("bundles", [False, True])
def test_the_host_gets_what_it_gets_from_ipcomp(ipv6: bool, length: int, bundles: bool) -> None:
    segment = make_segment(PAYLOAD[:length], seq=ISN + 1, ipv6=ipv6, flags="PA")
    (expected_client, expected_server), (client, server) = (
        connected(ipv6),
        connected(ipv6, in_udp=True, bundles=bundles),
    )
    expected = expected_server.from_wire(expected_client.from_host(segment))
    on_wire = client.from_host(segment)
    assert server.from_wire(on_wire) == expected
    if bundles and length == 64_000:
        assert len(on_wire) == 1
        assert connected(ipv6)[1].from_wire(datagrams_of(on_wire[0])) == expected


@FAMILIES
def test_a_datagram_is_as_the_format_says(ipv6: bool) -> None:
    client, _ = connected(ipv6, in_udp=True)
    frames = client.from_host(make_segment(PAYLOAD, seq=ISN + 1, ipv6=ipv6))
    assert len(frames) > 5
    for index, frame in enumerate(frames):
        header, octets = parse_vnet(frame)
        packet = Ether(octets)
        network, udp = packet[IPv6 if ipv6 else IP], packet[UDP]
        assert (udp.dport, udp.sport) == (encapsulation.UDP_PORT, src_port(40000, 5001))
        assert len(network) <= 1500
        assert header == Vnet(vnet.NEEDS_CSUM, 0, len(octets) - len(udp.payload), 0, 54 if ipv6 else 34, 6)
        addresses = octets[22:54] if ipv6 else octets[26:34]
        (block,) = parse_entries(bytes(udp.payload))
        parse_block(block, addresses[: len(addresses) // 2], addresses[len(addresses) // 2 :], FIRST_NONCE)
        if not ipv6:
            assert (network.tos, network.id) == (0x28, 77 + index)
            assert internet_checksum(octets[14:34]) == 0
        sound = Ether(octets)
        del sound[UDP].chksum
        # What is left to be filled in is what the kernel fills in: the sum of the pseudo-header and the datagram.
        filled = octets[: header.csum_start] + bytes(udp)[:6] + bytes(2) + bytes(udp)[8:]
        pseudo = addresses + bytes((0, 17)) + len(udp).to_bytes(2, "big")
        assert Ether(bytes(sound))[UDP].chksum == internet_checksum(pseudo + filled[header.csum_start :])


@FAMILIES
def test_a_bundle_says_how_it_is_cut(ipv6: bool) -> None:
    client, _ = connected(ipv6, in_udp=True, bundles=True)
    (frame,) = client.from_host(make_segment(PAYLOAD[:60_000], seq=ISN + 1, ipv6=ipv6))
    header, octets = parse_vnet(frame)
    udp_at = 54 if ipv6 else 34
    assert (header.gso_type, header.hdr_len, header.csum_start) == (vnet.GSO_UDP_L4, udp_at + 8, udp_at)
    assert int.from_bytes(octets[udp_at + 4 : udp_at + 6], "big") == len(octets) - udp_at
    cut = datagrams_of(frame)
    blocks = [parse_entries(bytes(Ether(one[10:])[UDP].payload)) for one in cut]
    assert [len(one) for one in blocks] == [1] * len(cut)
    assert [block for one in blocks for block in one] == parse_entries(octets[udp_at + 8 :])
    assert max(len(one) - 10 - 14 for one in cut) <= 1500
    (flow,) = client.flows()
    assert flow["wire_octets"] == sum(len(one) - 10 for one in cut)
    assert flow["blocks"] == len(cut)


def test_no_frame_is_larger_than_the_hosts_own() -> None:
    client, _ = connected(in_udp=True, mtu=9000)
    frames = client.from_host(make_segment(PAYLOAD, seq=ISN + 1))
    assert max(len(frame) for frame in frames) <= 10 + 14 + 20 + 32 + MSS


def test_pieces_that_differ_in_length_go_one_by_one() -> None:
    client, server = connected(in_udp=True, bundles=True, per_segment=True)
    values = np.zeros(8000, np.float32)
    values[: MSS // 4] = np.random.default_rng(1).normal(0, 0.02, MSS // 4)
    frames = client.from_host(make_segment(values.tobytes(), seq=ISN + 1))
    assert len(frames) == -(-32_000 // MSS)
    (got,) = server.from_wire(frames)
    assert len(got) == 10 + 14 + 20 + 32 + 32_000


def test_a_peer_that_does_not_take_udp_gets_ipcomp() -> None:
    client = Nic(in_udp=True)
    client.from_host(make_segment(flags="S", seq=ISN))
    word = emit_capability(ALL_CODECS, ways=0)
    client.from_wire([make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True, options=[(253, word[2:])])])
    client.judge()
    (frame, *_) = client.from_host(make_segment(PAYLOAD, seq=ISN + 1))
    assert Ether(frame[10:])[IP].proto == 108


def test_the_kernel_is_not_given_more_datagrams_than_it_takes() -> None:
    client, server = connected(in_udp=True, bundles=True)
    frames = client.from_host(make_segment(PAYLOAD, seq=ISN + 1, gso_size=320))
    assert len(frames) > DATAGRAMS_MAX
    assert {parse_vnet(frame)[0].gso_type for frame in frames} == {vnet.GSO_NONE}
    (got,) = server.from_wire(frames)
    assert len(got) == 10 + 14 + 20 + 32 + len(PAYLOAD)


@pytest.mark.parametrize(
    ("at", "octets", "reason"),
    [
        (0, b"\2", "drop_bad_version"),
        (1, b"\1", "drop_bad_version"),
        (6, b"\xf0", "drop_bad_version"),  # another CPI
        (2, b"\xff\xff", "drop_bad_lengths"),
        (2, b"\0\7", "drop_bad_lengths"),
    ],
)
def test_a_bad_entry_ends_the_bundle_and_is_counted(at: int, octets: bytes, reason: str) -> None:
    client, server = connected(in_udp=True, bundles=True)
    (frame,) = client.from_host(make_segment(PAYLOAD[:60_000], seq=ISN + 1))
    step = parse_vnet(frame)[0].gso_size
    at += 10 + 14 + 20 + 8 + step
    assert frame[at : at + len(octets)] != octets
    (got,) = server.from_wire([frame[:at] + octets + frame[at + len(octets) :]])
    counts = server.counts()
    assert counts["rx_blocks"] == 1
    assert counts[reason] == 1
    assert {name for name in counts if name.startswith("drop")} == {reason}
    assert len(got) < 10_000


def test_a_damaged_block_costs_itself_alone() -> None:
    client, server = connected(in_udp=True, bundles=True)
    (frame,) = client.from_host(make_segment(PAYLOAD[:60_000], seq=ISN + 1))
    whole = connected()[1].from_wire([frame])
    damaged = bytearray(frame)
    damaged[10 + 14 + 20 + 8 + parse_vnet(frame)[0].gso_size + 300] ^= 4
    before, after = server.from_wire([bytes(damaged)])
    assert server.counts()["drop_bad_crc"] == 1
    headers = 10 + 14 + 20 + 32
    assert before[headers:] == whole[0][headers : len(before)]
    assert after[headers:] == whole[0][-(len(after) - headers) :]


@pytest.mark.parametrize(
    ("changed_at", "cut", "reason"),
    [(0, 20, "drop_runt"), (10 + 34 + 5, 0, "drop_runt"), (10 + 14 + 8, 0, "drop_bad_header")],
    ids=["truncated", "UDP length", "IP checksum"],
)
def test_a_datagram_that_lies_is_dropped(changed_at: int, cut: int, reason: str) -> None:
    client, server = connected(in_udp=True)
    (frame,) = client.from_host(make_segment(PAYLOAD[:1400], seq=ISN + 1))
    damaged = bytearray(frame[: len(frame) - cut])
    damaged[changed_at] ^= changed_at > 0
    assert server.from_wire([bytes(damaged)]) == []
    assert server.counts()[reason] == 1


def ip_frame(protocol: int, payload: bytes, ipv6: bool, gso_type: int = vnet.GSO_NONE, fragment: int = 0) -> bytes:
    """Return what a program of the host could send."""
    if ipv6:
        network = IPv6(src="fd00:98:ffff::1", dst="fd00:98:ffff:0:8000::2", nh=protocol) / payload
    else:
        network = IP(src="10.9.0.1", dst="10.9.0.2", proto=protocol, frag=fragment) / payload
    packet = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / network
    return emit_vnet(Vnet(gso_type=gso_type, gso_size=100 if gso_type else 0), bytes(packet))


def to_our_port(payload: bytes) -> bytes:
    return bytes(UDP(sport=5, dport=encapsulation.UDP_PORT) / payload)


@FAMILIES
@pytest.mark.parametrize("gso_type", [vnet.GSO_NONE, vnet.GSO_UDP_L4])
@pytest.mark.parametrize(
    "payload", [b"", bytes(8), b"x" * 40, bytes(60), bytes((1, 0, 0, 40, 6, 0, 0xF1, 0x28)) + bytes(60)]
)
def test_no_program_of_the_host_sends_to_our_port(ipv6: bool, gso_type: int, payload: bytes) -> None:
    """The other NIC would make TCP segments of it, and UDP needs no rights."""
    client, _ = connected(ipv6, in_udp=True)
    before = client.counts()
    assert client.from_host(ip_frame(17, to_our_port(payload), ipv6, gso_type)) == []
    after = client.counts()
    assert after.pop("drop_host_block") == 1
    assert {name for name in after if after[name] != before.get(name, 0)} == {"tx_host_frames", "tx_host_octets"}


@FAMILIES
@pytest.mark.parametrize("payload", [b"\x06\x00\xf1\x28", b"\x06\x00\xf1\x28" + bytes(100)])
def test_no_program_of_the_host_sends_ipcomp_of_ours(ipv6: bool, payload: bytes) -> None:
    client, _ = connected(ipv6)
    assert client.from_host(ip_frame(108, payload, ipv6)) == []
    assert client.counts()["drop_host_block"] == 1
    others = ip_frame(108, b"\x06\x00\xf1\x27" + bytes(100), ipv6)
    assert client.from_host(others) == [others]


def test_other_frames_of_the_host_cross() -> None:
    for frame in (
        ip_frame(17, bytes(UDP(dport=encapsulation.UDP_PORT - 1) / b"x"), False),
        ip_frame(17, bytes(UDP(sport=encapsulation.UDP_PORT, dport=9) / b"x"), False),
        ip_frame(17, to_our_port(b"x" * 40), False, fragment=9),
        ip_frame(108, b"\x06\x00", False),
    ):
        nic = Nic()
        assert nic.from_host(frame) == [frame]
        assert nic.counts()["bypass_not_tcp"] == 1


@pytest.mark.parametrize("payload", [b"", b"x" * 40, bytes(40), bytes((1, 0, 0, 40, 6, 0, 0, 1)) + bytes(60)])
def test_other_udp_to_the_port_is_the_hosts(payload: bytes) -> None:
    frame = ip_frame(17, to_our_port(payload), False)
    nic = Nic()
    assert nic.from_wire([frame]) == [frame]
    assert nic.counts() == {"rx_bypass": 1}


def test_a_syn_that_says_it_is_a_bundle_is_none() -> None:
    client = Nic(in_udp=True, bundles=True)
    syn = bytearray(make_segment(flags="S", seq=ISN))
    syn[vnet.GSO_TYPE] = vnet.GSO_UDP_L4
    (offer,) = client.from_host(bytes(syn))
    assert len(offer) == len(syn) + OPTION_LEN
