"""Octets <-> values of the formats in ``netoffload.wire``: the slow readers and writers that tests compare with.

The contract: ``parse`` takes any octets, and returns values or raises :class:`~netoffload.errors.WireError`; ``emit``
does not check its values; ``parse(emit(x)) == x``.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from netoffload.errors import WireError
from netoffload.wire import encapsulation, ethernet, ipv4, ipv6, offload, tcp, udp, vnet
from netoffload.wire.authentication import siphash128, siphash_key
from netoffload.wire.checksum import crc32c, internet_checksum

_VNET = struct.Struct("=BBHHHH")


@dataclass(frozen=True)
class Vnet:
    """One virtio-net header."""

    flags: int = 0
    gso_type: int = vnet.GSO_NONE
    hdr_len: int = 0
    gso_size: int = 0
    csum_start: int = 0
    csum_offset: int = 0


def parse_vnet(octets: bytes) -> tuple[Vnet, bytes]:
    """Split the octets read from a device into header and frame."""
    if len(octets) < vnet.VNET_LEN:
        raise WireError(f"{len(octets)} octets are shorter than a virtio-net header")
    return Vnet(*_VNET.unpack_from(octets)), octets[vnet.VNET_LEN :]


def emit_vnet(header: Vnet, frame: bytes) -> bytes:
    """Return header and frame."""
    return _VNET.pack(*astuple(header)) + frame


@dataclass(frozen=True)
class Ethernet:
    """One Ethernet II header."""

    dst: bytes
    src: bytes
    ethertype: int


def parse_ethernet(octets: bytes) -> tuple[Ethernet, bytes]:
    """Split a frame into header and payload."""
    if len(octets) < ethernet.ETHERNET_LEN:
        raise WireError(f"frame of {len(octets)} octets is shorter than an Ethernet header")
    header = Ethernet(octets[0:6], octets[6:12], int.from_bytes(octets[12:14], "big"))
    return header, octets[ethernet.ETHERNET_LEN :]


def emit_ethernet(header: Ethernet, payload: bytes) -> bytes:
    """Return the frame."""
    return header.dst + header.src + header.ethertype.to_bytes(2, "big") + payload


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
    if len(octets) < ipv4.IPV4_MIN_LEN or octets[0] >> 4 != 4:
        raise WireError("not an IPv4 header")
    header_len = 4 * (octets[0] & 15)
    total_len = int.from_bytes(octets[2:4], "big")
    if not ipv4.IPV4_MIN_LEN <= header_len <= total_len <= len(octets):
        raise WireError(f"IPv4 lengths contradict each other: header {header_len}, total {total_len}")
    if internet_checksum(octets[:header_len]) != 0:
        raise WireError("IPv4 header has a wrong checksum")
    header = Ipv4(
        tos=octets[ipv4.TOS],
        ident=int.from_bytes(octets[4:6], "big"),
        fragment=int.from_bytes(octets[6:8], "big"),
        ttl=octets[ipv4.TTL],
        protocol=octets[ipv4.PROTOCOL],
        src=octets[12:16],
        dst=octets[16:20],
        options=octets[20:header_len],
    )
    return header, octets[header_len:total_len]


def emit_ipv4(header: Ipv4, payload: bytes) -> bytes:
    """Return the datagram, with lengths and checksum filled in."""
    header_len = ipv4.IPV4_MIN_LEN + len(header.options)
    octets = bytearray(header_len)
    octets[0] = 4 << 4 | header_len // 4
    octets[ipv4.TOS] = header.tos
    octets[2:4] = (header_len + len(payload)).to_bytes(2, "big")
    octets[4:6] = header.ident.to_bytes(2, "big")
    octets[6:8] = header.fragment.to_bytes(2, "big")
    octets[ipv4.TTL] = header.ttl
    octets[ipv4.PROTOCOL] = header.protocol
    octets[12:16] = header.src
    octets[16:20] = header.dst
    octets[20:] = header.options
    octets[10:12] = internet_checksum(bytes(octets)).to_bytes(2, "big")
    return bytes(octets) + payload


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
    if len(octets) < ipv6.IPV6_LEN or octets[0] >> 4 != 6:
        raise WireError("not an IPv6 header")
    end = ipv6.IPV6_LEN + int.from_bytes(octets[4:6], "big")
    if end > len(octets):
        raise WireError(f"IPv6 datagram of {len(octets)} octets states a length of {end}")
    first = int.from_bytes(octets[0:4], "big")
    header = Ipv6(
        traffic_class=first >> 20 & 0xFF,
        flow_label=first & 0xFFFFF,
        next_header=octets[ipv6.NEXT_HEADER],
        hop_limit=octets[ipv6.HOP_LIMIT],
        src=octets[ipv6.SRC : ipv6.DST],
        dst=octets[ipv6.DST : ipv6.IPV6_LEN],
    )
    return header, octets[ipv6.IPV6_LEN : end]


def emit_ipv6(header: Ipv6, payload: bytes) -> bytes:
    """Return the datagram, with the payload length filled in."""
    first = 6 << 28 | header.traffic_class << 20 | header.flow_label
    rest = len(payload).to_bytes(2, "big") + bytes((header.next_header, header.hop_limit))
    return first.to_bytes(4, "big") + rest + header.src + header.dst + payload


@dataclass(frozen=True)
class Udp:
    """One UDP header; its length field follows from the payload that it is emitted with."""

    src_port: int
    dst_port: int
    checksum: int = 0


def parse_udp(octets: bytes) -> tuple[Udp, bytes]:
    """Split the octets after an IP header into header and payload; octets behind the datagram are left out."""
    if len(octets) < udp.UDP_LEN:
        raise WireError(f"{len(octets)} octets are shorter than a UDP header")
    src, dst, length, checksum = (int.from_bytes(octets[at : at + 2], "big") for at in range(0, udp.UDP_LEN, 2))
    if not udp.UDP_LEN <= length <= len(octets):
        raise WireError(f"UDP datagram of {len(octets)} octets states a length of {length}")
    return Udp(src, dst, checksum), octets[udp.UDP_LEN : length]


def emit_udp(header: Udp, payload: bytes) -> bytes:
    """Return header and payload; the checksum is taken from ``header``."""
    fields = (header.src_port, header.dst_port, udp.UDP_LEN + len(payload), header.checksum)
    return b"".join(field.to_bytes(2, "big") for field in fields) + payload


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
    if len(octets) < tcp.TCP_MIN_LEN:
        raise WireError(f"segment of {len(octets)} octets is shorter than a TCP header")
    header_len = 4 * (octets[tcp.DATA_OFFSET] >> 4)
    if not tcp.TCP_MIN_LEN <= header_len <= len(octets):
        raise WireError(f"TCP header length {header_len} does not fit a segment of {len(octets)} octets")
    header = Tcp(
        sport=int.from_bytes(octets[0:2], "big"),
        dport=int.from_bytes(octets[2:4], "big"),
        seq=int.from_bytes(octets[4:8], "big"),
        ack=int.from_bytes(octets[8:12], "big"),
        flags=octets[tcp.FLAGS],
        window=int.from_bytes(octets[14:16], "big"),
        checksum=int.from_bytes(octets[16:18], "big"),
        urgent=int.from_bytes(octets[18:20], "big"),
        options=octets[20:header_len],
    )
    return header, octets[header_len:]


def emit_tcp(header: Tcp, payload: bytes) -> bytes:
    """Return the segment; options must be a multiple of 4 octets long."""
    header_len = tcp.TCP_MIN_LEN + len(header.options)
    octets = bytearray(header_len)
    octets[0:2] = header.sport.to_bytes(2, "big")
    octets[2:4] = header.dport.to_bytes(2, "big")
    octets[4:8] = header.seq.to_bytes(4, "big")
    octets[8:12] = header.ack.to_bytes(4, "big")
    octets[tcp.DATA_OFFSET] = header_len // 4 << 4
    octets[tcp.FLAGS] = header.flags
    octets[14:16] = header.window.to_bytes(2, "big")
    octets[16:18] = header.checksum.to_bytes(2, "big")
    octets[18:20] = header.urgent.to_bytes(2, "big")
    octets[20:] = header.options
    return bytes(octets) + payload


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

    Args:
        src: source address, 4 or 16 octets (the offload.CRC covers it).
    """
    octets = bytearray(offload.OVERHEAD)
    octets[offload.NEXT_HEADER] = offload.IPCOMP_NEXT_TCP
    octets[offload.CPI : offload.CPI + 2] = offload.CPI_OFFLOAD.to_bytes(2, "big")
    octets[offload.VERSION_CODEC] = offload.BLOCK_VERSION << 4 | block.codec
    octets[offload.BOUND_K] = block.bound_k
    octets[offload.HEAD_TAIL] = block.head << 4 | block.tail
    octets[offload.PAYLOAD_LEN : offload.PAYLOAD_LEN + 2] = block.payload_len.to_bytes(2, "big")
    octets[offload.GSO_SIZE : offload.GSO_SIZE + 2] = block.gso_size.to_bytes(2, "big")
    octets[offload.HALF_BURSTS : offload.HALF_BURSTS + 2] = block.half_bursts.to_bytes(2, "big")
    octets[offload.HALF_LEN : offload.HALF_LEN + 2] = block.half_len.to_bytes(2, "big")
    octets += block.tcp_header + block.payload
    octets[offload.CRC : offload.CRC + 4] = (_crc(bytes(octets), src, dst) ^ block.nonce).to_bytes(4, "big")
    return bytes(octets)


def parse_block(octets: bytes, src: bytes, dst: bytes, nonce: int = 0) -> Block:
    """Read the octets after an IP header with protocol 108.

    The codec's payload is not checked. ``nonce`` is the nonce of the receiving NIC.
    """
    if len(octets) < offload.OVERHEAD + 20:
        raise WireError(f"offload block of {len(octets)} octets is shorter than its headers")
    if octets[offload.NEXT_HEADER] != offload.IPCOMP_NEXT_TCP or octets[offload.IPCOMP_FLAGS] != 0:
        raise WireError("IPComp header does not announce TCP")
    if int.from_bytes(octets[offload.CPI : offload.CPI + 2], "big") != offload.CPI_OFFLOAD:
        raise WireError("IPComp offload.CPI is not the offload block's")
    if octets[offload.VERSION_CODEC] >> 4 != offload.BLOCK_VERSION:
        raise WireError(f"offload block version {octets[offload.VERSION_CODEC] >> 4} is not {offload.BLOCK_VERSION}")
    if octets[offload.FLAGS] != 0:
        raise WireError("offload block has a reserved bit set")
    if _crc(octets, src, dst) ^ nonce != int.from_bytes(octets[offload.CRC : offload.CRC + 4], "big"):
        raise WireError("offload block has a bad offload.CRC")
    head, tail = octets[offload.HEAD_TAIL] >> 4, octets[offload.HEAD_TAIL] & 15
    tcp_len = 4 * (octets[offload.TCP_HEADER + 12] >> 4)
    payload_len = int.from_bytes(octets[offload.PAYLOAD_LEN : offload.PAYLOAD_LEN + 2], "big")
    payload = octets[offload.TCP_HEADER + tcp_len :]
    if not 20 <= tcp_len <= len(octets) - offload.TCP_HEADER:
        raise WireError(f"TCP header of {tcp_len} octets does not fit its block")
    if octets[offload.TCP_HEADER + tcp.FLAGS] & ~offload.SEGMENT_FLAGS:
        raise WireError("offload block of a segment with SYN, RST, URG or CWR")
    half_bursts = int.from_bytes(octets[offload.HALF_BURSTS : offload.HALF_BURSTS + 2], "big")
    half_len = int.from_bytes(octets[offload.HALF_LEN : offload.HALF_LEN + 2], "big")
    floats_len = payload_len - head - tail
    if (
        head > 3
        or tail > 3
        or floats_len < 4 * offload.BURST_FLOATS * half_bursts
        or floats_len % 4
        or len(payload) < head + half_len + tail
    ):
        raise WireError("offload block lengths contradict each other")
    return Block(
        codec=octets[offload.VERSION_CODEC] & 15,
        bound_k=octets[offload.BOUND_K],
        head=head,
        tail=tail,
        payload_len=payload_len,
        gso_size=int.from_bytes(octets[offload.GSO_SIZE : offload.GSO_SIZE + 2], "big"),
        tcp_header=octets[offload.TCP_HEADER : offload.TCP_HEADER + tcp_len],
        payload=payload,
        half_bursts=half_bursts,
        half_len=half_len,
        nonce=nonce,
    )


def nonce_of(octets: bytes, src: bytes, dst: bytes) -> int:
    """Return the nonce of a block from its IPComp header on, which everyone who sees the block can compute.

    Args:
        octets: the block, without damage and without MAC.
    """
    return _crc(octets, src, dst) ^ int.from_bytes(octets[offload.CRC : offload.CRC + 4], "big")


def _crc(octets: bytes, src: bytes, dst: bytes) -> int:
    protocol_and_length = bytes((0, offload.PROTO_IPCOMP)) + len(octets).to_bytes(2, "big")
    return crc32c(src + dst + octets[: offload.CRC] + protocol_and_length + octets[offload.CRC + 4 :])


def src_port(sport: int, dport: int) -> int:
    """Return the source port of the datagrams of a flow with these TCP ports."""
    return encapsulation.SRC_PORT_FIRST | (sport * 31 ^ dport) & encapsulation.SRC_PORT_MASK


def emit_entries(blocks: list[bytes], datagram_len: int = 0) -> bytes:
    """Return the UDP payload of a bundle.

    Args:
        blocks: each from its IPComp header on; at least one.
        datagram_len: octets to which every entry but the last is filled up.
    """
    entries = [bytes((encapsulation.ENTRY_VERSION, 0)) + len(block).to_bytes(2, "big") + block for block in blocks]
    return b"".join(entry.ljust(datagram_len, b"\0") for entry in entries[:-1]) + entries[-1]


def parse_entries(octets: bytes) -> list[bytes]:
    """Return the blocks in a UDP payload, of one datagram or a bundle, each from its IPComp header on."""
    entry_len, len_at = encapsulation.ENTRY_LEN, encapsulation.BLOCK_LEN_AT
    blocks: list[bytes] = []
    while octets or not blocks:
        if len(octets) < entry_len + offload.OVERHEAD or octets[:len_at] != bytes((encapsulation.ENTRY_VERSION, 0)):
            raise WireError("not an offload block in UDP")
        end = entry_len + int.from_bytes(octets[len_at:entry_len], "big")
        if not entry_len + offload.OVERHEAD <= end <= len(octets):
            raise WireError("the length of an offload block in UDP does not fit its datagram")
        blocks.append(octets[entry_len:end])
        octets = octets[end:].lstrip(b"\0")
    return blocks


def block_mac(key: bytes, octets: bytes) -> bytes:
    """Return the MAC, 16 octets, of ``octets`` under the user's key of 32 octets."""
    return siphash128(siphash_key(key), octets)
