"""Two NICs without devices: what one transmits, the other receives, and the clock stands still."""

from __future__ import annotations

import numpy as np
from frames import in_buffer

from netoffload.codec import CodecId
from netoffload.codec.kernels import DECODE_SLACK
from netoffload.engine.counters import as_dict, make_counters
from netoffload.engine.flows import make_flows
from netoffload.engine.receive import (
    FLUSH_FIRST,
    FORWARD,
    HOST_SEGMENT_LEN,
    MERGED_LAST,
    PENDING_FIELDS,
    finish,
    receive,
)
from netoffload.engine.transmit import MAX_WIRE_FRAMES, WIRE_BUFFER_LEN, TransmitSettings, transmit


class Nic:
    """The engine's two directions with buffers of their own."""

    def __init__(self, bound_k: int = 10, mtu: int = 1500, per_segment: bool = False) -> None:
        self.settings = TransmitSettings(int(CodecId.INCEPTIONN), bound_k, mtu, int(per_segment))
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
        count = transmit(self.settings, buffer, len(frame), 0, self.tx_flows, self.counters, self._wire, self._spans)
        assert np.array_equal(buffer, before), "transmit must not change what the host gave"
        if count == FORWARD:
            return [frame]
        return [bytes(self._wire[at : at + length]) for at, length in self._spans[:count]]

    def from_wire(self, frames: list[bytes]) -> list[bytes]:
        """Return the host frames that a batch of wire frames becomes."""
        delivered: list[bytes] = []
        for frame in frames:
            buffer = in_buffer(frame, len(frame) + DECODE_SLACK)
            status = self._receive(buffer, len(frame))
            if status == FLUSH_FIRST:
                self._flush(delivered)
                status = self._receive(buffer, len(frame))
                assert status != FLUSH_FIRST
            if status == FORWARD:
                self._flush(delivered)
                delivered.append(frame)
            if status == MERGED_LAST:
                self._flush(delivered)
        self._flush(delivered)
        return delivered

    def counts(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: value for name, value in as_dict(self.counters).items() if value}

    def _receive(self, buffer: np.ndarray, length: int) -> int:
        return receive(buffer, length, 0, self.rx_flows, self.counters, self._pending, self._host)

    def _flush(self, delivered: list[bytes]) -> None:
        length = finish(self.counters, self._pending, self._host)
        if length:
            delivered.append(bytes(self._host[:length]))
