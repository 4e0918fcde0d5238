"""Host frames for engine tests: what a Linux stack gives a TSO-capable card.

scapy, an independent implementation, makes their headers. It is slow, so equal headers are made once.
"""

import struct
from collections.abc import Sequence
from functools import cache

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import checksum

from netoffload.wire import vnet
from netoffload.wire.checksum import ones_sum
from netoffload.wire.ethernet import ETHERTYPE_IPV6
from tests.shared import formats

MSS = 1448
IPV4_ADDRESSES = "10.9.0.1", "10.9.0.2"
IPV6_ADDRESSES = "fd00:98:ffff::1", "fd00:98:ffff:0:8000::2"
TIMESTAMPS = [("NOP", None), ("NOP", None), ("Timestamp", (12345, 67890))]


def make_segment(
    payload: bytes = b"",
    *,
    seq: int = 1001,
    flags: str = "A",
    tos: int = 0x28,
    gso_size: int | None = None,
    options: Sequence[tuple[str | int, object]] | None = None,
    ack: int = 6,
    sport: int = 40000,
    ident: int = 77,
    to_client: bool = False,
    needs_csum: bool = True,
    ipv6: bool = False,
    window: int = 8192,
) -> bytes:
    """Return virtio-net header and frame; more payload than an MSS makes it a TSO frame."""
    head = bytearray(_headers(flags, tos, tuple(TIMESTAMPS if options is None else options), to_client, ipv6))
    tcp_at = 54 if ipv6 else 34
    ports = (5001, sport) if to_client else (sport, 5001)
    tcp_len = len(head) - tcp_at + len(payload)
    struct.pack_into(">HHII", head, tcp_at, *ports, seq, ack)
    struct.pack_into(">H", head, tcp_at + 14, window)
    if ipv6:
        struct.pack_into(">H", head, 18, tcp_len)
    else:
        struct.pack_into(">HH", head, 16, 20 + tcp_len, ident)
        struct.pack_into(">H", head, 24, checksum(bytes(head[14:24]) + bytes(head[26:34])))
    pseudo = bytes(head[22:54] if ipv6 else head[26:34]) + struct.pack(">HH", 6, tcp_len)
    whole_sum = ones_sum(pseudo) if needs_csum else checksum(pseudo + bytes(head[tcp_at:]) + payload)
    struct.pack_into(">H", head, tcp_at + 16, whole_sum)
    frame = bytes(head) + payload
    gso = (MSS if len(payload) > MSS else 0) if gso_size is None else gso_size
    header = formats.Vnet(
        flags=vnet.NEEDS_CSUM,
        gso_type=(vnet.GSO_TCPV6 if ipv6 else vnet.GSO_TCPV4) if gso else vnet.GSO_NONE,
        hdr_len=len(frame) - len(payload),
        gso_size=gso,
        csum_start=54 if ipv6 else 34,
        csum_offset=16,
    )
    return formats.emit_vnet(header if needs_csum else formats.Vnet(), frame)


@cache
def _headers(flags: str, tos: int, options: tuple[tuple[str | int, object], ...], to_client: bool, ipv6: bool) -> bytes:
    """Return the three headers; ports, numbers and the TCP checksum are :func:`make_segment`'s."""
    addresses = IPV6_ADDRESSES if ipv6 else IPV4_ADDRESSES
    network = IPv6(tc=tos, fl=0xBEEF) if ipv6 else IP(tos=tos, flags="DF")
    network.src, network.dst = addresses[::-1] if to_client else addresses
    segment = TCP(flags=flags, options=list(options), chksum=0)
    return bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / network / segment)


def parsed(frame: bytes) -> tuple[formats.Vnet, formats.Ethernet, formats.Ipv4 | formats.Ipv6, bytes]:
    """Return the headers of a frame, and the octets behind them."""
    header, octets = formats.parse_vnet(frame)
    ethernet, rest = formats.parse_ethernet(octets)
    ip, payload = formats.parse_ipv6(rest) if ethernet.ethertype == ETHERTYPE_IPV6 else formats.parse_ipv4(rest)
    return header, ethernet, ip, payload


def tcp_of(frame: bytes) -> tuple[formats.Tcp, bytes]:
    """Return TCP header and payload of a frame."""
    return formats.parse_tcp(parsed(frame)[3])
