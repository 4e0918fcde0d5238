"""ICMP (RFC 792) and ICMPv6 (RFC 4443) errors: an 8-octet header, then as much of the datagram as the sender quotes.

Offsets only: a NIC rewrites errors in place (``engine.router_errors``), and tests read them with scapy.
"""

from typing import Final

PROTO_ICMP: Final = 1
PROTO_ICMPV6: Final = 58
ICMP_LEN: Final = 8

# Field offsets.
TYPE: Final = 0
CODE: Final = 1
CHECKSUM: Final = 2
MTU_V4: Final = 6
"""16 bits, in "fragmentation needed" (RFC 1191, 4)."""
MTU_V6: Final = 4
"""32 bits, in "packet too big" (RFC 4443, 3.2)."""

UNREACHABLE: Final = 3
PROTOCOL_UNREACHABLE: Final = 2
PORT_UNREACHABLE: Final = 3
FRAGMENTATION_NEEDED: Final = 4
TIME_EXCEEDED: Final = 11
PARAMETER_PROBLEM: Final = 12

V6_UNREACHABLE: Final = 1
V6_PORT_UNREACHABLE: Final = 4
V6_TOO_BIG: Final = 2
V6_PARAMETER_PROBLEM: Final = 4
V6_UNKNOWN_NEXT_HEADER: Final = 1
V6_ERROR_MAX: Final = 127
"""Types up to here are errors (RFC 4443, 2.1)."""
