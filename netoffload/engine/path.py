"""How large a block may be on the way to a peer: what routers report, and what lost blocks show.

A path may have a smaller MTU than the wire. A router may report this by ICMP (``router_errors``), which limits the
connection's blocks. A router that drops large frames silently leaves a sign: large blocks vanish while small ones
arrive. The NIC watches one block larger than :data:`SMALL` at a time. The block has failed if it is sent again before
it is acknowledged. After :data:`FAILS_MAX` failures the limit goes down a step, if the peer acknowledged something in
between and no block as large arrived.

A limit ends after ten minutes, as Linux forgets the MTU of a path (``ip-sysctl``: ``mtu_expires``).
"""

from typing import Final

from netoffload.compiled.jit import inline_kernel
from netoffload.engine import flows
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.flows import Flow
from netoffload.engine.segment import Segment, advance, is_before

SMALL: Final = 576
"""Every IPv4 path takes datagrams of this length (RFC 791, 3.2), so no limit is lower."""
STEPS: Final = (1500, 1280, SMALL)
"""Limits in turn: Ethernet's MTU, the length that every IPv6 path takes (RFC 8200, 5), the smallest."""
FAILS_MAX: Final = 4
EXPIRES_NS: Final = 600 * 1_000_000_000


@inline_kernel
def datagram_max(flow: Flow, mtu: int, now_ns: int) -> int:
    """Return the length of the largest datagram to send on a connection over a wire with this MTU."""
    if flow[flows.DATAGRAM_MAX] and now_ns > flow[flows.DATAGRAM_MAX_UNTIL_NS]:
        flow[flows.DATAGRAM_MAX] = 0
    return min(mtu, flow[flows.DATAGRAM_MAX]) if flow[flows.DATAGRAM_MAX] else mtu


@inline_kernel
def limit(flow: Flow, datagram_len: int, now_ns: int) -> None:
    """Limit the datagrams of a connection for ten minutes."""
    flow[flows.DATAGRAM_MAX] = max(datagram_len, SMALL)
    flow[flows.DATAGRAM_MAX_UNTIL_NS] = now_ns + EXPIRES_NS


@inline_kernel
def note_again(flow: Flow, segment: Segment, now_ns: int, counters: Counters) -> None:
    """Note that a segment is sent again: the watched block may have been made from it."""
    if flow[flows.LARGE_LEN] == 0 or not is_before(segment.seq, flow[flows.LARGE_END]):
        return
    if not is_before(flow[flows.LARGE_SEQ], advance(segment.seq, segment.payload_len)):
        return
    failed_len = flow[flows.LARGE_LEN]
    flow[flows.LARGE_LEN] = 0
    if flow[flows.LARGE_FAILS] and flow[flows.UNA] == flow[flows.LARGE_UNA]:
        return  # the peer acknowledges nothing, so the length is not the reason
    flow[flows.LARGE_UNA] = flow[flows.UNA]
    flow[flows.FAILED_LEN] = failed_len
    flow[flows.LARGE_FAILS] += 1
    if flow[flows.LARGE_FAILS] < FAILS_MAX:
        return
    flow[flows.LARGE_FAILS] = 0
    for step in STEPS:
        if step < failed_len:
            limit(flow, step, now_ns)
            counters[Counter.TX_PATH_LIMITS] += 1
            return


@inline_kernel
def watch(flow: Flow, seq: int, octets: int, datagram_len: int) -> None:
    """Watch the block with ``octets`` of the stream from ``seq`` on, unless another one is watched."""
    if flow[flows.LARGE_LEN] == 0 and datagram_len > SMALL:
        flow[flows.LARGE_LEN] = datagram_len
        flow[flows.LARGE_SEQ] = seq
        flow[flows.LARGE_END] = advance(seq, octets)


@inline_kernel
def note_progress(flow: Flow) -> None:
    """Note that the peer has acknowledged something, perhaps the watched block."""
    if flow[flows.LARGE_LEN] and not is_before(flow[flows.UNA], flow[flows.LARGE_END]):
        if flow[flows.LARGE_LEN] >= flow[flows.FAILED_LEN]:
            flow[flows.LARGE_FAILS] = 0
        flow[flows.LARGE_LEN] = 0
