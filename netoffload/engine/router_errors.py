"""ICMP errors of routers and peers about blocks, translated into errors about the host's TCP segments.

A router that cannot forward a block sends an ICMP or ICMPv6 error that quotes the block: UDP to the NIC's port, or
protocol 108. No socket of the host knows either. So the NIC replaces the quoted header by the TCP header in the block,
as far as it is quoted, and the host's TCP takes the error for one about its own segment::

    outer IP | ICMP 8 | quoted IP, protocol 17 or 108 | UDP 8, entry 4 | IPComp 4, block header 16 | TCP header ...
    outer IP | ICMP 8 | quoted IP, protocol 6         | TCP header, 8 to 20 octets

If a router quotes only the 8 octets that RFC 792 demands, the NIC finds the connection by addresses and source port,
and takes its oldest unacknowledged octet as the sequence number. An error about octets that are not in flight crosses
unchanged: the host's TCP ignores it too (RFC 5927, 4.1).

"Too big" also limits the connection's blocks at once (``path``). The NIC rounds the MTU in it down to whole floats, so
that TCP goes on cutting between floats. "Port unreachable" and "protocol unreachable" mean that the peer's NIC is gone:
the NIC puts the connection on probation and drops the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be16, be32, be64, put_be16, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import network, path, probation
from netoffload.engine.counters import Counter
from netoffload.engine.flows import NOT_FOUND, SLOTS, FlowKey
from netoffload.engine.network import IP_AT
from netoffload.engine.sequence import is_before
from netoffload.engine.sums import ones_sum
from netoffload.wire import encapsulation, icmp, ipv4, ipv6, offload, tcp, udp, vnet

if TYPE_CHECKING:
    from netoffload.engine.counters import Counters
    from netoffload.engine.flows import FlowTable

ENDS: Final = -1
"""Result: the frame is not for the host."""

_TCP_QUOTED_MIN: Final = 8
"""Ports and sequence number, which every error quotes (RFC 792)."""


@inline_kernel
def translate(frame: Uint8Array, length: int, ip_len: int, now_ns: int, flows: FlowTable, counters: Counters) -> int:
    """Rewrite an error about a block in place; return the length of the frame, or ``ENDS``.

    Other frames stay as they are, but for the MTU in a "too big" about a plain segment.
    """
    quoted_at = IP_AT + ip_len + icmp.ICMP_LEN
    end = _find_end(frame, length, ip_len)
    if end == 0 or end < quoted_at + ip_len + _TCP_QUOTED_MIN or not _is_right(frame, ip_len, end):
        return length
    protocol = u8(frame, quoted_at + (ipv4.PROTOCOL if ip_len == ipv4.IPV4_MIN_LEN else ipv6.NEXT_HEADER))
    tcp_at = _find_tcp(frame, quoted_at + ip_len, end, protocol)
    if tcp_at == 0:
        return length
    quoted_len = max(min(end - tcp_at, tcp.TCP_MIN_LEN), 0)
    if quoted_len < _TCP_QUOTED_MIN:
        slot = _search(frame, quoted_at, ip_len, protocol, flows)
    else:
        slot = flow_table.find(flows, _quoted_key(frame, quoted_at, ip_len, be32(frame, tcp_at)))
        seq = be32(frame, tcp_at + tcp.SEQ)
        if slot != NOT_FOUND and (
            is_before(seq, flows[slot, flow_table.UNA]) or not is_before(seq, flows[slot, flow_table.NEXT_SEQ])
        ):
            slot = NOT_FOUND
    if slot == NOT_FOUND:
        return length
    if protocol != tcp.PROTO_TCP:
        if _is_refusal(frame, ip_len):
            counters[Counter.DROP_PEER_REFUSES] += 1
            probation.put_on_probation(flows, slot, now_ns)
            return ENDS
        end = _quote_tcp(frame, quoted_at, ip_len, tcp_at, quoted_len, flows[slot])
        counters[Counter.RX_ERRORS_TRANSLATED] += 1
    _round_mtu(frame, ip_len, now_ns, flows, slot)
    _put_sums(frame, ip_len, end)
    return end


@inline_kernel
def _find_end(frame: Uint8Array, length: int, ip_len: int) -> int:
    """Return where an ICMP error of either family ends; 0 for every other frame."""
    at = IP_AT + ip_len
    if ip_len == 0 or length < at + icmp.ICMP_LEN or network.is_fragment(frame, ip_len):
        return 0
    kind = u8(frame, at + icmp.TYPE)
    protocol = network.get_protocol(frame, ip_len)
    if ip_len == ipv4.IPV4_MIN_LEN:
        is_error = kind in (icmp.UNREACHABLE, icmp.TIME_EXCEEDED, icmp.PARAMETER_PROBLEM)
        is_error = is_error and protocol == icmp.PROTO_ICMP and u8(frame, at + icmp.ICMP_LEN) == 0x45
    else:
        is_error = kind <= icmp.V6_ERROR_MAX and protocol == icmp.PROTO_ICMPV6
        is_error = is_error and u8(frame, at + icmp.ICMP_LEN) >> 4 == 6
    end = IP_AT + network.get_datagram_len(frame, ip_len)
    return end if is_error and at + icmp.ICMP_LEN < end <= length else 0


@inline_kernel
def _sum(frame: Uint8Array, ip_len: int, end: int) -> int:
    """Return the sum of an ICMP message, in the octets' own order; the sum of ICMPv6 includes a pseudo-header."""
    at = IP_AT + ip_len
    even = (end - at) & ~1
    total = ones_sum(frame, at, even) + (u8(frame, at + even) if even != end - at else 0)
    if ip_len == ipv6.IPV6_LEN:
        pseudo = network.pseudo_sum(frame, IP_AT, ip_len, icmp.PROTO_ICMPV6, end - at)
        total += (pseudo >> 8) | (pseudo & 0xFF) << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@inline_kernel
def _is_right(frame: Uint8Array, ip_len: int, end: int) -> bool:
    if not network.is_summed_right(frame, ip_len):
        return False
    return u8(frame, vnet.VNET_FLAGS) & (vnet.NEEDS_CSUM | vnet.DATA_VALID) != 0 or _sum(frame, ip_len, end) == 0xFFFF


@inline_kernel
def _find_tcp(frame: Uint8Array, at: int, end: int, protocol: int) -> int:
    """Return where the TCP header of a quoted datagram is, or would be; 0 where it is neither a block nor TCP."""
    if protocol == tcp.PROTO_TCP:
        return at
    if protocol == offload.PROTO_IPCOMP and be16(frame, at + offload.CPI) == offload.CPI_OFFLOAD:
        return at + offload.TCP_HEADER
    if protocol == udp.PROTO_UDP and be16(frame, at + udp.DST_PORT) == encapsulation.UDP_PORT:
        return at + encapsulation.DATAGRAM_OVERHEAD + offload.TCP_HEADER
    return 0


@inline_kernel
def _quoted_key(frame: Uint8Array, at: int, ip_len: int, ports: int) -> FlowKey:
    """Return the key of the connection whose datagram is quoted at ``at``."""
    if ip_len == ipv4.IPV4_MIN_LEN:
        return FlowKey(4, 0, be32(frame, at + ipv4.SRC), 0, be32(frame, at + ipv4.DST), ports)
    src_at, dst_at = at + ipv6.SRC, at + ipv6.DST
    return FlowKey(6, be64(frame, src_at), be64(frame, src_at + 8), be64(frame, dst_at), be64(frame, dst_at + 8), ports)


@inline_kernel
def _search(frame: Uint8Array, quoted_at: int, ip_len: int, protocol: int, flows: FlowTable) -> int:
    """Return the first connection that fits an error without a quoted TCP header, by addresses and UDP source port."""
    wanted = _quoted_key(frame, quoted_at, ip_len, 0)
    for slot in range(SLOTS):
        if (
            flows[slot, flow_table.IP_VERSION] != wanted.ip_version
            or flows[slot, flow_table.SRC_LOW] != wanted.src_low
            or flows[slot, flow_table.DST_LOW] != wanted.dst_low
            or flows[slot, flow_table.SRC_HIGH] != wanted.src_high
            or flows[slot, flow_table.DST_HIGH] != wanted.dst_high
            or flows[slot, flow_table.UNA] == flows[slot, flow_table.NEXT_SEQ]
        ):
            continue
        ports = flows[slot, flow_table.PORTS]
        spread = ((ports >> 16) * 31 ^ ports & 0xFFFF) & encapsulation.SRC_PORT_MASK
        src_port = be16(frame, quoted_at + ip_len + udp.SRC_PORT)
        if protocol == offload.PROTO_IPCOMP or src_port == encapsulation.SRC_PORT_FIRST | spread:
            return slot
    return NOT_FOUND


@inline_kernel
def _is_refusal(frame: Uint8Array, ip_len: int) -> bool:
    """Whether the error says that the peer does not know the protocol or port of blocks."""
    kind, code = u8(frame, IP_AT + ip_len + icmp.TYPE), u8(frame, IP_AT + ip_len + icmp.CODE)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return kind == icmp.UNREACHABLE and (code == icmp.PROTOCOL_UNREACHABLE or code == icmp.PORT_UNREACHABLE)
    return (kind == icmp.V6_UNREACHABLE and code == icmp.V6_PORT_UNREACHABLE) or (
        kind == icmp.V6_PARAMETER_PROBLEM and code == icmp.V6_UNKNOWN_NEXT_HEADER
    )


@inline_kernel
def _quote_tcp(frame: Uint8Array, quoted_at: int, ip_len: int, tcp_at: int, quoted_len: int, flow: Int64Array) -> int:
    """Move the TCP header right behind the quoted IP header; return the new end of the frame."""
    at = quoted_at + ip_len
    if quoted_len >= _TCP_QUOTED_MIN:
        for octet in range(quoted_len):
            frame[at + octet] = frame[tcp_at + octet]
    else:
        quoted_len = _TCP_QUOTED_MIN
        put_be32(frame, at, flow[flow_table.PORTS])
        put_be32(frame, at + tcp.SEQ, flow[flow_table.UNA])
    if ip_len == ipv4.IPV4_MIN_LEN:
        total_len = be16(frame, quoted_at + ipv4.TOTAL_LEN)
    else:
        total_len = be16(frame, quoted_at + ipv6.PAYLOAD_LEN) + ipv6.IPV6_LEN
    network.put_datagram(frame, quoted_at, ip_len, total_len, 0, tcp.PROTO_TCP)
    return at + quoted_len


@inline_kernel
def _round_mtu(frame: Uint8Array, ip_len: int, now_ns: int, flows: FlowTable, slot: int) -> None:
    """Limit the connection's blocks to the MTU in a "too big", and round this MTU down for the host."""
    at = IP_AT + ip_len
    kind, code = u8(frame, at + icmp.TYPE), u8(frame, at + icmp.CODE)
    if ip_len == ipv4.IPV4_MIN_LEN:
        if kind == icmp.UNREACHABLE and code == icmp.FRAGMENTATION_NEEDED:
            mtu = be16(frame, at + icmp.MTU_V4)
            put_be16(frame, at + icmp.MTU_V4, mtu & ~3)
            path.limit(flows, slot, mtu, now_ns)
    elif kind == icmp.V6_TOO_BIG:
        mtu = be32(frame, at + icmp.MTU_V6)
        put_be32(frame, at + icmp.MTU_V6, mtu & ~3)
        path.limit(flows, slot, mtu, now_ns)


@inline_kernel
def _put_sums(frame: Uint8Array, ip_len: int, end: int) -> None:
    at = IP_AT + ip_len
    protocol = icmp.PROTO_ICMP if ip_len == ipv4.IPV4_MIN_LEN else icmp.PROTO_ICMPV6
    network.put_datagram(frame, IP_AT, ip_len, end - IP_AT, 0, protocol)
    for octet in range(vnet.VNET_LEN):
        frame[octet] = 0
    store_u16(frame, at + icmp.CHECKSUM, 0)
    store_u16(frame, at + icmp.CHECKSUM, _sum(frame, ip_len, end) ^ 0xFFFF)
