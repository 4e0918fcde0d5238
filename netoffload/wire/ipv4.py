"""IPv4 (RFC 791). The engine lets datagrams with options, and fragments, cross."""

from typing import Final

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
