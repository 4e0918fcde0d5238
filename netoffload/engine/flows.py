"""The flow table: which flows are known, where their first float starts, and what crossed for each.

A flow is one direction of a TCP connection. The transmit table is filled by SYNs (the initial sequence number is what
floats are counted from), the receive table by blocks. Both have the same form: int64[slots, fields], a hash, and a
window of :data:`PROBES` slots in which the flow is, or a free slot, or else the slot longest unused, which is then
taken over.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec.jit import inline_kernel
from netoffload.engine.counters import Int64Array
from netoffload.engine.fields import be32, be64
from netoffload.engine.network import IP_AT
from netoffload.wire import ipv4, ipv6

SLOTS: Final = 4096
"""A power of two. A node of a training run has a few flows per peer; a busy host has some thousands."""

PROBES: Final = 16

# Fields of a slot.
IP_VERSION: Final = 0
"""4 or 6; 0: the slot is free."""
SRC_HIGH: Final = 1
SRC_LOW: Final = 2
DST_HIGH: Final = 3
DST_LOW: Final = 4
PORTS: Final = 5
ISN: Final = 6
LAST_SEEN_NS: Final = 7
SEGMENTS: Final = 8
RAW_OCTETS: Final = 9
PAYLOAD_OCTETS: Final = 10
BLOCKS: Final = 11
BYPASSED: Final = 12
PEER_CODECS: Final = 13
"""Bitmap of what the peer's NIC decodes, from its SYN; 0: no NIC, or none that we can talk to."""
PEER_ISN: Final = 14
NEXT_SEQ: Final = 15
"""Where the flow's newest octet ends: what is below was sent before."""
RETRY_SEQ: Final = 16
RETRIES: Final = 17
IS_RAW: Final = 18
"""1: blocks of this flow do not arrive; it goes on uncompressed."""
IS_CLOSED: Final = 19
HAS_CUT: Final = 20
"""1: a segment of this flow has begun or ended inside a float."""
PEER_TAKES_UDP: Final = 21
"""1: the peer's NIC takes blocks in UDP."""
WIRE_OCTETS: Final = 22
"""Of the frames that carried the blocks, transmit table only."""
FIELDS: Final = 23

NOT_FOUND: Final = -1
ISN_NOT_SEEN: Final = -1
"""The peer's SYN was seen, the host's answer not yet."""

RETRIES_MAX: Final = 3
"""Retransmissions of one compressed range without progress after which a flow goes on raw."""


class FlowKey(NamedTuple):
    """What a flow is known by: the first fields of its slot. An IPv4 address is the low half of a 128-bit one."""

    ip_version: int
    src_high: int
    src_low: int
    dst_high: int
    dst_low: int
    ports: int


def make_flows() -> Int64Array:
    """Return an empty table."""
    return np.zeros((SLOTS, FIELDS), np.int64)


@inline_kernel
def key_of(frame: Any, ip_len: Any, tcp_at: Any) -> Any:
    """Return the key of a frame with virtio-net header whose TCP header is at ``tcp_at``."""
    ports = be32(frame, tcp_at)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return FlowKey(4, 0, be32(frame, IP_AT + ipv4.SRC), 0, be32(frame, IP_AT + ipv4.DST), ports)
    src_at, dst_at = IP_AT + ipv6.SRC, IP_AT + ipv6.DST
    return FlowKey(6, be64(frame, src_at), be64(frame, src_at + 8), be64(frame, dst_at), be64(frame, dst_at + 8), ports)


@inline_kernel
def reversed_key(key: Any) -> Any:
    """Return the key of the same connection's other direction."""
    ports = (key.ports & 0xFFFF) << 16 | key.ports >> 16
    return FlowKey(key.ip_version, key.dst_high, key.dst_low, key.src_high, key.src_low, ports)


@inline_kernel
def _folded(high: Any, low: Any) -> Any:
    word = high ^ low
    return (word ^ word >> 32) & 0xFFFFFFFF


@inline_kernel
def _first_slot(key: Any) -> Any:
    src, dst = _folded(key.src_high, key.src_low), _folded(key.dst_high, key.dst_low)
    mixed = src ^ dst << 1 ^ key.ports * 31  # below 2**38: plain integers and int64 agree
    mixed ^= mixed >> 15
    mixed = mixed * 40503 >> 4
    return (mixed ^ mixed >> 13) & (SLOTS - 1)


@inline_kernel
def _holds(flows: Any, slot: Any, key: Any) -> Any:
    return (
        flows[slot, PORTS] == key.ports
        and flows[slot, SRC_LOW] == key.src_low
        and flows[slot, DST_LOW] == key.dst_low
        and flows[slot, IP_VERSION] == key.ip_version
        and flows[slot, SRC_HIGH] == key.src_high
        and flows[slot, DST_HIGH] == key.dst_high
    )


@inline_kernel
def find(flows: Any, key: FlowKey) -> int:
    """Return the slot of a flow, or ``NOT_FOUND``."""
    first = _first_slot(key)
    for probe in range(PROBES):
        slot = (first + probe) & (SLOTS - 1)
        if _holds(flows, slot, key):
            return int(slot)
    return NOT_FOUND


@inline_kernel
def learn(flows: Any, key: FlowKey, isn: int, now_ns: int) -> int:
    """Return the slot of a flow, made (or made anew, if ``isn`` differs) where it is not known."""
    slot = find(flows, key)
    if slot == NOT_FOUND:
        first = _first_slot(key)
        slot = first
        for probe in range(PROBES):
            candidate = (first + probe) & (SLOTS - 1)
            if flows[candidate, IP_VERSION] == 0:
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
    flows[slot, IP_VERSION] = key.ip_version
    flows[slot, SRC_HIGH] = key.src_high
    flows[slot, SRC_LOW] = key.src_low
    flows[slot, DST_HIGH] = key.dst_high
    flows[slot, DST_LOW] = key.dst_low
    flows[slot, PORTS] = key.ports
    flows[slot, LAST_SEEN_NS] = now_ns
    begin(flows, slot, isn)
    return int(slot)


@inline_kernel
def begin(flows: Any, slot: Any, isn: Any) -> None:
    """Note the initial sequence number of a flow."""
    flows[slot, ISN] = isn
    flows[slot, NEXT_SEQ] = (isn + 1) & 0xFFFFFFFF


@inline_kernel
def note_sent(flows: Any, slot: Any, seq: Any, end_seq: Any) -> Any:
    """Note that a segment is about to be sent, in whatever form; return whether some of it was sent before."""
    next_seq = flows[slot, NEXT_SEQ]
    if (end_seq - next_seq) & 0x80000000 == 0:
        flows[slot, NEXT_SEQ] = end_seq & 0xFFFFFFFF
    begin_of_floats = flows[slot, ISN] + 1
    if ((seq - begin_of_floats) | (end_seq - begin_of_floats)) & 3:
        flows[slot, HAS_CUT] = 1
    return (seq - next_seq) & 0x80000000 != 0


@inline_kernel
def is_stuck(flows: Any, slot: Any, seq: Any, again: Any) -> Any:
    """Note that a segment is about to be sent compressed; True at the retransmission that makes its flow raw."""
    if not again:
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


def as_dicts(flows: Int64Array) -> list[dict[str, Any]]:
    """Return the flows that carried anything, largest first."""
    used = flows[(flows[:, IP_VERSION] != 0) & ((flows[:, SEGMENTS] > 0) | (flows[:, BYPASSED] > 0))]
    rows = [
        {
            "src": _address(row[IP_VERSION], row[SRC_HIGH], row[SRC_LOW]),
            "sport": int(row[PORTS]) >> 16,
            "dst": _address(row[IP_VERSION], row[DST_HIGH], row[DST_LOW]),
            "dport": int(row[PORTS]) & 0xFFFF,
            "segments": int(row[SEGMENTS]),
            "raw_octets": int(row[RAW_OCTETS]),
            "payload_octets": int(row[PAYLOAD_OCTETS]),
            "blocks": int(row[BLOCKS]),
            "wire_octets": int(row[WIRE_OCTETS]),
            "bypassed_segments": int(row[BYPASSED]),
            "peer_decodes": bool(row[PEER_CODECS]),
            "peer_takes_udp": bool(row[PEER_TAKES_UDP]),
            "fell_back": bool(row[IS_RAW]),
            "raw_retransmissions": bool(row[HAS_CUT]),
            "closed": bool(row[IS_CLOSED]),
        }
        for row in used
    ]
    return sorted(rows, key=lambda row: -int(row["raw_octets"]))


def _address(version: Any, high: Any, low: Any) -> str:
    if version == 4:
        return str(ipaddress.IPv4Address(int(low)))
    return str(ipaddress.IPv6Address((int(high) & 2**64 - 1) << 64 | int(low) & 2**64 - 1))
