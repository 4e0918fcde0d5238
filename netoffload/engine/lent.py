"""Lent octets: the NIC acknowledges them to the host before the peer has them, and sends them itself if it must.

``forms`` holds the octets of a float that a segment cuts. Once the peer has everything before the float, the NIC
acknowledges these octets to the host: it *lends* them. Three things can follow:

- TCP had cut the float. The host is free to send, so the rest comes at once, and the float leaves rounded.
- The application stopped there. Nothing comes, and the host keeps no copy. After :data:`REST_WAIT_NS` the NIC sends the
  octets exact, and again with growing pauses until the peer acknowledges them.
- The peer's window ends there. The host may not send, so the NIC waits longer. A host that has more to send probes
  the window (RFC 9293, 3.8.6.1): then the NIC waits until the window opens.

The NIC's own segments take the headers of the host's latest one, from the flow table, which outlives the process.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import load_u16, load_u32, put_be32, store_u16, store_u32
from netoffload.engine import flows, forms, plain
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.flows import Flow, FlowTable
from netoffload.engine.network import IP_AT
from netoffload.engine.segment import Segment, advance, get_tcp_len
from netoffload.wire import ipv4, ipv6, tcp, vnet

REST_WAIT_NS: Final = 200_000_000
"""Time for a host that may send to send the rest of a float."""
WINDOW_WAIT_NS: Final = 2_000_000_000
"""Time for a host that may not send to probe the window; Linux does so after a retransmission timeout.

A host that may have missed the acknowledgement has as much time to send the octets again.
"""
LOOK_NS: Final = 50_000_000
"""Interval between two looks through the table while octets are held or lent."""
PAUSE_MIN_NS: Final = 200_000_000
PAUSE_MAX_NS: Final = 60_000_000_000
"""Pauses between two transmissions of lent octets: they double, as TCP's do (RFC 6298)."""

# Fields of the agenda, int64[AGENDA_FIELDS].
LOOK_AT_NS: Final = 0
"""When to look through the table; 0: not before octets are held."""
NEXT_SLOT: Final = 1
"""The slot at which an interrupted look goes on."""
HAS_FOUND: Final = 2
"""Whether this look has found octets that are held or lent."""
AGENDA_FIELDS: Final = 3

_OCTETS_PER_WORD: Final = 6


def make_agenda() -> Int64Array:
    """Return an agenda that begins with a look: the table may come from an earlier process, with lent octets in it."""
    agenda = np.zeros(AGENDA_FIELDS, np.int64)
    agenda[LOOK_AT_NS] = 1
    return agenda


@inline_kernel
def note_segment(frame: Uint8Array, segment: Segment, again: bool, now_ns: int, flow: Flow, agenda: Int64Array) -> None:
    """Lend held octets if possible, keep the segment's headers, and plan the next look through the table.

    The segment may also show that the host has the acknowledgement of lent octets, or that it waits for window. The
    frame has five octets of room behind it.
    """
    forms.lend(flow)
    if not forms.keeps_octets(flow):
        return
    if agenda[LOOK_AT_NS] == 0:
        agenda[LOOK_AT_NS] = now_ns + LOOK_NS
    for word in range((segment.payload_at - vnet.VNET_LEN + _OCTETS_PER_WORD - 1) // _OCTETS_PER_WORD):
        at = vnet.VNET_LEN + _OCTETS_PER_WORD * word
        flow[flows.HEADERS + word] = load_u32(frame, at) | load_u16(frame, at + 4) << 32
    if flow[flows.DUE_NS] == forms.NOT_TOLD:
        return
    if again:
        # The acknowledgement is on its way to the host, or it is lost and the host sends the octets again.
        flow[flows.DUE_NS] = now_ns + WINDOW_WAIT_NS
    elif (
        segment.payload_len == 0
        and segment.seq == advance(flow[flows.NEXT_SEQ], -1)
        and forms.fills_window(flow, flow[flows.NEXT_SEQ])
    ):
        flow[flows.DUE_NS] = forms.HAS_MORE


@inline_kernel
def find_due(agenda: Int64Array, table: FlowTable, now_ns: int) -> int:
    """Return the slot of the next connection whose lent octets are due, or ``NOT_FOUND`` behind the last one."""
    while agenda[NEXT_SLOT] < flows.SLOTS:
        slot, flow = agenda[NEXT_SLOT], table[agenda[NEXT_SLOT]]
        agenda[NEXT_SLOT] += 1
        # Where the host has sent a FIN, it has taken the lent octets along, and TCP repeats it.
        if flow[flows.IP_VERSION] and flow[flows.STATE] == flows.OPEN and forms.keeps_octets(flow):
            agenda[HAS_FOUND] = 1
            if _is_due(flow, now_ns):
                return slot
    agenda[LOOK_AT_NS] = now_ns + LOOK_NS if agenda[HAS_FOUND] else 0
    agenda[NEXT_SLOT] = agenda[HAS_FOUND] = 0
    return flows.NOT_FOUND


@inline_kernel
def release(agenda: Int64Array, table: FlowTable) -> None:
    """Make all lent octets due now."""
    for slot in range(flows.SLOTS):
        flow = table[slot]
        if flow[flows.IP_VERSION] and flow[flows.STATE] == flows.OPEN and flow[flows.LENT_LEN]:
            flow[flows.DUE_NS] = agenda[LOOK_AT_NS] = 1
    agenda[NEXT_SLOT] = 0


@inline_kernel
def _is_due(flow: Flow, now_ns: int) -> bool:
    due_ns = flow[flows.DUE_NS]
    end_seq = advance(flow[flows.LENT_SEQ], flow[flows.LENT_LEN])
    if flow[flows.LENT_LEN] == 0 or due_ns in (forms.NOT_TOLD, forms.HAS_MORE) or end_seq != flow[flows.NEXT_SEQ]:
        return False
    if due_ns == forms.TOLD:
        wait_ns = WINDOW_WAIT_NS if forms.fills_window(flow, end_seq) else REST_WAIT_NS
        flow[flows.DUE_NS] = now_ns + wait_ns
        return False
    return now_ns >= due_ns


@inline_kernel
def send(flow: Flow, now_ns: int, counters: Counters, frame: Uint8Array) -> int:
    """Write a plain segment with a connection's lent octets, exact, into ``frame``; return its length.

    ``frame`` has room for the longest headers, three octets and ``HEADER_WORDS`` words.
    """
    seq, lent_len = flow[flows.LENT_SEQ], flow[flows.LENT_LEN]
    # No octet of this float has left, so it may leave exact. All new octets behind it leave exact too, until the peer
    # has acknowledged the closed interval (forms).
    if forms.is_rounded(flow, seq):
        forms.end_rounding(flow, seq)
    for word in range(flows.HEADER_WORDS):
        at, octets = vnet.VNET_LEN + _OCTETS_PER_WORD * word, flow[flows.HEADERS + word]
        store_u32(frame, at, octets & 0xFFFFFFFF)
        store_u16(frame, at + 4, octets >> 32)
    frame[: vnet.VNET_LEN] = 0
    ip_len = ipv4.IPV4_MIN_LEN if flow[flows.IP_VERSION] == 4 else ipv6.IPV6_LEN
    tcp_at = IP_AT + ip_len
    payload_at = tcp_at + get_tcp_len(frame, tcp_at)
    for octet in range(lent_len):
        frame[payload_at + octet] = flow[flows.LENT_WORD] >> 8 * octet & 0xFF
    put_be32(frame, tcp_at + tcp.SEQ, seq)
    flags = tcp.ACK_FLAG | tcp.PSH
    frame[tcp_at + tcp.FLAGS] = flags
    flow[flows.WAIT_NS] = min(max(2 * flow[flows.WAIT_NS], PAUSE_MIN_NS), PAUSE_MAX_NS)
    flow[flows.DUE_NS] = now_ns + flow[flows.WAIT_NS]
    counters[Counter.TX_LENT] += 1
    return plain.finish_headers(frame, Segment(ip_len, tcp_at, payload_at, lent_len, seq, 0, flags))
