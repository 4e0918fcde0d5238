"""Host to wire: what is compressed, what crosses, and what blocks hold, by the plain parsers and the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether

from netoffload.codec import CodecId, get
from netoffload.codec.bursts import LANES, MAX_BURST_PAYLOAD
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine import flows
from netoffload.engine.counters import Counter
from netoffload.engine.flows import IP_VERSION
from netoffload.engine.pack import MAX_WIRE_FRAMES, proof_of
from netoffload.wire.capability import emit_capability
from netoffload.wire.vnet import GSO_TCPV4
from tests.engine.frames import MSS, TIMESTAMPS, make_segment, parsed, tcp_of
from tests.engine.nic_pair import FAMILIES, FIRST, FIRST_NONCE, ISN, Nic, connect, connected
from tests.shared import formats
from tests.shared.example_counts import examples

ORACLE = get("inceptionn").oracle
RNG = np.random.default_rng(11)
GRADIENT = RNG.normal(0, 2e-3, 15000 if not JIT_DISABLED else 3000).astype(np.float32).tobytes()


def make_nic(ipv6: bool = False, per_segment: bool = False) -> Nic:
    """Return a NIC whose host has connected to a host with a NIC."""
    return connected(ipv6, per_segment=per_segment)[0]


def dissect(frame: bytes) -> tuple[formats.Ipv4 | formats.Ipv6, formats.Tcp, formats.Block]:
    """Read one wire frame with the plain parsers: every check of theirs is a check of the engine."""
    header, _, ip, payload = parsed(frame)
    assert header == formats.Vnet()
    block = formats.parse_block(payload, ip.src, ip.dst, FIRST_NONCE)
    tcp, rest = formats.parse_tcp(block.tcp_header)
    assert rest == b""
    return ip, tcp, block


def payload_of(block: formats.Block) -> bytes:
    """Decode a block with the oracle."""
    assert (block.head, block.tail) == (0, 0)
    return ORACLE.decode(np.frombuffer(block.bursts, np.uint8), block.count, block.bound_k).tobytes()


@FAMILIES
@pytest.mark.parametrize("per_segment", [False, True])
def test_a_large_segment_becomes_blocks_that_hold_it(per_segment: bool, ipv6: bool) -> None:
    nic = make_nic(ipv6, per_segment)
    frames = nic.from_host(make_segment(GRADIENT, seq=FIRST, flags="PA", ident=7, ipv6=ipv6))
    assert all(len(frame) <= 10 + 14 + 1500 for frame in frames)
    rebuilt = b""
    for index, frame in enumerate(frames):
        ip, tcp, block = dissect(frame)
        assert ip == (
            formats.Ipv6(0x28, 0xBEEF, 108, 64, ip.src, ip.dst)
            if ipv6
            else formats.Ipv4(0x28, 7 + index, 0x4000, 64, 108, ip.src, ip.dst)
        )
        assert tcp.seq == ISN + 1 + len(rebuilt)
        assert (tcp.ack, tcp.window, tcp.checksum, tcp.options) == (
            6,
            8192,
            proof_of(FIRST_NONCE, tcp.seq),
            bytes.fromhex("0101080a0000303900010932"),
        )
        assert tcp.flags == (0x18 if index == len(frames) - 1 else 0x10)
        assert (block.bound_k, block.gso_size, block.payload_len) == (10, MSS, len(payload_of(block)))
        rebuilt += payload_of(block)
    assert rebuilt == ORACLE.round_trip(np.frombuffer(GRADIENT, np.float32), 10).tobytes()
    segments = -(-len(GRADIENT) // MSS)
    assert len(frames) == segments if per_segment else len(frames) < segments / 3


@pytest.mark.parametrize("per_segment", [False, True])
def test_the_mark_is_in_the_middle(per_segment: bool) -> None:
    blocks = [
        dissect(frame)[2] for frame in make_nic(per_segment=per_segment).from_host(make_segment(GRADIENT, seq=FIRST))
    ]
    for block in blocks[:-1] if not per_segment else []:  # they end for want of room: the middle of their octets
        assert abs(block.half_len - len(block.bursts) / 2) <= MAX_BURST_PAYLOAD
    for block in blocks if per_segment else blocks[-1:]:
        assert block.half_bursts == block.count // 2 // LANES


SPARSE = 6
"""The number of a codec that older versions announce and send."""


@pytest.mark.parametrize("known", [(CodecId.PACKED, CodecId.BOUNDED), (CodecId.BOUNDED,), (CodecId.INCEPTIONN,), ()])
def test_a_peer_that_does_not_know_the_codec_gets_its_values_in_another(known: tuple[CodecId, ...]) -> None:
    nic = Nic(codec=CodecId.PACKED)
    nic.from_host(make_segment(flags="S", seq=ISN))
    word = emit_capability(sum(1 << codec_id for codec_id in (*known, SPARSE)), ways=0, nonce=FIRST_NONCE)
    nic.from_wire([make_segment(flags="SA", seq=5, ack=FIRST, to_client=True, options=[(253, word[2:])])])
    nic.judge()
    segment = make_segment(GRADIENT, seq=FIRST)
    frames = nic.from_host(segment)
    if CodecId.BOUNDED not in known:
        assert (frames, nic.counters[Counter.BYPASS_PEER]) == ([segment], 1)
        return
    blocks = [dissect(frame)[2] for frame in frames]
    assert {block.codec for block in blocks} == {known[0]}
    if known == (CodecId.BOUNDED,):
        decoded = [get("bounded").decode(np.frombuffer(block.bursts, np.uint8), block.count, 10) for block in blocks]
        wanted = get("packed").round_trip(np.frombuffer(GRADIENT, np.float32), 10)
        assert np.concatenate(decoded).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("as_bf16", [False, True])
def test_exact_gives_every_bit_back_behind_two_nics(as_bf16: bool) -> None:
    sender, receiver = Nic(codec=CodecId.EXACT), Nic()
    connect(sender, receiver)
    values = np.random.default_rng(6).normal(0, 0.3, 8000).astype(np.float32)
    if as_bf16:
        values.view(np.uint32)[:] &= np.uint32(0xFFFF0000)
    values[400:404] = np.array([1, 0x80000000, 0x7F800001, 0xFF800000], np.uint32).view(np.float32)
    blocks = sender.from_host(make_segment(values.tobytes(), seq=FIRST))
    arrived = [tcp_of(frame)[1] for frame in receiver.from_wire(blocks)]
    assert b"".join(arrived) == values.tobytes()
    assert sum(map(len, blocks)) < (0.45 if as_bf16 else 0.95) * values.nbytes


@settings(max_examples=examples(200))
@given(
    start=st.integers(1, 4000),
    length=st.integers(100, 3000),
    mtu=st.sampled_from([576, 1500, 9000]),
    bound_k=st.integers(1, 16),
    per_segment=st.booleans(),
    isn=st.sampled_from([0, 1000, 2**32 - 2000, 2**32 - 1]),
)
def test_floats_are_counted_from_the_first_octet_after_the_syn(
    start: int, length: int, mtu: int, bound_k: int, per_segment: bool, isn: int
) -> None:
    nic = Nic(bound_k=bound_k, mtu=mtu, per_segment=per_segment)
    connect(nic, Nic(), isn)
    mss = mtu - 52
    rebuilt = b""
    for first, last in ((0, start), (start, start + length)):
        gso_size = mss if last - first > mss else 0
        segment = make_segment(GRADIENT[first:last], seq=(isn + 1 + first) % 2**32, gso_size=gso_size)
        for index, frame in enumerate(nic.from_host(segment)):
            ip, octets = formats.parse_ipv4(frame[24:])
            assert len(octets) + 20 <= mtu or formats.parse_vnet(frame)[0].gso_size == mss & ~3
            if ip.protocol == 6:
                tcp, payload = formats.parse_tcp(octets)
            else:
                _, tcp, block = dissect(frame)
                payload = payload_of(block)
                assert ip.ident == 77 + index
            assert tcp.seq == (isn + 1 + len(rebuilt)) % 2**32
            rebuilt += payload
    values = np.frombuffer(GRADIENT[: (start + length) & ~3], np.float32)
    assert rebuilt == ORACLE.round_trip(values, bound_k).tobytes()


BYPASSED = [
    ("bypass_untagged", make_segment(GRADIENT, tos=0)),
    ("bypass_no_payload", make_segment()),
    ("bypass_unknown_flow", make_segment(GRADIENT, sport=40001)),
    ("bypass_no_gain", make_segment(np.full(1000, 3.0, np.float32).tobytes(), gso_size=1448)),
    ("bypass_syn", make_segment(b"x" * 400, flags="S")),
    ("bypass_not_tcp", formats.emit_vnet(formats.Vnet(), bytes(Ether() / IP() / UDP() / b"x"))),
    *(("bypass_special", make_segment(GRADIENT, flags=flags)) for flags in ("UA", "RA", "CA")),
    ("bypass_special", make_segment(GRADIENT[:800], options=[("MD5", b"0" * 16), ("NOP", None), ("NOP", None)])),
    ("bypass_special", make_segment(GRADIENT[:800], options=[("AO", b"0" * 14)])),
    ("bypass_special", make_segment(GRADIENT[:800]).replace(b"\x01\x01\x08\x0a", b"\x4d\x00\x08\x0a")),
]
"""The last one has an option of length 0."""


@pytest.mark.parametrize(("reason", "segment"), BYPASSED)
def test_every_reason_to_cross_unchanged(reason: str, segment: bytes) -> None:
    nic = make_nic()
    assert nic.from_host(segment) == [segment]
    assert nic.counts()[reason] >= 1
    assert "tx_blocks" not in nic.counts()
    assert "tx_class_32" not in nic.counts()


@pytest.mark.parametrize(
    "packet",
    [
        Ether() / ARP(),
        Ether() / IPv6(tc=0x28) / UDP() / (b"x" * 100),
        Ether() / IPv6(tc=0x28) / IPv6ExtHdrHopByHop() / TCP() / (b"x" * 100),
        Ether() / IPv6(tc=0x28) / IPv6ExtHdrFragment(offset=1) / (b"x" * 100),
        Ether() / IPv6(tc=0x28, plen=200) / TCP() / (b"x" * 100),
        Ether() / IPv6(tc=0x28, plen=0, nh=6) / TCP() / (b"x" * 100),
        Ether(type=0x86DD) / IP(tos=0x28) / TCP() / (b"x" * 100),
        Ether() / Dot1Q(vlan=5) / IP(tos=0x28) / TCP() / (b"x" * 100),
        Ether() / IP(tos=0x28, options=[b"\x01" * 4]) / TCP() / (b"x" * 100),
        Ether() / IP(tos=0x28, frag=5) / (b"x" * 100),
        Ether() / IP(tos=0x28, len=2000) / TCP() / (b"x" * 100),
        Ether() / IP(tos=0x28) / TCP(dataofs=4) / (b"x" * 100),
        Ether() / IP(tos=0x28) / TCP(dataofs=15),
    ],
    ids=[
        *["arp", "ipv6 udp", "ipv6 hop by hop", "ipv6 fragment", "ipv6 too long", "ipv6 jumbo", "wrong ethertype"],
        *["vlan", "ip options", "fragment", "too long", "short tcp", "tcp beyond ip"],
    ],
)
def test_what_is_not_plain_tcp_crosses(packet: Ether) -> None:
    nic = make_nic()
    frame = formats.emit_vnet(formats.Vnet(), bytes(packet))
    assert nic.from_host(frame) == [frame]
    assert nic.counts()["bypass_not_tcp"] == 1


@pytest.mark.parametrize(("gso_size", "per_segment"), [(48, True), (76, True), (200, True), (48, False), (88, False)])
def test_a_small_mss_never_outgrows_the_buffers(gso_size: int, per_segment: bool) -> None:
    nic = make_nic(per_segment=per_segment)
    zeros = bytes(64000 if not JIT_DISABLED else 16000)
    sent = make_segment(zeros, seq=FIRST, gso_size=gso_size)
    frames = nic.from_host(sent)
    assert frames == [sent] or len(frames) <= MAX_WIRE_FRAMES
    assert frames == [sent] or all(len(frame) <= 10 + 14 + 52 + gso_size for frame in frames)


def test_flows_are_counted_and_a_new_connection_starts_anew() -> None:
    nic = make_nic()
    nic.from_host(make_segment(GRADIENT[:4000], seq=FIRST))
    connect(nic, Nic(), 5000)
    assert nic.flows() == []
    dissect(nic.from_host(make_segment(GRADIENT[:400], seq=5001, options=TIMESTAMPS))[0])
    assert nic.counts()["tx_raw_octets"] == 4400
    (flow,) = nic.flows()
    assert (flow["src"], flow["sport"], flow["raw_octets"], flow["segments"]) == ("10.9.0.1", 40000, 400, 1)


@pytest.mark.parametrize(("ranges", "is_theirs"), [([(1, 5000), (5001, 5001)], True), ([(5002, 39_999)], False)])
def test_only_connections_of_the_ports_that_are_named_are_compressed(
    ranges: list[tuple[int, int]], is_theirs: bool
) -> None:
    client, server = Nic(), Nic()
    client.settings = client.settings._replace(ports=np.array(ranges, np.int64))
    connect(client, server)
    segment = make_segment(GRADIENT[:4000], seq=FIRST)
    assert (client.from_host(segment) != [segment]) == is_theirs


def test_a_connection_knows_its_plain_segments_and_since_when_octets_are_under_way() -> None:
    nic = Nic()
    connect(nic, Nic(), judged=False)
    row = int(np.flatnonzero(nic.table[:, IP_VERSION])[0])

    def sent(payload: bytes, at: int, now_ns: int) -> list[int]:
        nic.now_ns = now_ns
        nic.from_host(make_segment(payload, seq=FIRST + at))
        fields = (flows.BYPASSED, flows.UNA_SINCE_NS, flows.REPEATED_END)
        return [int(nic.table[row, field]) for field in fields]

    assert sent(b"", 0, 1000)[0] == 0  # an acknowledgement is nothing that blocks could carry
    assert sent(b"text", 0, 2000)[:2] == [1, 2000]
    assert sent(b"more", 4, 3000) == [2, 2000, FIRST]  # the oldest octet waits since then
    assert sent(b"e", 7, 4000) == [3, 2000, FIRST + 8]  # also a single one again is a repetition


@pytest.mark.parametrize("floats", [1, 2, 9, 300, 2500])
@pytest.mark.parametrize("needs_csum", [True, False])
def test_what_crosses_plain_for_want_of_gain_has_the_codec_s_values(floats: int, needs_csum: bool) -> None:
    values = np.full(floats, 3.0, np.float32)
    values[::20] = 0.0007
    octets = values.tobytes()
    sent = make_segment(octets, seq=FIRST, needs_csum=needs_csum, gso_size=None if needs_csum else 0)
    nic = make_nic()
    (crossed,) = nic.from_host(sent)
    assert nic.counts()["bypass_no_gain"] == 1
    assert not any(name.startswith("tx_class") for name in nic.counts())
    assert crossed[-len(octets) :] == ORACLE.round_trip(values, 10).tobytes() != octets
    summed_later = make_segment(octets, seq=FIRST)[: len(sent) - len(octets)]
    if needs_csum or floats < 300:
        assert crossed[: len(summed_later)] == summed_later  # the checksum is left to whoever fills it in last


def test_a_large_segment_without_gain_is_cut_between_floats() -> None:
    nic = make_nic()
    octets = np.full(2000, 3.0, np.float32).tobytes()
    (sent,) = nic.from_host(make_segment(octets, seq=FIRST, gso_size=1447))
    header = formats.parse_vnet(sent)[0]
    assert (header.gso_type, header.gso_size) == (GSO_TCPV4, 1444)


@FAMILIES
def test_a_segment_with_a_wrong_checksum_is_not_touched_and_counted(ipv6: bool) -> None:
    nic = make_nic(ipv6)
    sound = make_segment(GRADIENT[:1001], seq=FIRST, needs_csum=False, ipv6=ipv6)
    damaged = sound[:-1] + bytes([sound[-1] ^ 1])
    assert nic.from_host(damaged) == [damaged]
    assert nic.counts()["bypass_bad_sum"] == 1
    more = make_segment(GRADIENT[1004:2004], seq=ISN + 1005, needs_csum=False, ipv6=ipv6)
    assert nic.from_host(more) != [more]
    assert nic.counts()["bypass_bad_sum"] == 1


@FAMILIES
def test_a_segment_with_a_wrong_checksum_counts_as_lost(ipv6: bool) -> None:
    nic = make_nic(ipv6)
    nic.from_host(make_segment(GRADIENT[:1000], seq=FIRST, ipv6=ipv6))
    for flags, payload in (("A", GRADIENT[1000:2000]), ("RA", b"")):
        damaged = bytearray(make_segment(payload, seq=FIRST + 1000, flags=flags, needs_csum=False, ipv6=ipv6))
        damaged[-1] ^= 1
        assert nic.from_host(bytes(damaged)) == [damaged]
    (flow,) = nic.flows()
    assert not flow["closed"]
    text = make_segment(b"what the segment really had " * 36, seq=FIRST + 1000, ipv6=ipv6)
    assert nic.from_host(text) == [text]


def test_a_fin_alone_and_an_untagged_syn_end_a_flow_and_other_connections_take_no_slot() -> None:
    nic = make_nic()
    nic.from_host(make_segment(GRADIENT[:4000], seq=FIRST))
    nic.from_host(make_segment(seq=ISN + 4001, flags="FA"))
    (flow,) = nic.flows()
    assert flow["closed"]
    taken = int((nic.table[:, IP_VERSION] != 0).sum())
    for port in range(50000, 50050):
        nic.from_host(make_segment(flags="S", seq=9, sport=port, tos=0))
    assert int((nic.table[:, IP_VERSION] != 0).sum()) == taken
    nic.from_host(make_segment(flags="S", seq=77, tos=0))
    segment = make_segment(GRADIENT[:4000], seq=78)
    assert nic.from_host(segment) == [segment]


def test_segments_that_echo_congestion_are_compressed_and_not_merged_with_others() -> None:
    nic, peer = connected()
    frames = nic.from_host(make_segment(GRADIENT[:4000], seq=FIRST, flags="A"))
    frames += nic.from_host(make_segment(GRADIENT[4000:8000], seq=ISN + 4001, flags="EA"))
    assert nic.counts()["tx_segments"] == 2
    delivered = peer.from_wire(frames)
    headers = [tcp_of(frame)[0] for frame in delivered]
    assert [header.flags & 0x40 for header in headers] == [0, 0x40]
