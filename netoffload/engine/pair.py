"""Two NICs back to back in memory: frames in, frames out, no device, no root, and a clock that you set.

For experiments with codecs and formats, and for tests::

    from netoffload.engine.pair import Stream, pair

    client, server = pair("bounded", bound_k=10)
    stream = Stream(client, server)              # a tagged TCP connection between their hosts
    frames = stream.send(gradient)               # float32; the frames that crossed
    received = stream.received()                 # what the other host got
    print(gradient.nbytes / sum(map(len, frames)), client.counts())

Every frame starts with a virtio-net header of 10 octets (``netoffload.wire.vnet``), as on a TAP.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from netoffload import codec
from netoffload.codec.bursts import DECODE_SLACK
from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.config import BOUND_K_DEFAULT, TOS_COMPRESS, check_bound_k
from netoffload.engine import nic as engine
from netoffload.engine.counters import as_dict
from netoffload.engine.encapsulation import is_bundle
from netoffload.engine.flow_report import as_dicts
from netoffload.engine.pack import MTU_MAX
from netoffload.engine.state import EngineSettings
from netoffload.engine.transmit import FORWARD, HOST_BUFFER_LEN, RANDOM_WORDS, WIRE_BUFFER_LEN
from netoffload.errors import UsageError
from netoffload.wire import ethernet, ipv4, tcp, vnet
from netoffload.wire.checksum import internet_checksum

_HOSTS: Final = bytes((2, 0, 0, 0, 0, 1)), bytes((2, 0, 0, 0, 0, 2))
_ADDRESSES: Final = bytes((10, 9, 0, 1)), bytes((10, 9, 0, 2))
_TSO_OCTETS: Final = 61_440
"""Payload of the largest segment that a host hands its card, whole floats."""


class Nic:
    """One NIC: the engine's state and the buffers that its calls need.

    Attributes:
        now_ns: its clock; set it to let time pass.
    """

    def __init__(self, settings: EngineSettings | None = None, random: Int64Array | None = None) -> None:
        """Make a NIC that has seen no frame.

        Args:
            random: int64[1 + RANDOM_WORDS], see ``make_state``; default: drawn from the system.
        """
        self.state = engine.make_state(settings or engine.make_settings(), random=random)
        self.now_ns = 0
        self._wire = np.zeros(WIRE_BUFFER_LEN, np.uint8)

    def from_host(self, frame: bytes) -> list[bytes]:
        """Return the frames for the wire that a frame of the host becomes; a bundle counts as one frame."""
        return self._transmit(in_buffer(frame, HOST_BUFFER_LEN), len(frame))

    def from_clock(self) -> list[bytes]:
        """Return the frames for the wire that the NIC sends by itself at ``now_ns``."""
        sent = []
        while engine.from_clock(self.state, self.now_ns, self._wire):
            start, length = self.state.spans[0]
            sent.append(bytes(self._wire[start : start + length]))
        return sent

    def from_wire(self, frames: Iterable[bytes]) -> list[bytes]:
        """Return the frames for the host that a batch from the wire becomes; after the batch the wire is empty."""
        delivered: list[bytes] = []
        for frame in frames:
            buffer = in_buffer(frame, len(frame) + DECODE_SLACK)
            while (part_len := int(engine.next_part(self.state, buffer, len(frame)))) >= 0:
                part = buffer[engine.part_at(self.state) :]
                crossing = engine.from_wire(self.state, part, part_len, self.now_ns)
                self._deliver(delivered)
                if crossing >= 0:
                    delivered.append(bytes(part[:crossing]))
        engine.flush(self.state)
        self._deliver(delivered)
        return delivered

    def flows(self, direction: str = "tx") -> list[dict[str, Any]]:
        """Return what the flow table says of one direction, ``tx`` or ``rx``."""
        return [
            row for row in as_dicts(self.state.flows, self.state.settings.codec_id) if row["direction"] == direction
        ]

    def counts(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: value for name, value in as_dict(self.state.counters).items() if value}

    def _transmit(self, buffer: Uint8Array, length: int) -> list[bytes]:
        count = engine.from_host(self.state, buffer, length, self.now_ns, self._wire)
        if count == FORWARD:
            return [bytes(buffer[:length])]
        spans = self.state.spans
        pieces = [bytes(self._wire[at : at + piece_len]) for at, piece_len in spans[:count]]
        return [b"".join(pieces)] if count > 0 and is_bundle(self._wire, spans, count) else pieces

    def _deliver(self, delivered: list[bytes]) -> None:
        for index in range(int(engine.count_rebuilt(self.state))):
            row = engine.row_of(self.state, index)
            delivered.append(bytes(self.state.rebuilt[row, : self.state.rebuilt_lens[row]]))
        engine.forget_rebuilt(self.state)


def pair(
    codec_name: str = "inceptionn", bound_k: int = BOUND_K_DEFAULT, mtu: int = 1500, seed: int = 1
) -> tuple[Nic, Nic]:
    """Return two NICs with the same codec; the caller carries the frames from one to the other."""
    bound_k = check_bound_k(bound_k)
    if not 576 <= mtu <= MTU_MAX:
        raise UsageError(f"mtu {mtu} is outside 576..{MTU_MAX}")
    codec_id = int(codec.get(codec_name).codec_id)
    words = np.random.default_rng(seed).integers(0, 2**32, (2, 1 + RANDOM_WORDS))
    words[:, 0] = 0
    first, second = (Nic(engine.make_settings(codec_id, bound_k, mtu), row) for row in words)
    return first, second


class Stream:
    """One direction of a tagged connection between the hosts of two NICs, whose sender never waits.

    The sending host hands over large segments, as Linux does with TSO; the receiving host acknowledges nothing.
    """

    def __init__(self, client: Nic, server: Nic, sport: int = 40_000, dport: int = 5001, mss: int = 1460) -> None:
        """Open the connection."""
        self._client, self._server = client, server
        self._ports, self._mss = (sport, dport), mss
        self._seq = 1
        self._octets: list[bytes] = []
        server.from_wire(client.from_host(self._frame(tcp.SYN, 0, b"")))
        answer = self._frame(tcp.SYN | tcp.ACK_FLAG, 0, b"", back=True, ack=1)
        client.from_wire(server.from_host(answer))

    def send(self, values: Float32Array) -> list[bytes]:
        """Send float32 values; return the frames that crossed the wire, in order."""
        payload = values.astype("<f4").tobytes()
        crossed: list[bytes] = []
        for start in range(0, len(payload), _TSO_OCTETS):
            part = payload[start : start + _TSO_OCTETS]
            flags = tcp.ACK_FLAG | (tcp.PSH if start + len(part) == len(payload) else 0)
            frames = self._client.from_host(self._frame(flags, self._seq, part, ack=1))
            self._seq = (self._seq + len(part)) % 2**32
            crossed += frames
            self._octets += [tcp_payload(frame) for frame in self._server.from_wire(frames)]
        return crossed

    def received(self) -> Float32Array:
        """Return all values that the other host has received."""
        return np.frombuffer(b"".join(self._octets), "<f4").astype(np.float32)

    def _frame(self, flags: int, seq: int, payload: bytes, *, back: bool = False, ack: int = 0) -> bytes:
        way = -1 if back else 1
        (src, dst), (sport, dport), (here, there) = _ADDRESSES[::way], self._ports[::way], _HOSTS[::way]
        total_len = ipv4.IPV4_MIN_LEN + tcp.TCP_MIN_LEN + len(payload)
        fields = 0x45, TOS_COMPRESS, total_len, 0, ipv4.FLAG_DF, 64, tcp.PROTO_TCP
        datagram = struct.pack(">BBHHHBB2x4s4s", *fields, src, dst)
        ip_sum = internet_checksum(datagram).to_bytes(2, "big")
        headers = there + here + ethernet.ETHERTYPE_IPV4.to_bytes(2, "big")
        headers += datagram[: ipv4.CHECKSUM] + ip_sum + datagram[ipv4.SRC :]
        headers += struct.pack(">HHIIBBH4x", sport, dport, seq, ack, tcp.TCP_MIN_LEN // 4 << 4, flags, 65_535)
        is_large = len(payload) > self._mss
        offload = (vnet.GSO_TCPV4, len(headers), self._mss) if is_large else (vnet.GSO_NONE, len(headers), 0)
        csum = len(headers) - tcp.TCP_MIN_LEN, tcp.CHECKSUM
        return struct.pack("=BBHHHH", vnet.NEEDS_CSUM, *offload, *csum) + headers + payload


def tcp_payload(frame: bytes) -> bytes:
    """Return the payload of a frame with virtio-net header, TCP over IPv4."""
    tcp_at = vnet.VNET_LEN + ethernet.ETHERNET_LEN + ipv4.IPV4_MIN_LEN
    return frame[tcp_at + 4 * (frame[tcp_at + tcp.DATA_OFFSET] >> 4) :]


def in_buffer(frame: bytes, room: int) -> Uint8Array:
    """Return uint8[room] that holds ``frame`` and zeros behind it, as a device's read buffer does."""
    buffer = np.zeros(room, np.uint8)
    buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
    return buffer
