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

from typing import Final

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
