"""The few octets of rtnetlink(7) that a NIC speaks itself: to import pyroute2 takes 0.12 s of its start.

Whoever changes links, addresses or filters takes :mod:`netoffload.netlink` instead.
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
    """Return a blocking rtnetlink socket of the namespace in which the thread is; ``groups``: what it is told of."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        sock.bind((0, groups))
    except BaseException:
        sock.close()
        raise
    return sock


def request(kind: int, flags: int, body: bytes) -> bytes:
    """Return a request: ``kind`` is an ``RTM_...``, ``body`` what follows the header."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body


def messages(octets: bytes) -> Iterator[tuple[int, bytes]]:
    """Return kind and body of every message that the kernel sent at once."""
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
