"""Meetings and gatherings as a compiled function; ``loop_port`` says what it has in common with rings.

It does what ``_meet`` in :mod:`netoffload.collectives.announcement` and ``_add_up`` in
:mod:`netoffload.collectives.gathering` do channel by channel, its oracles.

**Patience.** To wake a sleeping process takes longer than to send a short message, and costs the waking rank about as
much. So a gathering polls for a time before it sleeps. After ``ALONE_NS`` it yields its core after each poll, because
the peer may need it. The gathering learns how long to poll: ``PATIENCE_NS`` after a wait that was shorter than that,
half as long as before after a longer one. So a rank that always waits long soon sleeps at once.
"""

from typing import Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.syscalls import memcpy, now_ns, recv, sched_yield, send
from netoffload.transport.rounds.loop_port import (
    ASLEEP_NS,
    BROKEN,
    CODEC_NS,
    DONE,
    FAILED,
    FLAGS,
    IN,
    MOVED,
    NOT_ROUNDED,
    NOTHING,
    OUT,
    PATIENCE,
    PATIENCE_NS,
    QUIET_NS,
    RECEIVED,
    RECEIVING,
    REDUCE_NS,
    REFUSED,
    SENT,
    Port,
    closed,
    combine,
    failure,
    round_floats,
    sleep,
)

ALONE_NS: Final = 6_000
"""Time after which a waiting rank yields its core after each poll, because the peer may need it. If it yielded at once,
a busy process could take a slice of several milliseconds, though the peer is only microseconds behind."""


class GatheringPlan(NamedTuple):
    """A :class:`~netoffload.collectives.exchange.Gathering` in numbers."""

    outgoing: Uint8Array  # uint8, as in `Gathering`
    incoming: Uint8Array  # uint8, likewise
    announcement_octets: int
    values: Float32Array  # float32[ranks * n], the places
    words: Uint32Array  # uint32[ranks * n], the same memory
    result: Float32Array  # float32, likewise
    spans: Int64Array  # int64[ranks, 2], first float of each block, and the one after its last
    rounded_hops: Uint8Array  # uint8[ranks], 0 or 1
    rank: int
    operation: int  # number of the operation
    codec_id: int  # number of the codec that rounds, or `NOT_ROUNDED`
    bound_k: int


@kernel
def run_gathering(pairs: Int64Array, slice_ns: int, limit_ns: int, plan: GatheringPlan, port: Port) -> int:
    """Meet round by round, and reduce; the first round that receives another announcement ends it.

    ``pairs`` is int64[rounds, 2]: descriptors to send to and to receive from. At first all of ``port.state`` is zero
    except ``PATIENCE``.
    """
    until_ns = now_ns(port.clock) + slice_ns
    word, block = plan.announcement_octets, 4 * plan.result.size
    while port.state[RECEIVING] < pairs.shape[0]:
        filled = 1 << port.state[RECEIVING]
        length = word + min(filled, plan.spans.shape[0] - filled) * block
        result = _exchange_round(pairs, until_ns, limit_ns, plan.outgoing, plan.incoming, word, length, port)
        if result != DONE or not _agree(plan.outgoing, plan.incoming, word):
            return result
        target = np.int64(plan.outgoing.ctypes.data) + word + filled * block
        memcpy(target, np.int64(plan.incoming.ctypes.data) + word, length - word)
    _add_up(plan, port)
    return DONE


@inline_kernel
def _exchange_round(
    pairs: Int64Array,
    until_ns: int,
    limit_ns: int,
    ours: Uint8Array,
    incoming: Uint8Array,
    word: int,
    length: int,
    port: Port,
) -> int:
    """Carry out one round: send and receive ``length`` octets each, or stop if the first ``word`` of them differ.

    A meeting (``length`` equals ``word``) does not poll but sleeps at once, because it may wait for late ranks.
    """
    state, is_patient = port.state, length > word
    ahead, behind = pairs[state[RECEIVING], OUT], pairs[state[RECEIVING], IN]
    waiting_ns = slept_ns = 0  # when the wait began; how much of it was sleep
    while True:
        pushed = pulled = NOTHING
        if state[SENT] < length:
            count = np.int64(send(ahead, np.int64(ours.ctypes.data) + state[SENT], length - state[SENT], FLAGS))
            pushed = failure(OUT, state) if count < 0 else MOVED
            state[SENT] += max(count, 0)
        if state[RECEIVED] < length:
            at = np.int64(incoming.ctypes.data) + state[RECEIVED]
            count = np.int64(recv(behind, at, length - state[RECEIVED], FLAGS))
            pulled = failure(IN, state) if count < 0 else MOVED if count else closed(state)
            state[RECEIVED] += max(count, 0)
        if pushed == FAILED or pulled == FAILED:
            return BROKEN
        if pushed == MOVED or pulled == MOVED:
            state[QUIET_NS] = 0
            if waiting_ns:
                _learn_patience(now_ns(port.clock) - waiting_ns, slept_ns, is_patient, state)
                waiting_ns = slept_ns = 0
            is_other = state[SENT] >= word and state[RECEIVED] >= word and not _agree(ours, incoming, word)
            if is_other or (state[SENT] == length and state[RECEIVED] == length):
                state[RECEIVING] += 1
                state[SENT] = state[RECEIVED] = 0
                return DONE
            continue
        now = now_ns(port.clock)
        waiting_ns = waiting_ns or now
        if is_patient and now - waiting_ns < state[PATIENCE]:
            if now - waiting_ns > ALONE_NS:
                sched_yield()
            continue
        wanted_out = ahead if pushed == REFUSED else -1
        wanted_in = behind if state[RECEIVED] < length else -1
        result = sleep(wanted_out, wanted_in, now, until_ns, limit_ns, port)
        slept_ns += now_ns(port.clock) - now
        if result != DONE:
            return result


@inline_kernel
def _learn_patience(waited_ns: int, slept_ns: int, is_patient: bool, state: Int64Array) -> None:
    """Count a wait that has ended, and decide how long to poll before the next sleep."""
    state[ASLEEP_NS] += waited_ns - slept_ns  # sleep() has counted slept_ns
    if not is_patient:
        return
    if waited_ns < PATIENCE_NS:
        state[PATIENCE] = PATIENCE_NS
    else:
        state[PATIENCE] //= 2


@inline_kernel
def _agree(ours: Uint8Array, incoming: Uint8Array, word: int) -> bool:
    differ = 0
    for index in range(word):
        differ |= ours[index] ^ incoming[index]
    return differ == 0


@inline_kernel
def _add_up(plan: GatheringPlan, port: Port) -> None:
    """Reduce each block in the ring's order, with the ring's roundings."""
    start_ns, codec_ns = now_ns(port.clock), port.state[CODEC_NS]
    size, count = plan.spans.shape[0], plan.result.size
    for block in range(size):
        first, last = plan.spans[block, 0], plan.spans[block, 1]
        at = (plan.rank - block) % size * count
        for hop in range(1, size):
            if plan.rounded_hops[(block + hop - 1) % size]:
                round_floats(plan, at + first, at + last, port)
            following = (plan.rank - block - hop) % size * count
            own = plan.values[following + first : following + last]
            combine(plan.operation, own, plan.values[at + first : at + last])
            at = following
        if plan.codec_id != NOT_ROUNDED:
            round_floats(plan, at + first, at + last, port)
        for index in range(first, last):
            plan.result[index] = plan.values[at + index]
    port.state[REDUCE_NS] += now_ns(port.clock) - start_ns - (port.state[CODEC_NS] - codec_ns)
