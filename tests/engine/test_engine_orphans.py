"""Connections whose handshake the NIC did not see, after a NIC ended with octets that only its table had."""

import pytest

from netoffload.engine import orphans
from netoffload.engine.flows import ORPHAN, SLOTS, STATE
from netoffload.wire import tcp
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import Nic

SEQ = 70_001
SECOND_NS = 1_000_000_000


def send(nic: Nic, at: int = 0, payload: bytes = b"12345678", tos: int = 0x28, flags: str = "A") -> list[bytes]:
    return nic.from_host(make_segment(payload, seq=SEQ + at, tos=tos, flags=flags))


def hear(nic: Nic, ack: int) -> list[bytes]:
    frame = make_segment(seq=6, ack=SEQ + ack, to_client=True)
    assert nic.from_wire([frame]) == [frame]
    return [frame]


@pytest.mark.parametrize("gap", [1, 2, 3])
@pytest.mark.parametrize(("payload", "flags"), [(b"12345678", "A"), (b"", "FA")])
def test_a_connection_whose_lent_octets_are_gone_is_reset(gap: int, payload: bytes, flags: str) -> None:
    nic = Nic()
    for attempt in range(orphans.RETRIES_MAX + 1):
        nic.now_ns += SECOND_NS
        sent = make_segment(payload, seq=SEQ, flags=flags)
        assert nic.from_host(sent) == [sent], f"attempt {attempt} crosses unchanged"
        hear(nic, -gap)
    nic.now_ns += SECOND_NS
    (reset,) = send(nic, payload=payload, flags=flags)
    header, octets = tcp_of(reset)
    assert (header.seq, header.flags, octets) == (SEQ - gap, tcp.RST | tcp.ACK_FLAG, b"")
    assert (header.sport, header.dport, header.ack) == (40_000, 5001, 6)
    assert nic.counts()["tx_resets"] == 1
    reason = "bypass_unknown_flow" if payload else "bypass_no_payload"
    assert nic.counts()[reason] == orphans.RETRIES_MAX + 2


@pytest.mark.parametrize("ack", [-5, -4, 0, 4, 8])
def test_other_acknowledgements_are_no_sign_of_lent_octets(ack: int) -> None:
    nic = Nic()
    for _ in range(4 * orphans.RETRIES_MAX):
        nic.now_ns += SECOND_NS
        send(nic)
        hear(nic, ack)
    assert "tx_resets" not in nic.counts()


def test_a_host_that_repeats_what_the_peer_lacks_is_not_stuck() -> None:
    nic = Nic()
    for attempt in range(4 * orphans.RETRIES_MAX):
        nic.now_ns += SECOND_NS
        send(nic)
        hear(nic, -2)
        if attempt % orphans.RETRIES_MAX == 1:
            send(nic, -2)
    assert "tx_resets" not in nic.counts()


def test_copies_right_behind_each_other_count_once() -> None:
    nic = Nic()
    for _ in range(100):
        nic.now_ns += 1000
        send(nic)
        hear(nic, -2)
    assert "tx_resets" not in nic.counts()


def test_progress_makes_an_old_gap_forgotten() -> None:
    nic = Nic()
    for attempt in range(4 * orphans.RETRIES_MAX):
        nic.now_ns += SECOND_NS
        send(nic, 8 * attempt)
        hear(nic, 8 * attempt - 2)
        hear(nic, 8 * attempt + 8)
    assert "tx_resets" not in nic.counts()


def test_orphans_take_no_blocks_and_untagged_ones_take_no_slot() -> None:
    nic = Nic()
    send(nic, tos=0)
    assert not (nic.table[:SLOTS, STATE] == ORPHAN).any()
    send(nic)
    assert (nic.table[:SLOTS, STATE] == ORPHAN).sum() == 1
    send(nic, flags="R", payload=b"")
    assert not (nic.table[:SLOTS, STATE] == ORPHAN).any()
