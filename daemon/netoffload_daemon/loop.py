"""The loop: poll, read, engine, write; compiled as one function that runs without the GIL.

:func:`serve` waits, then takes at most one batch per direction, and waits again, so that neither direction can starve
the other. ``_from_wire`` and ``_from_host`` are the two directions; ``_send`` and ``_deliver`` write to the devices. An
error of one frame is counted and the loop goes on. A device that is down is looked at again and again: only a deleted
device ends the loop.
"""

from errno import EAGAIN, EBADFD, EINTR, EIO, ENETDOWN, ENOBUFS, ENXIO
from typing import Final

import numpy as np

from netoffload.compiled import syscalls
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel, merged_kernel
from netoffload.compiled.octets import whole
from netoffload.engine import nic as engine
from netoffload.engine.counters import Counter
from netoffload.engine.encapsulation import is_bundle
from netoffload.engine.pack import CACHE_LINE, MAX_WIRE_FRAMES
from netoffload.engine.promises import count_questions
from netoffload.engine.transmit import FORWARD, HOST_BUFFER_LEN, RANDOM_WORDS, WIRE_BUFFER_LEN
from netoffload.wire import vnet
from netoffload_daemon import faults, libc, trace, vlan
from netoffload_daemon.port import (
    ENDED,
    HOST_BATCH,
    LINE_END,
    LINE_FIRST,
    LINE_OCTETS,
    LINE_PIECES,
    RX,
    SUSPECT,
    TX,
    WIRE_BATCH,
    LoopSettings,
    Port,
)
from netoffload_daemon.sockets import answer_questions
from netoffload_daemon.trace import TraceRing
from netoffload_daemon.vlan import TAG_LEN

STOPPED: Final = 0
"""In ``Port.state[ENDED]``: no device was deleted. As the loop's result: stopped as asked, both directions empty."""
HOST_GONE: Final = 1
"""The host's device was deleted."""
WIRE_GONE: Final = 2
"""The wire was deleted."""

_BACK_OFF_NS: Final = 100_000_000
"""Pause after a device that is down, so that the loop does not spin on it."""
_LOOKS: Final = 50
"""How often to check whether a device that is down was deleted: the kernel first reports "down", and unbinds the socket
a moment later without a report."""

DRAIN_ROUNDS: Final = 256
"""The most batches per direction when stopping, so that a host that goes on sending cannot keep the NIC alive."""
_DRAIN_WAIT_NS: Final = 10_000_000
"""How long each of these batches waits for a full wire or for held frames: 2.6 s in all."""

_HOST_QUEUE_FRAMES: Final = 4096
"""The most frames that wait in a host's device: after this many batches, the frames that waited at first are read."""


@kernel
def serve(event: int, roles: int, settings: LoopSettings, port: Port) -> int:
    """Forward frames until ``event`` becomes readable; return ``STOPPED``, ``HOST_GONE`` or ``WIRE_GONE``.

    The loop does not read ``event``. ``roles`` are the directions that this thread serves: ``TX``, ``RX`` or both.
    """
    polled = port.polled
    polled[2, 0], polled[2, 1] = event, syscalls.POLLIN
    active_ns = syscalls.now_ns(port.clock)
    rounds_left, rounds_behind = -1, 0  # -1: no end in sight; else rounds of the drain
    while port.state[ENDED] == STOPPED and rounds_left != 0:
        waits_for_wire = port.line[LINE_FIRST] < port.line[LINE_END] and roles & TX != 0
        takes_from_host = roles & TX != 0 and not waits_for_wire
        if settings.faults.is_on and takes_from_host:
            takes_from_host = faults.has_room(port.held)
        # A descriptor without requested events would still report its errors, and the loop would spin on them.
        polled[0, 0], polled[0, 1] = (port.host if takes_from_host else -1), syscalls.POLLIN
        polled[1, 1] = (syscalls.POLLIN if roles & RX else 0) | (syscalls.POLLOUT if waits_for_wire else 0)
        polled[1, 0] = port.wire if polled[1, 1] else -1
        has_frames = roles & TX != 0 and _count_unsent(port) > 0
        if rounds_left < 0:
            timeout_ns = _timeout_ns(settings, port, active_ns, waits_for_wire, roles)
        else:
            timeout_ns = _drain_timeout_ns(port, has_frames, waits_for_wire)
        ready = syscalls.wait(polled, 3, timeout_ns, port.clock)
        if ready < 0:
            continue
        rounds_left -= 1 if rounds_left > 0 else 0
        if ready == 0:
            if not has_frames:
                rounds_left = min(rounds_left, 0)  # both directions are empty: the drain is complete
            _look_again(port)
        elif polled[2, 1] >> 16:
            polled[2, 0], rounds_left = -1, DRAIN_ROUNDS
            if roles & TX and not settings.keeps_table:
                engine.release_lent(port.nic)
        if roles & RX and polled[1, 1] >> 16:
            _from_wire(settings, port)
        is_known_empty = takes_from_host and polled[0, 1] >> 16 == 0
        takes_from_host = takes_from_host and not is_known_empty
        rounds_behind = 0 if is_known_empty else rounds_behind + int(takes_from_host)
        if roles & TX:
            # After a pause the NIC first reads the host's frames: they may hold the octets for which the clock waits.
            if not waits_for_wire and (is_known_empty or rounds_behind > _HOST_QUEUE_FRAMES):
                _from_clock(settings, port)
            _to_wire(takes_from_host, settings, port)
        if settings.busy_ns and ready > 0:
            active_ns = syscalls.now_ns(port.clock)
    if roles & TX:
        reason = Counter.DROP_WIRE_DOWN if port.state[ENDED] == WIRE_GONE else Counter.DROP_WIRE_FULL
        port.nic.counters[reason] += _count_unsent(port)
    return int(port.state[ENDED])


@inline_kernel
def _count_unsent(port: Port) -> int:
    """Return how many frames were read from the host but not yet given to the wire."""
    return port.line[LINE_END] - port.line[LINE_FIRST] + faults.count_held(port.held)


@inline_kernel
def _drain_timeout_ns(port: Port, has_frames: bool, waits_for_wire: bool) -> int:
    """Return how long to sleep at most when stopping: 0, unless the wire is full or a frame is held."""
    if not has_frames:
        return 0
    if waits_for_wire:
        return _DRAIN_WAIT_NS
    return min(max(faults.wait_ns(port.held, syscalls.now_ns(port.clock)), 0), _DRAIN_WAIT_NS)


@inline_kernel
def _timeout_ns(settings: LoopSettings, port: Port, active_ns: int, waits_for_wire: bool, roles: int) -> int:
    """Return how long to sleep at most: 0 while busy polling, else until the next frame is due, or for ever (-1)."""
    timeout_ns = _BACK_OFF_NS if port.state[SUSPECT] else -1
    if settings.busy_ns and syscalls.now_ns(port.clock) - active_ns < settings.busy_ns:
        return 0
    if settings.faults.is_on and not waits_for_wire:
        timeout_ns = _sooner_ns(timeout_ns, faults.wait_ns(port.held, syscalls.now_ns(port.clock)))
    if roles & TX and not waits_for_wire:
        timeout_ns = _sooner_ns(timeout_ns, engine.wait_ns(port.nic, syscalls.now_ns(port.clock)))
    return timeout_ns


@inline_kernel
def _sooner_ns(first_ns: int, second_ns: int) -> int:
    """Return the shorter of two times; -1 means for ever."""
    return second_ns if first_ns < 0 or 0 <= second_ns < first_ns else first_ns


@kernel
def _from_wire(settings: LoopSettings, port: Port) -> None:
    """Take one batch from the wire to the host."""
    messages, nic = port.in_messages, port.nic
    taken = libc.recvmmsg(port.wire, messages.ctypes.data, WIRE_BATCH, syscalls.MSG_DONTWAIT, 0)
    if taken < 0:
        _read_failed(port)
        return
    for index in range(taken):
        start = vlan.restore_tag(port.wire_in[index], messages[index], port.in_controls[index])
        frame = port.wire_in[index, start:]
        length = libc.message_len(messages[index]) + TAG_LEN - start
        port.nic.counters[Counter.RX_WIRE_FRAMES] += 1
        port.nic.counters[Counter.RX_WIRE_OCTETS] += length - vnet.VNET_LEN
        if settings.trace_sides & trace.WIRE_SIDE:
            now_ns = syscalls.now_ns(port.clock)
            _trace(settings, port.rx_trace, 1, trace.INBOUND, frame.ctypes.data, length, now_ns)
        if np.int64(messages[index, libc.MESSAGE_FLAGS]) & libc.MSG_TRUNC or length < vnet.VNET_LEN:
            port.nic.counters[Counter.DROP_RUNT] += 1
            continue
        part_len = engine.next_part(nic, frame, length)
        while part_len >= 0:
            _take(frame[engine.part_at(nic) :], part_len, settings, port)
            part_len = engine.next_part(nic, frame, length)
    engine.flush(nic)  # no segment waits for the next batch
    _deliver_rebuilt(settings, port)


@merged_kernel
def _take(frame: Uint8Array, length: int, settings: LoopSettings, port: Port) -> None:
    """Receive one frame, or one block of a bundle; write to the host the frames that must leave now."""
    before = syscalls.now_ns(port.clock)
    crossing = engine.from_wire(port.nic, frame, length, before)
    if crossing >= 0:
        _deliver_rebuilt(settings, port)  # rebuilt segments go before a frame that crosses
        _deliver(frame, crossing, settings, port)
        return
    if crossing == engine.TAKEN:
        port.nic.counters[Counter.RX_CODEC_NS] += syscalls.now_ns(port.clock) - before
    if engine.count_rebuilt(port.nic) >= engine.REBUILT_BATCH:
        _deliver_rebuilt(settings, port)


@inline_kernel
def _deliver_rebuilt(settings: LoopSettings, port: Port) -> None:
    """Write complete segments to the host, one right after the other: its TCP then acknowledges several at once."""
    nic = port.nic
    for index in range(engine.count_rebuilt(nic)):
        row = engine.row_of(nic, index)
        _deliver(nic.rebuilt[row], nic.rebuilt_lens[row], settings, port)
    engine.forget_rebuilt(nic)


@kernel
def _deliver(frame: Uint8Array, length: int, settings: LoopSettings, port: Port) -> None:
    """Write one frame to the host."""
    if settings.trace_sides & trace.HOST_SIDE:
        now_ns = syscalls.now_ns(port.clock)
        _trace(settings, port.rx_trace, 0, trace.OUTBOUND, frame.ctypes.data, length, now_ns)
    while syscalls.write(port.host, frame.ctypes.data, length) < 0:
        number = syscalls.errno()
        if number == EINTR:
            continue
        if number == EBADFD:
            port.state[ENDED] = HOST_GONE
        elif number in (EIO, ENETDOWN, ENXIO):
            port.nic.counters[Counter.DROP_HOST_DOWN] += 1
            _suspect(port)
        elif number in (EAGAIN, ENOBUFS):
            port.nic.counters[Counter.DROP_HOST_FULL] += 1
        else:
            port.nic.counters[Counter.DROP_HOST_REFUSED] += 1
        break


@merged_kernel
def _to_wire(takes_from_host: bool, settings: LoopSettings, port: Port) -> None:
    """Send the waiting frames, then the host's next ones.

    If blocks are made, the call takes one batch from the host, which takes as long as a batch from the wire. If frames
    only cross, it takes up to :data:`HOST_BATCH` batches, 64 frames, as many as a batch from the wire.
    """
    for _ in range(HOST_BATCH):
        if port.line[LINE_END] == 0:
            if takes_from_host:
                _from_host(settings, port)
            if settings.faults.is_on:
                port.line[LINE_END] = faults.release(port.held, syscalls.now_ns(port.clock), port.out_vectors)
        has_blocks = port.line[LINE_OCTETS] > 0
        if port.line[LINE_END] == 0 or not _send(settings, port) or has_blocks:
            return


@kernel
def _from_host(settings: LoopSettings, port: Port) -> None:
    """Take a batch of frames from the host and put the frames that they become in line for the wire.

    So a batch takes one system call and wakes the other NIC once. Frames that cross unchanged are sent from the buffer
    they were read into. The batch ends early if there might be no room for the blocks of one more segment.
    """
    row = 0
    if port.nic.random[0] > RANDOM_WORDS // 2:
        libc.draw_random(port.nic.random)
    for _ in range(HOST_BATCH):
        if settings.faults.is_on and not faults.has_room(port.held):
            return
        if (
            port.line[LINE_OCTETS] + WIRE_BUFFER_LEN > port.wire_out.size
            or port.line[LINE_PIECES] + MAX_WIRE_FRAMES > port.out_vectors.shape[0]
        ):
            return
        start, length = _read_host(row, settings, port)
        if length < 0:
            if port.line[LINE_END] == 0:  # else frames in line go first; the device reports its error again
                _read_failed(port)
            return
        frame = port.host_in[row, start:]
        before = syscalls.now_ns(port.clock)
        if settings.trace_sides & trace.HOST_SIDE:
            _trace(settings, port.tx_trace, 0, trace.INBOUND, frame.ctypes.data, length, before)
        blocks = port.wire_out[port.line[LINE_OCTETS] :]
        frames = engine.from_host(port.nic, frame, length, before, blocks)
        if count_questions(port.nic):
            answer_questions(port.nic, port.diag)  # before the next frame, which may be the connection's first payload
        if frames == FORWARD:
            port.nic.spans[0, 0], port.nic.spans[0, 1] = 0, length
            _put_in_line(frame, 1, False, before, settings, port)
            row += 1
        elif frames > 0:
            port.nic.counters[Counter.TX_CODEC_NS] += syscalls.now_ns(port.clock) - before
            _put_in_line(blocks, frames, is_bundle(blocks, port.nic.spans, frames), before, settings, port)
            if not settings.faults.is_on:  # the fault stage has made copies, so the room is free again
                end = port.nic.spans[frames - 1, 0] + port.nic.spans[frames - 1, 1]
                port.line[LINE_OCTETS] += end + CACHE_LINE - 1 & ~(CACHE_LINE - 1)


@inline_kernel
def _from_clock(settings: LoopSettings, port: Port) -> None:
    """Put the frames that the NIC must send by itself in line, a batch at most."""
    if engine.wait_ns(port.nic, 0) < 0:
        return
    now_ns = syscalls.now_ns(port.clock)
    while port.line[LINE_END] < HOST_BATCH:
        frame = port.wire_out[port.line[LINE_OCTETS] :]
        if engine.from_clock(port.nic, now_ns, frame) == 0:
            return
        _put_in_line(frame, 1, False, now_ns, settings, port)
        if not settings.faults.is_on:
            port.line[LINE_OCTETS] += port.nic.spans[0, 1] + CACHE_LINE - 1 & ~(CACHE_LINE - 1)


@inline_kernel
def _put_in_line(octets: Uint8Array, count: int, is_one: bool, now_ns: int, settings: LoopSettings, port: Port) -> None:
    """Put the frames in ``spans`` in line for the wire; with ``is_one`` they are pieces that the kernel gathers."""
    for index in range(count):
        at, octets_len = port.nic.spans[index, 0], port.nic.spans[index, 1]
        if settings.faults.is_on:
            faults.disturb(settings.faults, octets, at, octets_len, now_ns, port.held, port.nic.counters)
            continue
        vector = port.out_vectors[port.line[LINE_PIECES]]
        vector[0] = octets.ctypes.data + at
        vector[1] = octets_len
        port.line[LINE_PIECES] += 1
        if index == 0 or not is_one:
            message = port.out_messages[port.line[LINE_END]]
            message[libc.MESSAGE_IOV] = vector.ctypes.data
            message[libc.MESSAGE_IOV_COUNT] = count if is_one else 1
            port.line[LINE_END] += 1


@inline_kernel
def _read_host(row: int, settings: LoopSettings, port: Port) -> tuple[int, int]:
    """Read one frame of the host into its row; return where it starts and its length, negative if there is no frame.

    A TAP leaves VLAN tags in the frame; a packet socket reports them beside the frame.
    """
    if not settings.host_is_packet:
        return TAG_LEN, syscalls.read(port.host, port.host_in[row].ctypes.data + TAG_LEN, HOST_BUFFER_LEN)
    message = port.host_messages[row]
    taken = libc.recvmmsg(port.host, message.ctypes.data, 1, syscalls.MSG_DONTWAIT, 0)
    if taken < 0:
        return TAG_LEN, whole(taken)
    start = vlan.restore_tag(port.host_in[row], message, port.host_controls[row])
    return start, libc.message_len(message) + TAG_LEN - start


@kernel
def _send(settings: LoopSettings, port: Port) -> bool:
    """Give the unsent frames to the wire; return False if the wire is full and some are left."""
    while port.line[LINE_FIRST] < port.line[LINE_END]:
        first = port.line[LINE_FIRST]
        messages = port.out_messages[first:]
        taken = libc.sendmmsg(port.wire, messages.ctypes.data, port.line[LINE_END] - first, syscalls.MSG_DONTWAIT)
        if taken > 0:
            for index in range(first, first + taken):
                length = libc.message_len(messages[index - first])
                port.nic.counters[Counter.TX_WIRE_OCTETS] += length - vnet.VNET_LEN
                if settings.trace_sides & trace.WIRE_SIDE:  # with a trace nothing is bundled: one vector per frame
                    now_ns, at = syscalls.now_ns(port.clock), port.out_vectors[index, 0]
                    _trace(settings, port.tx_trace, 1, trace.OUTBOUND, at, length, now_ns)
            port.nic.counters[Counter.TX_WIRE_FRAMES] += taken
            port.line[LINE_FIRST] = first + taken
            continue
        number = syscalls.errno()
        if number == EINTR:
            continue
        if number == EAGAIN:
            port.nic.counters[Counter.TX_WIRE_WAITS] += 1
            return False
        if number == ENOBUFS:
            port.nic.counters[Counter.DROP_WIRE_FULL] += 1
        elif number in (ENETDOWN, ENXIO):
            port.nic.counters[Counter.DROP_WIRE_DOWN] += 1
            _suspect(port)
        else:
            port.nic.counters[Counter.DROP_WIRE_REFUSED] += 1
        port.line[LINE_FIRST] = first + 1
    port.line[:] = 0
    return True


@inline_kernel
def _trace(
    settings: LoopSettings, ring: TraceRing, interface: int, way: int, address: int, length: int, now_ns: int
) -> None:
    trace.record(ring, interface, way, address, length, now_ns + settings.wall_offset_ns)


@kernel
def _read_failed(port: Port) -> None:
    """Find out why a device gave no frame; pause if it is down."""
    number = syscalls.errno()
    if number in (EAGAIN, EINTR):
        return
    if number == EBADFD:
        port.state[ENDED] = HOST_GONE
        return
    _suspect(port)
    if port.state[ENDED] == STOPPED:
        syscalls.wait(port.polled, 0, _BACK_OFF_NS, port.clock)


@kernel
def _suspect(port: Port) -> None:
    """Check whether a device that is down was deleted, at once and in the following rounds."""
    port.state[SUSPECT] = _LOOKS
    _look(port)


@inline_kernel
def _look_again(port: Port) -> None:
    """Check once more, if a device may have been deleted."""
    if port.state[SUSPECT]:
        port.state[SUSPECT] -= 1
        _look(port)


@kernel
def _look(port: Port) -> None:
    """End the loop if the interface of a packet socket was deleted."""
    if libc.is_interface_gone(port.host, port.address):
        port.state[ENDED] = HOST_GONE
    elif libc.is_interface_gone(port.wire, port.address):
        port.state[ENDED] = WIRE_GONE
