"""The loop's two devices and its memory: buffers, message headers, tables and counters, made before the first frame.

A NIC with one thread has one :class:`Port`. With two threads, :func:`make_second` gives the second one a view of it. A
direction's buffers are used by one thread only, so just poll set, clock, address and state exist twice.
"""

from typing import Final, NamedTuple

import numpy as np

from netoffload.codec.kernels import DECODE_SLACK
from netoffload.compiled.arrays import Int32Array, Int64Array, Uint8Array, Uint64Array
from netoffload.engine.nic import REBUILT_ROWS, make_state
from netoffload.engine.pack import CACHE_LINE, MAX_WIRE_FRAMES
from netoffload.engine.receive import HOST_SEGMENT_LEN
from netoffload.engine.state import EngineSettings, NicState
from netoffload.engine.transmit import HOST_BUFFER_LEN, WIRE_BUFFER_LEN
from netoffload.nic_options.faults import FaultSettings
from netoffload.wire.ethernet import ETHERNET_LEN
from netoffload.wire.ipv4 import IPV4_MIN_LEN
from netoffload.wire.tcp import TCP_MIN_LEN
from netoffload.wire.vnet import VNET_LEN
from netoffload_daemon import libc, vlan
from netoffload_daemon.faults import FaultPlan, Held, make_held, make_plan
from netoffload_daemon.sockets import Diag, make_diag
from netoffload_daemon.trace import RING_WORDS, TraceRing, make_ring, wall_clock_offset_ns
from netoffload_daemon.vlan import TAG_LEN

TX: Final = 1
"""Role: host to wire."""
RX: Final = 2
"""Role: wire to host."""

WIRE_BATCH: Final = 64
"""Frames taken from the wire at once: an uncompressed 64 KiB segment is 46 frames."""

HOST_BATCH: Final = 8
"""Frames taken from the host at once, each up to 64 KiB; also the most batches from the host in one turn."""

_PAYLOAD_AT: Final = VNET_LEN + ETHERNET_LEN + IPV4_MIN_LEN + TCP_MIN_LEN + 12
"""Where the payload of most frames begins: TCP over IPv4 with timestamps."""

# The line of frames for the wire, in Port.line.
LINE_FIRST: Final = 0
"""The first frame that the wire has not taken yet."""
LINE_END: Final = 1
"""How many frames are in line, with those that the wire has taken."""
LINE_PIECES: Final = 2
"""Vectors in use: one per frame, and several for a frame that the kernel gathers."""
LINE_OCTETS: Final = 3
"""Octets of ``wire_out`` in use."""
LINE_FIELDS: Final = 4

# Trouble with the devices, in Port.state.
ENDED: Final = 0
"""0, or the reason why the loop must end."""
SUSPECT: Final = 1
"""How often the loop still checks whether a device that is down was deleted; 0: no device is down."""
STATE_FIELDS: Final = 2


class LoopSettings(NamedTuple):
    """The settings of the loop, which do not change.

    Attributes:
        busy_ns: how long to look for frames without sleeping after the last one, nanoseconds.
        host_is_packet: 1 if the host's device is read through a packet socket, 0 for a TAP.
        trace_sides: the sides whose frames are traced: ``HOST_SIDE``, ``WIRE_SIDE``, both or none.
        wall_offset_ns: added to the loop's time, it gives nanoseconds since 1970.
    """

    keeps_table: int
    faults: FaultPlan
    busy_ns: int
    host_is_packet: int
    trace_sides: int
    wall_offset_ns: int


class Port(NamedTuple):
    """The loop's two devices and its memory, made once.

    Attributes:
        host_in: frames from the host, one row each, from ``TAG_LEN`` on.
        host_messages: message headers for ``host_in``, if the host's device is a packet socket.
        host_vectors: addresses and room for ``host_messages``.
        wire_out: wire frames made from ``host_in``, with room for at least two segments.
        out_vectors: addresses and lengths for ``out_messages``.
    """

    host: int
    wire: int
    nic: NicState
    diag: Diag
    host_in: Uint8Array
    host_messages: Uint64Array
    host_vectors: Uint64Array
    host_controls: Uint8Array
    wire_out: Uint8Array
    out_messages: Uint64Array
    out_vectors: Uint64Array
    line: Int64Array
    held: Held
    wire_in: Uint8Array
    in_messages: Uint64Array
    in_vectors: Uint64Array
    in_controls: Uint8Array
    tx_trace: TraceRing
    rx_trace: TraceRing
    polled: Int32Array
    clock: Int64Array
    address: Int32Array
    state: Int64Array


def make_settings(
    faults: FaultSettings | None = None,
    busy_poll_us: int = 0,
    host_is_packet: bool = False,
    trace_sides: int = 0,
    keeps_table: bool = False,
) -> LoopSettings:
    """Return the loop's settings."""
    plan = make_plan(faults or FaultSettings())
    return LoopSettings(
        int(keeps_table), plan, busy_poll_us * 1000, int(host_is_packet), trace_sides, wall_clock_offset_ns()
    )


def make_port(
    engine: EngineSettings,
    flows: Int64Array | None = None,
    faults: FaultSettings | None = None,
    traced: bool = False,
    diag: Diag | None = None,
    devices: tuple[int, int] = (-1, -1),
) -> Port:
    """Return buffers, and counters at zero.

    ``diag`` says how the host's kernel is asked about sockets; ``devices`` are the descriptors of the host's device and
    of the wire, -1: there is none.
    """
    ring_words = RING_WORDS if traced else 1
    out_messages, out_vectors = libc.make_messages(2 * MAX_WIRE_FRAMES)
    wire_in, in_messages, in_vectors = _make_inbox(WIRE_BATCH)
    host_in, host_messages, host_vectors = _make_inbox(HOST_BATCH)
    host, wire = devices
    return Port(
        host=host,
        wire=wire,
        nic=make_state(engine, flows, _make_rows(REBUILT_ROWS, HOST_SEGMENT_LEN, _PAYLOAD_AT)),
        diag=make_diag() if diag is None else diag,
        host_in=host_in,
        host_messages=host_messages,
        host_vectors=host_vectors,
        host_controls=vlan.make_controls(host_messages),
        wire_out=_make_rows(1, 2 * WIRE_BUFFER_LEN, 0)[0],
        out_messages=out_messages,
        out_vectors=out_vectors,
        line=np.zeros(LINE_FIELDS, np.int64),
        held=make_held(faults or FaultSettings(), int(engine.mtu[0])),
        wire_in=wire_in,
        in_messages=in_messages,
        in_vectors=in_vectors,
        in_controls=vlan.make_controls(in_messages),
        tx_trace=make_ring(ring_words),
        rx_trace=make_ring(ring_words),
        polled=np.zeros((3, 2), np.int32),
        clock=np.zeros(2, np.int64),
        address=np.zeros(libc.ADDRESS_ROOM, np.int32),
        state=np.zeros(STATE_FIELDS, np.int64),
    )


def _make_inbox(frames: int) -> tuple[Uint8Array, Uint64Array, Uint64Array]:
    """Return rows for frames from a device, each from ``TAG_LEN`` on, with message headers and vectors for them."""
    rows = _make_rows(frames, TAG_LEN + HOST_BUFFER_LEN + DECODE_SLACK, TAG_LEN + _PAYLOAD_AT)
    messages, vectors = libc.make_messages(frames)
    for index in range(frames):
        vectors[index] = rows[index].ctypes.data + TAG_LEN, HOST_BUFFER_LEN
    return rows, messages, vectors


def _make_rows(count: int, row_len: int, line_at: int) -> Uint8Array:
    """Return uint8[count, row_len or a little more]; octet ``line_at`` of every row begins a cache line.

    If a plain segment's payload begins there, the kernel copies it faster, because both sides of the copy are aligned.
    And no vector of floats lies across two cache lines.
    """
    row_len += -row_len % CACHE_LINE
    octets = np.zeros(count * row_len + CACHE_LINE, np.uint8)
    first = -(octets.ctypes.data + line_at) % CACHE_LINE
    return octets[first : first + count * row_len].reshape(count, row_len)


def make_second(port: Port) -> Port:
    """Return the port of a second thread, which serves one of the directions of ``port``."""
    own = {name: np.zeros_like(getattr(port, name)) for name in ("polled", "clock", "address", "state")}
    return port._replace(**own)
