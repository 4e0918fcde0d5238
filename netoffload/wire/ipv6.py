"""IPv6 (RFC 8200). The engine lets datagrams with extension headers cross."""

from typing import Final

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
