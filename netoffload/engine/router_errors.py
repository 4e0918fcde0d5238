"""ICMP errors of routers and peers about blocks: which ones count, and what they become.

A router that cannot forward a block sends an ICMP or ICMPv6 error that quotes the block: UDP to the NIC's port, or
protocol 108. No socket of the host knows either, so the NIC handles these errors itself::

    outer IP | ICMP 8 | quoted IP, protocol 17 or 108 | UDP 8, entry 4 | IPComp 4, block header 16 | TCP header ...
    outer IP | ICMP 8 | quoted IP, protocol 6         | TCP header, 8 to 20 octets

**Whom to believe.** Any host can send such an error, from any address (RFC 5927). An error counts if it quotes what
only the path can know: a sequence number in flight, and the 16 bits that the NIC makes of it and of the handshake's
nonce (``blocks.proof_of``). A router that quotes only 8 octets (RFC 792) cannot do so; where blocks vanish because of
their size, ``path`` finds out. All other errors about blocks end here.

"Too big" limits the connection's blocks at once (``path``) and ends here. The host's TCP would lower the MTU of the
route, for all its programs. "Port unreachable" and "protocol unreachable" mean that the peer's NIC is gone: the NIC
puts the connection on probation. In any other error the NIC replaces the quoted header by the TCP header in the block,
so that the host's TCP takes the error for one about its own segment.

An error about a plain segment is the host's. The NIC rounds the MTU in it down to whole floats, so that TCP goes on
cutting between floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.fields import be16, be32, be64, put_be16, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import network, path, probation
from netoffload.engine.blocks import proof_of
from netoffload.engine.counters import Counter
from netoffload.engine.flows import NOT_FOUND, FlowKey
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

_PROOF_END: Final = tcp.CHECKSUM + 2
"""Octets of the TCP header up to the end of the proof."""


@inline_kernel
def translate(frame: Uint8Array, length: int, ip_len: int, now_ns: int, flows: FlowTable, counters: Counters) -> int:
    """Handle an error about a block; return the length of the frame, which may be rewritten in place, or ``ENDS``.

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
    is_block = protocol != tcp.PROTO_TCP
    slot = NOT_FOUND
    if end >= tcp_at + (_PROOF_END if is_block else _TCP_QUOTED_MIN):
        slot = flow_table.find(flows, _quoted_key(frame, quoted_at, ip_len, be32(frame, tcp_at)))
    # Whoever cannot quote what only the path knows may have forged the error.
    if slot != NOT_FOUND and not _is_known(frame, tcp_at, flows, slot, is_block):
        slot = NOT_FOUND
    if not is_block:
        if slot != NOT_FOUND and _too_big_at(frame, ip_len):
            _round_mtu(frame, ip_len)
            _put_sums(frame, ip_len, end)
        return length
    if slot == NOT_FOUND:
        counters[Counter.DROP_BAD_ERROR] += 1
        return ENDS
    if _too_big_at(frame, ip_len):
        counters[Counter.DROP_PATH_ERROR] += 1
        path.limit(flows, slot, _read_mtu(frame, ip_len), now_ns)
        return ENDS
    if _is_refusal(frame, ip_len):
        counters[Counter.DROP_PEER_REFUSES] += 1
        probation.put_on_probation(flows, slot, now_ns)
        return ENDS
    end = _quote_tcp(frame, quoted_at, ip_len, tcp_at, min(end - tcp_at, tcp.TCP_MIN_LEN))
    counters[Counter.RX_ERRORS_TRANSLATED] += 1
    _put_sums(frame, ip_len, end)
    return end


@inline_kernel
def _is_known(frame: Uint8Array, tcp_at: int, flows: FlowTable, slot: int, is_block: bool) -> bool:
    """Whether a quoted TCP header is of octets in flight; that of a block must also prove that its path knows it."""
    seq = be32(frame, tcp_at + tcp.SEQ)
    if is_before(seq, flows[slot, flow_table.UNA]) or not is_before(seq, flows[slot, flow_table.NEXT_SEQ]):
        return False
    return not is_block or be16(frame, tcp_at + tcp.CHECKSUM) == proof_of(flows[slot, flow_table.PEER_NONCE], seq)


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
    total = ones_sum(frame, at, end - at)
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
def _is_refusal(frame: Uint8Array, ip_len: int) -> bool:
    """Whether the error says that the peer does not know the protocol or port of blocks."""
    kind, code = u8(frame, IP_AT + ip_len + icmp.TYPE), u8(frame, IP_AT + ip_len + icmp.CODE)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return kind == icmp.UNREACHABLE and (code == icmp.PROTOCOL_UNREACHABLE or code == icmp.PORT_UNREACHABLE)
    return (kind == icmp.V6_UNREACHABLE and code == icmp.V6_PORT_UNREACHABLE) or (
        kind == icmp.V6_PARAMETER_PROBLEM and code == icmp.V6_UNKNOWN_NEXT_HEADER
    )


@inline_kernel
def _quote_tcp(frame: Uint8Array, quoted_at: int, ip_len: int, tcp_at: int, quoted_len: int) -> int:
    """Move the TCP header right behind the quoted IP header; return the new end of the frame."""
    at = quoted_at + ip_len
    for octet in range(quoted_len):
        frame[at + octet] = frame[tcp_at + octet]
    if ip_len == ipv4.IPV4_MIN_LEN:
        total_len = be16(frame, quoted_at + ipv4.TOTAL_LEN)
    else:
        total_len = be16(frame, quoted_at + ipv6.PAYLOAD_LEN) + ipv6.IPV6_LEN
    network.put_datagram(frame, quoted_at, ip_len, total_len, 0, tcp.PROTO_TCP)
    return at + quoted_len


@inline_kernel
def _too_big_at(frame: Uint8Array, ip_len: int) -> int:
    """Return where the MTU of a "too big" is; 0 for every other error."""
    at = IP_AT + ip_len
    kind, code = u8(frame, at + icmp.TYPE), u8(frame, at + icmp.CODE)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return at + icmp.MTU_V4 if kind == icmp.UNREACHABLE and code == icmp.FRAGMENTATION_NEEDED else 0
    return at + icmp.MTU_V6 if kind == icmp.V6_TOO_BIG else 0


@inline_kernel
def _read_mtu(frame: Uint8Array, ip_len: int) -> int:
    """Return the MTU in a "too big"."""
    at = _too_big_at(frame, ip_len)
    return be16(frame, at) if ip_len == ipv4.IPV4_MIN_LEN else be32(frame, at)


@inline_kernel
def _round_mtu(frame: Uint8Array, ip_len: int) -> None:
    """Round the MTU in a "too big" down to whole floats."""
    at = _too_big_at(frame, ip_len)
    if ip_len == ipv4.IPV4_MIN_LEN:
        put_be16(frame, at, be16(frame, at) & ~3)
    else:
        put_be32(frame, at, be32(frame, at) & ~3)


@inline_kernel
def _put_sums(frame: Uint8Array, ip_len: int, end: int) -> None:
    at = IP_AT + ip_len
    protocol = icmp.PROTO_ICMP if ip_len == ipv4.IPV4_MIN_LEN else icmp.PROTO_ICMPV6
    network.put_datagram(frame, IP_AT, ip_len, end - IP_AT, 0, protocol)
    for octet in range(vnet.VNET_LEN):
        frame[octet] = 0
    store_u16(frame, at + icmp.CHECKSUM, 0)
    store_u16(frame, at + icmp.CHECKSUM, _sum(frame, ip_len, end) ^ 0xFFFF)
