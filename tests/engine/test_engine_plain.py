"""Plain segments of a rounded stream: whole floats, the codec's values, and the acknowledgements to the host."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from netoffload.wire.capability import emit_capability
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.vnet import NEEDS_CSUM, VNET_LEN
from tests.engine.frames import make_segment, tcp_of
from tests.engine.linux_tcp import split
from tests.engine.nic_pair import FAMILIES, FIRST, FIRST_NONCE, ISN, Nic, connect
from tests.engine.stream_ends import ROUNDED, SENT, Ends, check_sum
from tests.shared.example_counts import examples
from tests.shared.formats import parse_block, parse_ipv4


@FAMILIES
def test_a_segment_that_ends_inside_a_float_goes_out_up_to_it(ipv6: bool) -> None:
    ends = Ends(ipv6)
    assert ends.send(0, 1002) == [(0, ROUNDED[:1000])]
    assert ends.send(1002, 2003) == [(1000, ROUNDED[1000:2000])]
    assert ends.send(2003, 2800) == [(2000, ROUNDED[2000:2800])]
    assert ends.sender.counts()["tx_segments"] == 3


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_part_of_a_float_is_held_until_the_rest_comes(cut: int) -> None:
    ends = Ends()
    ends.send(0, 1000)
    assert ends.send(1000, 1000 + cut, flags="PA") == [(1000, b"")]  # its acknowledgement comes through
    assert ends.sender.counts()["tx_held"] == 1
    assert ends.send(1000 + cut, 1004) == [(1000, ROUNDED[1000:1004])]


def test_what_is_sent_again_from_the_middle_of_a_float_is_whole_or_left_out() -> None:
    ends = Ends()
    ends.send(0, 2000)
    assert ends.send(1001, 1400) == [(1004, ROUNDED[1004:1400])]
    assert ends.send(1002, 1401) == [(1004, ROUNDED[1004:1400])]
    assert ends.send(1401, 1600) == [(1400, ROUNDED[1400:1600])]


@pytest.mark.parametrize("end", [2001, 2002, 2003])
def test_the_last_float_is_completed_where_all_of_it_is_known(end: int) -> None:
    ends = Ends()
    ends.send(0, 2002)
    ends.send(2002, 2400)
    assert ends.send(1500, end) == [(1500, ROUNDED[1500:2004])]
    assert ends.send(1100, 1502) == [(1100, ROUNDED[1100:1500])]  # of this one nothing is known any more


@FAMILIES
@pytest.mark.parametrize("needs_csum", [True, False])
def test_a_congestion_mark_that_no_block_has_makes_a_plain_segment_with_the_codecs_values(
    ipv6: bool, needs_csum: bool
) -> None:
    ends = Ends(ipv6)
    ends.send(0, 1000)
    assert ends.send(1000, 2000, "CA", needs_csum) == [(1000, ROUNDED[1000:2000])]
    assert ends.sender.counts()["bypass_special"] == 1


@FAMILIES
def test_urgent_data_ends_the_rounding_of_what_was_never_sent(ipv6: bool) -> None:
    ends = Ends(ipv6)
    ends.send(0, 1000)
    assert ends.send(600, 1501, "UA") == [(600, ROUNDED[600:1000] + SENT[1000:1501])]  # no octet is held
    assert ends.send(1501, 1902) == [(1501, SENT[1501:1902])]
    assert ends.send(400, 1200) == [(400, ROUNDED[400:1000] + SENT[1000:1200])]
    assert ends.sender.counts()["bypass_special"] == 1


TEXT = (b"The quick brown fox jumps over the lazy dog. " * 40)[:1400]


@FAMILIES
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_text_that_was_lost_on_the_way_to_the_nic_leaves_exact_when_it_comes(ipv6: bool, cut: int) -> None:
    ends, lost = Ends(ipv6), 1000 + cut
    ends.send(0, lost)
    assert ends.send(2400, 3000) == [(2400, ROUNDED[2400:3000])]  # floats, like what came before
    text = make_segment(TEXT[: 2400 - lost], seq=FIRST + lost, ipv6=ipv6)
    (got,) = ends.receiver.from_wire(ends.sender.from_host(text))
    assert tcp_of(got)[1] == SENT[1000:lost] + TEXT[: 2400 - lost]
    assert ends.sender.counts()["tx_rejudged"] == 1
    assert ends.send(3000, 3400) == [(3000, SENT[3000:3400])]
    assert ends.send(400, 1000) == [(400, ROUNDED[400:1000])]


def test_lost_text_leaves_exact_also_where_rounding_has_ended_behind_it() -> None:
    ends = Ends()
    ends.send(0, 1000)
    for at in (1700, 1000, 1350):  # the second and the third one were lost, and are sent again
        text = make_segment(TEXT[at - 1000 : at - 650], seq=FIRST + at)
        (got,) = ends.receiver.from_wire(ends.sender.from_host(text))
        assert tcp_of(got)[1] == TEXT[at - 1000 : at - 650]
    assert ends.send(600, 1000) == [(600, ROUNDED[600:1000])]


def test_text_behind_floats_that_are_sent_again_leaves_exact() -> None:
    ends = Ends()
    ends.send(0, 1000)
    again = make_segment(SENT[:1000] + TEXT[:400], seq=FIRST)
    (got,) = ends.receiver.from_wire(ends.sender.from_host(again))
    assert tcp_of(got)[1] == ROUNDED[:1000] + TEXT[:400]
    assert ends.sender.counts()["tx_rejudged"] == 1


def test_floats_that_were_lost_on_the_way_to_the_nic_leave_rounded_when_they_come() -> None:
    ends = Ends()
    ends.send(0, 1000)
    ends.send(2400, 3000)
    assert ends.send(1000, 1800) == [(1000, ROUNDED[1000:1800])]
    ends.acknowledge(3000)
    ends.send(3000, 4000)
    ends.send(4400, 4800)
    # Only 4000 to 4400 is lost now: what is sent again before it was looked at when it was new.
    again = make_segment(TEXT[:400], seq=FIRST + 3000)
    (got,) = ends.receiver.from_wire(ends.sender.from_host(again))
    assert tcp_of(got)[1] != TEXT[:400]


@pytest.mark.parametrize("floats", [256, 300])
def test_a_segment_that_begins_with_floats_and_goes_on_with_text_leaves_exact(floats: int) -> None:
    client, server = Nic(), Nic()
    connect(client, server, judged=False)
    payload = SENT[: 4 * floats] + TEXT
    (got,) = server.from_wire(client.from_host(make_segment(payload, seq=FIRST)))
    assert tcp_of(got)[1] == payload
    assert client.counts()["tx_rejudged"] == 1
    after = make_segment(TEXT, seq=FIRST + len(payload))
    assert server.from_wire(client.from_host(after)) == [after]


def test_the_urgent_pointer_still_says_the_same_octet() -> None:
    ends = Ends()
    ends.send(0, 1002)
    frame = bytearray(make_segment(SENT[1002:2000], seq=FIRST + 1002, flags="UA"))
    frame[10 + 14 + 20 + 18 : 10 + 14 + 20 + 20] = (10).to_bytes(2, "big")
    (got,) = ends.sender.from_host(bytes(frame))
    header, payload = tcp_of(got)
    assert (header.seq, payload, header.urgent) == (FIRST + 1000, SENT[1000:2000], 12)


def test_one_frame_per_mss_has_whole_floats() -> None:
    ends = Ends(per_segment=True)
    frames = ends.sender.from_host(make_segment(SENT[: 2 * 1448], seq=FIRST, gso_size=1447))
    lengths = []
    for frame in frames:
        ip, octets = parse_ipv4(frame[24:])
        lengths.append(parse_block(octets, ip.src, ip.dst, FIRST_NONCE).payload_len)
    assert lengths == [1444, 1444, 8]


@pytest.mark.parametrize("needs_csum", [True, False])
@FAMILIES
def test_an_acknowledgement_inside_a_float_is_moved_to_its_edge(needs_csum: bool, ipv6: bool) -> None:
    ends = Ends(ipv6)
    ends.send(0, 2000)
    assert [ends.acknowledge(octets, needs_csum) for octets in (1002, 1004, 1005)] == [1000, 1004, 1004]
    assert ends.sender.counts()["rx_acks_moved"] == 2
    assert ends.acknowledge(2000, needs_csum) == 2000
    assert ends.acknowledge(1999, needs_csum) == 1999  # an old one is none of ours
    assert ends.sender.counts()["rx_acks_moved"] == 2


def test_the_acknowledgement_in_a_block_is_moved_too() -> None:
    ends = Ends()
    ends.send(0, 2000)
    data = make_segment(SENT[:1000], seq=6, ack=FIRST + 1002, to_client=True)
    frames = ends.receiver.from_host(data)
    assert frames != [data]
    (got,) = ends.sender.from_wire(frames)
    header, payload = tcp_of(got)
    assert (header.ack - FIRST, payload) == (1000, ROUNDED[:1000])
    assert ends.sender.counts()["rx_acks_moved"] == 1


def test_an_acknowledgement_with_a_wrong_checksum_changes_nothing() -> None:
    ends = Ends()
    ends.send(0, 2000)
    ack = bytearray(make_segment(seq=6, ack=FIRST + 1002, to_client=True, needs_csum=False))
    ack[-1] ^= 1
    before = ends.sender.table.copy()
    assert ends.sender.from_wire([bytes(ack)]) == [bytes(ack)]
    assert np.array_equal(ends.sender.table, before)


@FAMILIES
@pytest.mark.parametrize("end", [1400, 1401])
def test_a_plain_segment_that_is_too_long_for_the_wire_is_cut_on_the_way_out(ipv6: bool, end: int) -> None:
    ends = Ends(ipv6, mtu=400)
    ends.send(0, 1002, "PA")
    ends.acknowledge(1000)
    ends.wait(300)
    frame = make_segment(SENT[1002:end], seq=FIRST + 1002, ipv6=ipv6, gso_size=0)
    (got,) = ends.sender.from_host(frame)
    pieces = split(got)
    assert len(pieces) == 2
    assert all(len(piece) - VNET_LEN - ETHERNET_LEN <= 400 for piece in pieces)
    assert b"".join(tcp_of(piece)[1] for piece in pieces) == SENT[1000:end]


def connected(own_shift: int | None, peer_shift: int | None, has_word: bool = True) -> Nic:
    """Return the NIC of a host that has offered a window scale."""
    nic = Nic()
    nic.from_host(make_segment(flags="S", seq=ISN, options=[] if own_shift is None else [("WScale", own_shift)]))
    options: list[tuple[str | int, object]] = [] if peer_shift is None else [("WScale", peer_shift)]
    options += [(253, emit_capability()[2:])] if has_word else []
    nic.from_wire([make_segment(flags="SA", seq=5, ack=FIRST, to_client=True, options=options)])
    return nic


@settings(max_examples=examples(200))
@given(
    window=st.integers(0, 65535),
    ack=st.integers(0, 9),
    shifts=st.sampled_from([(0, 7), (1, 7), (None, 7), (7, None), (1, 0)]),
    needs_csum=st.booleans(),
)
def test_a_window_ends_between_floats(
    window: int, ack: int, shifts: tuple[int | None, int | None], needs_csum: bool
) -> None:
    nic = connected(*shifts)
    sent = make_segment(seq=FIRST, ack=6 + ack, window=window, needs_csum=needs_csum)
    (got,) = nic.from_host(sent)
    shift = 0 if None in shifts else shifts[0] or 0
    rounded = tcp_of(got)[0].window
    assert 0 <= window - rounded <= 3 >> shift
    assert (ack + (rounded << shift)) & 3 < 1 << shift or rounded == 0
    if needs_csum:
        assert got[60:62] == sent[60:62]  # the sum of the pseudo-header
        assert got[0] == NEEDS_CSUM
    else:
        check_sum(got, False)


@pytest.mark.parametrize(
    ("shifts", "has_word"), [((2, 7), True), ((7, 7), True), ((0, 7), False)], ids=["4", "128", "no NIC there"]
)
def test_other_windows_are_left_alone(shifts: tuple[int, int], has_word: bool) -> None:
    nic = connected(*shifts, has_word)
    frame = make_segment(seq=FIRST, window=1001, needs_csum=False)
    assert nic.from_host(frame) == [frame]


def test_a_rebuilt_segment_is_one_that_scapy_reads() -> None:
    ends = Ends()
    ends.send(0, 1002)
    (frame,) = ends.sender.from_host(make_segment(SENT[1002:2001], seq=FIRST + 1002, flags="CA", needs_csum=False))
    header, payload = tcp_of(frame)
    assert (header.seq - FIRST, payload) == (1000, ROUNDED[1000:2000])
    packet = Ether(frame[10:])
    assert packet[IP].len == len(packet[IP]) == 20 + 32 + 1000
    assert internet_checksum(bytes(packet[IP])[:20]) == 0
    assert frame[0] == NEEDS_CSUM
