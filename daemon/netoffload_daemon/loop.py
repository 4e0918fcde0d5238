"""The loop: poll, read, engine, write; compiled as one function that runs without the GIL.

:func:`serve` is the way of a frame from the outside in: wait, then at most one batch per direction, then wait again, so
that neither direction can starve the other. ``_from_wire`` and ``_from_host`` are the two directions; ``_send`` and
``_deliver`` their ends. An error of one frame is counted and the loop goes on; only a host device that was deleted ends
it.
"""

from __future__ import annotations

import errno as error_numbers
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.kernels import DECODE_SLACK
from netoffload.engine.counters import Counter, Int64Array, make_counters
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
from netoffload.engine.transmit import (
    HOST_BUFFER_LEN,
    MAX_WIRE_FRAMES,
    WIRE_BUFFER_LEN,
    TransmitSettings,
    transmit,
)
from netoffload.engine.vlan import TAG_LEN
from netoffload.wire import vnet
from netoffload.wire.capability import OPTION_LEN
from netoffload_daemon import libc, vlan

Uint8Array = npt.NDArray[np.uint8]

STOPPED: Final = 0
"""Result of :func:`serve`: asked to stop, and drained."""
HOST_GONE: Final = 1
"""Result of :func:`serve`: the host's device was deleted."""

WIRE_BATCH: Final = 64
"""Frames taken from the wire at once: a 64 KiB segment without any compression is 46 frames."""

HOST_BATCH: Final = 8
"""Frames taken from the host at once; each may be 64 KiB."""

DRAIN_ROUNDS: Final = 256
"""Batches per direction taken when stopping; a host that goes on sending cannot keep the NIC alive."""

_WIRE_FRAME_LEN: Final = TAG_LEN + HOST_BUFFER_LEN + DECODE_SLACK
_BACK_OFF_MS: Final = 100
"""Pause after a device that is down, so that the loop does not spin on it."""

_EAGAIN: Final = error_numbers.EAGAIN
_EINTR: Final = error_numbers.EINTR
_ENOBUFS: Final = error_numbers.ENOBUFS
_ENETDOWN: Final = error_numbers.ENETDOWN
_ENXIO: Final = error_numbers.ENXIO
_EIO: Final = error_numbers.EIO
_EBADFD: Final = error_numbers.EBADFD


class Port(NamedTuple):
    """Everything the loop works on; arrays, made once.

    Attributes:
        host_in: one frame from the host.
        wire_out: the wire frames it became.
        spans: where they are in ``wire_out``.
        out_messages: message headers for them.
        out_vectors: their addresses and lengths.
        unsent: [first frame not yet taken by the wire, frames in all].
        wire_in: frames from the wire.
        in_messages: message headers for them.
        in_vectors: their addresses and room.
        in_controls: what the kernel says about each.
        host_out: the segment being rebuilt.
        pending: its state.
        tx_flows: transmit flow table.
        rx_flows: receive flow table.
        counters: indexed by ``Counter``.
        polled: three ``struct pollfd``: host, wire, event.
        clock: room for the time.
    """

    host_in: Uint8Array
    wire_out: Uint8Array
    spans: Int64Array
    out_messages: libc.Uint64Array
    out_vectors: libc.Uint64Array
    unsent: Int64Array
    wire_in: Uint8Array
    in_messages: libc.Uint64Array
    in_vectors: libc.Uint64Array
    in_controls: Uint8Array
    host_out: Uint8Array
    pending: Int64Array
    tx_flows: Int64Array
    rx_flows: Int64Array
    counters: Int64Array
    polled: npt.NDArray[np.int32]
    clock: Int64Array


def make_port(tx_flows: Int64Array, rx_flows: Int64Array) -> Port:
    """Return buffers and counters at zero, around these flow tables."""
    out_messages, out_vectors = libc.make_messages(MAX_WIRE_FRAMES)
    in_messages, in_vectors = libc.make_messages(WIRE_BATCH)
    wire_in = np.zeros((WIRE_BATCH, _WIRE_FRAME_LEN), np.uint8)
    for index in range(WIRE_BATCH):
        in_vectors[index] = wire_in[index].ctypes.data + TAG_LEN, HOST_BUFFER_LEN
    return Port(
        host_in=np.zeros(HOST_BUFFER_LEN, np.uint8),
        wire_out=np.zeros(WIRE_BUFFER_LEN, np.uint8),
        spans=np.zeros((MAX_WIRE_FRAMES, 2), np.int64),
        out_messages=out_messages,
        out_vectors=out_vectors,
        unsent=np.zeros(2, np.int64),
        wire_in=wire_in,
        in_messages=in_messages,
        in_vectors=in_vectors,
        in_controls=vlan.make_controls(in_messages),
        host_out=np.zeros(HOST_SEGMENT_LEN, np.uint8),
        pending=np.zeros(PENDING_FIELDS, np.int64),
        tx_flows=tx_flows,
        rx_flows=rx_flows,
        counters=make_counters(),
        polled=np.zeros((3, 2), np.int32),
        clock=np.zeros(2, np.int64),
    )


@kernel
def serve(host: int, wire: int, event: int, settings: TransmitSettings, port: Port) -> int:
    """Forward frames until ``event`` becomes readable; return ``STOPPED`` or ``HOST_GONE``.

    Args:
        host: descriptor of the host's device, non-blocking.
        wire: descriptor of the packet socket, non-blocking.
        event: descriptor that becomes readable when the loop shall stop.
        settings: for the transmit engine.
        port: see :class:`Port`.
    """
    polled = port.polled
    polled[0, 0], polled[1, 0], polled[2, 0] = host, wire, event
    polled[2, 1] = libc.POLLIN
    while True:
        waits_for_wire = port.unsent[0] < port.unsent[1]
        polled[0, 1] = 0 if waits_for_wire else libc.POLLIN
        polled[1, 1] = libc.POLLIN | (libc.POLLOUT if waits_for_wire else 0)
        if libc.poll(polled.ctypes.data, 3, -1) < 0:
            continue
        if polled[2, 1] >> 16:
            return int(_drain(host, wire, settings, port))
        if polled[1, 1] >> 16 and not _from_wire(host, wire, port):
            return HOST_GONE
        if waits_for_wire:
            _send(wire, port)
        elif polled[0, 1] >> 16 and not _from_host(host, wire, settings, port, HOST_BATCH):
            return HOST_GONE


@inline_kernel
def _from_wire(host: Any, wire: Any, port: Any) -> Any:
    """Take one batch from the wire to the host; False if the host's device is gone."""
    messages = port.in_messages
    taken = libc.recvmmsg(wire, messages.ctypes.data, WIRE_BATCH, libc.MSG_DONTWAIT, 0)
    if taken < 0:
        number = libc.errno()
        if number not in (_EAGAIN, _EINTR):  # the wire is down: do not spin on it
            libc.poll(port.polled.ctypes.data, 0, _BACK_OFF_MS)
        return True
    alive = True
    for index in range(taken):
        start = vlan.restore_tag(port.wire_in[index], messages[index], port.in_controls[index])
        frame = port.wire_in[index, start:]
        length = np.int64(messages[index, libc.MESSAGE_LEN] & np.uint64(0xFFFFFFFF)) + TAG_LEN - start
        port.counters[Counter.RX_WIRE_FRAMES] += 1
        port.counters[Counter.RX_WIRE_OCTETS] += length - vnet.VNET_LEN
        if np.int64(messages[index, libc.MESSAGE_FLAGS]) & libc.MSG_TRUNC or length < vnet.VNET_LEN:
            port.counters[Counter.DROP_RUNT] += 1
            continue
        before = libc.now_ns(port.clock)
        status = _receive(frame, length, before, port)
        if status == FLUSH_FIRST:
            alive = _flush(host, port) and alive
            status = _receive(frame, length, before, port)
        if status in (FORWARD, FORWARD_SHORTER):
            length -= OPTION_LEN if status == FORWARD_SHORTER else 0
            alive = _flush(host, port) and alive
            alive = _deliver(host, frame, length, port) and alive
            continue
        port.counters[Counter.RX_CODEC_NS] += libc.now_ns(port.clock) - before
        if status == MERGED_LAST:
            alive = _flush(host, port) and alive
    return _flush(host, port) and alive


@inline_kernel
def _receive(frame: Any, length: Any, now_ns: Any, port: Any) -> Any:
    return receive(frame, length, now_ns, port.tx_flows, port.rx_flows, port.counters, port.pending, port.host_out)


@inline_kernel
def _flush(host: Any, port: Any) -> Any:
    """Hand the rebuilt segment to the host, if there is one."""
    length = finish(port.counters, port.pending, port.host_out)
    return length == 0 or _deliver(host, port.host_out, length, port)


@inline_kernel
def _deliver(host: Any, frame: Any, length: Any, port: Any) -> Any:
    """Write one frame to the host; False if its device is gone."""
    while libc.write(host, frame.ctypes.data, length) < 0:
        number = libc.errno()
        if number == _EINTR:
            continue
        if number == _EBADFD:
            return False
        port.counters[Counter.DROP_HOST_DOWN if number == _EIO else Counter.DROP_HOST_REFUSED] += 1
        break
    return True


@inline_kernel
def _from_host(host: Any, wire: Any, settings: Any, port: Any, batch: Any) -> Any:
    """Take up to ``batch`` frames from the host to the wire; False if the host's device is gone."""
    for _ in range(batch):
        length = libc.read(host, port.host_in.ctypes.data, HOST_BUFFER_LEN)
        if length < 0:
            number = libc.errno()
            if number == _EBADFD:
                return False
            if number not in (_EAGAIN, _EINTR):
                libc.poll(port.polled.ctypes.data, 0, _BACK_OFF_MS)
            return True
        before = libc.now_ns(port.clock)
        frames = transmit(
            settings, port.host_in, length, before, port.tx_flows, port.counters, port.wire_out, port.spans
        )
        if frames == FORWARD:
            port.out_vectors[0, 0] = port.host_in.ctypes.data
            port.out_vectors[0, 1] = length
            frames = 1
        else:
            for index in range(frames):
                port.out_vectors[index, 0] = port.wire_out.ctypes.data + port.spans[index, 0]
                port.out_vectors[index, 1] = port.spans[index, 1]
            port.counters[Counter.TX_CODEC_NS] += libc.now_ns(port.clock) - before
        port.unsent[0] = 0
        port.unsent[1] = frames
        if not _send(wire, port):
            return True
    return True


@inline_kernel
def _send(wire: Any, port: Any) -> Any:
    """Give the unsent frames to the wire; False if it is full and some are left."""
    while port.unsent[0] < port.unsent[1]:
        first = port.unsent[0]
        messages = port.out_messages[first:]
        taken = libc.sendmmsg(wire, messages.ctypes.data, port.unsent[1] - first, libc.MSG_DONTWAIT)
        if taken > 0:
            for index in range(first, first + taken):
                port.counters[Counter.TX_WIRE_OCTETS] += np.int64(port.out_vectors[index, 1]) - vnet.VNET_LEN
            port.counters[Counter.TX_WIRE_FRAMES] += taken
            port.unsent[0] = first + taken
            continue
        number = libc.errno()
        if number == _EINTR:
            continue
        if number == _EAGAIN:
            port.counters[Counter.TX_WIRE_WAITS] += 1
            return False
        if number == _ENOBUFS:
            port.counters[Counter.DROP_WIRE_FULL] += 1
        elif number in (_ENETDOWN, _ENXIO):
            port.counters[Counter.DROP_WIRE_DOWN] += 1
        else:
            port.counters[Counter.DROP_WIRE_REFUSED] += 1
        port.unsent[0] = first + 1
    return True


@inline_kernel
def _drain(host: Any, wire: Any, settings: Any, port: Any) -> Any:
    """Empty both directions as far as the devices allow without waiting."""
    for _ in range(DRAIN_ROUNDS):
        before = port.counters[Counter.RX_WIRE_FRAMES] + port.counters[Counter.TX_HOST_FRAMES]
        _from_wire(host, wire, port)
        if not _send(wire, port) or not _from_host(host, wire, settings, port, HOST_BATCH):
            break
        if port.counters[Counter.RX_WIRE_FRAMES] + port.counters[Counter.TX_HOST_FRAMES] == before:
            break
    return STOPPED
