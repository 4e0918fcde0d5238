"""Rings as one compiled function; ``loop_port`` says what it has in common with meetings.

It does what ``_Round`` in :mod:`netoffload.collectives.ring` does channel by channel, which is its oracle. A step moves
at most one piece in each direction, so that neither can starve the other nor the end of the slice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.syscalls import now_ns, recv, send
from netoffload.transport.rounds.loop_port import (
    BROKEN,
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


class RingPlan(NamedTuple):
    """A :class:`~netoffload.collectives.exchange.RingRound` in numbers."""

    values: Float32Array  # float32[n]
    words: Uint32Array  # uint32[n], the same memory
    staged: Float32Array  # float32, one chunk
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
        if pushed == FAILED or pulled == FAILED:
            return BROKEN
        now = now_ns(port.clock)
        if pushed == MOVED or pulled == MOVED:
            state[QUIET_NS] = 0
            if now >= until_ns:
                return GO_ON
            continue
        wanted_out = outward if pushed == REFUSED else -1
        wanted_in = inward if state[RECEIVING] < steps else -1
        result = sleep(wanted_out, wanted_in, now, until_ns, limit_ns, port)
        if result != DONE:
            return result
    return DONE


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
            _reduce(plan, state[REDUCED] // 4, chunk_end // 4, port)
            state[REDUCED] = chunk_end
    if state[REDUCED] == stop:
        moved = MOVED
        state[RECEIVING] += 1
        if state[RECEIVING] < steps:
            state[RECEIVED] = state[REDUCED] = plan.walk[state[RECEIVING] + 1, 0]
    return moved


@inline_kernel
def _reduce(plan: RingPlan, first: int, last: int, port: Port) -> None:
    """Combine what is staged with ``values[first:last]``, and round that if this rank owns it."""
    start_ns = now_ns(port.clock)
    combine(plan.operation, plan.values[first:last], plan.staged[: last - first])
    port.state[REDUCE_NS] += now_ns(port.clock) - start_ns
    if plan.codec_id != NOT_ROUNDED and port.state[RECEIVING] == plan.reducing - 1:
        round_floats(plan, first, last, port)
