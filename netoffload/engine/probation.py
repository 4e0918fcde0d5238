"""Whether blocks arrive: a connection whose blocks do not goes on in plain segments for a while, then tries one block.

What says so is the peer's TCP. A segment at the edge of what is acknowledged that was sent again :data:`RETRIES_MAX`
times without progress puts the connection on *probation*: plain segments for :data:`PLAIN_NS`, at first a second. Then,
if plain segments arrived meanwhile, one segment goes as a block, the *probe*. If it is acknowledged without having been
sent again, the connection is off probation. Else the time doubles, up to a minute.

Plain segments carry the codec's values where blocks did (``forms``), so nothing about the data changes. A link that is
down stops plain segments as well: they do not arrive, no probe is sent, and the time does not double.
"""

from __future__ import annotations

from typing import Any, Final

from netoffload.codec.jit import inline_kernel
from netoffload.engine.counters import Counter
from netoffload.engine.flows import (
    BACK_OFF_NS,
    IS_PROBING,
    PLAIN_UNA,
    PLAIN_UNTIL_NS,
    PROBE_END,
    PROBE_SEQ,
    RETRIES,
    RETRY_UNA,
    UNA,
)
from netoffload.engine.sequence import advance, is_before

RETRIES_MAX: Final = 3
PLAIN_NS: Final = 1_000_000_000
PLAIN_NS_MAX: Final = 60 * PLAIN_NS


@inline_kernel
def must_be_plain(flows: Any, slot: Any, segment: Any, again: Any, now_ns: Any, counters: Any) -> Any:
    """Whether a segment that could be compressed had better not be; notes that it is about to be sent.

    Args:
        flows: the table.
        slot: of the connection.
        segment: its ``blocks.Segment``.
        again: some of it was sent before.
        now_ns: the time.
        counters: int64, indexed by :class:`Counter`.
    """
    end_seq = advance(segment.seq, segment.payload_len)
    if flows[slot, PLAIN_UNTIL_NS] == 0:
        if not again or not _is_stuck(flows, slot, segment.seq, end_seq):
            return False
        counters[Counter.TX_FALLBACKS] += 1
        put_on_probation(flows, slot, now_ns)
        return True
    if flows[slot, IS_PROBING]:
        if again and is_before(segment.seq, flows[slot, PROBE_END]) and is_before(flows[slot, PROBE_SEQ], end_seq):
            put_on_probation(flows, slot, now_ns)
        return True
    if again or now_ns < flows[slot, PLAIN_UNTIL_NS] or flows[slot, UNA] == flows[slot, PLAIN_UNA]:
        return True
    counters[Counter.TX_PROBES] += 1
    flows[slot, IS_PROBING] = 1
    flows[slot, PROBE_SEQ], flows[slot, PROBE_END] = segment.seq, end_seq
    return False


@inline_kernel
def note_no_gain(flows: Any, slot: Any, counters: Any) -> None:
    """Note that a segment went plain for want of gain: whether it arrives says nothing about blocks."""
    counters[Counter.TX_PROBES] -= flows[slot, IS_PROBING]
    flows[slot, IS_PROBING] = flows[slot, RETRIES] = 0


@inline_kernel
def note_progress(flows: Any, slot: Any) -> None:
    """Note that the peer has acknowledged something, perhaps the probe."""
    if flows[slot, IS_PROBING] and not is_before(flows[slot, UNA], flows[slot, PROBE_END]):
        flows[slot, IS_PROBING] = flows[slot, PLAIN_UNTIL_NS] = flows[slot, BACK_OFF_NS] = 0
        flows[slot, RETRIES] = 0


@inline_kernel
def _is_stuck(flows: Any, slot: Any, seq: Any, end_seq: Any) -> Any:
    """Note a segment that is sent again; True if it was the one too many."""
    una = flows[slot, UNA]
    if is_before(una, seq) or not is_before(una, end_seq):
        return False  # TCP fills a gap further on, or is behind the times
    if flows[slot, RETRY_UNA] != una:
        flows[slot, RETRY_UNA] = una
        flows[slot, RETRIES] = 0
    flows[slot, RETRIES] += 1
    return flows[slot, RETRIES] >= RETRIES_MAX


@inline_kernel
def put_on_probation(flows: Any, slot: Any, now_ns: Any) -> None:
    """Send a connection's segments plain for a while, longer than the last time."""
    flows[slot, BACK_OFF_NS] = min(max(2 * flows[slot, BACK_OFF_NS], PLAIN_NS), PLAIN_NS_MAX)
    flows[slot, PLAIN_UNTIL_NS] = now_ns + flows[slot, BACK_OFF_NS]
    flows[slot, PLAIN_UNA] = flows[slot, UNA]
    flows[slot, IS_PROBING] = flows[slot, RETRIES] = 0
