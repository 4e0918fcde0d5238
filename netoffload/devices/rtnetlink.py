"""The few messages of rtnetlink(7) that a NIC handles without pyroute2, whose import would take 0.12 s of its start.

Code that changes links, addresses or filters uses :mod:`netoffload.netlink`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

# linux/netlink.h
ERROR: Final = 2
DONE: Final = 3
REQUEST: Final = 0x1
REQUEST_DUMP: Final = 0x301

REPLY_LEN_MAX: Final = 1 << 16
"""Room for one reply or notification."""

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")


def open_rtnetlink(groups: int = 0) -> socket.socket:
    """Return a blocking rtnetlink socket in this thread's namespace; ``groups``: the notifications that it gets."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.bind((0, groups))
    except BaseException:
        sock.close()
        raise
    return sock


def request(kind: int, flags: int, body: bytes) -> bytes:
    """Return a request: ``kind`` is an ``RTM_...``, ``body`` the octets behind the header."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body


def messages(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Return kind and body of every message in one datagram of the kernel."""
    while len(octets) >= _HEADER.size:
        length, kind = _HEADER.unpack_from(octets)[:2]
        yield kind, octets[_HEADER.size : length]
        octets = octets[max(length + 3 & ~3, _HEADER.size) :]


def attributes(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Return type and value of every attribute."""
    while len(octets) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(octets)
        yield kind, octets[_ATTRIBUTE.size : length]
        octets = octets[max(length + 3 & ~3, _ATTRIBUTE.size) :]
