"""Host frames for engine tests: what a Linux stack gives a TSO-capable card.

They are made with scapy, an implementation that is not our own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from netoffload.compiled.arrays import Uint8Array
from netoffload.engine.transmit import HOST_BUFFER_LEN
from netoffload.wire import vnet
from netoffload.wire.checksum import ones_sum

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
    addresses, ports = IPV6_ADDRESSES if ipv6 else IPV4_ADDRESSES, (sport, 5001)
    if to_client:
        addresses, ports = addresses[::-1], ports[::-1]
    network = IPv6(tc=tos, fl=0xBEEF) if ipv6 else IP(tos=tos, id=ident, flags="DF")
    network.src, network.dst = addresses
    packet = network / TCP(
        sport=ports[0],
        dport=ports[1],
        seq=seq,
        ack=ack,
        flags=flags,
        window=window,
        options=TIMESTAMPS if options is None else options,
    )
    packet /= payload
    if needs_csum:
        pseudo = bytes(packet)[8:40] if ipv6 else bytes(packet)[12:20]
        pseudo += bytes((0, 6)) + len(packet[TCP]).to_bytes(2, "big")
        packet[TCP].chksum = ones_sum(pseudo)
    frame = bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01") / packet)
    gso = (MSS if len(payload) > MSS else 0) if gso_size is None else gso_size
    header = vnet.Vnet(
        flags=vnet.NEEDS_CSUM,
        gso_type=(vnet.GSO_TCPV6 if ipv6 else vnet.GSO_TCPV4) if gso else vnet.GSO_NONE,
        hdr_len=len(frame) - len(payload),
        gso_size=gso,
        csum_start=54 if ipv6 else 34,
        csum_offset=16,
    )
    return vnet.emit_vnet(header if needs_csum else vnet.Vnet(), frame)


def in_buffer(frame: bytes, size: int = HOST_BUFFER_LEN) -> Uint8Array:
    """Return a device's read buffer that holds ``frame``."""
    buffer = np.zeros(size, np.uint8)
    buffer[: len(frame)] = np.frombuffer(frame, np.uint8)
    return buffer
