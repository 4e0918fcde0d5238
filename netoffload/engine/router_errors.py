"""ICMP errors of routers and peers about blocks: which ones count, and what they become.

A router that cannot forward a block sends an ICMP or ICMPv6 error that quotes the block: UDP to the NIC's port, or
protocol 108. No socket of the host knows either, so the NIC handles these errors itself::

    outer IP | ICMP 8 | quoted IP, protocol 17 or 108 | UDP 8, entry 4 | IPComp 4, block header 16 | TCP header ...
    outer IP | ICMP 8 | quoted IP, protocol 6         | TCP header, 8 to 20 octets

**Whom to believe.** Any host can send such an error, from any address (RFC 5927). An error counts if it quotes what
only the path can know: a sequence number in flight, and the 16 bits that the NIC makes of it and of the handshake's
nonce (``pack.proof_of``). A router that quotes only 8 octets (RFC 792) cannot do so; where blocks vanish because of
their size, ``path`` finds out. All other errors about blocks end here.

"Too big" limits the connection's blocks at once (``path``) and ends here. The host's TCP would lower the MTU of the
route, for all its programs. "Port unreachable" and "protocol unreachable" mean that the peer's NIC is gone: the NIC
puts the connection on probation. In any other error the NIC replaces the quoted header by the TCP header in the block,
so that the host's TCP takes the error for one about its own segment.

An error about a plain segment is the host's. The NIC rounds the MTU in it down to whole floats, so that TCP goes on
cutting between floats.
"""

from typing import Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be16, be32, store_u16, u8
from netoffload.engine import flows, network, path, probation
from netoffload.engine.counters import Counter
from netoffload.engine.flows import NOT_FOUND, Flow
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import proof_of
from netoffload.engine.segment import is_before
from netoffload.engine.state import NicState
from netoffload.engine.sums import folded, ones_sum, swapped
from netoffload.wire import encapsulation, icmp, ipv4, ipv6, offload, tcp, udp, vnet

ENDS: Final = -1
"""Result: the frame is not for the host."""

_TCP_QUOTED_MIN: Final = 8
"""Ports and sequence number, which every error quotes (RFC 792)."""

_PROOF_END: Final = tcp.CHECKSUM + 2
"""Octets of the TCP header up to the end of the proof."""


@inline_kernel
def translate(nic: NicState, frame: Uint8Array, length: int, ip_len: int, now_ns: int) -> int:
    """Handle an error about a block; return the length of the frame, which may be rewritten in place, or ``ENDS``.

    Other frames stay as they are, but for the MTU in a "too big" about a plain segment.
    """
    counters = nic.counters
    end = _find_end(frame, length, ip_len)
    # The quoted datagram lies in ``quoted`` as a frame's own datagram lies in its frame.
    before = ip_len + icmp.ICMP_LEN
    quoted, quoted_end = frame[before:], end - before
    if end == 0 or quoted_end < IP_AT + ip_len + _TCP_QUOTED_MIN or not _is_right(frame, ip_len, end):
        return length
    protocol = network.get_protocol(quoted, ip_len)
    tcp_at = _find_tcp(quoted, IP_AT + ip_len, protocol)
    if tcp_at == 0:
        return length
    is_block = protocol != tcp.PROTO_TCP
    slot = NOT_FOUND
    if quoted_end >= tcp_at + (_PROOF_END if is_block else _TCP_QUOTED_MIN):
        slot = flows.find(nic.flows, flows.key_of(quoted, ip_len, tcp_at))
    # Whoever cannot quote what only the path knows may have forged the error.
    if slot != NOT_FOUND and not _is_known(quoted, tcp_at, nic.flows[slot], is_block):
        slot = NOT_FOUND
    mtu_at = _too_big_at(frame, ip_len)
    if not is_block:
        if slot != NOT_FOUND and mtu_at:
            last_at = mtu_at + (1 if ip_len == ipv4.IPV4_MIN_LEN else 3)
            frame[last_at] = u8(frame, last_at) & ~3
            _put_sums(frame, ip_len, end)
        return length
    if slot == NOT_FOUND:
        counters[Counter.DROP_BAD_ERROR] += 1
        return ENDS
    if mtu_at:
        counters[Counter.DROP_PATH_ERROR] += 1
        mtu = be16(frame, mtu_at) if ip_len == ipv4.IPV4_MIN_LEN else be32(frame, mtu_at)
        path.limit(nic.flows[slot], mtu, now_ns)
        return ENDS
    if _is_refusal(frame, ip_len):
        counters[Counter.DROP_PEER_REFUSES] += 1
        probation.put_on_probation(nic.flows[slot], now_ns)
        return ENDS
    tcp_len = min(quoted_end - tcp_at, tcp.TCP_MIN_LEN)
    for octet in range(tcp_len):
        quoted[IP_AT + ip_len + octet] = quoted[tcp_at + octet]
    network.put_datagram(quoted, IP_AT, ip_len, network.get_datagram_len(quoted, ip_len), 0, tcp.PROTO_TCP)
    end = before + IP_AT + ip_len + tcp_len
    counters[Counter.RX_ERRORS_TRANSLATED] += 1
    _put_sums(frame, ip_len, end)
    return end


@inline_kernel
def _is_known(quoted: Uint8Array, tcp_at: int, flow: Flow, is_block: bool) -> bool:
    """Whether a quoted TCP header is of octets in flight; that of a block must also prove that its path knows it."""
    seq = be32(quoted, tcp_at + tcp.SEQ)
    if is_before(seq, flow[flows.UNA]) or not is_before(seq, flow[flows.NEXT_SEQ]):
        return False
    return not is_block or be16(quoted, tcp_at + tcp.CHECKSUM) == proof_of(flow[flows.PEER_NONCE], seq)


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
        total += swapped(network.pseudo_sum(frame, IP_AT, ip_len, icmp.PROTO_ICMPV6, end - at))
    return folded(total)


@inline_kernel
def _is_right(frame: Uint8Array, ip_len: int, end: int) -> bool:
    if not network.is_summed_right(frame, ip_len):
        return False
    return u8(frame, vnet.VNET_FLAGS) & (vnet.NEEDS_CSUM | vnet.DATA_VALID) != 0 or _sum(frame, ip_len, end) == 0xFFFF


@inline_kernel
def _find_tcp(quoted: Uint8Array, at: int, protocol: int) -> int:
    """Return where the TCP header of a quoted datagram is, or would be; 0 where it is neither a block nor TCP."""
    if protocol == tcp.PROTO_TCP:
        return at
    if protocol == offload.PROTO_IPCOMP and be16(quoted, at + offload.CPI) == offload.CPI_OFFLOAD:
        return at + offload.TCP_HEADER
    if protocol == udp.PROTO_UDP and be16(quoted, at + udp.DST_PORT) == encapsulation.UDP_PORT:
        return at + encapsulation.DATAGRAM_OVERHEAD + offload.TCP_HEADER
    return 0


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
def _too_big_at(frame: Uint8Array, ip_len: int) -> int:
    """Return where the MTU of a "too big" is; 0 for every other error."""
    at = IP_AT + ip_len
    kind, code = u8(frame, at + icmp.TYPE), u8(frame, at + icmp.CODE)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return at + icmp.MTU_V4 if kind == icmp.UNREACHABLE and code == icmp.FRAGMENTATION_NEEDED else 0
    return at + icmp.MTU_V6 if kind == icmp.V6_TOO_BIG else 0


@inline_kernel
def _put_sums(frame: Uint8Array, ip_len: int, end: int) -> None:
    at = IP_AT + ip_len
    protocol = icmp.PROTO_ICMP if ip_len == ipv4.IPV4_MIN_LEN else icmp.PROTO_ICMPV6
    network.put_datagram(frame, IP_AT, ip_len, end - IP_AT, 0, protocol)
    frame[: vnet.VNET_LEN] = 0
    store_u16(frame, at + icmp.CHECKSUM, 0)
    store_u16(frame, at + icmp.CHECKSUM, _sum(frame, ip_len, end) ^ 0xFFFF)
