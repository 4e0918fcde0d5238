"""UDP (RFC 768)."""

from typing import Final

PROTO_UDP: Final = 17
UDP_LEN: Final = 8

# Field offsets.
SRC_PORT: Final = 0
DST_PORT: Final = 2
DATAGRAM_LEN: Final = 4
UDP_CHECKSUM: Final = 6
