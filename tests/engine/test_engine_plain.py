"""Plain segments of a rounded stream: whole floats, the codec's values, and what the host is told meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from frames import make_segment
from hypothesis import given, settings
from hypothesis import strategies as st
from linux_tcp import split, tcp_of
from nic_pair import FIRST_NONCE, Nic, connect
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from netoffload.codec import get
from netoffload.engine.flows import HELD, HELD_FIELDS, SLOTS
from netoffload.wire.capability import emit_capability
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.ipv4 import parse_ipv4
from netoffload.wire.offload import parse_block
from netoffload.wire.vnet import NEEDS_CSUM, VNET_LEN

ISN = 1000
FIRST = ISN + 1
VALUES = np.random.default_rng(22).normal(0, 2e-3, 4000).astype(np.float32)
SENT = VALUES.tobytes()
ROUNDED = get("inceptionn").round_trip(VALUES, 10).tobytes()
assert (VALUES.view(np.uint32) != np.frombuffer(ROUNDED, np.uint32)).all()


class Ends:
    """Two NICs and what their hosts see."""

    def __init__(self, ipv6: bool = False, **settings: bool | int) -> None:
        self.sender, self.receiver = Nic(**settings), Nic()  # type: ignore[arg-type]
        connect(self.sender, self.receiver, ISN, ipv6=ipv6)
        self.ipv6 = ipv6

    def send(self, start: int, end: int, flags: str = "A", needs_csum: bool = True) -> list[tuple[int, bytes]]:
        """Send a part of the stream; return where the segments begin that the other host gets, and their payloads."""
        frame = make_segment(
            SENT[start:end],
            seq=FIRST + start,
            flags=flags,
            ipv6=self.ipv6,
            needs_csum=needs_csum,
            gso_size=None if needs_csum else 0,
        )
        got = [tcp_of(frame) for frame in self.receiver.from_wire(self.sender.from_host(frame))]
        return [(header.seq - FIRST, payload) for header, payload in got]

    def acknowledge(self, octets: int, needs_csum: bool = True, window: int = 8192) -> int:
        """Let the other host acknowledge; return what the sending host is told."""
        ack = make_segment(
            seq=6, ack=FIRST + octets, to_client=True, ipv6=self.ipv6, needs_csum=needs_csum, window=window
        )
        (got,) = self.sender.from_wire(self.receiver.from_host(ack))
        if not needs_csum:
            check_sum(got, self.ipv6)
        return tcp_of(got)[0].ack - FIRST


def check_sum(frame: bytes, ipv6: bool) -> None:
    """The TCP checksum of a frame is right."""
    segment = frame[10 + 14 + (40 if ipv6 else 20) :]
    addresses = frame[32:64] if ipv6 else frame[36:44]
    assert internet_checksum(addresses + bytes((0, 6)) + len(segment).to_bytes(2, "big") + segment) == 0


FAMILIES = pytest.mark.parametrize("ipv6", [False, True])


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


def test_octets_one_by_one_are_whole_floats_on_the_wire() -> None:
    ends = Ends()
    ends.send(0, 1000)
    got = [one for at in range(1000, 1012) for one in ends.send(at, at + 1) if one[1]]
    assert got == [(at, ROUNDED[at : at + 4]) for at in (1000, 1004, 1008)]


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
@pytest.mark.parametrize("flags", ["CA", "UA"])
def test_a_flag_that_no_block_has_makes_a_plain_segment_with_the_codecs_values(
    ipv6: bool, needs_csum: bool, flags: str
) -> None:
    ends = Ends(ipv6)
    ends.send(0, 1000)
    assert ends.send(1000, 2000, flags, needs_csum) == [(1000, ROUNDED[1000:2000])]
    assert ends.sender.counts()["bypass_special"] == 1


def test_the_urgent_pointer_still_says_the_same_octet() -> None:
    ends = Ends()
    ends.send(0, 1002)
    frame = bytearray(make_segment(SENT[1002:2000], seq=FIRST + 1002, flags="UA"))
    frame[10 + 14 + 20 + 18 : 10 + 14 + 20 + 20] = (10).to_bytes(2, "big")
    (got,) = ends.sender.from_host(bytes(frame))
    header, payload = tcp_of(got)
    assert (header.seq, payload, header.urgent) == (FIRST + 1000, ROUNDED[1000:2000], 12)


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


@pytest.mark.parametrize(("cut", "flags", "lent"), [(1, "A", 1), (2, "A", 2), (3, "A", 3), (1, "PA", 0), (3, "PA", 2)])
def test_held_octets_are_lent_once_all_before_them_has_arrived(cut: int, flags: str, lent: int) -> None:
    """At the end of a write one octet stays with the host, which sends it again."""
    ends = Ends()
    ends.send(0, 1000 + cut, flags)
    assert ends.acknowledge(500) == 500
    assert ends.acknowledge(1000) == 1000 + lent
    assert ends.acknowledge(1000) == 1000 + lent
    assert ends.send(1000 + lent, 1400) == [(1000, ROUNDED[1000:1400])]
    assert ends.send(1000 + lent, 1400) == [(1000, ROUNDED[1000:1400])]  # again, from where the host thinks it is
    assert ends.acknowledge(1000) == 1000 + max(lent, 1)  # it was not the end of what the host has to send
    assert ends.acknowledge(1400) == 1400


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
    """TCP sends again what is first in line, and that may end where a write ended, in the middle of what is held."""
    ends = Ends()
    ends.send(0, 1000)
    ends.send(1000, 1002, "PA")
    assert ends.acknowledge(1000) == 1001
    ends.send(1002, 1003, "PA")
    assert ends.send(1001, 1002, "PA") == [(999, b"\0")]  # an octet before what is acknowledged is answered
    assert ends.acknowledge(1000) == 1002
    assert ends.send(1002, 1003, "PA") == [(1000, SENT[1000:1003])]
    assert ends.acknowledge(1003) == 1003


def test_what_is_sent_again_does_not_displace_what_the_next_segment_completes() -> None:
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2002)
    assert ends.send(500, 1002) == [(500, ROUNDED[500:1000])]
    assert ends.send(2002, 2400) == [(2000, ROUNDED[2000:2400])]
    assert ends.send(1002, 1402) == [(1000, ROUNDED[1000:1400])]  # of what is sent again the newest is known too


def test_the_first_float_that_the_peer_lacks_is_kept_while_others_are_sent() -> None:
    """The host sends the beginning of a float, later segments, and the rest of the float when it learns of a loss."""
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2002)
    ends.send(2002, 2402)
    ends.acknowledge(1000)
    assert ends.send(1000, 1002) == [(999, b"\0")]
    ends.send(1502, 2002)
    ends.send(2402, 3003)
    assert ends.acknowledge(1000) == 1002
    assert ends.send(1002, 1402) == [(1000, ROUNDED[1000:1400])]


def test_what_was_held_is_forgotten_once_it_has_arrived() -> None:
    """In 4 GiB another float has the same sequence number."""
    ends = Ends()
    ends.send(0, 1002)
    ends.send(1002, 2000)
    (held,) = np.flatnonzero(ends.sender.table[:SLOTS, HELD + HELD_FIELDS - 1])
    ends.acknowledge(2000)
    assert ends.sender.table[held, HELD + HELD_FIELDS - 1] == 0


def test_the_end_of_what_was_written_leaves_exact_when_it_is_sent_again() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    assert ends.acknowledge(1000) == 1001
    assert ends.send(1001, 1002, "PA") == [(1000, SENT[1000:1002])]
    assert ends.acknowledge(1002) == 1002
    (row,) = ends.sender.flows()
    assert row["form"] == "exact"
    # What comes next is rounded again from the next float on.
    assert ends.send(1002, 1400) == [(1002, SENT[1002:1004] + ROUNDED[1004:1400])]
    assert ends.send(1400, 1800) == [(1400, ROUNDED[1400:1800])]
    assert ends.sender.counts()["tx_segments"] == 2


def test_a_short_segment_ends_a_write_without_push_too() -> None:
    ends = Ends()
    ends.send(0, 1002)
    for _ in range(5):  # a full one does not: the rest is about to come
        assert ends.send(996, 1002) == [(996, ROUNDED[996:1000])]
    ends.send(1002, 1402)
    assert ends.send(1002, 1402) == [(1004, ROUNDED[1004:1400] + SENT[1400:1402])]


def test_a_segment_that_fills_the_window_does_not_end_a_write() -> None:
    """TCP cuts it there; the octets are held for as long as it takes, and stay rounded."""
    ends = Ends()
    ends.send(0, 1000)
    ends.acknowledge(400, window=602)
    assert ends.send(1000, 1002) == [(1000, b"")]
    assert ends.acknowledge(1000, window=2) == 1002
    ends.send(1001, 1002)
    assert ends.send(1002, 1400) == [(1000, ROUNDED[1000:1400])]


def test_a_new_interval_waits_for_the_end_of_the_old_one() -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    ends.send(1000, 1002, "PA")
    assert ends.send(1002, 1400) == [(1002, SENT[1002:1400])]
    assert ends.send(900, 1400) == [(900, ROUNDED[900:1000] + SENT[1000:1400])]
    assert ends.acknowledge(1400) == 1400
    assert ends.send(1400, 1800) == [(1400, ROUNDED[1400:1800])]


@FAMILIES
@pytest.mark.parametrize("start", [900, 901])
def test_a_plain_segment_that_is_too_long_for_the_wire_is_cut_on_the_way_out(ipv6: bool, start: int) -> None:
    ends = Ends(ipv6, mtu=400)
    ends.send(0, 1002, "PA")
    ends.send(1000, 1002, "PA")
    frame = make_segment(SENT[start:1400], seq=FIRST + start, ipv6=ipv6, gso_size=0)
    (got,) = ends.sender.from_host(frame)
    pieces = split(got)
    assert len(pieces) == 2
    assert all(len(piece) - VNET_LEN - ETHERNET_LEN <= 400 for piece in pieces)
    first = (start + 3) // 4 * 4
    assert b"".join(tcp_of(piece)[1] for piece in pieces) == ROUNDED[first:1000] + SENT[1000:1400]


@pytest.mark.parametrize("sends_again", [False, True])
def test_a_fin_brings_what_is_held(sends_again: bool) -> None:
    ends = Ends()
    ends.send(0, 1002, "PA")
    start = 1001 if sends_again else 1002
    frame = make_segment(SENT[start:1002], seq=FIRST + start, flags="FA")
    if sends_again:
        assert ends.acknowledge(1000) == 1001
    (got,) = ends.receiver.from_wire(ends.sender.from_host(frame))
    header, payload = tcp_of(got)
    assert (header.seq - FIRST, payload, header.flags & 1) == (1000, SENT[1000:1002], 1)


def with_window(window: int, ack: int, needs_csum: bool, flags: str = "A") -> bytes:
    frame = make_segment(seq=FIRST, ack=ack, flags=flags, needs_csum=needs_csum)
    packet = Ether(frame[10:])
    packet[TCP].window = window
    if not needs_csum:
        del packet[TCP].chksum
    return frame[:10] + bytes(packet)


def connected(own_shift: int | None, peer_shift: int | None, has_word: bool = True) -> Nic:
    """Return the NIC of a host that has offered a window scale."""
    nic = Nic()
    nic.from_host(make_segment(flags="S", seq=ISN, options=[] if own_shift is None else [("WScale", own_shift)]))
    options: list[tuple[str | int, object]] = [] if peer_shift is None else [("WScale", peer_shift)]
    options += [(253, emit_capability()[2:])] if has_word else []
    nic.from_wire([make_segment(flags="SA", seq=5, ack=FIRST, to_client=True, options=options)])
    return nic


def window_of(frame: bytes) -> int:
    window: int = Ether(frame[10:])[TCP].window
    return window


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
    (got,) = nic.from_host(with_window(window, 6 + ack, needs_csum))
    shift = 0 if None in shifts else shifts[0] or 0
    rounded = window_of(got)
    assert 0 <= window - rounded <= 3 >> shift
    assert (ack + (rounded << shift)) & 3 < 1 << shift or rounded == 0
    if needs_csum:
        assert got[10 + 14 + 20 + 16 : 10 + 14 + 20 + 18] == with_window(window, 6 + ack, True)[60:62]
        assert got[0] == NEEDS_CSUM
    else:
        check_sum(got, False)


@pytest.mark.parametrize(
    ("shifts", "has_word"), [((2, 7), True), ((7, 7), True), ((0, 7), False)], ids=["4", "128", "no NIC there"]
)
def test_other_windows_are_left_alone(shifts: tuple[int, int], has_word: bool) -> None:
    nic = connected(*shifts, has_word)
    frame = with_window(1001, 6, False)
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
