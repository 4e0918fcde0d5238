"""Whether blocks arrive: if a connection's blocks do not, its segments leave plain for a while; then it tries a block.

The peer's acknowledgements decide. If the host sends the oldest unacknowledged segment again :data:`RETRIES_MAX` times
without progress, :data:`SPACING_NS` apart, the connection goes on *probation*: its segments leave plain. When a plain
segment has arrived, the next new segment leaves as blocks, the *probe*. If the peer acknowledges the probe and TCP did
not repeat it, probation ends: the path had been down. Otherwise segments leave plain for :data:`PLAIN_NS` before the
next probe, and twice as long after each probe that fails, up to a minute. The first time is short, because TCP also
repeats a tail whose acknowledgement is late (RFC 8985, section 7). Plain segments carry the codec's values like blocks
(``forms``), so the values at the receiver stay the same.

**Other reasons.** A path that drops large frames drops large plain segments as well. So the oldest unacknowledged
segment is repeated in small blocks. While nothing arrives on probation, plain segments and small blocks take turns; if
the peer acknowledges a block, probation ends. If a link is down, nothing arrives at all, and the time does not double.
"""

from typing import Final

from netoffload.compiled.jit import inline_kernel
from netoffload.engine import flows
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.flows import Flow
from netoffload.engine.segment import Segment, advance, is_before

RETRIES_MAX: Final = 3
SPACING_NS: Final = 100_000_000
"""Half of Linux' smallest time-out. Copies that are closer together than this count as one try."""
PLAIN_NS: Final = 250_000_000
PLAIN_NS_MAX: Final = 60_000_000_000

# How a segment is to leave.
BLOCKS: Final = 0
SMALL_BLOCKS: Final = 1
PLAIN: Final = 2


@inline_kernel
def choose(flow: Flow, segment: Segment, again: int, now_ns: int, counters: Counters) -> int:
    """Return how a segment that could be compressed leaves, and note that it is about to be sent."""
    end_seq = advance(segment.seq, segment.payload_len)
    una = flow[flows.UNA]
    is_at_edge = again and not is_before(una, segment.seq) and is_before(una, end_seq)
    if flow[flows.PLAIN_UNTIL_NS] == 0:
        if not is_at_edge:
            return BLOCKS
        _count(flow, now_ns)
        if flow[flows.RETRIES] <= RETRIES_MAX:
            return SMALL_BLOCKS
        counters[Counter.TX_FALLBACKS] += 1
        put_on_probation(flow, now_ns)
        return PLAIN
    if una == flow[flows.PLAIN_UNA]:
        return _take_turns(flow, segment.seq, end_seq) if is_at_edge else PLAIN
    if flow[flows.IS_PROBING]:
        if again and is_before(segment.seq, flow[flows.PROBE_END]) and is_before(flow[flows.PROBE_SEQ], end_seq):
            put_on_probation(flow, now_ns)
        return PLAIN
    if again or now_ns < flow[flows.PLAIN_UNTIL_NS]:
        return PLAIN
    _begin_probe(flow, segment.seq, end_seq)
    return BLOCKS


@inline_kernel
def note_no_gain(flow: Flow) -> None:
    """Note that a segment leaves plain because blocks would not be smaller: its arrival says nothing about blocks."""
    flow[flows.IS_PROBING] = flow[flows.RETRIES] = 0


@inline_kernel
def note_progress(flow: Flow) -> None:
    """Note that the peer has acknowledged something, perhaps the probe."""
    if flow[flows.IS_PROBING] and not is_before(flow[flows.UNA], flow[flows.PROBE_END]):
        flow[flows.IS_PROBING] = flow[flows.PLAIN_UNTIL_NS] = flow[flows.BACK_OFF_NS] = 0
        flow[flows.RETRIES] = 0


@inline_kernel
def put_on_probation(flow: Flow, now_ns: int) -> None:
    """Send a connection's segments plain: the first time until one arrives, then for a while, then twice as long."""
    flow[flows.PLAIN_UNTIL_NS] = max(now_ns + flow[flows.BACK_OFF_NS], 1)  # 0 says: not on probation
    flow[flows.BACK_OFF_NS] = min(max(2 * flow[flows.BACK_OFF_NS], PLAIN_NS), PLAIN_NS_MAX)
    flow[flows.PLAIN_UNA] = flow[flows.UNA]
    flow[flows.IS_PROBING] = flow[flows.RETRIES] = 0


@inline_kernel
def _count(flow: Flow, now_ns: int) -> None:
    """Count a repetition of the oldest unacknowledged segment."""
    if flow[flows.RETRY_UNA] != flow[flows.UNA]:
        flow[flows.RETRY_UNA] = flow[flows.UNA]
        flow[flows.RETRIES] = flow[flows.RETRY_NS] = 0
    if flow[flows.RETRIES] == 0 or now_ns - flow[flows.RETRY_NS] >= SPACING_NS:
        flow[flows.RETRIES] += 1
        flow[flows.RETRY_NS] = now_ns


@inline_kernel
def _take_turns(flow: Flow, seq: int, end_seq: int) -> int:
    """Nothing has arrived since probation began: try a block after every plain segment."""
    flow[flows.RETRIES] += 1
    if flow[flows.RETRIES] & 1:
        flow[flows.IS_PROBING] = 0
        return PLAIN
    _begin_probe(flow, seq, end_seq)
    return SMALL_BLOCKS


@inline_kernel
def _begin_probe(flow: Flow, seq: int, end_seq: int) -> None:
    flow[flows.IS_PROBING] = 1
    flow[flows.PROBE_SEQ], flow[flows.PROBE_END] = seq, end_seq
