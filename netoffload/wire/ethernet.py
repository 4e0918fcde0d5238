"""Ethernet II: destination 6, source 6, type 2. Frames with a VLAN tag have another type and cross unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError

ETHERNET_LEN: Final = 14
ETHERTYPE: Final = 12
ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_VLAN: Final = 0x8100
VLAN_TAG_LEN: Final = 4
"""IEEE 802.1Q: type, then priority and VLAN number; the frame's own type follows."""


@dataclass(frozen=True)
class Ethernet:
    """One Ethernet II header."""

    dst: bytes
    src: bytes
    ethertype: int


def parse_ethernet(octets: bytes) -> tuple[Ethernet, bytes]:
    """Split a frame into header and payload."""
    if len(octets) < ETHERNET_LEN:
        raise WireError(f"frame of {len(octets)} octets is shorter than an Ethernet header")
    return Ethernet(octets[0:6], octets[6:12], int.from_bytes(octets[12:14], "big")), octets[ETHERNET_LEN:]


def emit_ethernet(header: Ethernet, payload: bytes) -> bytes:
    """Return the frame."""
    return header.dst + header.src + header.ethertype.to_bytes(2, "big") + payload
