"""The capability word: added, understood, taken out; and what happens to a flow whose peer did not send one."""

from __future__ import annotations

import numpy as np
import pytest
from frames import make_segment
from hypothesis import given
from hypothesis import strategies as st
from nic_pair import Nic, connect
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from netoffload.engine import flows
from netoffload.wire.capability import ALL_CODECS, TAKES_UDP, Capability, emit_capability, parse_capability
from netoffload.wire.checksum import internet_checksum, ones_sum
from netoffload.wire.offload import BLOCK_VERSION
from netoffload.wire.tcp import parse_tcp
from netoffload.wire.vnet import parse_vnet

ISN = 1000
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


@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("options", [[], OPTIONS])
def test_a_syn_carries_the_word_between_the_nics_only(
    needs_csum: bool, options: list[tuple[str | int, object]]
) -> None:
    client, server = Nic(), Nic()
    syn = make_segment(flags="S", seq=ISN, options=options, needs_csum=needs_csum)
    (on_wire,) = client.from_host(syn)
    header, octets = parse_vnet(on_wire)
    packet = Ether(octets)[IP]
    segment = bytes(packet)[20:]
    tcp, _ = parse_tcp(segment)
    assert parse_capability(tcp.options[-8:]) == Capability(BLOCK_VERSION, ALL_CODECS, TAKES_UDP)
    assert packet.len == len(packet) == len(syn) - 24 + 8
    assert internet_checksum(bytes(packet)[:20]) == 0
    pseudo = bytes(packet)[12:20] + bytes((0, 6)) + len(segment).to_bytes(2, "big")
    assert tcp.checksum == ones_sum(pseudo) if needs_csum else internet_checksum(pseudo + segment) == 0
    assert header.hdr_len == (len(octets) if needs_csum else 0)
    assert server.from_wire([on_wire]) == [syn]
    assert (client.counts()["tx_offers"], server.counts()["rx_offers"]) == (1, 1)


def test_both_directions_compress_after_the_handshake() -> None:
    client, server = Nic(), Nic()
    connect(client, server, ISN)
    assert compresses(client)
    answer = make_segment(ZEROS, seq=6, to_client=True)
    assert server.from_host(answer) != [answer]


def test_a_peer_without_a_nic_gets_raw_segments() -> None:
    client = Nic()
    client.from_host(make_segment(flags="S", seq=ISN))
    answer = make_segment(flags="SA", seq=5, to_client=True)
    assert client.from_wire([answer]) == [answer]
    assert not compresses(client)
    assert client.counts()["bypass_peer"] == 1
    (flow,) = flows.as_dicts(client.tx_flows)
    assert (flow["peer_decodes"], flow["bypassed_segments"]) == (False, 1)


def test_an_answer_to_nothing_carries_nothing() -> None:
    server = Nic()
    syn = make_segment(flags="S", seq=ISN)
    assert server.from_wire([syn]) == [syn]
    answer = make_segment(flags="SA", seq=5, to_client=True)
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
    answer = make_segment(flags="SA", seq=5, to_client=True, options=[(253, word[2:])])
    (got,) = client.from_wire([answer])
    assert word not in got
    assert compresses(client) == compressed


def test_a_word_lost_on_the_way_means_raw() -> None:
    client, server = Nic(), Nic()
    connect(client, server, ISN)
    again = make_segment(flags="SA", seq=5, to_client=True)
    client.from_wire([again])
    assert not compresses(client)


def test_a_repeated_syn_changes_nothing() -> None:
    client, server = Nic(), Nic()
    connect(client, server, ISN)
    connect(client, server, ISN)
    assert compresses(client)
    answer = make_segment(ZEROS, seq=6, to_client=True)
    assert server.from_host(answer) != [answer]


@pytest.mark.parametrize(
    "syn",
    [
        make_segment(flags="S", seq=ISN, options=[("NOP", None)] * 36),
        make_segment(b"early data", flags="S", seq=ISN),
    ],
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


def test_retransmissions_without_progress_make_a_flow_raw() -> None:
    client, server = Nic(), Nic()
    connect(client, server, ISN)
    data = make_segment(ZEROS, seq=ISN + 1)
    sent = [client.from_host(data) for _ in range(5)]
    assert [frames == [data] for frames in sent] == [False, False, False, True, True]
    assert (client.counts()["tx_fallbacks"], client.counts()["bypass_fell_back"]) == (1, 2)
    more = make_segment(ZEROS, seq=ISN + 1 + len(ZEROS))
    assert client.from_host(more) == [more]
    assert flows.as_dicts(client.tx_flows)[0]["fell_back"]


def test_retransmissions_with_progress_do_not() -> None:
    client, server = Nic(), Nic()
    connect(client, server, ISN)
    for first in range(10):
        data = make_segment(ZEROS, seq=ISN + 1 + first * len(ZEROS))
        assert all(client.from_host(data) != [data] for _ in range(3))


def test_a_closed_flows_slot_is_taken_first() -> None:
    table = flows.make_flows()
    for ports in range(3 * flows.SLOTS):
        slot = flows.learn(table, flows.FlowKey(4, 0, 1, 0, 2, ports), 9, ports)
        if ports == flows.SLOTS // 2:
            closed = slot
            table[slot, flows.IS_CLOSED] = 1
        elif ports > flows.SLOTS // 2 and slot == closed:
            break
    assert ports < 2 * flows.SLOTS


@pytest.mark.parametrize("octet", [24 + 20 + 5, 24 + 20 + 15, -1])
def test_a_damaged_syn_reaches_the_host_with_its_wrong_checksum(octet: int) -> None:
    client, server = Nic(), Nic()
    (on_wire,) = client.from_host(make_segment(flags="S", seq=ISN, options=OPTIONS, needs_csum=False))
    damaged = bytearray(on_wire)
    damaged[octet] ^= 4
    assert server.from_wire([bytes(damaged)]) == [bytes(damaged)]
    assert "rx_offers" not in server.counts()
    assert server.tx_flows.sum() == 0
