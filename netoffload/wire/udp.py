"""UDP (RFC 768)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError

PROTO_UDP: Final = 17
UDP_LEN: Final = 8

# Field offsets.
SRC_PORT: Final = 0
DST_PORT: Final = 2
DATAGRAM_LEN: Final = 4
UDP_CHECKSUM: Final = 6


@dataclass(frozen=True)
class Udp:
    """One UDP header; its length field follows from the payload that it is emitted with."""

    src_port: int
    dst_port: int
    checksum: int = 0


def parse_udp(octets: bytes) -> tuple[Udp, bytes]:
    """Split the octets after an IP header into header and payload; octets behind the datagram are left out."""
    if len(octets) < UDP_LEN:
        raise WireError(f"{len(octets)} octets are shorter than a UDP header")
    src, dst, length, checksum = (int.from_bytes(octets[at : at + 2], "big") for at in range(0, UDP_LEN, 2))
    if not UDP_LEN <= length <= len(octets):
        raise WireError(f"UDP datagram of {len(octets)} octets states a length of {length}")
    return Udp(src, dst, checksum), octets[UDP_LEN:length]


def emit_udp(header: Udp, payload: bytes) -> bytes:
    """Return header and payload; the checksum is taken from ``header``."""
    fields = (header.src_port, header.dst_port, UDP_LEN + len(payload), header.checksum)
    return b"".join(field.to_bytes(2, "big") for field in fields) + payload
