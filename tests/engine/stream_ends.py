"""One direction of a tagged stream through two NICs, as both hosts see it; the test sets the clock."""

import numpy as np

from netoffload.codec import get
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.wire.checksum import internet_checksum
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FIRST, connected

VALUES = np.random.default_rng(22).normal(0, 2e-3, 4000).astype(np.float32)
SENT = VALUES.tobytes()
ROUNDED = get("inceptionn").round_trip(VALUES, 10).tobytes()
LONG_MS = 10_000 if JIT_DISABLED else 100_000
"""Longer than octets are held, and than the first pauses."""
assert (VALUES.view(np.uint32) != np.frombuffer(ROUNDED, np.uint32)).all()


class Ends:
    """Two NICs and what their hosts see."""

    def __init__(self, ipv6: bool = False, **settings: bool | int) -> None:
        self.sender, self.receiver = connected(ipv6, **settings)
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

    def wait(self, milliseconds: int) -> list[tuple[int, bytes]]:
        """Let time pass; return what the other host gets of what the NIC sends by itself."""
        got = []
        for _ in range(milliseconds // 50):
            self.sender.now_ns += 50_000_000
            got += [tcp_of(frame) for frame in self.receiver.from_wire(self.sender.from_clock())]
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
