"""IPv6 (RFC 8200). Extension headers are left in the payload: ``next_header`` names the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError

IPV6_LEN: Final = 40

# Field offsets.
CLASS_AND_LABEL: Final = 0
"""Version 4 bits, traffic class 8 bits, flow label 20 bits."""
PAYLOAD_LEN: Final = 4
NEXT_HEADER: Final = 6
HOP_LIMIT: Final = 7
SRC: Final = 8
DST: Final = 24

ADDRESS_LEN: Final = 16


@dataclass(frozen=True)
class Ipv6:
    """One IPv6 header."""

    traffic_class: int
    flow_label: int
    next_header: int
    hop_limit: int
    src: bytes
    dst: bytes


def parse_ipv6(octets: bytes) -> tuple[Ipv6, bytes]:
    """Split a datagram into header and payload; octets after the payload length (Ethernet padding) are cut off."""
    if len(octets) < IPV6_LEN or octets[0] >> 4 != 6:
        raise WireError("not an IPv6 header")
    end = IPV6_LEN + int.from_bytes(octets[4:6], "big")
    if end > len(octets):
        raise WireError(f"IPv6 datagram of {len(octets)} octets states a length of {end}")
    first = int.from_bytes(octets[0:4], "big")
    header = Ipv6(
        traffic_class=first >> 20 & 0xFF,
        flow_label=first & 0xFFFFF,
        next_header=octets[NEXT_HEADER],
        hop_limit=octets[HOP_LIMIT],
        src=octets[SRC:DST],
        dst=octets[DST:IPV6_LEN],
    )
    return header, octets[IPV6_LEN:end]


def emit_ipv6(header: Ipv6, payload: bytes) -> bytes:
    """Return the datagram, with the payload length filled in."""
    first = 6 << 28 | header.traffic_class << 20 | header.flow_label
    rest = len(payload).to_bytes(2, "big") + bytes((header.next_header, header.hop_limit))
    return first.to_bytes(4, "big") + rest + header.src + header.dst + payload
