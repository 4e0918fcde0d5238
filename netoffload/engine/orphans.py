"""Connections whose handshake this NIC did not see: they cross unchanged, and end if octets of theirs are gone.

An earlier NIC may have lent octets (``forms``): the host has an acknowledgement of them, the peer does not have them,
and their only copy was in that NIC's flow table. Without the table nobody can send them, and the connection would hang
for ever. Its signs are clear. The host repeats its oldest octet or its FIN again and again, while the peer asks for one
to three octets before it, which no host with them would leave out. Then the NIC sends the peer an RST. The peer's
kernel answers the host's next segment with an RST of its own, so both programs get an error.

An orphan's slot gives way to every connection with a handshake.
"""

from typing import Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import copy_octets, put_be32
from netoffload.engine import flows, plain
from netoffload.engine.flows import Flow, FlowKey, FlowTable
from netoffload.engine.segment import Segment, advance, distance, is_before
from netoffload.wire import tcp

RETRIES_MAX: Final = 4
SPACING_NS: Final = 100_000_000
"""Half of Linux' smallest time-out. Copies that are closer together than this count as one try."""

_LENT_MAX: Final = 3


@inline_kernel
def adopt(table: FlowTable, key: FlowKey, segment: Segment, now_ns: int) -> None:
    """Keep a slot for the connection of a segment that no slot knows, if there is one to have."""
    slot = flows.make_slot(table, key, now_ns)
    if slot != flows.NOT_FOUND:
        flows.begin(table[slot], advance(segment.seq, -1))
        table[slot, flows.STATE] = flows.ORPHAN


@inline_kernel
def hear(flow: Flow, ack: int) -> None:
    """Take an acknowledgement of the peer; ``LENT_LEN`` says how many octets it lacks before the host's oldest one."""
    missing = distance(ack, flow[flows.UNA])
    if missing <= 0:
        flow[flows.UNA] = ack
        flow[flows.RETRIES] = 0
    flow[flows.LENT_LEN] = missing if 0 < missing <= _LENT_MAX else 0


@inline_kernel
def is_stuck(segment: Segment, now_ns: int, flow: Flow) -> bool:
    """Note a segment of the host; return whether octets before it are gone for good."""
    flow[flows.LAST_SEEN_NS] = now_ns
    if segment.flags & tcp.RST:
        flow[flows.STATE] = flows.CLOSED
    if is_before(segment.seq, flow[flows.UNA]):
        flow[flows.UNA] = segment.seq
        flow[flows.RETRIES] = flow[flows.LENT_LEN] = 0
    end_seq = advance(segment.seq, segment.payload_len)
    if is_before(flow[flows.NEXT_SEQ], end_seq):
        flow[flows.NEXT_SEQ] = end_seq
    is_again = segment.seq == flow[flows.UNA] and (segment.payload_len > 0 or segment.flags & tcp.FIN != 0)
    if is_again and flow[flows.LENT_LEN] and now_ns - flow[flows.RETRY_NS] >= SPACING_NS:
        flow[flows.RETRY_NS] = now_ns
        flow[flows.RETRIES] += 1
    return flow[flows.RETRIES] > RETRIES_MAX


@inline_kernel
def reset(frame: Uint8Array, segment: Segment, flow: Flow, target: Uint8Array) -> int:
    """Write an RST for the peer of a stuck connection into ``target``; return its length."""
    flow[flows.STATE] = flows.CLOSED
    seq = advance(flow[flows.UNA], -flow[flows.LENT_LEN])
    copy_octets(frame, 0, target, 0, segment.payload_at)
    put_be32(target, segment.tcp_at + tcp.SEQ, seq)
    flags = tcp.RST | tcp.ACK_FLAG
    target[segment.tcp_at + tcp.FLAGS] = flags
    return plain.finish_headers(target, Segment(segment.ip_len, segment.tcp_at, segment.payload_at, 0, seq, 0, flags))
