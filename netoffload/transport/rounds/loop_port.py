"""What the compiled rounds share: their state, how they sleep, and what they do to floats.

A compiled function polls, sends, receives, combines and rounds by the codec until its round is done, without the
interpreter lock. It reports by its result and by numbers in ``Port.state``, which ``driver`` turns into times, octets
and errors. A function returns ``GO_ON`` after ``slice_ns`` and when a signal has come, so that Python can handle the
signal. It is then called again with the same arguments: all that it knows is in ``state``.

This file is compiled into others, so ``netoffload.compiled.jit`` has it in the digest of its cache.
"""

import errno as error_numbers
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec.kernels import round_trip
from netoffload.collectives import Operation
from netoffload.compiled.arrays import Float32Array, Int32Array, Int64Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.syscalls import MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT, errno, now_ns, wait

DONE: Final = 0
GO_ON: Final = 1  # call again
BROKEN: Final = 2  # the connection that `state[SIDE]` names ended, for the reason in `state[ERROR]`
SILENT: Final = 3  # nothing happened for `limit_ns`
DAMAGED: Final = 4  # a chunk that came is damaged (`chunks`)

# Port.state, int64.
SENDING: Final = 0  # step of the sender
SENT: Final = 1  # octet of the vector up to which the sender has sent
RECEIVING: Final = 2  # step of the receiver; in a meeting: number of complete rounds
RECEIVED: Final = 3  # octet of the vector up to which the receiver has received
REDUCED: Final = 4  # octet up to which this rank has finished the block that it receives
SENT_OCTETS: Final = 5  # octets that a ring has sent since `driver` last set this to 0; likewise the next three
ASLEEP_NS: Final = 6
REDUCE_NS: Final = 7
CODEC_NS: Final = 8
QUIET_NS: Final = 9  # time asleep since data last moved
SIDE: Final = 10  # `OUT` or `IN`: which connection broke
ERROR: Final = 11  # error number; 0: the peer closed
WANTED: Final = 12  # sides that the round waits for: `1 << OUT | 1 << IN`
PATIENCE: Final = 13  # how long a gathering polls before it sleeps, in nanoseconds; kept from round to round
STATE_FIELDS: Final = 14

PATIENCE_NS: Final = 1_000_000
"""First and longest patience. Two ranks that both sleep wake each other after 0.2 to 0.4 ms on a virtual machine. With
a shorter patience they would keep on sleeping, and never find out that polling is faster."""

OUT: Final = 0
IN: Final = 1

NOT_ROUNDED: Final = -1  # in place of a codec id

NOTHING: Final = 0  # what one attempt to send or receive did; likewise the next three
MOVED: Final = 1
REFUSED: Final = 2
FAILED: Final = 3

FLAGS: Final = MSG_DONTWAIT | MSG_NOSIGNAL
_EAGAIN: Final = error_numbers.EAGAIN
_EINTR: Final = error_numbers.EINTR

_SUM: Final = int(Operation.SUM)
_MAX: Final = int(Operation.MAX)
_MIN: Final = int(Operation.MIN)


class Port(NamedTuple):
    """What a round works with; made once per communicator."""

    state: Int64Array  # int64[STATE_FIELDS]
    polled: Int32Array  # int32[2, 2], a `struct pollfd` per side
    clock: Int64Array  # int64[2] to work in


def make_port() -> Port:
    """Return memory to work in."""
    state = np.zeros(STATE_FIELDS, np.int64)
    state[PATIENCE] = PATIENCE_NS
    return Port(state, np.zeros((2, 2), np.int32), np.zeros(2, np.int64))


@inline_kernel
def failure(side: int, state: Int64Array) -> int:
    """Return what a failed call means: try again when ready, try again at once, or give up."""
    number = errno()
    if number == _EAGAIN:
        return REFUSED
    if number == _EINTR:
        return MOVED
    state[SIDE], state[ERROR] = side, number
    return FAILED


@inline_kernel
def closed(state: Int64Array) -> int:
    """Return what the end of a stream means."""
    state[SIDE], state[ERROR] = IN, 0
    return FAILED


@inline_kernel
def sleep(wanted_out: int, wanted_in: int, now: int, until_ns: int, limit_ns: int, port: Port) -> int:
    """Sleep until a connection is ready (``DONE``), the slice is over, or nothing has happened for too long.

    A descriptor is -1 if nothing is wanted from that side.
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


@kernel
def combine(operation: int, target: Float32Array, incoming: Float32Array) -> None:
    """Replace ``target`` by target ∘ incoming, float32 of equal length, as ``collectives.operations.apply`` does.

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


@inline_kernel
def round_floats(plan: Any, first: int, last: int, port: Port) -> None:
    """Replace ``plan.words[first:last]`` by what the codec makes of them, and count the time."""
    start_ns = now_ns(port.clock)
    words = plan.words[first:last]
    round_trip(plan.codec_id, words, plan.bound_k, words)
    port.state[CODEC_NS] += now_ns(port.clock) - start_ns
