"""The flow table: which flows are known, where their first float starts, and what crossed for each.

A flow is one direction of a TCP connection. The transmit table is filled by SYNs (the initial sequence number is what
floats are counted from), the receive table by blocks. Both have the same form: int64[slots, fields], a hash, and a
window of :data:`PROBES` slots in which the flow is, or a free slot, or else the slot longest unused, which is then
taken over.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import numpy as np

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.engine.counters import Int64Array
from netoffload.engine.fields import be32
from netoffload.wire import ethernet, ipv4, vnet

SLOTS: Final = 4096
"""A power of two. A node of a training run has a few flows per peer; a busy host has some thousands."""

PROBES: Final = 16

# Fields of a slot.
USED: Final = 0
SRC: Final = 1
DST: Final = 2
PORTS: Final = 3
ISN: Final = 4
LAST_SEEN_NS: Final = 5
SEGMENTS: Final = 6
RAW_OCTETS: Final = 7
PAYLOAD_OCTETS: Final = 8
BLOCKS: Final = 9
BYPASSED: Final = 10
PEER_CODECS: Final = 11
"""Bitmap of what the peer's NIC decodes, from its SYN; 0: no NIC, or none that we can talk to."""
PEER_ISN: Final = 12
NEXT_SEQ: Final = 13
"""Where the flow's newest octet ends: what is below was sent before."""
RETRY_SEQ: Final = 14
RETRIES: Final = 15
IS_RAW: Final = 16
"""1: blocks of this flow do not arrive; it goes on uncompressed."""
IS_CLOSED: Final = 17
FIELDS: Final = 18

NOT_FOUND: Final = -1
ISN_NOT_SEEN: Final = -1
"""The peer's SYN was seen, the host's answer not yet."""

RETRIES_MAX: Final = 3
"""Retransmissions of one compressed range without progress after which a flow goes on raw."""

_IP_AT: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN


def make_flows() -> Int64Array:
    """Return an empty table."""
    return np.zeros((SLOTS, FIELDS), np.int64)


@inline_kernel
def _first_slot(src: Any, dst: Any, ports: Any) -> Any:
    mixed = src ^ dst << 1 ^ ports * 31  # below 2**38: plain integers and int64 agree
    mixed ^= mixed >> 15
    mixed = mixed * 40503 >> 4
    return (mixed ^ mixed >> 13) & (SLOTS - 1)


@kernel
def find(flows: Any, src: int, dst: int, ports: int) -> int:
    """Return the slot of a flow, or ``NOT_FOUND``."""
    first = _first_slot(src, dst, ports)
    for probe in range(PROBES):
        slot = (first + probe) & (SLOTS - 1)
        if flows[slot, USED] and flows[slot, PORTS] == ports and flows[slot, SRC] == src and flows[slot, DST] == dst:
            return int(slot)
    return NOT_FOUND


@kernel
def learn(flows: Any, src: int, dst: int, ports: int, isn: int, now_ns: int) -> int:
    """Return the slot of a flow, made (or made anew, if ``isn`` differs) where it is not known."""
    slot = find(flows, src, dst, ports)
    if slot == NOT_FOUND:
        first = _first_slot(src, dst, ports)
        slot = first
        for probe in range(PROBES):
            candidate = (first + probe) & (SLOTS - 1)
            if not flows[candidate, USED]:
                slot = candidate
                break
            newer = flows[candidate, LAST_SEEN_NS] - flows[slot, LAST_SEEN_NS]
            if flows[candidate, IS_CLOSED] > flows[slot, IS_CLOSED] or (
                flows[candidate, IS_CLOSED] == flows[slot, IS_CLOSED] and newer < 0
            ):
                slot = candidate
    elif flows[slot, ISN] == isn:
        return int(slot)
    for field in range(FIELDS):
        flows[slot, field] = 0
    flows[slot, USED] = 1
    flows[slot, SRC] = src
    flows[slot, DST] = dst
    flows[slot, PORTS] = ports
    flows[slot, LAST_SEEN_NS] = now_ns
    begin(flows, slot, isn)
    return int(slot)


@inline_kernel
def begin(flows: Any, slot: Any, isn: Any) -> None:
    """Note the initial sequence number of a flow."""
    flows[slot, ISN] = isn
    flows[slot, NEXT_SEQ] = (isn + 1) & 0xFFFFFFFF


@inline_kernel
def is_stuck(flows: Any, slot: Any, seq: Any, end_seq: Any) -> Any:
    """Note that a segment is about to be sent; True at the retransmission that makes its flow raw."""
    if (seq - flows[slot, NEXT_SEQ]) & 0x80000000 == 0:
        flows[slot, NEXT_SEQ] = end_seq & 0xFFFFFFFF
        flows[slot, RETRIES] = 0
        return False
    if seq != flows[slot, RETRY_SEQ]:
        flows[slot, RETRY_SEQ] = seq
        flows[slot, RETRIES] = 0
    flows[slot, RETRIES] += 1
    if flows[slot, RETRIES] < RETRIES_MAX:
        return False
    flows[slot, IS_RAW] = 1
    return True


@inline_kernel
def addresses_and_ports(frame: Any, tcp_at: Any) -> Any:
    """Return (src, dst, ports) of a frame with virtio-net header: the key of its flow."""
    return be32(frame, _IP_AT + ipv4.SRC), be32(frame, _IP_AT + ipv4.DST), be32(frame, tcp_at)


def as_dicts(flows: Int64Array) -> list[dict[str, Any]]:
    """Return the flows that carried anything, largest first."""
    used = flows[(flows[:, USED] == 1) & ((flows[:, SEGMENTS] > 0) | (flows[:, BYPASSED] > 0))]
    rows = [
        {
            "src": _address(row[SRC]),
            "sport": int(row[PORTS]) >> 16,
            "dst": _address(row[DST]),
            "dport": int(row[PORTS]) & 0xFFFF,
            "segments": int(row[SEGMENTS]),
            "raw_octets": int(row[RAW_OCTETS]),
            "payload_octets": int(row[PAYLOAD_OCTETS]),
            "blocks": int(row[BLOCKS]),
            "bypassed_segments": int(row[BYPASSED]),
            "peer_decodes": bool(row[PEER_CODECS]),
            "fell_back": bool(row[IS_RAW]),
            "closed": bool(row[IS_CLOSED]),
        }
        for row in used
    ]
    return sorted(rows, key=lambda row: -int(row["raw_octets"]))


def _address(number: Any) -> str:
    return str(ipaddress.IPv4Address(int(number)))
