"""IPv4 (RFC 791). Options and fragments are parsed, though the engine lets such datagrams cross."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError
from netoffload.wire.checksum import internet_checksum

IPV4_MIN_LEN: Final = 20

# Field offsets.
TOS: Final = 1
TOTAL_LEN: Final = 2
IDENT: Final = 4
FRAGMENT: Final = 6
TTL: Final = 8
PROTOCOL: Final = 9
CHECKSUM: Final = 10
SRC: Final = 12
DST: Final = 16

FLAG_DF: Final = 0x4000
FRAGMENT_MASK: Final = 0x3FFF
"""More-fragments flag and offset: non-zero means that this is a fragment."""


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
    if len(octets) < IPV4_MIN_LEN or octets[0] >> 4 != 4:
        raise WireError("not an IPv4 header")
    header_len = 4 * (octets[0] & 15)
    total_len = int.from_bytes(octets[2:4], "big")
    if not IPV4_MIN_LEN <= header_len <= total_len <= len(octets):
        raise WireError(f"IPv4 lengths contradict each other: header {header_len}, total {total_len}")
    if internet_checksum(octets[:header_len]) != 0:
        raise WireError("IPv4 header has a wrong checksum")
    header = Ipv4(
        tos=octets[TOS],
        ident=int.from_bytes(octets[4:6], "big"),
        fragment=int.from_bytes(octets[6:8], "big"),
        ttl=octets[TTL],
        protocol=octets[PROTOCOL],
        src=octets[12:16],
        dst=octets[16:20],
        options=octets[20:header_len],
    )
    return header, octets[header_len:total_len]


def emit_ipv4(header: Ipv4, payload: bytes) -> bytes:
    """Return the datagram, with lengths and checksum filled in."""
    header_len = IPV4_MIN_LEN + len(header.options)
    octets = bytearray(header_len)
    octets[0] = 4 << 4 | header_len // 4
    octets[TOS] = header.tos
    octets[2:4] = (header_len + len(payload)).to_bytes(2, "big")
    octets[4:6] = header.ident.to_bytes(2, "big")
    octets[6:8] = header.fragment.to_bytes(2, "big")
    octets[TTL] = header.ttl
    octets[PROTOCOL] = header.protocol
    octets[12:16] = header.src
    octets[16:20] = header.dst
    octets[20:] = header.options
    octets[10:12] = internet_checksum(bytes(octets)).to_bytes(2, "big")
    return bytes(octets) + payload
