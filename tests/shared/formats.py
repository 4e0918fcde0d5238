"""Octets <-> values of the formats in ``netoffload.wire``: the slow readers and writers that tests compare with.

The contract: ``parse`` takes any octets, and returns values or raises :class:`~netoffload.errors.WireError`; ``emit``
does not check its values; ``parse(emit(x)) == x``.
"""

import struct
from dataclasses import astuple, dataclass

from netoffload.errors import WireError
from netoffload.wire import encapsulation, offload, vnet
from netoffload.wire.authentication import siphash128, siphash_key
from netoffload.wire.checksum import crc32c, internet_checksum

_VNET = struct.Struct("=BBHHHH")
_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")
_UDP = struct.Struct("!4H")
_TCP = struct.Struct("!HHIIBBHHH")
_BLOCK = struct.Struct("!BBHBBBBHHHHI")
"""IPComp's header and the block's."""
_ENTRY = struct.Struct("!BBH")


@dataclass(frozen=True)
class Vnet:
    flags: int = 0
    gso_type: int = vnet.GSO_NONE
    hdr_len: int = 0
    gso_size: int = 0
    csum_start: int = 0
    csum_offset: int = 0


def parse_vnet(octets: bytes) -> tuple[Vnet, bytes]:
    """Split the octets read from a device into header and frame."""
    if len(octets) < _VNET.size:
        raise WireError(f"{len(octets)} octets are shorter than a virtio-net header")
    return Vnet(*_VNET.unpack_from(octets)), octets[_VNET.size :]


def emit_vnet(header: Vnet, frame: bytes) -> bytes:
    return _VNET.pack(*astuple(header)) + frame


@dataclass(frozen=True)
class Ethernet:
    dst: bytes
    src: bytes
    ethertype: int


def parse_ethernet(octets: bytes) -> tuple[Ethernet, bytes]:
    """Split a frame into header and payload."""
    if len(octets) < _ETHERNET.size:
        raise WireError(f"frame of {len(octets)} octets is shorter than an Ethernet header")
    return Ethernet(*_ETHERNET.unpack_from(octets)), octets[_ETHERNET.size :]


def emit_ethernet(header: Ethernet, payload: bytes) -> bytes:
    return _ETHERNET.pack(*astuple(header)) + payload


@dataclass(frozen=True)
class Ipv4:
    """One IPv4 header; ``fragment`` holds flags and offset as they stand on the wire."""

    tos: int
    ident: int
    fragment: int
    ttl: int
    protocol: int
    src: bytes
    dst: bytes
    options: bytes = b""


def parse_ipv4(octets: bytes) -> tuple[Ipv4, bytes]:
    """Split a datagram into header and payload; octets after the total length (Ethernet padding) are cut off."""
    if len(octets) < _IPV4.size or octets[0] >> 4 != 4:
        raise WireError("not an IPv4 header")
    first, tos, total_len, ident, fragment, ttl, protocol, _, src, dst = _IPV4.unpack_from(octets)
    header_len = 4 * (first & 15)
    if not _IPV4.size <= header_len <= total_len <= len(octets):
        raise WireError(f"IPv4 lengths contradict each other: header {header_len}, total {total_len}")
    if internet_checksum(octets[:header_len]) != 0:
        raise WireError("IPv4 header has a wrong checksum")
    header = Ipv4(tos, ident, fragment, ttl, protocol, src, dst, options=octets[_IPV4.size : header_len])
    return header, octets[header_len:total_len]


def emit_ipv4(header: Ipv4, payload: bytes) -> bytes:
    """Return the datagram, with lengths and checksum filled in."""
    header_len = _IPV4.size + len(header.options)
    lengths = 4 << 4 | header_len // 4, header.tos, header_len + len(payload)
    place = header.ident, header.fragment, header.ttl, header.protocol
    before = _IPV4.pack(*lengths, *place, 0, header.src, header.dst) + header.options
    after = _IPV4.pack(*lengths, *place, internet_checksum(before), header.src, header.dst) + header.options
    return after + payload


@dataclass(frozen=True)
class Ipv6:
    """One IPv6 header; ``next_header`` names the first extension header, which is left in the payload."""

    traffic_class: int
    flow_label: int
    next_header: int
    hop_limit: int
    src: bytes
    dst: bytes


def parse_ipv6(octets: bytes) -> tuple[Ipv6, bytes]:
    """Split a datagram into header and payload; octets after the payload length (Ethernet padding) are cut off."""
    if len(octets) < _IPV6.size or octets[0] >> 4 != 6:
        raise WireError("not an IPv6 header")
    first, payload_len, *others = _IPV6.unpack_from(octets)
    end = _IPV6.size + payload_len
    if end > len(octets):
        raise WireError(f"IPv6 datagram of {len(octets)} octets states a length of {end}")
    return Ipv6(first >> 20 & 0xFF, first & 0xFFFFF, *others), octets[_IPV6.size : end]


def emit_ipv6(header: Ipv6, payload: bytes) -> bytes:
    """Return the datagram, with the payload length filled in."""
    first = 6 << 28 | header.traffic_class << 20 | header.flow_label
    others = header.next_header, header.hop_limit, header.src, header.dst
    return _IPV6.pack(first, len(payload), *others) + payload


@dataclass(frozen=True)
class Udp:
    """One UDP header; its length field follows from the payload that it is emitted with."""

    src_port: int
    dst_port: int
    checksum: int = 0


def parse_udp(octets: bytes) -> tuple[Udp, bytes]:
    """Split the octets after an IP header into header and payload; octets behind the datagram are left out."""
    if len(octets) < _UDP.size:
        raise WireError(f"{len(octets)} octets are shorter than a UDP header")
    src, dst, length, checksum = _UDP.unpack_from(octets)
    if not _UDP.size <= length <= len(octets):
        raise WireError(f"UDP datagram of {len(octets)} octets states a length of {length}")
    return Udp(src, dst, checksum), octets[_UDP.size : length]


def emit_udp(header: Udp, payload: bytes) -> bytes:
    """Return header and payload; the checksum is taken from ``header``."""
    return _UDP.pack(header.src_port, header.dst_port, _UDP.size + len(payload), header.checksum) + payload


@dataclass(frozen=True)
class Tcp:
    """One TCP header; ``flags`` are the eight bits of octet 13."""

    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    window: int
    checksum: int = 0
    urgent: int = 0
    options: bytes = b""


def parse_tcp(octets: bytes) -> tuple[Tcp, bytes]:
    """Split a segment into header and payload; inside a host its checksum is often still to be filled in."""
    if len(octets) < _TCP.size:
        raise WireError(f"segment of {len(octets)} octets is shorter than a TCP header")
    sport, dport, seq, ack, offset, flags, window, checksum, urgent = _TCP.unpack_from(octets)
    header_len = 4 * (offset >> 4)
    if not _TCP.size <= header_len <= len(octets):
        raise WireError(f"TCP header length {header_len} does not fit a segment of {len(octets)} octets")
    options = octets[_TCP.size : header_len]
    return Tcp(sport, dport, seq, ack, flags, window, checksum, urgent, options), octets[header_len:]


def emit_tcp(header: Tcp, payload: bytes) -> bytes:
    """Return the segment; options must be a multiple of 4 octets long."""
    offset = (_TCP.size + len(header.options)) // 4 << 4
    numbers = header.sport, header.dport, header.seq, header.ack, offset, header.flags
    return _TCP.pack(*numbers, header.window, header.checksum, header.urgent) + header.options + payload


@dataclass(frozen=True)
class Block:
    """One offload block without MAC. ``payload`` is head octets, bursts, tail octets; ``tcp_header`` has checksum 0."""

    codec: int
    bound_k: int
    head: int
    tail: int
    payload_len: int
    gso_size: int
    tcp_header: bytes
    payload: bytes
    half_bursts: int = 0
    half_len: int = 0
    nonce: int = 0

    @property
    def count(self) -> int:
        """How many floats the bursts hold."""
        return (self.payload_len - self.head - self.tail) // 4

    @property
    def bursts(self) -> bytes:
        """The codec payload between the raw octets."""
        return self.payload[self.head : len(self.payload) - self.tail]


def emit_block(block: Block, src: bytes, dst: bytes) -> bytes:
    """Return the octets after the IP header: IPComp header, block header, TCP header, payload.

    The CRC covers the addresses, 4 or 16 octets each.
    """
    ipcomp = offload.IPCOMP_NEXT_TCP, 0, offload.CPI_OFFLOAD
    codec = offload.BLOCK_VERSION << 4 | block.codec, block.bound_k, block.head << 4 | block.tail, 0
    header = *ipcomp, *codec, block.payload_len, block.gso_size, block.half_bursts, block.half_len
    rest = block.tcp_header + block.payload
    crc = _crc(_BLOCK.pack(*header, 0) + rest, src, dst) ^ block.nonce
    return _BLOCK.pack(*header, crc) + rest


def parse_block(octets: bytes, src: bytes, dst: bytes, nonce: int = 0) -> Block:
    """Read the octets after an IP header with protocol 108.

    The codec's payload is not checked. ``nonce`` is the nonce of the receiving NIC.
    """
    if len(octets) < _BLOCK.size + _TCP.size:
        raise WireError(f"offload block of {len(octets)} octets is shorter than its headers")
    next_header, ipcomp_flags, cpi, version_codec, bound_k, head_tail, flags, *lengths, crc = _BLOCK.unpack_from(octets)
    payload_len, gso_size, half_bursts, half_len = lengths
    if next_header != offload.IPCOMP_NEXT_TCP or ipcomp_flags != 0:
        raise WireError("IPComp header does not announce TCP")
    if cpi != offload.CPI_OFFLOAD:
        raise WireError("IPComp CPI is not the offload block's")
    if version_codec >> 4 != offload.BLOCK_VERSION:
        raise WireError(f"offload block version {version_codec >> 4} is not {offload.BLOCK_VERSION}")
    if flags != 0:
        raise WireError("offload block has a reserved bit set")
    if _crc(octets, src, dst) ^ nonce != crc:
        raise WireError("offload block has a bad CRC")
    segment = octets[_BLOCK.size :]
    offset, tcp_flags = _TCP.unpack_from(segment)[4:6]
    tcp_len = 4 * (offset >> 4)
    if not _TCP.size <= tcp_len <= len(segment):
        raise WireError(f"TCP header of {tcp_len} octets does not fit its block")
    if tcp_flags & ~offload.SEGMENT_FLAGS:
        raise WireError("offload block of a segment with SYN, RST, URG or CWR")
    header, payload = segment[:tcp_len], segment[tcp_len:]
    head, tail = head_tail >> 4, head_tail & 15
    floats_len = payload_len - head - tail
    if (
        head > 3
        or tail > 3
        or floats_len < 4 * offload.BURST_FLOATS * half_bursts
        or floats_len % 4
        or len(payload) < head + half_len + tail
    ):
        raise WireError("offload block lengths contradict each other")
    codec = version_codec & 15
    return Block(codec, bound_k, head, tail, payload_len, gso_size, header, payload, half_bursts, half_len, nonce)


def _crc(octets: bytes, src: bytes, dst: bytes) -> int:
    protocol_and_length = bytes((0, offload.PROTO_IPCOMP)) + len(octets).to_bytes(2, "big")
    return crc32c(src + dst + octets[: offload.CRC] + protocol_and_length + octets[offload.CRC + 4 :])


def src_port(sport: int, dport: int) -> int:
    """Return the source port of the datagrams of a flow with these TCP ports."""
    return encapsulation.SRC_PORT_FIRST | (sport * 31 ^ dport) & encapsulation.SRC_PORT_MASK


def emit_entries(blocks: list[bytes], datagram_len: int = 0) -> bytes:
    """Return the UDP payload of a bundle of at least one block, each from its IPComp header on.

    Every entry but the last is filled up to ``datagram_len`` octets.
    """
    entries = [_ENTRY.pack(encapsulation.ENTRY_VERSION, 0, len(block)) + block for block in blocks]
    return b"".join(entry.ljust(datagram_len, b"\0") for entry in entries[:-1]) + entries[-1]


def parse_entries(octets: bytes) -> list[bytes]:
    """Return the blocks in a UDP payload, of one datagram or a bundle, each from its IPComp header on."""
    blocks: list[bytes] = []
    while octets or not blocks:
        if len(octets) < _ENTRY.size + _BLOCK.size:
            raise WireError("not an offload block in UDP")
        version, reserved, block_len = _ENTRY.unpack_from(octets)
        if (version, reserved) != (encapsulation.ENTRY_VERSION, 0):
            raise WireError("not an offload block in UDP")
        end = _ENTRY.size + block_len
        if not _ENTRY.size + _BLOCK.size <= end <= len(octets):
            raise WireError("the length of an offload block in UDP does not fit its datagram")
        blocks.append(octets[_ENTRY.size : end])
        octets = octets[end:].lstrip(b"\0")
    return blocks


def block_mac(key: bytes, octets: bytes) -> bytes:
    """Return the MAC, 16 octets, of ``octets`` under the user's key of 32 octets."""
    return siphash128(siphash_key(key), octets)
