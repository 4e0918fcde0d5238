"""A lossless codec in a NIC: any octets come back, however they are cut, and those that do not gain cross raw."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from netoffload.codec import CodecId, get
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine import flows, gain, promises
from netoffload.engine.counters import Counter
from tests.engine.frames import MSS, make_segment, tcp_of
from tests.engine.linux_tcp import Receiver, Sender
from tests.engine.nic_pair import FAMILIES, FIRST, Nic, connect, connected
from tests.engine.test_engine_forms import ISN, Stream
from tests.engine.test_engine_transmit import dissect
from tests.shared.example_counts import examples

DRAW = np.random.default_rng(32)
WEIGHTS = DRAW.normal(0, 0.05, 20_000).astype(np.float32)
FLOAT32 = WEIGHTS.tobytes()
BF16 = (WEIGHTS.view(np.uint32) >> 16).astype(np.uint16).tobytes() * 2
FLOAT64 = DRAW.normal(0, 0.05, 10_000).tobytes()
NOISE = DRAW.bytes(1 << 21 if not JIT_DISABLED else 1 << 17)
TEXT = (b"The quick brown fox jumps over the lazy dog, and says so in plain English. " * 600)[:40_000]
PART = 3000 if JIT_DISABLED else 9001
PIECES = [FLOAT32[:PART], b"\x01", NOISE[:PART], BF16[:PART], TEXT[:PART], bytes(PART), FLOAT64[:PART]]
SEGMENT = 40_001
"""Octets of a large segment, not whole words."""


class Lossless(Stream):
    """The stream of ``test_engine_forms``, of any octets, through NICs with a lossless codec."""

    @initialize(
        order=st.permutations(range(len(PIECES))),
        head=st.integers(0, 3),
        ipv6=st.booleans(),
        mss=st.sampled_from([536, 989, 1447, 1448, 8948]),
        window=st.sampled_from([2100, 6001, 20_000, 65_535]),
        mtu=st.sampled_from([576, 1500, 9000]),
        in_udp=st.booleans(),
    )
    def start(self, order: list[int], head: int, ipv6: bool, mss: int, window: int, mtu: int, in_udp: bool) -> None:
        self.whole = False
        nics = [Nic(mtu=mtu, in_udp=in_udp, codec=CodecId.EXACT) for _ in range(2)]
        connect(nics[0], nics[1], ISN, ipv6=ipv6, judged=False)
        stream = NOISE[:head] + b"".join(PIECES[index] for index in order)
        self.sender = Sender(stream, nics[0], ISN, ipv6, mss, window & ~3)
        self.receiver_nic = nics[1]
        self.receiver = Receiver(ISN, window)
        self.ipv6 = ipv6

    def _check(self) -> None:
        assert bytes(self.receiver.got) == self.sender.stream
        counts = self.sender.nic.counts()
        assert not {name for name in counts if name in ("tx_held", "tx_lent", "tx_rejudged", "rx_acks_moved")}


TestLossless = Lossless.TestCase
TestLossless.settings = settings(
    max_examples=examples(100), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)


class Ends:
    """Two NICs with ``exact`` that saw no float yet, and the octets that the other host got."""

    def __init__(self, ipv6: bool = False, **settings: Any) -> None:
        self.nic, self.peer = (Nic(codec=CodecId.EXACT, **settings) for _ in range(2))
        self.nic.settings = self.nic.settings._replace(trust=0)  # nobody promises anything
        connect(self.nic, self.peer, ipv6=ipv6, judged=False)
        self.ipv6, self.sent, self.got = ipv6, 0, b""

    def send(self, octets: bytes, segment: int = SEGMENT) -> list[bytes]:
        """Send octets in segments; return the frames on the wire."""
        frames = []
        for at in range(0, len(octets), segment):
            part = octets[at : at + segment]
            frames += self.nic.from_host(make_segment(part, seq=FIRST + self.sent, ipv6=self.ipv6))
            self.sent += len(part)
        self.got += b"".join(tcp_of(frame)[1] for frame in self.peer.from_wire(frames))
        return frames

    def field(self, name: int) -> int:
        """Return a field of the connection's slot."""
        (row,) = self.nic.table[: flows.SLOTS][self.nic.table[: flows.SLOTS, flows.IP_VERSION] != 0]
        return int(row[name])

    def count(self, counter: Counter) -> int:
        return int(self.nic.counters[counter])


@pytest.mark.covering(1)
@FAMILIES
@pytest.mark.parametrize("per_segment", [False, True])
@pytest.mark.parametrize("values", [FLOAT32, BF16], ids=["float32", "bf16"])
@pytest.mark.parametrize("phase", range(4))
def test_words_may_begin_at_any_octet(phase: int, values: bytes, per_segment: bool, ipv6: bool) -> None:
    ends = Ends(ipv6, per_segment=per_segment)
    octets = NOISE[:phase] + values + b"\x07"
    frames = ends.send(octets)
    assert ends.got == octets
    assert ends.count(Counter.TX_SEGMENTS) == len(octets) // SEGMENT + (len(octets) % SEGMENT > 2 * MSS)
    width = 4 if values is FLOAT32 else 2
    assert ends.field(flows.PHASE) % width == phase % width
    whole = get("exact").encode(np.frombuffer(values[: len(values) // 4 * 4], np.float32), 1).size
    assert ends.count(Counter.TX_PAYLOAD_OCTETS) < 1.05 * whole
    heads_and_tails = {(block.head, block.tail) for _, _, block in map(dissect, frames[:-1])}
    assert (0, 0) in heads_and_tails or per_segment
    assert len(heads_and_tails) > 1


@pytest.mark.parametrize("octets", [NOISE[:200_000], TEXT, FLOAT64], ids=["noise", "text", "float64"])
def test_what_does_not_gain_crosses_as_it_is(octets: bytes) -> None:
    ends = Ends()
    frames = ends.send(octets)
    assert frames == [make_segment(octets[at : at + SEGMENT], seq=FIRST + at) for at in range(0, len(octets), SEGMENT)]
    assert ends.count(Counter.BYPASS_NO_GAIN) == len(frames)
    assert ends.count(Counter.TX_SEGMENTS) == ends.count(Counter.TX_CLASS_32) == 0


@pytest.mark.slow
def test_a_raw_stream_is_looked_at_again_and_again_with_growing_distance() -> None:
    ends = Ends()
    at = []
    for _ in range(len(NOISE) // MSS):
        before = ends.field(flows.LOOK_SEQ)
        ends.send(NOISE[ends.sent :][:MSS], MSS)
        if ends.field(flows.LOOK_SEQ) != before:
            at.append(ends.sent)
    steps = np.diff(at)
    assert steps[0] == MSS
    assert steps[1] == pytest.approx(gain.STEP_MIN, abs=2 * MSS)
    assert steps[2:] == pytest.approx(2 * steps[1:-1].clip(max=gain.STEP_MAX // 2), abs=4 * MSS)
    assert len(steps) >= 3


def test_floats_behind_other_octets_gain_after_as_many_octets_at_most() -> None:
    ends = Ends()
    ends.send(NOISE[:100_003], MSS)
    while not ends.count(Counter.TX_SEGMENTS):
        ends.send(FLOAT32[:-1], MSS)
        assert ends.sent < 2 * 100_003 + gain.STEP_MIN + len(FLOAT32)
    before = ends.count(Counter.TX_SEGMENTS), ends.count(Counter.BYPASS_NO_GAIN)
    ends.send(FLOAT32[-1:] + NOISE[:2] + FLOAT32, MSS)  # the words now begin elsewhere: one segment shows it
    assert ends.count(Counter.TX_SEGMENTS) > before[0] + len(FLOAT32) // MSS - 3
    assert ends.count(Counter.BYPASS_NO_GAIN) <= before[1] + 2


def test_a_stream_that_stops_paying_is_raw_and_pays_again() -> None:
    ends = Ends()
    ends.send(FLOAT32[:MSS])
    ends.send(NOISE[: 4 * MSS], MSS)
    assert ends.count(Counter.TX_SEGMENTS) == 1
    assert ends.field(flows.PAYS) == 0
    ends.send(FLOAT32 * 2, MSS)
    assert ends.field(flows.PAYS) == 1
    assert ends.field(flows.LOOK_STEP) == 0
    assert ends.got == FLOAT32[:MSS] + NOISE[: 4 * MSS] + FLOAT32 * 2


def test_short_segments_decide_nothing() -> None:
    ends = Ends()
    ends.send(NOISE[:5000], gain.LOOK_MIN - 1)
    assert ends.field(flows.LOOK_SEQ) == 0
    ends.send(FLOAT32[: 4 * MSS], MSS)
    ends.send(b"?" * 20, 1)
    assert ends.field(flows.PAYS) == 1
    assert ends.got == NOISE[:5000] + FLOAT32[: 4 * MSS] + b"?" * 20


def test_words_of_a_lossless_codec_do_not_move_those_of_one_that_rounds() -> None:
    """The flow table outlives a NIC, and the next one may have another codec."""
    ends = Ends()
    ends.send(NOISE[:3] + FLOAT32[:SEGMENT])
    assert ends.field(flows.PHASE) == 3
    start = ends.sent + (-ends.sent & 3)
    ends.send(NOISE[: start - ends.sent])
    ends.nic.settings = ends.nic.settings._replace(codec_id=int(CodecId.BOUNDED), trust=1)
    ends.nic.judge()
    ends.nic.table[: flows.SLOTS, flows.PROMISE] = promises.BY_OPERATOR
    ends.send(FLOAT32)
    rounded = get("bounded").round_trip(WEIGHTS, 10).tobytes()
    assert ends.got[start:] == rounded
    assert ends.count(Counter.TX_SEGMENTS) > 2


def test_octets_that_a_rounding_nic_holds_leave_with_the_lossless_one_behind_it() -> None:
    client, server = connected(codec=CodecId.BOUNDED)
    cut = 4 * 1000 + 3
    sent = client.from_host(make_segment(FLOAT32[:cut], seq=FIRST))
    client.settings = client.settings._replace(codec_id=int(CodecId.EXACT))
    sent += client.from_host(make_segment(FLOAT32[cut:SEGMENT], seq=FIRST + cut))
    got = b"".join(tcp_of(frame)[1] for frame in server.from_wire(sent))
    assert got[: cut - 3] == get("bounded").round_trip(WEIGHTS[: cut // 4], 10).tobytes()
    assert got[cut - 3 :] == FLOAT32[cut - 3 : SEGMENT]


def test_a_peer_without_the_codec_gets_the_octets_raw() -> None:
    ends = Ends()
    ends.nic.table[: flows.SLOTS, flows.PEER_CODECS] &= ~(1 << CodecId.EXACT)
    ends.send(FLOAT32)
    assert ends.count(Counter.BYPASS_PEER) == 2
    assert ends.got == FLOAT32


def test_untagged_segments_and_special_ones_stay_raw() -> None:
    ends = Ends()
    ends.send(FLOAT32[:MSS])
    for seq, tos, flags in ((MSS, 0, "A"), (2 * MSS, 0x28, "AC")):
        frame = make_segment(FLOAT32[seq : seq + MSS], seq=FIRST + seq, tos=tos, flags=flags)
        assert ends.nic.from_host(frame) == [frame]
    assert (ends.count(Counter.BYPASS_UNTAGGED), ends.count(Counter.BYPASS_SPECIAL)) == (1, 1)


def test_every_connection_is_tagged_where_the_tag_is_any() -> None:
    ends = Ends()
    ends.nic.settings = ends.nic.settings._replace(tag_mask=0)
    frames = ends.nic.from_host(make_segment(FLOAT32[:SEGMENT], seq=FIRST, tos=0))
    assert dissect(frames[0])[2].payload_len > 1000
    assert ends.count(Counter.TX_SEGMENTS) == 1
