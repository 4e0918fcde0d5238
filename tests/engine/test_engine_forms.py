"""Whatever TCP, the path and the application do, all values arrive, each as it was sent or as the codec makes it.

A state machine writes, sends, loses, doubles, delays, sends again and acknowledges through two NICs, with the model of
Linux' TCP in ``linux_tcp``. At the end everything is sent again one segment at a time, as after a timeout, and must
arrive.
"""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from netoffload.codec import CodecId, get
from netoffload.compiled.jit import JIT_DISABLED
from tests.engine.frames import make_segment
from tests.engine.linux_tcp import PEER_ISN, Receiver, Sender, split
from tests.engine.nic_pair import Nic, connect
from tests.shared.example_counts import examples

ISN = 2**32 - 9000  # the sequence number wraps in the stream
FLOATS = 3000 if JIT_DISABLED else 8000
VALUES = np.random.default_rng(21).normal(0, 0.1, FLOATS).astype(np.float32)
ODD_END = b"\x11\x22"
CODEC = get("bounded")
ROUND_TRIP = CODEC.round_trip(VALUES, 10)
assert (ROUND_TRIP.view(np.uint32) != VALUES.view(np.uint32)).mean() > 0.9
STRAYS = VALUES.copy()
"""Floats with text and integers between them."""
for _at in range(500, FLOATS - 500, 1200):
    STRAYS[_at : _at + 300] = np.frombuffer(b"1200 octets that are no float at all. " * 32, np.float32)[:300]
    STRAYS[_at + 700] = np.uint32(4000).view(np.float32)

MSS = st.sampled_from([536, 989, 1001, 1396, 1398, 1447, 1448, 1449, 8948])


class Stream(RuleBasedStateMachine):
    """One tagged stream; ``whole``: the application writes whole floats."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.to_receiver: list[bytes] = []
        self.to_sender: list[bytes] = []

    @initialize(
        whole=st.booleans(),
        ipv6=st.booleans(),
        mss=MSS,
        window=st.sampled_from([2100, 6001, 20_000, 65_535]),
        mtu=st.sampled_from([576, 1500, 9000]),
        in_udp=st.booleans(),
        has_strays=st.booleans(),
    )
    def start(self, whole: bool, ipv6: bool, mss: int, window: int, mtu: int, in_udp: bool, has_strays: bool) -> None:
        self.whole = whole
        self.values = STRAYS if has_strays else VALUES
        nics = [Nic(mtu=mtu, in_udp=in_udp, codec=CodecId.BOUNDED) for _ in range(2)]
        connect(nics[0], nics[1], ISN, ipv6=ipv6)
        stream = self.values.tobytes() + (b"" if whole else ODD_END)
        self.sender = Sender(stream, nics[0], ISN, ipv6, mss, window & ~3)
        self.receiver_nic = nics[1]
        self.receiver = Receiver(ISN, window)
        self.ipv6 = ipv6

    @rule(octets=st.sampled_from([1, 2, 3, 7, 64, 1001, 1448, 4095, 4096, 20_000]))
    def write(self, octets: int) -> None:
        self.sender.write(octets * 4 if self.whole else octets)

    @rule(octets=st.integers(1, 3))
    def write_and_send_a_part_of_a_float(self, octets: int) -> None:
        if not self.whole:
            self.sender.write(octets)
        self._put(self.sender.send_new(1))

    @rule(segments=st.integers(1, 12))
    def send(self, segments: int) -> None:
        self._put(self.sender.send_new(segments))

    @rule(mss=MSS)
    def change_mss(self, mss: int) -> None:
        self.sender.mss = mss

    @rule(tos=st.sampled_from([0, 0x28]))
    def change_tag(self, tos: int) -> None:
        self.sender.tos = tos

    @rule(where=st.floats(0, 1), segments=st.integers(1, 3))
    def send_again(self, where: float, segments: int) -> None:
        cuts = sorted(cut for cut in self.sender.cuts if self.sender.una <= cut < self.sender.next)
        if cuts:
            self._put(self.sender.send_again(cuts[int(where * (len(cuts) - 1))], segments))

    @rule()
    def send_first_again(self) -> None:
        if self.sender.una < self.sender.next:
            self._put(self.sender.send_again(self.sender.una))

    @rule(where=st.floats(0, 1), copies=st.integers(0, 2))
    def pass_on(self, where: float, copies: int) -> None:
        """Lose, deliver or double one frame, whichever is next on the path."""
        if self.to_receiver:
            frame = self.to_receiver.pop(int(where * (len(self.to_receiver) - 1)))
            for _ in range(copies):
                self._deliver(frame)

    @rule(where=st.floats(0, 1), is_lost=st.booleans())
    def pass_back(self, where: float, is_lost: bool) -> None:
        if self.to_sender:
            frame = self.to_sender.pop(int(where * (len(self.to_sender) - 1)))
            if not is_lost:
                self._acknowledge(frame)

    @rule(milliseconds=st.sampled_from([1, 300, 1500]))
    def wait(self, milliseconds: int) -> None:
        """Let time pass; TCP does at once what it may do without an acknowledgement."""
        if self.sender.una == self.sender.next:
            self._put(self.sender.send_new(1) or self.sender.ask_for_window())
        self._pass_time(milliseconds)

    @rule()
    def all_arrives(self) -> None:
        self._exchange()

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        sender = self.sender
        sender.write(len(sender.stream))
        sender.has_closed = True
        for _ in range(4 * len(sender.stream) // min(sender.mss, self.receiver.window) + 400):
            if sender.acked_fin:
                break
            before = self.receiver.ack(), sender.una
            self._exchange()
            if (sender.una < sender.next or sender.fin_sent) and (self.receiver.ack(), sender.una) == before:
                self._put(sender.send_again(sender.una))  # a timeout: one segment, and nothing else
                self._exchange()
            if sender.una == sender.next and not sender.fin_sent:
                self._put(sender.send_new(1))
            self._pass_time(250)
        assert sender.acked_fin, f"stuck at {sender.una} of {len(sender.stream)}, received {self.receiver.ack()}"
        self._check()

    def _check(self) -> None:
        got = bytes(self.receiver.got)
        assert len(got) == len(self.sender.stream)
        assert got[4 * FLOATS :] == self.sender.stream[4 * FLOATS :]
        words = np.frombuffer(got[: 4 * FLOATS], np.uint32)
        rounded = CODEC.round_trip(self.values, 10).view(np.uint32)
        is_exact, is_rounded = words == self.values.view(np.uint32), words == rounded
        assert (is_exact | is_rounded).all(), f"torn at {np.flatnonzero(~(is_exact | is_rounded))[:5]}"
        for start, end in self.sender.untagged:
            part = slice(start // 4, -(-end // 4))
            assert is_exact[part].all(), (
                f"rounded without the tag at {start // 4 + np.flatnonzero(~is_exact[part])[:5]}"
            )
        if self.whole and not self.sender.untagged and self.values is VALUES:
            assert is_rounded.all(), f"exact at {np.flatnonzero(~is_rounded)[:5]}"

    def _pass_time(self, milliseconds: int) -> None:
        for _ in range(milliseconds // 50 + 1):
            self.now_ns += min(milliseconds, 50) * 1_000_000
            self.sender.nic.now_ns = self.now_ns
            self._put(self.sender.nic.from_clock())

    def _put(self, frames: list[bytes]) -> None:
        self.to_receiver += [piece for frame in frames for piece in split(frame)]

    def _deliver(self, frame: bytes) -> None:
        self.receiver_nic.now_ns = self.now_ns
        for segment in self.receiver_nic.from_wire([frame]):
            self.receiver.take(segment)
        ack = make_segment(
            seq=PEER_ISN + 1,
            ack=(ISN + 1 + self.receiver.ack()) % 2**32,
            to_client=True,
            ipv6=self.ipv6,
            window=self.receiver.window,
        )
        self.to_sender += self.receiver_nic.from_host(ack)

    def _acknowledge(self, frame: bytes) -> None:
        self.sender.nic.now_ns = self.now_ns
        for segment in self.sender.nic.from_wire([frame]):
            self.sender.take_ack(segment)

    def _exchange(self) -> None:
        while self.to_receiver or self.to_sender:
            while self.to_receiver:
                self._deliver(self.to_receiver.pop(0))
            while self.to_sender:
                self._acknowledge(self.to_sender.pop(0))


TestStream = Stream.TestCase
TestStream.settings = settings(
    max_examples=examples(100), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
