"""Two NICs without devices: one receives what the other transmits, and the test sets the clock."""

from typing import Any

import numpy as np
import pytest

from netoffload.codec import CodecId
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.engine import flows as table
from netoffload.engine import nic as engine
from netoffload.engine import pair
from netoffload.engine.counters import Counter
from netoffload.engine.judgement import FLOATS, JUDGED_VERDICT
from netoffload.engine.state import EngineSettings
from netoffload.engine.transmit import RANDOM_WORDS
from tests.engine.frames import make_segment

_RANDOM = np.random.default_rng(1).integers(0, 2**32, 1 + RANDOM_WORDS)
FIRST_NONCE = int(_RANDOM[1])
"""What a new :class:`Nic` says in its first capability word."""

ISN = 1000
"""Of the clients' connections."""
FIRST = ISN + 1
FAMILIES = pytest.mark.parametrize("ipv6", [False, True])

ROUNDS_IN_PLACE = (
    Counter.BYPASS_NO_GAIN,
    Counter.BYPASS_PROBATION,
    Counter.BYPASS_SPECIAL,
    Counter.BYPASS_EXACT,
    Counter.BYPASS_UNTAGGED,
    Counter.BYPASS_NO_PAYLOAD,
)


class Nic(pair.Nic):
    """A NIC of :mod:`netoffload.engine.pair` whose nonces are known, and which changes no frame without a reason."""

    def __init__(
        self,
        bound_k: int = 10,
        mtu: int = 1500,
        per_segment: bool = False,
        in_udp: bool = False,
        bundles: bool = False,
        codec: CodecId = CodecId.INCEPTIONN,
        key: bytes | None = None,
    ) -> None:
        random = _RANDOM.copy()
        random[0] = 0
        settings = engine.make_settings(int(codec), bound_k, mtu, key)
        settings = settings._replace(per_segment=int(per_segment), in_udp=int(in_udp), bundles=int(bundles))
        super().__init__(settings, random)

    @property
    def settings(self) -> EngineSettings:
        return self.state.settings

    @settings.setter
    def settings(self, settings: EngineSettings) -> None:
        self.state = self.state._replace(settings=settings)

    @property
    def table(self) -> Int64Array:
        return self.state.flows

    @property
    def counters(self) -> Int64Array:
        return self.state.counters

    def judge(self) -> None:
        """Let every connection pass for floats, as if a kilobyte of them had been seen."""
        self.table[: table.SLOTS, table.JUDGED + JUDGED_VERDICT] = FLOATS

    def _transmit(self, buffer: Uint8Array, length: int) -> list[bytes]:
        before = buffer.copy()
        changes = self.counters[list(ROUNDS_IN_PLACE)].sum()
        frames = super()._transmit(buffer, length)
        if self.counters[list(ROUNDS_IN_PLACE)].sum() == changes:
            window_at = (54 if before[22:24].tobytes() == b"\x08\x00" else 74) - 20 + 10 + 14
            before[window_at : window_at + 2] = buffer[window_at : window_at + 2]
            assert np.array_equal(buffer, before), "transmit must change nothing but the window"
        return frames


def connect(
    client: Nic, server: Nic, isn: int = ISN, sport: int = 40000, ipv6: bool = False, *, judged: bool = True
) -> None:
    """Make a connection between the hosts of two NICs; both NICs then know that the other one decodes.

    With ``judged`` what crosses passes for floats from its first octet.
    """
    syn = make_segment(flags="S", seq=isn, sport=sport, ipv6=ipv6)
    assert server.from_wire(client.from_host(syn)) == [syn]
    answer = make_segment(flags="SA", seq=5, ack=(isn + 1) % 2**32, sport=sport, to_client=True, ipv6=ipv6)
    assert client.from_wire(server.from_host(answer)) == [answer]
    if judged:
        client.judge()
        server.judge()


def connected(ipv6: bool = False, **settings: Any) -> tuple[Nic, Nic]:
    """Return a client's NIC with these settings, and its server's with the same key."""
    client, server = Nic(**settings), Nic(key=settings.get("key"))
    connect(client, server, ipv6=ipv6)
    return client, server
