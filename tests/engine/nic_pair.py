"""Two NICs without devices: what one transmits, the other receives, and the clock stands still."""

from __future__ import annotations

from typing import Any

import numpy as np
from frames import in_buffer, make_segment

from netoffload.codec import CodecId
from netoffload.codec.kernels import DECODE_SLACK
from netoffload.engine.blocks import TransmitSettings
from netoffload.engine.counters import Counter, as_dict, make_counters
from netoffload.engine.encapsulation import CURSOR_FIELDS, FRAME_AT, FRAME_LEN, HEADERS_LEN, is_bundle, unwrap
from netoffload.engine.flows import as_dicts, make_flows
from netoffload.engine.receive import (
    FLUSH_FIRST,
    FORWARD,
    FORWARD_SHORTER,
    HOST_SEGMENT_LEN,
    MERGED_LAST,
    PENDING_FIELDS,
    finish,
    receive,
)
from netoffload.engine.transmit import MAX_WIRE_FRAMES, WIRE_BUFFER_LEN, transmit
from netoffload.wire.capability import OPTION_LEN


class Nic:
    """The engine's two directions with buffers of their own."""

    def __init__(
        self,
        bound_k: int = 10,
        mtu: int = 1500,
        per_segment: bool = False,
        in_udp: bool = False,
        bundles: bool = False,
    ) -> None:
        codec_id = int(CodecId.INCEPTIONN)
        self.settings = TransmitSettings(codec_id, bound_k, mtu, int(per_segment), int(in_udp), int(bundles))
        self.counters = make_counters()
        self.tx_flows, self.rx_flows = make_flows(), make_flows()
        self._wire = np.zeros(WIRE_BUFFER_LEN, np.uint8)
        self._spans = np.zeros((MAX_WIRE_FRAMES, 2), np.int64)
        self._host = np.zeros(HOST_SEGMENT_LEN, np.uint8)
        self._pending = np.zeros(PENDING_FIELDS, np.int64)

    def from_host(self, frame: bytes) -> list[bytes]:
        """Return the wire frames that a host frame becomes."""
        before = in_buffer(frame)
        buffer = before.copy()
        no_gain = self.counters[Counter.BYPASS_NO_GAIN]
        count = transmit(self.settings, buffer, len(frame), 0, self.tx_flows, self.counters, self._wire, self._spans)
        if self.counters[Counter.BYPASS_NO_GAIN] == no_gain:
            assert np.array_equal(buffer, before), "transmit must not change what the host gave"
        if count == FORWARD:
            return [bytes(buffer[: len(frame)])]
        if count == 0:
            return []
        pieces = [bytes(self._wire[at : at + length]) for at, length in self._spans[:count]]
        return [b"".join(pieces)] if is_bundle(self._wire, self._spans, count) else pieces

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

    def flows(self) -> list[dict[str, Any]]:
        """Return what the transmit flow table says."""
        return as_dicts(self.tx_flows)

    def counts(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: value for name, value in as_dict(self.counters).items() if value}

    def _take(self, buffer: np.ndarray, length: int, delivered: list[bytes]) -> None:
        status = self._receive(buffer, length)
        if status == FLUSH_FIRST:
            self._flush(delivered)
            status = self._receive(buffer, length)
            assert status != FLUSH_FIRST
        if status in (FORWARD, FORWARD_SHORTER):
            self._flush(delivered)
            delivered.append(bytes(buffer[: length - (OPTION_LEN if status == FORWARD_SHORTER else 0)]))
        if status == MERGED_LAST:
            self._flush(delivered)

    def _receive(self, buffer: np.ndarray, length: int) -> int:
        tables = self.tx_flows, self.rx_flows
        return receive(buffer, length, 0, *tables, self.counters, self._pending, self._host)

    def _flush(self, delivered: list[bytes]) -> None:
        length = finish(self.counters, self._pending, self._host)
        if length:
            delivered.append(bytes(self._host[:length]))


def connect(client: Nic, server: Nic, isn: int, sport: int = 40000, ipv6: bool = False) -> None:
    """Make a connection between the hosts of two NICs; both NICs then know that the other one decodes."""
    syn = make_segment(flags="S", seq=isn, sport=sport, ipv6=ipv6)
    assert server.from_wire(client.from_host(syn)) == [syn]
    answer = make_segment(flags="SA", seq=5, sport=sport, to_client=True, ipv6=ipv6)
    assert client.from_wire(server.from_host(answer)) == [answer]
