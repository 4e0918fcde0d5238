"""Whatever TCP does to a tagged stream, each float arrives as the codec makes it or as it was, never as a mixture."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from frames import TIMESTAMPS, make_segment
from hypothesis import given, settings
from hypothesis import strategies as st
from nic_pair import Nic, connect

from netoffload.codec import get
from netoffload.codec.jit import JIT_DISABLED
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.ethernet import ETHERTYPE_IPV6, parse_ethernet
from netoffload.wire.ipv4 import parse_ipv4
from netoffload.wire.ipv6 import parse_ipv6
from netoffload.wire.tcp import Tcp, parse_tcp
from netoffload.wire.vnet import parse_vnet

ISN = 2**32 - 700  # the sequence number wraps in the stream
FLOATS = 850 if JIT_DISABLED else 1500
VALUES = np.random.default_rng(21).normal(0, 2e-3, FLOATS).astype(np.float32)
SENT = VALUES.tobytes()
ROUND_TRIP = get("inceptionn").round_trip(VALUES, 10)
SACK = [("NOP", None), ("NOP", None), ("SAck", (1, 5))]


def tcp_of(frame: bytes) -> tuple[Tcp, bytes]:
    ethernet, rest = parse_ethernet(parse_vnet(frame)[1])
    parse = parse_ipv6 if ethernet.ethertype == ETHERTYPE_IPV6 else parse_ipv4
    return parse_tcp(parse(rest)[1])


@dataclasses.dataclass
class Stream:
    """One tagged stream from a host to another: a sender that does as it is told, a receiver that keeps what came."""

    ipv6: bool
    mtu: int
    per_segment: bool
    sent: int = 0

    def __post_init__(self) -> None:
        self.sender = Nic(mtu=self.mtu, per_segment=self.per_segment)
        self.receiver = Nic()
        connect(self.sender, self.receiver, ISN, ipv6=self.ipv6)
        self.got = bytearray(len(SENT))
        self.have = np.zeros(len(SENT), bool)

    def send(
        self, start: int, end: int, lost: set[int], mss: int = 1448, *, tos: int = 0x28, options: object = TIMESTAMPS
    ) -> None:
        """Send octets start..end, as new ones or again; wire frames whose index is in ``lost`` do not arrive."""
        end = min(end, len(SENT))
        if start >= end:
            return
        self.sent = max(self.sent, end)
        length = end - start
        flags = "FPA" if end == len(SENT) else "PA"
        frame = make_segment(
            SENT[start:end],
            seq=(ISN + 1 + start) % 2**32,
            gso_size=mss if length > mss else 0,
            flags=flags,
            tos=tos,
            options=options,  # type: ignore[arg-type]
            ipv6=self.ipv6,
        )
        frames = self.sender.from_host(frame)
        headers_len = len(frame) - length
        if len(frames) == 1 and frames[0][:headers_len] == frame[:headers_len]:  # the wire's end cuts it, or the peer
            crossed = frames[0][headers_len:]
            pieces = [(at, min(at + mss, end)) for at in range(start, end, mss)]
            for index, (first, last) in enumerate(pieces):
                if index not in lost:
                    self._take(first, crossed[first - start : last - start])
            return
        for got in self.receiver.from_wire([f for index, f in enumerate(frames) if index not in lost]):
            header, payload = tcp_of(got)
            self._take((header.seq - ISN - 1) % 2**32, payload)

    def _take(self, at: int, octets: bytes) -> None:
        new = ~self.have[at : at + len(octets)]
        view = np.frombuffer(self.got, np.uint8)[at : at + len(octets)]
        view[new] = np.frombuffer(octets, np.uint8)[new]
        self.have[at : at + len(octets)] = True

    def finish(self, step: int) -> None:
        """Send what is new or was lost until all has arrived."""
        while self.sent < len(SENT):
            self.send(self.sent, self.sent + step, set())
        while not self.have.all():
            self.send(int(np.argmin(self.have)), len(SENT), set())

    def floats(self) -> np.ndarray:
        return np.frombuffer(bytes(self.got), np.uint32)


SIZES = st.sampled_from([1, 2, 3, 5, 64, 333, 1000, 1447, 1448, 2900, 4001])
LOST = st.sets(st.integers(0, 5), max_size=4)
KINDS = st.fixed_dictionaries(
    {"tos": st.sampled_from([0x28, 0x29, 0x2A, 0x2B]), "options": st.sampled_from([TIMESTAMPS, [], SACK])}
)
NEW = st.tuples(st.just("new"), SIZES, st.just(0), LOST, KINDS)
AGAIN = st.tuples(st.just("again"), SIZES, st.integers(1, 6000), LOST, KINDS)
STREAMS = st.builds(Stream, st.booleans(), st.sampled_from([576, 1500, 9000]), st.booleans())


@settings(deadline=None, max_examples=15 if JIT_DISABLED else 100)
@given(
    stream=STREAMS,
    steps=st.lists(NEW | AGAIN, max_size=15),
    mss=st.sampled_from([537, 1447, 1448, 1449, 8947]),
    last=st.sampled_from([999, 4000]),
)
def test_each_float_is_the_round_trip_or_exact(stream: Stream, steps: list[Any], mss: int, last: int) -> None:
    for kind, size, back, lost, look in steps:
        start = stream.sent if kind == "new" else max(0, stream.sent - back)
        end = start + size if kind == "new" else min(start + size, stream.sent)
        stream.send(start, end, lost, mss, **look)
    stream.finish(last)
    got = stream.floats()
    is_exact, is_round_trip = got == VALUES.view(np.uint32), got == ROUND_TRIP.view(np.uint32)
    assert (is_exact | is_round_trip).all()


@settings(deadline=None, max_examples=15 if JIT_DISABLED else 60)
@given(
    stream=STREAMS,
    steps=st.lists(st.tuples(st.integers(20, 400), st.integers(0, 400), LOST, KINDS), max_size=10),
    mss=st.sampled_from([536, 1448, 8948]),
)
def test_with_whole_floats_it_is_always_the_round_trip(stream: Stream, steps: list[Any], mss: int) -> None:
    for floats, back, lost, look in steps:
        stream.send(max(0, stream.sent - 4 * back), stream.sent + 4 * floats, lost, mss, **look)
    stream.finish(2000)
    counts = stream.sender.counts()
    assert "bypass_cut_float" not in counts
    if "tx_fallbacks" not in counts:
        assert np.array_equal(stream.floats(), ROUND_TRIP.view(np.uint32))


def test_retransmissions_of_a_flow_with_a_cut_float_are_raw() -> None:
    stream = Stream(False, 1500, False)
    stream.send(0, 1002, set())
    stream.send(1002, 2000, set())
    assert stream.sender.counts()["tx_segments"] == 2
    stream.send(0, 1000, set())
    assert stream.sender.counts()["bypass_cut_float"] == 1
    stream.send(2000, 3000, set())  # new octets are compressed as before
    assert stream.sender.counts()["tx_segments"] == 3
    stream.send(2900, 3200, set())  # and what is new only in part is not
    assert stream.sender.counts()["bypass_cut_float"] == 2


@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_a_cut_by_a_segment_that_crossed_raw_counts_too(size: int) -> None:
    stream = Stream(False, 1500, False)
    stream.send(0, size, set())
    assert stream.sender.counts()["bypass_no_gain"] == 1
    stream.send(0, 1000, set())
    assert stream.sender.counts()["bypass_cut_float"] == 1


def test_a_cut_by_a_segment_with_cwr_counts_too() -> None:
    stream = Stream(False, 1500, False)
    sent = make_segment(SENT[:1001], seq=ISN + 1, flags="CA")
    assert stream.sender.from_host(sent) == [sent]
    stream.send(0, 1200, set())
    assert stream.sender.counts()["bypass_cut_float"] == 1


def test_one_frame_per_mss_does_not_cut_floats() -> None:
    stream = Stream(False, 1500, True)
    stream.send(0, 1447 * 2, {1}, 1447)
    assert stream.have.sum() == 1444 + 6  # three frames: two of 1444 octets, and the rest
    stream.finish(4000)
    assert stream.floats()[361] in (VALUES.view(np.uint32)[361], ROUND_TRIP.view(np.uint32)[361])


def test_a_window_probe_is_a_cut() -> None:
    stream = Stream(False, 1500, False)
    stream.send(0, 1000, set())
    stream.send(1000, 1001, set())
    stream.send(1000, 2000, set())
    assert stream.sender.counts()["bypass_cut_float"] == 1
    stream.finish(2000)
    assert stream.floats()[250] == VALUES.view(np.uint32)[250]


@pytest.mark.parametrize(("mss", "wanted"), [(1460, 1460), (1461, 1460), (1447, 1444), (8963, 8960), (3, 3), (5, 4)])
@pytest.mark.parametrize("needs_csum", [True, False])
@pytest.mark.parametrize("options", [[], [("NOP", None)]])
def test_the_mss_is_rounded_to_whole_floats(mss: int, wanted: int, needs_csum: bool, options: list[Any]) -> None:
    client, server = Nic(), Nic()
    options = [*options, ("MSS", mss), ("SAckOK", b""), ("WScale", 7)]
    syn = make_segment(flags="S", seq=ISN, options=options, needs_csum=needs_csum)
    (got,) = server.from_wire(client.from_host(syn))
    assert ("MSS", wanted) in _options(got)
    answer = make_segment(flags="SA", seq=5, options=options, needs_csum=needs_csum, to_client=True)
    (got_answer,) = client.from_wire(server.from_host(answer))
    assert ("MSS", wanted) in _options(got_answer)
    if not needs_csum:
        for frame in (got, got_answer):
            segment = parse_ipv4(frame[24:])[1]
            pseudo = frame[36:44] + bytes((0, 6)) + len(segment).to_bytes(2, "big")
            assert internet_checksum(pseudo + segment) == 0


def test_the_mss_of_others_is_left_alone() -> None:
    for syn in (
        make_segment(flags="S", seq=ISN, options=[("MSS", 1461)], tos=0),
        make_segment(b"early", flags="S", seq=ISN, options=[("MSS", 1461)]),
        make_segment(flags="SA", seq=ISN, options=[("MSS", 1461)]),
    ):
        assert Nic().from_host(syn) == [syn]


@pytest.mark.parametrize("at", [10 + 14 + 8, 10 + 14 + 12, 10 + 14 + 20, 10 + 14 + 27, -1])
def test_a_damaged_syn_is_not_made_sound(at: int) -> None:
    client, server = Nic(), Nic()
    (on_wire,) = client.from_host(make_segment(flags="S", seq=ISN, needs_csum=False))
    damaged = bytearray(on_wire)
    damaged[at] ^= 4
    assert server.from_wire([bytes(damaged)]) == [bytes(damaged)]
    assert "rx_offers" not in server.counts()


def _options(frame: bytes) -> list[tuple[str, object]]:
    from scapy.layers.inet import TCP
    from scapy.layers.l2 import Ether

    options: list[tuple[str, object]] = Ether(frame[10:])[TCP].options
    return options
