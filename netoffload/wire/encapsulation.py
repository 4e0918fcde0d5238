"""Offload blocks in UDP: for paths that drop IPComp, and for network cards that segment UDP.

::

    IPv4 or IPv6 header (protocol 17) | UDP 8, to port 61736 | entry | entry ...

    entry:   version 1 octet | 0 1 octet | length of the block 2 octets | IPComp header, block (``offload``)

Many networks drop all protocols but TCP, UDP and ICMP. Also, a kernel takes up to 64 KiB of equally long UDP datagrams
in one call (``GSO_UDP_L4``, Linux 6.2) and cuts them apart as late as possible, in the card if the card can. It does so
for TCP, but not for IPComp. One datagram on the wire holds one block. All datagrams of such a *bundle* but the last are
filled with zeros up to the same length, and a receiver may get the bundle uncut. So each entry states its block's
length, and the next entry begins with the first octet behind the block that is not zero.

The block is the same as in IPComp, octet for octet: its CRC covers the addresses, protocol 108 and the block's length.
So the receiver removes the entry's header, puts the IP header before the block, and has the frame in IPComp.

The source port is derived from the ports of the flow. So routers and cards that spread flows over paths and queues can
tell flows apart and keep each one in order.
"""

from __future__ import annotations

from typing import Final

from netoffload.errors import WireError
from netoffload.wire.offload import OVERHEAD
from netoffload.wire.udp import UDP_LEN

UDP_PORT: Final = 0xF128
"""61736: a dynamic port (RFC 6335, 6) above the range that Linux gives to clients; the CPI has the same number."""

SRC_PORT_FIRST: Final = 0xC000
SRC_PORT_MASK: Final = 0x3FFF
"""Source ports are 49152..65535, as in RFC 7510, 3, which uses them for the same purpose."""

ENTRY_VERSION: Final = 1
ENTRY_LEN: Final = 4
DATAGRAM_OVERHEAD: Final = UDP_LEN + ENTRY_LEN

# Field offsets in an entry.
ENTRY_VERSION_AT: Final = 0
ENTRY_RESERVED_AT: Final = 1
BLOCK_LEN_AT: Final = 2


def src_port(sport: int, dport: int) -> int:
    """Return the source port of the datagrams of a flow with these TCP ports."""
    return SRC_PORT_FIRST | (sport * 31 ^ dport) & SRC_PORT_MASK


def emit_entries(blocks: list[bytes], datagram_len: int = 0) -> bytes:
    """Return the UDP payload of a bundle.

    Args:
        blocks: each from its IPComp header on; at least one.
        datagram_len: octets to which every entry but the last is filled up.
    """
    entries = [bytes((ENTRY_VERSION, 0)) + len(block).to_bytes(2, "big") + block for block in blocks]
    return b"".join(entry.ljust(datagram_len, b"\0") for entry in entries[:-1]) + entries[-1]


def parse_entries(octets: bytes) -> list[bytes]:
    """Return the blocks in a UDP payload, of one datagram or a bundle, each from its IPComp header on."""
    blocks: list[bytes] = []
    while octets or not blocks:
        if len(octets) < ENTRY_LEN + OVERHEAD or octets[:BLOCK_LEN_AT] != bytes((ENTRY_VERSION, 0)):
            raise WireError("not an offload block in UDP")
        end = ENTRY_LEN + int.from_bytes(octets[BLOCK_LEN_AT:ENTRY_LEN], "big")
        if not ENTRY_LEN + OVERHEAD <= end <= len(octets):
            raise WireError("the length of an offload block in UDP does not fit its datagram")
        blocks.append(octets[ENTRY_LEN:end])
        octets = octets[end:].lstrip(b"\0")
    return blocks
