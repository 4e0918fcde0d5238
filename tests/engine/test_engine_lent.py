"""Octets of cut floats that the NIC holds, lends and, if the host does not send more, sends by itself."""

import itertools
from itertools import pairwise

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from netoffload.engine import flows
from netoffload.engine import nic as engine
from netoffload.engine.flows import HELD, HELD_FLOATS, SLOTS
from netoffload.engine.segment import advance, is_before
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.vnet import VNET_LEN
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FAMILIES, FIRST, Nic
from tests.engine.stream_ends import LONG_MS, ROUNDED, SENT, Ends


@pytest.mark.parametrize("flags", ["A", "PA"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_held_octets_are_lent_once_all_before_them_has_arrived(cut: int, flags: str) -> None:
    ends = Ends()
    ends.send(0, 1000 + cut, flags)
    assert ends.acknowledge(500) == 500
    assert ends.acknowledge(1000) == 1000 + cut
    assert ends.acknowledge(1000) == 1000 + cut
    assert ends.send(1000 + cut, 1400) == [(1000, ROUNDED[1000:1400])]
    assert ends.send(1000 + cut, 1400) == [(1000, ROUNDED[1000:1400])]  # again, from where the host thinks it is
    assert ends.acknowledge(1000) == 1000 + cut
    assert ends.acknowledge(1400) == 1400
    assert ends.wait(10_000) == []


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_host_whose_window_is_an_octet_gets_on(cut: int) -> None:
    ends = Ends()
    ends.send(0, 1000)
    at = received = 1000
    for _ in range(40):
        for start, payload in ends.send(at, min(at + cut, 1016)):
            end = start + len(payload)
            assert payload in (ROUNDED[start:end], SENT[start:end])  # exact where it would get no further
            received = max(received, end) if start <= received else received
        at = ends.acknowledge(received)
        if at == 1016:
            break
    assert at == 1016


def test_more_is_lent_when_more_is_held() -> None:
    ends = Ends()
    ends.send(0, 1000)
    ends.send(1000, 1002, "PA")
    assert ends.acknowledge(1000) == 1002
    assert ends.send(1002, 1003, "PA") == [(999, b"\0")]  # an octet before what is acknowledged is answered
    assert ends.wait(1000) == []  # the host has not heard of the third octet, and sends it again
    assert ends.send(1002, 1003, "PA") == [(999, b"\0")]
    assert ends.acknowledge(1000) == 1003
    assert ends.wait(300) == [(1000, SENT[1000:1003])]
    assert ends.acknowledge(1003) == 1003


def test_what_is_sent_again_does_not_displace_what_the_next_segment_completes() -> None:
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2002)
    assert ends.send(500, 1002) == [(500, ROUNDED[500:1004])]
    assert ends.send(2002, 2400) == [(2000, ROUNDED[2000:2400])]
    assert ends.send(1002, 1402) == [(1000, ROUNDED[1000:1400])]  # of what is sent again the newest is known too


def test_the_first_float_that_the_peer_lacks_is_kept_while_others_are_sent() -> None:
    """The host sends the beginning of a float, later segments, and the rest of the float when it learns of a loss."""
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2002)
    ends.send(2002, 2402)
    assert ends.acknowledge(1000) == 1002, "the host need not send two octets again"
    assert ends.send(1000, 1002) == [(1000, ROUNDED[1000:1004])]
    ends.send(1502, 2002)
    ends.send(2402, 3003)
    assert ends.acknowledge(1000) == 1002
    assert ends.wait(1000) == []  # what follows was sent, so the rest is not far
    assert ends.send(1002, 1402) == [(1000, ROUNDED[1000:1400])]


def test_what_was_held_is_forgotten_once_it_has_arrived() -> None:
    """In 4 GiB another float has the same sequence number."""
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2000)
    (held,) = np.flatnonzero(ends.sender.table[:SLOTS, HELD + 2])
    ends.acknowledge(2000)
    assert ends.sender.table[held, HELD + 2] == 0


@FAMILIES
def test_the_end_of_what_was_written_leaves_exact_by_itself(ipv6: bool) -> None:
    ends = Ends(ipv6)
    ends.send(0, 1002, "PA")
    assert ends.acknowledge(1000) == 1002
    assert ends.wait(300) == [(1000, SENT[1000:1002])]
    assert ends.sender.counts()["tx_lent"] == 1
    assert ends.acknowledge(1002) == 1002
    assert ends.wait(LONG_MS) == []
    (row,) = ends.sender.flows()
    assert row["form"] == "exact"
    # What comes next is rounded again from the next float on.
    assert ends.send(1002, 1400) == [(1002, SENT[1002:1004] + ROUNDED[1004:1400])]
    assert ends.send(1400, 1800) == [(1400, ROUNDED[1400:1800])]
    assert ends.sender.counts()["tx_segments"] == 2


def test_lent_octets_are_sent_until_they_arrive() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    sent_ms = [ms for ms in range(0, 2000, 50) if ends.wait(50)]
    assert [after - before for before, after in pairwise(sent_ms)] == [200, 400, 800]
    ends.send(1002, 1400)  # what follows brings them along, and TCP sends it again
    assert ends.wait(LONG_MS) == []
    assert ends.send(1002, 1400) == [(1000, SENT[1000:1400])]


def test_the_nics_own_segment_has_the_headers_of_the_hosts_latest_one() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    frame = make_segment(seq=FIRST + 1002, ack=77, window=3000, options=[("Timestamp", (7, 8))])
    (crossed,) = ends.sender.from_host(frame)
    ends.sender.now_ns += 1_000_000_000
    ends.sender.from_clock()
    ends.sender.now_ns += 1_000_000_000
    (sent,) = ends.sender.from_clock()
    packet, host = Ether(sent[VNET_LEN:]), Ether(crossed[VNET_LEN:])
    for layer, fields in ((Ether, ("src", "dst")), (IP, ("src", "dst", "tos")), (TCP, ("ack", "window", "options"))):
        assert [getattr(packet[layer], name) for name in fields] == [getattr(host[layer], name) for name in fields]
    assert (packet[TCP].seq, packet[TCP].flags, bytes(packet[TCP].payload)) == (FIRST + 1000, "PA", SENT[1000:1002])
    assert internet_checksum(bytes(packet[IP])[:20]) == 0


def test_a_host_that_has_not_heard_of_it_has_time_to_send_again() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    ends.wait(100)
    ends.send(996, 1002, "PA")
    assert ends.wait(1900) == []
    assert ends.wait(150) == [(1000, SENT[1000:1002])]  # the two may have met on the way, and nobody else sends them


def test_a_connection_that_is_reset_sends_nothing_any_more() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    ends.send(1002, 1002, "RA")
    assert ends.wait(10_000) == []


def test_the_window_ends_where_the_peer_has_it() -> None:
    """Linux drops what ends behind its window, however often it is sent."""
    ends = Ends()
    ends.send(0, 1003)
    for octets, told, window in ((1000, 1003, 597), (1000, 1003, 597), (996, 996, 600)):
        ack = make_segment(seq=6, ack=FIRST + octets, to_client=True, window=600)
        (got,) = ends.sender.from_wire(ends.receiver.from_host(ack))
        assert (tcp_of(got)[0].ack - FIRST, tcp_of(got)[0].window) == (told, window)


@pytest.mark.parametrize("has_more", [False, True])
def test_a_host_without_window_has_time_to_ask_for_some(has_more: bool) -> None:
    """Who asks has more to send: the octets are held for as long as it takes, and stay rounded."""
    ends = Ends()
    ends.send(0, 1000)
    ends.acknowledge(400, window=602)
    assert ends.send(1000, 1002) == [(1000, b"")]
    assert ends.acknowledge(1000, window=2) == 1002
    assert ends.wait(1900) == []
    if has_more:
        ends.send(1001, 1001)
        assert ends.wait(LONG_MS) == []
        ends.acknowledge(1000, window=8192)
        assert ends.send(1002, 1400) == [(1000, ROUNDED[1000:1400])]
    else:
        assert ends.wait(300) == [(1000, SENT[1000:1002])]


def test_a_host_that_asks_whether_its_peer_lives_has_no_more_to_send() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    ends.send(1001, 1001)
    assert ends.wait(300) == [(1000, SENT[1000:1002])]


def test_a_nic_that_stops_sends_at_once_what_it_lent() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    assert ends.wait(50) == []
    engine.release_lent(ends.sender.state)
    frames = ends.receiver.from_wire(ends.sender.from_clock())
    assert [tcp_of(frame)[1] for frame in frames] == [SENT[1000:1002]]


def test_a_nic_that_is_started_again_sends_what_another_one_lent() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    before, ends.sender = ends.sender, Nic()
    ends.sender.table[:] = before.table
    assert ends.wait(300) == [(1000, SENT[1000:1002])]


@pytest.mark.parametrize("sends_again", [False, True])
def test_a_fin_brings_what_is_held(sends_again: bool) -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    start = 1001 if sends_again else 1002
    frame = make_segment(SENT[start:1002], seq=FIRST + start, flags="FA")
    assert ends.acknowledge(1000) == 1002
    (got,) = ends.receiver.from_wire(ends.sender.from_host(frame))
    header, payload = tcp_of(got)
    assert (header.seq - FIRST, payload, header.flags & 1) == (1000, SENT[1000:1002], 1)


def test_after_a_loss_the_host_repeats_its_own_segments_and_no_pieces_of_them() -> None:
    """Every segment ends inside a float. Whatever the peer has, the host hears where one of its segments ends."""
    ends = Ends()
    cuts = [0, 1002, 1502, 2003, 2401, 2802, 3301]
    for first, last in itertools.pairwise(cuts):
        ends.send(first, last)
    for cut in cuts[1:-1]:
        assert ends.acknowledge(cut & ~3) == cut
        ((at, payload),) = ends.send(cut, cut + 397)
        assert at == cut & ~3
        assert payload == ROUNDED[at : at + len(payload)]
        assert len(payload) >= 396


def test_more_cut_floats_than_there_is_room_for_leave_the_oldest_and_the_last() -> None:
    ends = Ends()
    count = 3 * HELD_FLOATS
    for number in range(count):
        ends.send(402 * number, 402 * (number + 1))
    assert ends.acknowledge(400) == 402
    last = 402 * count
    assert ends.send(last, last + 402) == [(last & ~3, ROUNDED[last & ~3 : last + 402 & ~3])]


def test_a_stream_without_repetitions_keeps_the_peers_echoes_after_two_gigabytes() -> None:
    ends = Ends()
    ends.send(0, 1000)
    (slot,) = np.flatnonzero(ends.sender.table[:SLOTS, flows.IP_VERSION])
    row = ends.sender.table[slot]
    for _ in range(5):
        assert not is_before(int(row[flows.UNA]), int(row[flows.REPEATED_END]))
        ack = row[flows.NEXT_SEQ] = advance(int(row[flows.NEXT_SEQ]), 2**30)
        ends.sender.from_wire([make_segment(seq=6, ack=ack, to_client=True)])
        assert row[flows.UNA] == ack
