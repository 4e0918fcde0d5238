"""Rings as compiled functions; ``loop_port`` says what they have in common with meetings.

They do what ``_go_round`` in :mod:`netoffload.collectives.ring` does channel by channel, their oracle. A step
moves at most one piece in each direction, so that neither can starve the other nor the end of the slice.

There are two: over connections that carry float32, and over those on which the ranks code (``chunks``). The latter
encodes a chunk when the one before has left, and decodes and combines one while the next one is on the way. The
kernel's socket buffers hold several chunks of either direction, so a wire slower than the codec never waits for it.
"""

from typing import NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import copy_octets
from netoffload.compiled.syscalls import now_ns, recv, send
from netoffload.transport.rounds.loop_port import (
    BROKEN,
    DAMAGED,
    DONE,
    FAILED,
    FLAGS,
    GO_ON,
    IN,
    MOVED,
    NOT_ROUNDED,
    NOTHING,
    OUT,
    PATIENCE,
    QUIET_NS,
    RECEIVED,
    RECEIVING,
    REDUCE_NS,
    REDUCED,
    REFUSED,
    SENDING,
    SENT,
    SENT_OCTETS,
    Port,
    closed,
    combine,
    failure,
    round_floats,
    sleep,
)
from netoffload.transport.wiring.chunks import (
    CODED_NS,
    IN_AT,
    IN_END,
    OUT_AT,
    OUT_END,
    OUT_FLOATS,
    Coding,
    count_received,
    count_sent,
    pack,
    unpack,
)

_SPOILT = FAILED + 1  # result of an attempt to receive: a chunk is damaged


class RingPlan(NamedTuple):
    """A :class:`~netoffload.collectives.exchange.RingRound` in numbers."""

    values: Float32Array  # float32[n]
    words: Uint32Array  # uint32[n], the same memory
    staged: Float32Array  # float32, one chunk; its length is what is combined, or coded, and forwarded at a time
    walk: Int64Array  # int64[steps + 1, 2], first octet of each span, and the one after its last
    reducing: int
    operation: int
    codec_id: int  # number of the codec that rounds, or `NOT_ROUNDED`
    bound_k: int


def begin(plan: RingPlan, port: Port) -> None:
    """Set ``port`` to the beginning of a ring. Not compiled: a compiled call would wait for the lock once more."""
    port.state[:PATIENCE] = 0
    port.state[SENT] = plan.walk[0, 0]
    port.state[RECEIVED] = port.state[REDUCED] = plan.walk[1, 0]


@kernel
def run_ring(outward: int, inward: int, slice_ns: int, limit_ns: int, plan: RingPlan, port: Port) -> int:
    """Carry the ring out until it is done, an error occurs, or the slice is over; return which.

    Descriptors are non-blocking, and may be the same. Sleep of ``limit_ns`` without any event gives ``SILENT``. The
    calls of one ring share plan and port (:func:`begin`).
    """
    state, steps = port.state, plan.walk.shape[0] - 1
    until_ns = now_ns(port.clock) + slice_ns
    while state[SENDING] < steps or state[RECEIVING] < steps:
        pushed = _push(outward, plan, steps, state)
        pulled = _pull(inward, plan, steps, port)
        result = _after(pushed, pulled, outward, inward if state[RECEIVING] < steps else -1, until_ns, limit_ns, port)
        if result != DONE:
            return result
    return DONE


@inline_kernel
def _after(pushed: int, pulled: int, outward: int, wanted_in: int, until_ns: int, limit_ns: int, port: Port) -> int:
    """Return what an attempt in each direction means: ``DONE`` is to try again, after a sleep if nothing moved."""
    if pushed == FAILED or pulled == FAILED:
        return BROKEN
    if pulled == _SPOILT:
        return DAMAGED
    now = now_ns(port.clock)
    if pushed == MOVED or pulled == MOVED:
        port.state[QUIET_NS] = 0
        return GO_ON if now >= until_ns else DONE
    return sleep(outward if pushed == REFUSED else -1, wanted_in, now, until_ns, limit_ns, port)


@inline_kernel
def _push(outward: int, plan: RingPlan, steps: int, state: Int64Array) -> int:
    """Send once what is ready."""
    moved = NOTHING
    while state[SENDING] < steps:
        stop = plan.walk[state[SENDING], 1]
        if state[SENT] < stop:
            ready = _ready_until(plan, state, stop)
            if moved == MOVED or state[SENT] >= ready:
                break
            at = np.int64(plan.values.ctypes.data) + state[SENT]
            count = np.int64(send(outward, at, ready - state[SENT], FLAGS))
            if count < 0:
                return failure(OUT, state)
            state[SENT] += count
            state[SENT_OCTETS] += count
            moved = MOVED
        if state[SENT] == stop:
            state[SENDING] += 1
            state[SENT] = plan.walk[state[SENDING], 0]
    return moved


@inline_kernel
def _ready_until(plan: RingPlan, state: Int64Array, stop: int) -> int:
    """Return the octet up to which the sender's block may be sent: whole chunks, or all of it."""
    if state[SENDING] <= state[RECEIVING] or (state[SENDING] == state[RECEIVING] + 1 and state[REDUCED] == stop):
        return stop
    if state[SENDING] > state[RECEIVING] + 1:
        return state[SENT]  # that block has not begun to arrive
    start, chunk = plan.walk[state[SENDING], 0], 4 * plan.staged.size
    # Whole chunks only: if every rank held back a part of a chunk, all could wait for the rest of theirs.
    return start + (state[REDUCED] - start) // chunk * chunk


@inline_kernel
def _pull(inward: int, plan: RingPlan, steps: int, port: Port) -> int:
    """Receive once; combine and round once a whole chunk, or the rest of a block, is there."""
    state, moved = port.state, NOTHING
    if state[RECEIVING] >= steps:
        return moved
    stop = plan.walk[state[RECEIVING] + 1, 1]
    if state[RECEIVED] < stop:
        is_reducing = state[RECEIVING] < plan.reducing
        if is_reducing:
            chunk_end = min(state[REDUCED] + 4 * plan.staged.size, stop)
            at = np.int64(plan.staged.ctypes.data) + state[RECEIVED] - state[REDUCED]
        else:
            chunk_end = stop
            at = np.int64(plan.values.ctypes.data) + state[RECEIVED]
        count = np.int64(recv(inward, at, chunk_end - state[RECEIVED], FLAGS))
        if count <= 0:
            return failure(IN, state) if count < 0 else closed(state)
        state[RECEIVED] += count
        moved = MOVED
        if not is_reducing:
            state[REDUCED] = state[RECEIVED]
        elif state[RECEIVED] == chunk_end:
            _reduce(plan, plan.staged, state[REDUCED] // 4, chunk_end // 4, port)
            state[REDUCED] = chunk_end
    if state[REDUCED] == stop:
        moved = MOVED
        state[RECEIVING] += 1
        if state[RECEIVING] < steps:
            state[RECEIVED] = state[REDUCED] = plan.walk[state[RECEIVING] + 1, 0]
    return moved


@inline_kernel
def _reduce(plan: RingPlan, incoming: Float32Array, first: int, last: int, port: Port) -> None:
    """Combine what came with ``values[first:last]``, and round that if this rank owns it."""
    start_ns = now_ns(port.clock)
    combine(plan.operation, plan.values[first:last], incoming[: last - first])
    port.state[REDUCE_NS] += now_ns(port.clock) - start_ns
    if plan.codec_id != NOT_ROUNDED and port.state[RECEIVING] == plan.reducing - 1:
        round_floats(plan, first, last, port)


@kernel
def run_coded_ring(
    outward: int,
    inward: int,
    slice_ns: int,
    limit_ns: int,
    plan: RingPlan,
    outgoing: Coding,
    incoming: Coding,
    port: Port,
) -> int:
    """Carry the ring out; arguments as for :func:`run_ring`, and both codings."""
    state, steps = port.state, plan.walk.shape[0] - 1
    until_ns = now_ns(port.clock) + slice_ns
    while state[SENDING] < steps or state[RECEIVING] < steps:
        pushed = _push_coded(outward, plan, outgoing, steps, port)
        pulled = _pull_coded(inward, plan, incoming, steps, port)
        result = _after(pushed, pulled, outward, inward if state[RECEIVING] < steps else -1, until_ns, limit_ns, port)
        if result != DONE:
            return result
    return DONE


@inline_kernel
def _push_coded(outward: int, plan: RingPlan, coding: Coding, steps: int, port: Port) -> int:
    """Encode a chunk if none is under way, and send once as much of it as fits."""
    state, chunk = port.state, coding.state
    if chunk[OUT_FLOATS] == 0:
        moved = NOTHING
        while state[SENDING] < steps and state[SENT] == plan.walk[state[SENDING], 1]:
            state[SENDING] += 1
            state[SENT] = plan.walk[state[SENDING], 0]
            moved = MOVED  # perhaps that was the last step, and then there is nothing to sleep for
        if state[SENDING] == steps:
            return moved
        ready = _ready_until(plan, state, plan.walk[state[SENDING], 1])
        count = min(ready - state[SENT], 4 * plan.staged.size) // 4
        if count <= 0:
            return moved
        start_ns = now_ns(port.clock)
        pack(coding, plan.words.view(np.uint8), state[SENT], count)
        chunk[CODED_NS] += now_ns(port.clock) - start_ns
        state[SENT] += 4 * count
    at = np.int64(coding.outgoing.ctypes.data) + chunk[OUT_AT]
    sent = np.int64(send(outward, at, chunk[OUT_END] - chunk[OUT_AT], FLAGS))
    if sent < 0:
        return failure(OUT, state)
    state[SENT_OCTETS] += 4 * count_sent(coding, sent)
    return MOVED


@inline_kernel
def _pull_coded(inward: int, plan: RingPlan, coding: Coding, steps: int, port: Port) -> int:
    """Receive once; decode, combine and round once a whole chunk is there."""
    state, chunk = port.state, coding.state
    if state[RECEIVING] >= steps:
        return NOTHING
    stop = plan.walk[state[RECEIVING] + 1, 1]
    if state[REDUCED] < stop:
        at = np.int64(coding.incoming.ctypes.data) + chunk[IN_AT]
        count = np.int64(recv(inward, at, chunk[IN_END] - chunk[IN_AT], FLAGS))
        if count <= 0:
            return failure(IN, state) if count < 0 else closed(state)
        floats = count_received(coding, count, (stop - state[REDUCED]) // 4)
        if floats < 0 or (floats > 0 and not _take(plan, coding, floats, port)):
            return _SPOILT
    if state[REDUCED] == stop:
        state[RECEIVING] += 1
        if state[RECEIVING] < steps:
            state[REDUCED] = plan.walk[state[RECEIVING] + 1, 0]
    return MOVED


@inline_kernel
def _take(plan: RingPlan, coding: Coding, floats: int, port: Port) -> bool:
    """Decode a whole chunk into the vector; if this step reduces, combine it with the values there."""
    state, decoded = port.state, coding.decoded
    octets, first = plan.words.view(np.uint8), state[REDUCED]
    is_reducing = state[RECEIVING] < plan.reducing
    start_ns = now_ns(port.clock)
    # Decoding writes whole bursts, and the last one could run past the chunk's place.
    is_staged = is_reducing or floats % 8 != 0
    is_good = unpack(coding, decoded.view(np.uint8), 0) if is_staged else unpack(coding, octets, first)
    coding.state[CODED_NS] += now_ns(port.clock) - start_ns
    if not is_good:
        return False
    if is_reducing:
        _reduce(plan, decoded, first // 4, first // 4 + floats, port)
    elif is_staged:
        copy_octets(decoded.view(np.uint8), 0, octets, first, 4 * floats)
    state[REDUCED] = first + 4 * floats
    return True
