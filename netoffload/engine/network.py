"""The network header of a frame: IPv4 or IPv6, told apart in this file and nowhere else.

The rest of the engine carries ``ip_len``, the length of the header, 20 or 40. It says where the TCP header or the block
starts, and to which family the frame belongs. Both headers end with the source and the destination address. A CRC
covers these octets before ``IP_AT + ip_len``, and they identify a flow.
"""

from typing import Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be16, be32, put_be16, store_u16, u8
from netoffload.engine.sums import folded, ones_sum, swapped
from netoffload.wire import ethernet, ipv4, ipv6, tcp, vnet

IP_AT: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN
"""Where the network header starts in a frame with virtio-net header; fixed, since frames with a VLAN tag cross."""

DATAGRAM_LEN_MAX: Final = 65535
"""The most that IPv4's length field can say. IPv6 allows 40 octets more, which no host uses."""

_V4: Final = ipv4.IPV4_MIN_LEN
_V6: Final = ipv6.IPV6_LEN


@inline_kernel
def find_ip_len(frame: Uint8Array, length: int) -> int:
    """Return the length of the network header; 0 where it is neither IPv4 without options nor IPv6, or not whole."""
    if length < IP_AT + _V4:
        return 0
    ethertype = be16(frame, vnet.VNET_LEN + ethernet.ETHERTYPE)
    first = u8(frame, IP_AT)
    if ethertype == ethernet.ETHERTYPE_IPV4 and first == 0x45:
        return _V4
    if ethertype == ethernet.ETHERTYPE_IPV6 and first >> 4 == 6 and length >= IP_AT + _V6:
        return _V6
    return 0


@inline_kernel
def get_tos(frame: Uint8Array, ip_len: int) -> int:
    """Return the type of service or traffic class, with its two ECN bits."""
    if ip_len == _V4:
        return u8(frame, IP_AT + ipv4.TOS)
    return be16(frame, IP_AT + ipv6.CLASS_AND_LABEL) >> 4 & 0xFF


@inline_kernel
def get_protocol(frame: Uint8Array, ip_len: int) -> int:
    """Return the protocol behind the network header; an IPv6 extension header has a number as well."""
    return u8(frame, IP_AT + (ipv4.PROTOCOL if ip_len == _V4 else ipv6.NEXT_HEADER))


@inline_kernel
def get_datagram_len(frame: Uint8Array, ip_len: int) -> int:
    """Return the length that the datagram states, octets with its header."""
    if ip_len == _V4:
        return be16(frame, IP_AT + ipv4.TOTAL_LEN)
    return be16(frame, IP_AT + ipv6.PAYLOAD_LEN) + _V6


@inline_kernel
def addresses_len(ip_len: int) -> int:
    """Return the octets of source and destination address, which end the header."""
    return 2 * ipv6.ADDRESS_LEN if ip_len == _V6 else _V4 - ipv4.SRC


@inline_kernel
def is_fragment(frame: Uint8Array, ip_len: int) -> bool:
    """Whether this is a fragment of a datagram; an IPv6 fragment has an extension header, so its protocol differs."""
    return ip_len == _V4 and be16(frame, IP_AT + ipv4.FRAGMENT) & ipv4.FRAGMENT_MASK != 0


@inline_kernel
def is_tcp(frame: Uint8Array, length: int, ip_len: int) -> bool:
    """Whether a frame holds a whole TCP segment over a network header of ``ip_len`` octets; 0 means no such header."""
    tcp_at = IP_AT + ip_len
    if ip_len == 0 or length < tcp_at + tcp.TCP_MIN_LEN or get_protocol(frame, ip_len) != tcp.PROTO_TCP:
        return False
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    datagram_len = get_datagram_len(frame, ip_len)
    return (
        not is_fragment(frame, ip_len)
        and tcp.TCP_MIN_LEN <= tcp_len <= datagram_len - ip_len
        and datagram_len <= min(length - IP_AT, DATAGRAM_LEN_MAX)
    )


@inline_kernel
def is_summed_right(frame: Uint8Array, ip_len: int) -> bool:
    """Whether the IPv4 header's checksum is right; True for IPv6, whose header has no checksum."""
    return ip_len == _V6 or ones_sum(frame, IP_AT, _V4) == 0xFFFF


@inline_kernel
def gso_type(ip_len: int) -> int:
    """Return the virtio-net header's gso_type for a large TCP segment of this family."""
    return vnet.GSO_TCPV4 if ip_len == _V4 else vnet.GSO_TCPV6


@inline_kernel
def is_same_path(frame: Uint8Array, other: Uint8Array, ip_len: int) -> bool:
    """Whether two headers of a family agree in all fields that must be equal to merge their segments.

    Addresses, ToS and TTL, or traffic class, flow label and hop limit.
    """
    if ip_len == _V4:
        different = u8(frame, IP_AT + ipv4.TOS) ^ u8(other, IP_AT + ipv4.TOS)
        different |= u8(frame, IP_AT + ipv4.TTL) ^ u8(other, IP_AT + ipv4.TTL)
    else:
        different = be32(frame, IP_AT + ipv6.CLASS_AND_LABEL) ^ be32(other, IP_AT + ipv6.CLASS_AND_LABEL)
        different |= u8(frame, IP_AT + ipv6.HOP_LIMIT) ^ u8(other, IP_AT + ipv6.HOP_LIMIT)
    for at in range(IP_AT + ip_len - addresses_len(ip_len), IP_AT + ip_len, 4):
        different |= be32(frame, at) ^ be32(other, at)
    return different == 0


@inline_kernel
def put_datagram(octets: Uint8Array, at: int, ip_len: int, datagram_len: int, ident_step: int, protocol: int) -> None:
    """Change length and protocol in the network header at ``at``; IPv4 is summed anew.

    ``ident_step`` is added to IPv4's identification, so that datagrams made from one have different ones.
    """
    if ip_len == _V4:
        put_be16(octets, at + ipv4.TOTAL_LEN, datagram_len)
        put_be16(octets, at + ipv4.IDENT, be16(octets, at + ipv4.IDENT) + ident_step)
        octets[at + ipv4.PROTOCOL] = protocol
        store_u16(octets, at + ipv4.CHECKSUM, 0)
        store_u16(octets, at + ipv4.CHECKSUM, ones_sum(octets, at, _V4) ^ 0xFFFF)
    else:
        put_be16(octets, at + ipv6.PAYLOAD_LEN, datagram_len - _V6)
        octets[at + ipv6.NEXT_HEADER] = protocol


@inline_kernel
def pseudo_sum(octets: Uint8Array, at: int, ip_len: int, protocol: int, length: int) -> int:
    """Return the folded sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1), as a field value."""
    addresses_sum = ones_sum(octets, at + ip_len - addresses_len(ip_len), addresses_len(ip_len))
    return folded(swapped(addresses_sum) + protocol + length)


@inline_kernel
def is_tcp_summed_right(frame: Uint8Array, ip_len: int, length: int) -> bool:
    """Whether the checksum of a TCP segment of ``length`` octets is right."""
    pseudo = swapped(pseudo_sum(frame, IP_AT, ip_len, tcp.PROTO_TCP, length))
    return (pseudo + ones_sum(frame, IP_AT + ip_len, length)) % 0xFFFF == 0


@inline_kernel
def put_offload(
    frame: Uint8Array, at: int, header_at: int, header_len: int, csum_offset: int, gso_type: int, gso_size: int
) -> None:
    """Write the virtio-net header at ``at`` that leaves a checksum to the kernel, and segmentation with ``gso_size``.

    The TCP or UDP header is ``header_at`` behind ``at``.
    """
    frame[at + vnet.VNET_FLAGS] = vnet.NEEDS_CSUM
    frame[at + vnet.GSO_TYPE] = gso_type
    store_u16(frame, at + vnet.HDR_LEN, header_at + header_len - vnet.VNET_LEN)
    store_u16(frame, at + vnet.VNET_GSO_SIZE, gso_size)
    store_u16(frame, at + vnet.CSUM_START, header_at - vnet.VNET_LEN)
    store_u16(frame, at + vnet.CSUM_OFFSET, csum_offset)
