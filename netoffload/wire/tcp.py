"""TCP (RFC 9293). Inside a host the checksum is often still to be filled in."""

from typing import Final

PROTO_TCP: Final = 6
"""TCP's number in IPv4's protocol field and IPv6's next header field."""

TCP_MIN_LEN: Final = 20
TCP_MAX_LEN: Final = 60

# Field offsets.
SPORT: Final = 0
DPORT: Final = 2
SEQ: Final = 4
ACK: Final = 8
DATA_OFFSET: Final = 12
FLAGS: Final = 13
WINDOW: Final = 14
CHECKSUM: Final = 16
URGENT: Final = 18

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
PSH: Final = 0x08
ACK_FLAG: Final = 0x10
URG: Final = 0x20
ECE: Final = 0x40
CWR: Final = 0x80

OPTION_END: Final = 0
OPTION_NOP: Final = 1
OPTION_MSS: Final = 2
OPTION_MSS_LEN: Final = 4
OPTION_WINDOW_SCALE: Final = 3
OPTION_WINDOW_SCALE_LEN: Final = 3
OPTION_TIMESTAMPS: Final = 8
OPTION_TIMESTAMPS_LEN: Final = 10
TSVAL: Final = 2
TSECR: Final = 6
"""Where value and echo reply are in the option for timestamps (RFC 7323, 3.2)."""
OPTION_MD5: Final = 19
"""RFC 2385: signs the payload, so a segment with it must not be changed."""
OPTION_AO: Final = 29
"""RFC 5925: signs the payload too."""
