"""Rounds as compiled functions that run without the interpreter lock: poll, send, receive, combine, round by the codec.

They do what ``_Round`` in :mod:`netoffload.collectives.ring` and ``_meet`` in
:mod:`netoffload.collectives.announcement` do channel by channel, which are their oracles. Whatever happens is said by
a result and numbers in ``Port.state``; ``driver`` makes times, octets and errors of them. A function returns
``GO_ON`` after ``slice_ns`` and when a signal has come, so that Python can look around, and is then called again with
the same arguments: all that it knows is in ``state``.

A step moves at most one piece in each direction, so that neither can starve the other nor the end of the slice.
"""

from __future__ import annotations

import errno as error_numbers
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.kernels import round_trip
from netoffload.collectives import Operation
from netoffload.syscalls import (
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    POLLIN,
    POLLOUT,
    errno,
    now_ns,
    recv,
    send,
    wait,
)

DONE: Final = 0
GO_ON: Final = 1
"""Call again."""
BROKEN: Final = 2
"""The connection of ``state[SIDE]`` ended, for the reason in ``state[ERROR]``."""
SILENT: Final = 3
"""Nothing happened for ``limit_ns``."""

# Port.state, int64.
SENDING: Final = 0
"""Step of the sender."""
SENT: Final = 1
"""Octet of the vector up to which it has got."""
RECEIVING: Final = 2
"""Step of the receiver; of a meeting: rounds that are complete."""
RECEIVED: Final = 3
"""Octet of the vector up to which it has got."""
REDUCED: Final = 4
"""Octet up to which the block being received is final as far as this rank is concerned."""
SENT_OCTETS: Final = 5
"""Of a ring: since whoever counts them put 0 here; likewise the next three."""
ASLEEP_NS: Final = 6
REDUCE_NS: Final = 7
CODEC_NS: Final = 8
QUIET_NS: Final = 9
"""Asleep since anything happened."""
SIDE: Final = 10
"""``OUT`` or ``IN``: which connection broke."""
ERROR: Final = 11
"""Error number, 0: the peer closed."""
WANTED: Final = 12
"""Sides slept for, ``1 << OUT | 1 << IN``."""
STATE_FIELDS: Final = 13

OUT: Final = 0
IN: Final = 1

NOT_ROUNDED: Final = -1
"""In place of a codec id."""

_NOTHING: Final = 0
_MOVED: Final = 1
_REFUSED: Final = 2
_FAILED: Final = 3

_FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL
_EAGAIN: Final = error_numbers.EAGAIN
_EINTR: Final = error_numbers.EINTR

_SUM: Final = int(Operation.SUM)
_MAX: Final = int(Operation.MAX)
_MIN: Final = int(Operation.MIN)

Int64Array = npt.NDArray[np.int64]


class Port(NamedTuple):
    """What a round works with; made once per communicator.

    Attributes:
        state: int64[STATE_FIELDS].
        polled: int32[2, 2], a ``struct pollfd`` per side.
        clock: int64[2] to work in.
    """

    state: Int64Array
    polled: npt.NDArray[np.int32]
    clock: Int64Array


class RingPlan(NamedTuple):
    """A :class:`~netoffload.collectives.exchange.RingRound` in numbers.

    Attributes:
        values: float32[n].
        words: uint32[n], the same memory.
        staged: float32, one chunk.
        walk: int64[steps + 1, 2], first and last-but-one octet of each span.
        reducing: see there.
        operation: see there.
        codec_id: of the codec that rounds, or ``NOT_ROUNDED``.
        bound_k: its bound.
    """

    values: npt.NDArray[np.float32]
    words: npt.NDArray[np.uint32]
    staged: npt.NDArray[np.float32]
    walk: Int64Array
    reducing: int
    operation: int
    codec_id: int
    bound_k: int


def make_port() -> Port:
    """Return memory to work in."""
    return Port(np.zeros(STATE_FIELDS, np.int64), np.zeros((2, 2), np.int32), np.zeros(2, np.int64))


def begin(plan: RingPlan, port: Port) -> None:
    """Set ``port`` to the beginning of a ring. Not compiled: that would be one more time to wait for the lock."""
    port.state[:] = 0
    port.state[SENT] = plan.walk[0, 0]
    port.state[RECEIVED] = port.state[REDUCED] = plan.walk[1, 0]


@kernel
def run_ring(outward: int, inward: int, slice_ns: int, limit_ns: int, plan: RingPlan, port: Port) -> int:
    """Go round until all is done, something is wrong, or the slice is over; return which.

    Args:
        outward: descriptor of the connection to the right neighbour, non-blocking.
        inward: that of the left one; may be the same.
        slice_ns: time after which to return ``GO_ON``.
        limit_ns: sleep without any event after which to return ``SILENT``.
        plan: what to do; the same in every call.
        port: where it has got to; see :func:`begin`.
    """
    state, steps = port.state, plan.walk.shape[0] - 1
    until_ns = now_ns(port.clock) + slice_ns
    while state[SENDING] < steps or state[RECEIVING] < steps:
        pushed = _push(outward, plan, steps, state)
        pulled = _pull(inward, plan, steps, port)
        if pushed == _FAILED or pulled == _FAILED:
            return BROKEN
        now = now_ns(port.clock)
        if pushed == _MOVED or pulled == _MOVED:
            state[QUIET_NS] = 0
            if now >= until_ns:
                return GO_ON
            continue
        wanted_out = outward if pushed == _REFUSED else -1
        wanted_in = inward if state[RECEIVING] < steps else -1
        result = _sleep(wanted_out, wanted_in, now, until_ns, limit_ns, port)
        if result != DONE:
            return result
    return DONE


@inline_kernel
def _push(outward: Any, plan: Any, steps: Any, state: Any) -> Any:
    """Send once what is ready."""
    moved = _NOTHING
    while state[SENDING] < steps:
        stop = plan.walk[state[SENDING], 1]
        if state[SENT] < stop:
            ready = _ready_until(plan, state, stop)
            if moved == _MOVED or state[SENT] >= ready:
                break
            at = np.int64(plan.values.ctypes.data) + state[SENT]
            count = np.int64(send(outward, at, ready - state[SENT], _FLAGS))
            if count < 0:
                return _failure(OUT, state)
            state[SENT] += count
            state[SENT_OCTETS] += count
            moved = _MOVED
        if state[SENT] == stop:
            state[SENDING] += 1
            state[SENT] = plan.walk[state[SENDING], 0]
    return moved


@inline_kernel
def _ready_until(plan: Any, state: Any, stop: Any) -> Any:
    """Return the end of what may be sent of the block that the sender is at: whole chunks, or all of it."""
    if state[SENDING] <= state[RECEIVING] or (state[SENDING] == state[RECEIVING] + 1 and state[REDUCED] == stop):
        return stop
    if state[SENDING] > state[RECEIVING] + 1:
        return state[SENT]  # that block has not begun to arrive
    start, chunk = plan.walk[state[SENDING], 0], 4 * plan.staged.size
    # Whole chunks only: had a rank to hold back a part of one, all could wait for the rest of theirs.
    return start + (state[REDUCED] - start) // chunk * chunk


@inline_kernel
def _pull(inward: Any, plan: Any, steps: Any, port: Any) -> Any:
    """Receive once; combine and round what became a whole chunk, or the rest of a block."""
    state, moved = port.state, _NOTHING
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
        count = np.int64(recv(inward, at, chunk_end - state[RECEIVED], _FLAGS))
        if count <= 0:
            return _failure(IN, state) if count < 0 else _closed(state)
        state[RECEIVED] += count
        moved = _MOVED
        if not is_reducing:
            state[REDUCED] = state[RECEIVED]
        elif state[RECEIVED] == chunk_end:
            _reduce(plan, state[REDUCED] // 4, chunk_end // 4, port)
            state[REDUCED] = chunk_end
    if state[REDUCED] == stop:
        moved = _MOVED
        state[RECEIVING] += 1
        if state[RECEIVING] < steps:
            state[RECEIVED] = state[REDUCED] = plan.walk[state[RECEIVING] + 1, 0]
    return moved


@inline_kernel
def _reduce(plan: Any, first: Any, last: Any, port: Any) -> None:
    """Combine what is staged with ``values[first:last]``, and round that if this rank owns it."""
    start_ns = now_ns(port.clock)
    combine(plan.operation, plan.values[first:last], plan.staged[: last - first])
    combined_ns = now_ns(port.clock)
    port.state[REDUCE_NS] += combined_ns - start_ns
    if plan.codec_id != NOT_ROUNDED and port.state[RECEIVING] == plan.reducing - 1:
        words = plan.words[first:last]
        round_trip(plan.codec_id, words, plan.bound_k, words)
        port.state[CODEC_NS] += now_ns(port.clock) - combined_ns


@kernel
def combine(operation: int, target: Any, incoming: Any) -> None:
    """Replace ``target`` by target ∘ incoming, float32 of one length, as ``collectives.operations.apply`` does.

    Of two zeros of different sign, MAX and MIN may keep either.
    """
    if operation == _SUM:
        for index in range(target.size):
            target[index] += incoming[index]
    elif operation == _MAX:
        for index in range(target.size):
            ours, theirs = target[index], incoming[index]
            target[index] = ours if (ours >= theirs) | (ours != ours) else theirs
    elif operation == _MIN:
        for index in range(target.size):
            ours, theirs = target[index], incoming[index]
            target[index] = ours if (ours <= theirs) | (ours != ours) else theirs
    else:
        for index in range(target.size):
            target[index] *= incoming[index]


@kernel
def run_meeting(pairs: Any, slice_ns: int, limit_ns: int, ours: Any, heard: Any, port: Port) -> int:
    """Tell and hear, round by round; a round in which something else than ``ours`` is heard is the last.

    Args:
        pairs: int64[rounds, 2], descriptors to send to and to receive from.
        slice_ns: as in :func:`run_ring`.
        limit_ns: likewise.
        ours: uint8, what to say.
        heard: uint8, as long.
        port: where it has got to; ``state`` is all zeros in the beginning.
    """
    state = port.state
    until_ns = now_ns(port.clock) + slice_ns
    while state[RECEIVING] < pairs.shape[0]:
        ahead, behind = pairs[state[RECEIVING], OUT], pairs[state[RECEIVING], IN]
        said = listened = _NOTHING
        if state[SENT] < ours.size:
            count = np.int64(send(ahead, np.int64(ours.ctypes.data) + state[SENT], ours.size - state[SENT], _FLAGS))
            said = _failure(OUT, state) if count < 0 else _MOVED
            state[SENT] += max(count, 0)
        if state[RECEIVED] < ours.size:
            at = np.int64(heard.ctypes.data) + state[RECEIVED]
            count = np.int64(recv(behind, at, ours.size - state[RECEIVED], _FLAGS))
            listened = _failure(IN, state) if count < 0 else _MOVED if count else _closed(state)
            state[RECEIVED] += max(count, 0)
        if said == _FAILED or listened == _FAILED:
            return BROKEN
        if said == _MOVED or listened == _MOVED:
            state[QUIET_NS] = 0
        if state[SENT] == ours.size and state[RECEIVED] == ours.size:
            state[RECEIVING] += 1
            state[SENT] = state[RECEIVED] = 0
            for index in range(ours.size):
                if ours[index] != heard[index]:
                    return DONE
        elif said != _MOVED and listened != _MOVED:
            wanted_out = ahead if said == _REFUSED else -1
            wanted_in = behind if state[RECEIVED] < ours.size else -1
            result = _sleep(wanted_out, wanted_in, now_ns(port.clock), until_ns, limit_ns, port)
            if result != DONE:
                return result
    return DONE


@inline_kernel
def _failure(side: Any, state: Any) -> Any:
    """Return what a call that failed means: later, at once again, or never."""
    number = errno()
    if number == _EAGAIN:
        return _REFUSED
    if number == _EINTR:
        return _MOVED
    state[SIDE], state[ERROR] = side, number
    return _FAILED


@inline_kernel
def _closed(state: Any) -> Any:
    state[SIDE], state[ERROR] = IN, 0
    return _FAILED


@inline_kernel
def _sleep(wanted_out: Any, wanted_in: Any, now: Any, until_ns: Any, limit_ns: Any, port: Any) -> Any:
    """Sleep until a connection is ready (``DONE``), the slice is over, or nothing has happened for too long.

    Args:
        wanted_out: descriptor to send to, or -1.
        wanted_in: descriptor to receive from, or -1.
        now: the time.
        until_ns: end of the slice.
        limit_ns: of silence.
        port: of the round.
    """
    state, polled = port.state, port.polled
    polled[OUT, 0], polled[OUT, 1] = wanted_out, POLLOUT
    polled[IN, 0], polled[IN, 1] = wanted_in, POLLIN
    state[WANTED] = (1 << OUT if wanted_out >= 0 else 0) | (1 << IN if wanted_in >= 0 else 0)
    ready = wait(polled, 2, max(min(until_ns - now, limit_ns - state[QUIET_NS]), 0), port.clock)
    number = errno() if ready < 0 else 0
    slept_ns = now_ns(port.clock) - now
    state[ASLEEP_NS] += slept_ns
    if ready > 0:
        state[QUIET_NS] = 0
        return DONE
    if ready < 0 and number != _EINTR:
        state[SIDE], state[ERROR] = IN, number
        return BROKEN
    state[QUIET_NS] += slept_ns
    return SILENT if state[QUIET_NS] >= limit_ns else GO_ON
