"""Two NICs without devices: what one transmits, the other receives, and the clock is the test's."""

from __future__ import annotations

from typing import Any

import numpy as np
from frames import in_buffer, make_segment

from netoffload.codec import CodecId
from netoffload.codec.kernels import DECODE_SLACK
from netoffload.engine import flows as table
from netoffload.engine.authentication import Authenticator
from netoffload.engine.blocks import EngineSettings
from netoffload.engine.counters import Counter, as_dict, make_counters
from netoffload.engine.encapsulation import CURSOR_FIELDS, FRAME_AT, FRAME_LEN, HEADERS_LEN, is_bundle, unwrap
from netoffload.engine.flow_report import as_dicts
from netoffload.engine.judgement import FLOATS, JUDGED_VERDICT
from netoffload.engine.pack import MAX_WIRE_FRAMES
from netoffload.engine.receive import (
    CROSSES,
    DROPPED,
    FLUSH_FIRST,
    HOST_SEGMENT_LEN,
    MERGED_LAST,
    PENDING_FIELDS,
    finish,
    inspect,
    note,
    take,
)
from netoffload.engine.transmit import FORWARD, RANDOM_WORDS, WIRE_BUFFER_LEN, Room, transmit
from netoffload.wire.capability import TAKES_UDP, WANTS_MAC

ROUNDS_IN_PLACE = (
    Counter.BYPASS_NO_GAIN,
    Counter.BYPASS_PROBATION,
    Counter.BYPASS_SPECIAL,
    Counter.BYPASS_EXACT,
    Counter.BYPASS_UNTAGGED,
    Counter.BYPASS_NO_PAYLOAD,
)


class Nic:
    """The engine's two directions with buffers of their own."""

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
        self._signer, self._checker = Authenticator(key), Authenticator(key)
        self.settings = EngineSettings(
            int(codec),
            bound_k,
            np.array([mtu], np.int64),
            int(per_segment),
            int(in_udp),
            int(bundles),
            tag=0x28,
            tag_mask=0xFC,
            ports=np.zeros((0, 2), np.int64),
            ways=TAKES_UDP | (WANTS_MAC if key else 0),
            tx_mac=self._signer.words,
            rx_mac=self._checker.words,
        )
        self.counters = make_counters()
        self.table = table.make_flows()
        self.now_ns = 0
        random = np.random.default_rng(1).integers(0, 2**32, 1 + RANDOM_WORDS)
        random[0] = 0
        self._room = Room(np.zeros(WIRE_BUFFER_LEN, np.uint8), np.zeros((MAX_WIRE_FRAMES, 2), np.int64), random)
        self._host = np.zeros(HOST_SEGMENT_LEN, np.uint8)
        self._pending = np.zeros(PENDING_FIELDS, np.int64)

    def from_host(self, frame: bytes) -> list[bytes]:
        """Return the wire frames that a host frame becomes."""
        before = in_buffer(frame)
        buffer = before.copy()
        changes = self.counters[list(ROUNDS_IN_PLACE)].sum()
        count = transmit(self.settings, buffer, len(frame), self.now_ns, self.table, self.counters, self._room)
        if self.counters[list(ROUNDS_IN_PLACE)].sum() == changes:
            window_at = (54 if frame[22:24] == b"\x08\x00" else 74) - 20 + 10 + 14
            before[window_at : window_at + 2] = buffer[window_at : window_at + 2]
            assert np.array_equal(buffer, before), "transmit must change nothing but the window"
        if count == FORWARD:
            return [bytes(buffer[: len(frame)])]
        wire, spans = self._room.wire, self._room.spans
        pieces = [bytes(wire[at : at + length]) for at, length in spans[:count]]
        return [b"".join(pieces)] if count > 0 and is_bundle(wire, spans, count) else pieces

    def from_wire(self, frames: list[bytes]) -> list[bytes]:
        """Return the host frames that a batch of wire frames becomes."""
        delivered: list[bytes] = []
        for frame in frames:
            buffer = in_buffer(frame, len(frame) + DECODE_SLACK)
            cursor, headers = np.zeros(CURSOR_FIELDS, np.int64), np.zeros(HEADERS_LEN, np.uint8)
            while unwrap(buffer, len(frame), cursor, headers, self.counters):
                self._take(buffer[cursor[FRAME_AT] :], int(cursor[FRAME_LEN]), delivered)
        self._flush(delivered)
        return delivered

    def flows(self, direction: str = "tx") -> list[dict[str, Any]]:
        """Return what the flow table says of one direction."""
        return [row for row in as_dicts(self.table) if row["direction"] == direction]

    def counts(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: value for name, value in as_dict(self.counters).items() if value}

    def judge(self) -> None:
        """Let every connection pass for floats, as if a kilobyte of them had been seen."""
        self.table[: table.SLOTS, table.JUDGED + JUDGED_VERDICT] = FLOATS

    def _take(self, buffer: np.ndarray, length: int, delivered: list[bytes]) -> None:
        kind = inspect(self.settings, buffer, length, self.table, self.counters, self._pending)
        if kind == DROPPED:
            return
        length = note(self.settings, buffer, length, self.now_ns, self.table, self.counters, self._pending)
        if kind == CROSSES:
            self._flush(delivered)
            if length >= 0:
                delivered.append(bytes(buffer[:length]))
            return
        status = self._decode(buffer, length)
        if status == FLUSH_FIRST:
            self._flush(delivered)
            status = self._decode(buffer, length)
            assert status != FLUSH_FIRST
        if status == MERGED_LAST:
            self._flush(delivered)

    def _decode(self, buffer: np.ndarray, length: int) -> int:
        return take(buffer, length, self.table, self.counters, self._pending, self._host)

    def _flush(self, delivered: list[bytes]) -> None:
        length = finish(self.counters, self._pending, self._host)
        if length:
            delivered.append(bytes(self._host[:length]))


def connect(client: Nic, server: Nic, isn: int, sport: int = 40000, ipv6: bool = False, *, judged: bool = True) -> None:
    """Make a connection between the hosts of two NICs; both NICs then know that the other one decodes.

    With ``judged`` what crosses passes for floats from its first octet.
    """
    syn = make_segment(flags="S", seq=isn, sport=sport, ipv6=ipv6)
    assert server.from_wire(client.from_host(syn)) == [syn]
    answer = make_segment(flags="SA", seq=5, ack=isn + 1, sport=sport, to_client=True, ipv6=ipv6)
    assert client.from_wire(server.from_host(answer)) == [answer]
    if judged:
        client.judge()
        server.judge()
