"""TCP (RFC 9293). The checksum is carried, not checked: inside a host it is often still to be filled in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError

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


@dataclass(frozen=True)
class Tcp:
    """One TCP header; ``flags`` are the eight bits of octet 13."""

    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    window: int
    checksum: int = 0
    urgent: int = 0
    options: bytes = b""


def parse_tcp(octets: bytes) -> tuple[Tcp, bytes]:
    """Split a segment into header and payload."""
    if len(octets) < TCP_MIN_LEN:
        raise WireError(f"segment of {len(octets)} octets is shorter than a TCP header")
    header_len = 4 * (octets[DATA_OFFSET] >> 4)
    if not TCP_MIN_LEN <= header_len <= len(octets):
        raise WireError(f"TCP header length {header_len} does not fit a segment of {len(octets)} octets")
    header = Tcp(
        sport=int.from_bytes(octets[0:2], "big"),
        dport=int.from_bytes(octets[2:4], "big"),
        seq=int.from_bytes(octets[4:8], "big"),
        ack=int.from_bytes(octets[8:12], "big"),
        flags=octets[FLAGS],
        window=int.from_bytes(octets[14:16], "big"),
        checksum=int.from_bytes(octets[16:18], "big"),
        urgent=int.from_bytes(octets[18:20], "big"),
        options=octets[20:header_len],
    )
    return header, octets[header_len:]


def emit_tcp(header: Tcp, payload: bytes) -> bytes:
    """Return the segment; options must be a multiple of 4 octets long."""
    header_len = TCP_MIN_LEN + len(header.options)
    octets = bytearray(header_len)
    octets[0:2] = header.sport.to_bytes(2, "big")
    octets[2:4] = header.dport.to_bytes(2, "big")
    octets[4:8] = header.seq.to_bytes(4, "big")
    octets[8:12] = header.ack.to_bytes(4, "big")
    octets[DATA_OFFSET] = header_len // 4 << 4
    octets[FLAGS] = header.flags
    octets[14:16] = header.window.to_bytes(2, "big")
    octets[16:18] = header.checksum.to_bytes(2, "big")
    octets[18:20] = header.urgent.to_bytes(2, "big")
    octets[20:] = header.options
    return bytes(octets) + payload
