"""The capability word: added, read and removed; and flows whose peer does not send one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether

from netoffload.codec_specs import ALL_CODECS
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine import flows
from netoffload.engine.flows import SLOTS
from netoffload.wire.capability import TAKES_UDP, Capability, emit_capability, parse_capability
from netoffload.wire.checksum import internet_checksum, ones_sum
from netoffload.wire.offload import BLOCK_VERSION
from tests.engine.frames import make_segment, parsed
from tests.engine.nic_pair import FAMILIES, FIRST_NONCE, ISN, Nic, connect, connected
from tests.engine.stream_ends import check_sum
from tests.shared.formats import parse_tcp

SPOOFED = 200 if JIT_DISABLED else 3500
ZEROS = np.zeros(500, np.float32).tobytes()
OPTIONS: list[tuple[str | int, object]] = [
    ("MSS", 1460),
    ("SAckOK", b""),
    ("Timestamp", (1, 0)),
    ("NOP", None),
    ("WScale", 7),
]


def compresses(nic: Nic) -> bool:
    data = make_segment(ZEROS, seq=ISN + 1)
    return nic.from_host(data) != [data]


def compresses_back(nic: Nic, sport: int = 40_000) -> bool:
    data = make_segment(ZEROS, seq=6, ack=ISN + 1, to_client=True, sport=sport)
    return nic.from_host(data) != [data]


@FAMILIES
@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("options", [[], OPTIONS])
def test_a_syn_carries_the_word_between_the_nics_only(
    needs_csum: bool, options: list[tuple[str | int, object]], ipv6: bool
) -> None:
    client, server = Nic(), Nic()
    syn = make_segment(flags="S", seq=ISN, options=options, needs_csum=needs_csum, ipv6=ipv6)
    (on_wire,) = client.from_host(syn)
    header, _, ip, segment = parsed(on_wire)
    tcp, _ = parse_tcp(segment)
    assert parse_capability(tcp.options[-12:]) == Capability(BLOCK_VERSION, ALL_CODECS, TAKES_UDP, FIRST_NONCE)
    assert len(on_wire) == len(syn) + 12 == 24 + (40 if ipv6 else 20) + len(segment)
    pseudo = ip.src + ip.dst + bytes((0, 6)) + len(segment).to_bytes(2, "big")
    assert tcp.checksum == ones_sum(pseudo) if needs_csum else internet_checksum(pseudo + segment) == 0
    assert header.hdr_len == (len(on_wire) - 10 if needs_csum else 0)
    assert server.from_wire([on_wire]) == [syn]
    assert (client.counts()["tx_offers"], server.counts()["rx_offers"]) == (1, 1)


def test_a_peer_without_a_nic_gets_raw_segments() -> None:
    client = Nic()
    client.from_host(make_segment(flags="S", seq=ISN))
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True)
    assert client.from_wire([answer]) == [answer]
    assert not compresses(client)
    assert client.counts()["bypass_peer"] == 1
    (flow,) = client.flows()
    assert (flow["peer_decodes"], flow["bypassed_segments"]) == (False, 1)


def test_an_answer_to_nothing_carries_nothing() -> None:
    server = Nic()
    syn = make_segment(flags="S", seq=ISN)
    assert server.from_wire([syn]) == [syn]
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True)
    assert server.from_host(answer) == [answer]
    assert server.counts() == {"tx_host_frames": 1, "tx_host_octets": len(answer) - 10, "bypass_syn": 1, "rx_bypass": 1}


@pytest.mark.parametrize(
    ("version", "codecs", "compressed"),
    [(BLOCK_VERSION, 1 << 1, True), (BLOCK_VERSION, 0xFFFF & ~(1 << 1), False), (BLOCK_VERSION + 1, 0xFFFF, False)],
)
def test_only_what_the_peer_decodes_is_sent(version: int, codecs: int, compressed: bool) -> None:
    client = Nic()
    client.from_host(make_segment(flags="S", seq=ISN))
    word = emit_capability(codecs, version)
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True, options=[(253, word[2:])])
    (got,) = client.from_wire([answer])
    assert word not in got
    client.judge()
    assert compresses(client) == compressed


def test_a_repeated_handshake_changes_nothing() -> None:
    client, server = connected()
    before = client.table[:SLOTS].copy(), server.table[:SLOTS].copy()
    connect(client, server, judged=False)
    for nic, rows in zip((client, server), before, strict=True):
        rows[rows[:, flows.IP_VERSION] != 0, flows.SYNS_SENT] += 1
        assert np.array_equal(nic.table[:SLOTS], rows)
    assert compresses(client)
    assert compresses_back(server)


FROM_ANYONE = {
    "syn": make_segment(flags="S", seq=77),
    "syn with word": make_segment(flags="S", seq=77, options=[(253, emit_capability()[2:])]),
    "syn without tag": make_segment(flags="S", seq=77, tos=0),
    "rst": make_segment(flags="R", seq=77),
    "fin": make_segment(flags="FA", seq=77, ack=500_000),
    "acknowledgement": make_segment(seq=77, ack=500_000),
}


@pytest.mark.parametrize("name", FROM_ANYONE)
def test_who_does_not_see_a_connection_cannot_change_it(name: str) -> None:
    client, server = connected()
    assert compresses(client)
    sent = client.from_host(make_segment(ZEROS, seq=ISN + 1 + len(ZEROS)))
    server_rows = server.table[:SLOTS].copy()
    server_rows[:, flows.RX_IS_CLOSED] = 0
    server.from_wire([FROM_ANYONE[name]])
    now = server.table[:SLOTS].copy()
    now[:, flows.RX_IS_CLOSED] = 0  # shown, not used
    assert np.array_equal(now, server_rows)
    assert len(server.from_wire(sent)) == 1
    assert "rx_blocks" in server.counts()
    assert compresses_back(server)


@pytest.mark.parametrize("ack", [ISN, ISN + 2, 0])
@pytest.mark.parametrize("has_word", [True, False])
def test_an_answer_with_another_number_changes_nothing(ack: int, has_word: bool) -> None:
    client = Nic()
    client.from_host(make_segment(flags="S", seq=ISN))
    before = client.table.copy()
    client.from_wire([_answer(9, ack, has_word)])
    assert np.array_equal(client.table, before)
    client.from_wire([_answer(5, ISN + 1, True)])
    assert client.table[:SLOTS, flows.PEER_CODECS].any()
    client.judge()
    assert compresses(client)


@pytest.mark.parametrize("has_word", [True, False])
def test_a_second_answer_changes_nothing(has_word: bool) -> None:
    client, _ = connected()
    before = client.table.copy()
    client.from_wire([_answer(9, ISN + 1, has_word)])
    assert np.array_equal(client.table, before)


def test_a_syn_from_the_wire_is_believed_once_the_host_answers_it() -> None:
    server = Nic()
    word = emit_capability(nonce=7)
    server.from_wire([make_segment(flags="S", seq=ISN, options=[(253, word[2:])])])
    assert not server.table[:SLOTS].any()
    answer = make_segment(flags="SA", seq=5, ack=ISN + 2, to_client=True)
    assert server.from_host(answer) == [answer]  # an answer to another SYN: no word, no slot
    assert not server.table[:SLOTS].any()
    (offer,) = server.from_host(make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True))
    assert emit_capability()[:6] in offer
    (slot,) = np.flatnonzero(server.table[:SLOTS, flows.IP_VERSION])
    assert server.table[slot, flows.PEER_NONCE] == 7
    assert server.table[slot, flows.PEER_ISN] == ISN


def test_a_late_copy_of_the_syn_without_its_word_takes_nothing_back() -> None:
    client, server = Nic(), Nic()
    syn = make_segment(flags="S", seq=ISN)
    server.from_wire(client.from_host(syn))
    server.from_wire([syn])
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, to_client=True)
    assert client.from_wire(server.from_host(answer)) == [answer]
    assert server.counts()["tx_offers"] == 1


@pytest.mark.slow
def test_random_syns_evict_no_connection() -> None:
    client, server = Nic(), Nic()
    for port in range(50):
        connect(client, server, sport=40_000 + port)
    random = np.random.default_rng(4)
    word = emit_capability()
    before = server.table[:SLOTS].copy()
    for seq, sport in zip(random.integers(0, 2**32, SPOOFED), random.integers(1, 2**16, SPOOFED), strict=True):
        syn = bytearray(make_segment(flags="S", seq=int(seq), sport=int(sport), options=[(253, word[2:])]))
        server.from_wire([bytes(syn)])
    assert server.counts()["rx_offers"] == 50 + SPOOFED
    assert np.array_equal(server.table[:SLOTS], before)
    for port in range(50):
        assert compresses_back(server, sport=40_000 + port)


@pytest.mark.parametrize("is_answer", [False, True])
def test_from_the_third_time_on_a_syn_goes_without_the_word(is_answer: bool) -> None:
    nic = Nic()
    nic.from_wire([make_segment(flags="S", seq=ISN, options=[(253, emit_capability()[2:])])])
    kind: dict[str, Any] = {"flags": "SA", "to_client": True, "ack": ISN + 1} if is_answer else {"flags": "S"}
    syn = make_segment(seq=700, **kind)
    has_word = [nic.from_host(syn) != [syn] for _ in range(4)]
    assert has_word == [True, True, False, False]
    assert (nic.counts()["tx_offers"], nic.counts()["bypass_syn"]) == (2, 2)
    again = make_segment(seq=701, **kind)  # another connection begins anew
    assert nic.from_host(again) != [again]


def test_an_offer_sent_again_says_the_same() -> None:
    nic = Nic()
    syn = make_segment(flags="S", seq=ISN)
    assert nic.from_host(syn) == nic.from_host(syn)


def test_every_connection_has_a_nonce_of_its_own() -> None:
    nic = Nic()
    nonces = set()
    for port in range(20):
        (offer,) = nic.from_host(make_segment(flags="S", seq=ISN, sport=40_000 + port))
        nonces.add(parse_capability(offer[-12:]).nonce)
    assert len(nonces) == 20


SIGNED: list[list[tuple[str | int, object]]] = [
    [("MSS", 1461), ("MD5", b"0" * 16), ("NOP", None), ("NOP", None)],
    [("MSS", 1461), ("AO", b"0" * 14)],
]


@pytest.mark.parametrize("options", SIGNED, ids=["md5", "ao"])
def test_signed_connections_cross_untouched(options: list[tuple[str | int, object]]) -> None:
    client, server = Nic(), Nic()
    connect(client, server)  # an earlier life of the same addresses
    syn = make_segment(flags="S", seq=9, options=options, needs_csum=False)
    assert client.from_host(syn) == [syn]
    assert client.counts()["bypass_syn"] == 1
    assert server.from_wire([syn]) == [syn]
    answer = make_segment(flags="SA", seq=5, ack=10, options=options, needs_csum=False, to_client=True)
    assert server.from_host(answer) == [answer]
    assert client.from_wire([answer]) == [answer]
    data = make_segment(ZEROS[:800], seq=10, options=options[1:], needs_csum=False)
    assert client.from_host(data) == [data]
    assert client.counts()["bypass_unknown_flow"] == 1


def _answer(seq: int, ack: int, has_word: bool) -> bytes:
    options: list[tuple[str | int, object]] = [(253, emit_capability()[2:])] if has_word else []
    return make_segment(flags="SA", seq=seq, ack=ack, to_client=True, options=options)


def options_of(frame: bytes) -> list[tuple[str, object]]:
    options: list[tuple[str, object]] = Ether(frame[10:])[TCP].options
    return options


@pytest.mark.parametrize(("mss", "wanted"), [(1460, 1460), (1461, 1460), (1447, 1444), (8963, 8960), (3, 3), (7, 7)])
@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("first", [[], [("NOP", None)]])
def test_the_mss_is_rounded_to_whole_floats(
    mss: int, wanted: int, needs_csum: bool, first: list[tuple[str | int, object]]
) -> None:
    client, server = Nic(), Nic()
    options = [*first, ("MSS", mss), ("SAckOK", b""), ("WScale", 7)]
    syn = make_segment(flags="S", seq=ISN, options=options, needs_csum=needs_csum)
    (got,) = server.from_wire(client.from_host(syn))
    assert ("MSS", wanted) in options_of(got)
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, options=options, needs_csum=needs_csum, to_client=True)
    (got_answer,) = client.from_wire(server.from_host(answer))
    assert ("MSS", wanted) in options_of(got_answer)
    if not needs_csum:
        for frame in (got, got_answer):
            check_sum(frame, ipv6=False)


@pytest.mark.parametrize(("own", "theirs", "wanted"), [(1460, 8960, 1460), (8960, 1460, 1460), (1461, 1463, 1460)])
def test_the_mss_of_an_answer_is_no_more_than_the_hosts_own(own: int, theirs: int, wanted: int) -> None:
    client, server = Nic(), Nic()
    server.from_wire(client.from_host(make_segment(flags="S", seq=ISN, options=[("MSS", own)])))
    answer = make_segment(flags="SA", seq=5, ack=ISN + 1, options=[("MSS", theirs)], to_client=True)
    (got,) = client.from_wire(server.from_host(answer))
    assert ("MSS", wanted) in options_of(got)


def test_the_mss_of_others_is_left_alone() -> None:
    for syn in (
        make_segment(flags="S", seq=ISN, options=[("MSS", 1461)], tos=0),
        make_segment(b"early", flags="S", seq=ISN, options=[("MSS", 1461)]),
        make_segment(flags="SA", seq=ISN, options=[("MSS", 1461)]),
    ):
        assert Nic().from_host(syn) == [syn]
        assert Nic().from_wire([syn]) == [syn]


@pytest.mark.parametrize(
    "syn",
    [make_segment(flags="S", seq=ISN, options=[("NOP", None)] * 36), make_segment(b"early data", flags="S", seq=ISN)],
    ids=["no room", "with data"],
)
def test_a_syn_that_cannot_carry_the_word_crosses(syn: bytes) -> None:
    nic = Nic()
    assert nic.from_host(syn) == [syn]
    assert nic.counts()["bypass_syn"] == 1


@given(st.binary(max_size=40).map(lambda octets: octets[: len(octets) // 4 * 4]))
def test_syns_with_any_options_cross(options: bytes) -> None:
    server = Nic()
    syn = bytearray(make_segment(flags="S", seq=ISN, options=[("NOP", None)] * len(options)))
    syn[len(syn) - len(options) :] = options
    (got,) = server.from_wire([bytes(syn)])
    assert got == bytes(syn) or emit_capability()[:4] in options


@pytest.mark.parametrize("octet", [24 + 8, 24 + 12, 24 + 20, 24 + 20 + 5, 24 + 20 + 7, 24 + 20 + 15, -1])
def test_a_damaged_syn_reaches_the_host_with_its_wrong_checksum(octet: int) -> None:
    client, server = Nic(), Nic()
    (on_wire,) = client.from_host(make_segment(flags="S", seq=ISN, options=OPTIONS, needs_csum=False))
    damaged = bytearray(on_wire)
    damaged[octet] ^= 4
    assert server.from_wire([bytes(damaged)]) == [bytes(damaged)]
    assert "rx_offers" not in server.counts()
    assert not server.table[: flows.KEY_ROW].any()
