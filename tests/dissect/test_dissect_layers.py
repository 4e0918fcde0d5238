"""scapy's layers and the engine agree on every block, in both directions."""

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from netoffload.codec import CODECS, CodecId, get
from netoffload.codec.reference import compress_bounded
from netoffload.codec_specs import ALL_CODECS
from netoffload.dissect import layers
from netoffload.dissect.layers import (
    BlockTCP,
    IPComp,
    OffloadBlock,
    OffloadEntry,
    capability_of,
    classes_of,
    crc_is_good,
    floats_of,
)
from netoffload.errors import UsageError, WireError
from netoffload.wire import vnet
from netoffload.wire.capability import TAKES_UDP, WANTS_MAC, Capability
from netoffload.wire.offload import BLOCK_VERSION, HAS_MAC
from tests.dissect.captured import (
    REFUSED,
    TAKEN,
    VALUES,
    changed_block,
    damaged,
    fragments,
    frames_of_a_connection,
    nonce_in,
    receiving_nic,
    refused_block,
    udp_block,
)
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic
from tests.shared.formats import Vnet, block_mac, emit_vnet, parse_block

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def captured() -> tuple[int, list[bytes]]:
    """The nonce that the server drew, and the engine's blocks."""
    _, answer, *blocks = frames_of_a_connection()
    return nonce_in(answer), blocks


def receive(frame: bytes, nic: Nic) -> tuple[list[bytes], dict[str, int]]:
    """What the engine makes of an Ethernet frame from the wire, and the counters that it changes."""
    before = nic.counts()
    delivered = nic.from_wire([emit_vnet(Vnet(), frame)])
    return delivered, {name: count - before.get(name, 0) for name, count in nic.counts().items()}


def refused(frame: bytes, nic: Nic) -> dict[str, int]:
    """The counters that are left where nothing is delivered."""
    delivered, counts = receive(frame, nic)
    assert delivered == []
    return {name: count for name, count in counts.items() if count}


def test_the_engines_blocks_have_layers(captured: tuple[int, list[bytes]]) -> None:
    nonce, sent = captured
    seen, at = [], 1001
    for octets in sent:
        packet = Ether(octets)
        assert [type(layer) for layer in packet.iterpayloads()] == [Ether, IP, IPComp, OffloadBlock, BlockTCP, Raw]
        block = packet[OffloadBlock]
        assert (block.version, block.codec, block.bound_k, block.gso_size) == (BLOCK_VERSION, 1, 10, 1448)
        assert (packet[TCP].sport, packet[TCP].dport, packet[TCP].seq) == (40000, 5001, at)
        assert crc_is_good(block, nonce)
        assert not crc_is_good(block, nonce ^ 1)
        assert layers.mac_of(block) is None
        floats = floats_of(block)
        counted = classes_of(block)
        assert counted is not None
        assert sum(counted) == floats.size
        seen.append(floats)
        at += block.payload_len
        assert bytes(packet) == octets
    wanted = get("inceptionn").round_trip(VALUES, 10)
    assert np.array_equal(np.concatenate(seen).view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS.values()])
@pytest.mark.parametrize("count", [0, 1, 8, 301])
def test_the_engine_takes_blocks_that_scapy_built(codec: str, count: int) -> None:
    values = VALUES[:count]
    nic, nonce = receiving_nic()
    ip = IP(src="10.9.0.1", dst="10.9.0.2", tos=0x28, id=3)
    made = layers.offload(values, codec, 8, b"ab", b"c", nonce=nonce, seq=1001, flags="PA", sport=40000, dport=5001)
    packet = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / ip / made
    octets = bytes(packet)
    assert crc_is_good(Ether(octets)[OffloadBlock], nonce)
    (frame,), counts = receive(octets, nic)
    assert counts["rx_blocks"] == 1
    segment = Ether(frame[vnet.VNET_LEN :])
    assert (segment[TCP].sport, segment[TCP].seq, segment[TCP].flags) == (40000, 1001, "PA")
    wanted = b"ab" + get(codec).round_trip(values, 8).tobytes() + b"c"
    assert bytes(segment[TCP].payload)[: len(wanted)] == wanted
    header_octets = octets[14:34]
    parsed = parse_block(octets[34:], header_octets[12:16], header_octets[16:20], nonce)
    assert parsed.payload_len == 4 * count + 3


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("crc", 1, "drop_bad_crc"),
        ("version", 1, "drop_bad_version"),
        ("half_len", 1, "drop_malformed_payload"),
        ("half_len", 500, "drop_bad_lengths"),
        ("half_bursts", 2, "drop_bad_lengths"),
        ("codec", 9, "drop_unknown_codec"),
        ("payload_len", 41, "drop_bad_lengths"),
        ("payload_len", 400, "drop_malformed_payload"),
    ],
)
def test_what_is_given_stays_also_where_it_is_wrong(field: str, value: int, reason: str) -> None:
    nic, nonce = receiving_nic()
    made = layers.offload(VALUES[:10], nonce=nonce, sport=40000, dport=5001)
    packet = Ether() / IP(src="10.9.0.1", dst="10.9.0.2", tos=0x28) / made
    setattr(packet[OffloadBlock], field, value)
    assert refused(bytes(packet), nic) == {reason: 1}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_called_refused_is_refused_by_the_engine(what: str) -> None:
    nic, nonce = receiving_nic()
    counts = refused(bytes(refused_block(what, nonce)), nic)
    assert list(counts.values()) == [1]
    assert next(iter(counts)).startswith("drop_")


@pytest.mark.parametrize("what", TAKEN)
def test_groups_are_read_as_by_the_engine(what: str) -> None:
    nic, nonce = receiving_nic()
    fields, wanted = TAKEN[what]
    octets = bytes(changed_block({}, *fields, nonce=nonce))
    (frame,), _ = receive(octets, nic)
    block = Ether(octets)[OffloadBlock]
    assert bytes(Ether(frame[vnet.VNET_LEN :])[TCP].payload) == floats_of(block).tobytes()
    assert classes_of(block) == wanted


def test_each_half_of_a_block_of_groups_begins_a_group() -> None:
    _, _, *frames = frames_of_a_connection(codec=CodecId.PACKED)
    blocks = [Ether(octets)[OffloadBlock] for octets in frames]
    assert any(block.half_bursts % 8 for block in blocks)
    floats = np.concatenate([floats_of(block) for block in blocks])
    tags, _ = compress_bounded(VALUES, 10)
    assert np.array_equal(floats.view(np.uint32), get("bounded").round_trip(VALUES, 10).view(np.uint32))
    counted = np.array([classes_of(block) for block in blocks]).sum(axis=0)
    assert counted.tolist() == np.bincount(tags, minlength=4).tolist()


def test_fragments_are_no_blocks_to_the_engine() -> None:
    nic, _ = receiving_nic()
    counts = [receive(bytes(piece), nic)[1] for piece in fragments()]
    assert [{name: n for name, n in one.items() if n} for one in counts] == [
        {"drop_bad_header": 1},
        *[{"rx_bypass": 1}] * 3,
    ]


def test_blocks_in_udp(captured: tuple[int, list[bytes]]) -> None:
    nonce, sent = captured
    for bundles in (False, True):
        packets = [Ether(frame) for frame in frames_of_a_connection(in_udp=True, bundles=bundles)[2:]]
        assert len(packets) == 1 if bundles else len(packets) >= len(sent)
        entries = [entry for packet in packets for entry in layers.entries_of(packet[UDP])]
        blocks = [entry[OffloadBlock] for entry in entries]
        assert all(crc_is_good(block, nonce) for block in blocks)
        assert sum(block.payload_len for block in blocks) == VALUES.nbytes
        floats = np.concatenate([floats_of(block) for block in blocks])
        assert np.array_equal(floats, get("inceptionn").round_trip(VALUES, 10), equal_nan=True)


def test_the_engine_takes_blocks_in_udp_that_scapy_built() -> None:
    nic, nonce = receiving_nic(ipv6=True)
    octets = bytes(udp_block(nonce))
    packet = Ether(octets)
    layered = [type(layer) for layer in packet.iterpayloads()]
    assert layered == [Ether, IPv6, UDP, OffloadEntry, IPComp, OffloadBlock, BlockTCP, Raw]
    assert crc_is_good(packet[OffloadBlock], nonce)
    (frame,), counts = receive(octets, nic)
    assert counts["rx_blocks"] == 1
    assert bytes(Ether(frame[vnet.VNET_LEN :])[TCP].payload) == get("bounded").round_trip(VALUES[:300], 8).tobytes()


@pytest.mark.parametrize("in_udp", [False, True])
def test_a_mac_is_behind_the_payload_and_the_crc_does_not_cover_it(in_udp: bool) -> None:
    _, answer, *blocks = frames_of_a_connection(in_udp=in_udp, key=KEY)
    word = capability_of(Ether(answer)[TCP])
    assert word is not None
    assert word.ways & WANTS_MAC
    packets = [Ether(octets) for octets in blocks]
    assert [bytes(packet) for packet in packets] == blocks
    seen = []
    for packet, octets in zip(packets, blocks, strict=True):
        block = packet[OffloadBlock]
        assert block.flags == HAS_MAC
        assert crc_is_good(block, word.nonce)
        ip, at = packet[IP], octets.index(bytes(packet[IPComp]))
        addresses = octets[14:][12 : 12 + 8]
        assert ip.src == "10.9.0.1"
        assert layers.mac_of(block) == octets[-16:] == block_mac(KEY, addresses + octets[at:-16])
        seen.append(floats_of(block))
        counted = classes_of(block)
        assert counted is not None
        assert sum(counted) == seen[-1].size
        changed = Ether(octets[:-1] + bytes((octets[-1] ^ 1,)))[OffloadBlock]
        assert crc_is_good(changed, word.nonce)
        assert crc_is_good(Ether(damaged(octets[:-16]) + octets[-16:])[OffloadBlock], word.nonce) is False
    wanted = get("inceptionn").round_trip(VALUES, 10)
    assert np.array_equal(np.concatenate(seen).view(np.uint32), wanted.view(np.uint32))


def test_the_crc_of_a_block_built_with_a_mac_leaves_it_out() -> None:
    made = layers.offload(VALUES[:10], nonce=7, sport=1, dport=2)
    plain = bytes(Ether() / IP() / made)
    made[OffloadBlock].flags = HAS_MAC
    with_mac = Ether(bytes(Ether() / IP() / made / bytes(16)))
    assert crc_is_good(with_mac[OffloadBlock], 7)
    assert layers.payload_len_of(with_mac[OffloadBlock]) == layers.payload_len_of(Ether(plain)[OffloadBlock])


@pytest.mark.parametrize("length", [34, 38, 40, 54, 60, 74, 100, -1])
def test_a_block_that_was_cut_short_is_not_judged(length: int, captured: tuple[int, list[bytes]]) -> None:
    nonce, sent = captured
    packet = Ether(sent[0][:length])
    if OffloadBlock in packet:
        assert crc_is_good(packet[OffloadBlock], nonce) is None
        for function in (classes_of, floats_of):
            with pytest.raises(WireError, match="whole"):
                function(packet[OffloadBlock])


def test_lengths_that_lie_are_errors() -> None:
    for field, value in (("head", 4), ("tail", 15), ("payload_len", 1), ("payload_len", 60000)):
        packet = Ether() / IP() / layers.offload(VALUES[:10], sport=1, dport=2)
        setattr(packet[OffloadBlock], field, value)
        block = Ether(bytes(packet))[OffloadBlock]
        for function in (classes_of, floats_of):
            with pytest.raises(WireError):
                function(block)


def test_other_ipcomp_stays_raw() -> None:
    packet = Ether(bytes(Ether() / IP() / IPComp(cpi=2, nh=6) / b"deflated"))
    assert packet[IPComp].payload.load == b"deflated"


def test_the_capability_word_is_found_in_a_syn(captured: tuple[int, list[bytes]]) -> None:
    (syn,) = Nic().from_host(make_segment(flags="S", seq=1))
    word = capability_of(Ether(syn[vnet.VNET_LEN :])[TCP])
    assert word is not None
    assert word == Capability(BLOCK_VERSION, ALL_CODECS, TAKES_UDP, word.nonce)
    assert word.nonce not in (0, captured[0])
    built = Ether(bytes(Ether() / IP() / TCP(flags="S", options=[layers.capability_option(word.nonce)])))
    assert capability_of(built[TCP]) == word
    for options in ([], [("MSS", 1460)], [(253, b"XX")], [(253, b"XXXXXX")]):
        other = Ether(bytes(Ether() / IP() / TCP(flags="S", options=options)))
        assert capability_of(other[TCP]) is None


def test_an_unknown_codec_cannot_be_built() -> None:
    with pytest.raises(UsageError, match="codec 'zip' is unknown"):
        layers.offload(VALUES, "zip")
