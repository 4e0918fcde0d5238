"""Lanes: what connections between two ranks are for, their sockets' options, and the listeners behind them.

Each rank has two listeners, one for tagged lanes and one for the others; all ranks know their ports. The NICs' ToS is
set on the listener before ``listen`` and on the connecting socket before ``connect``: the handshake itself is tagged,
and Linux gives an accepted socket the ToS of its listener. If NICs compress only some ports, the listener has one of
them.
"""

from __future__ import annotations

import enum
import errno
import socket
from dataclasses import dataclass
from typing import Final, NamedTuple

from netoffload.config import format_ports
from netoffload.transport.rendezvous.agreement import Marking

EVERY: Final = 0  # in place of a context number: all contexts, or a connection that they share


class Lane(enum.IntEnum):
    """What a connection between two ranks is for."""

    UNTAGGED = 0
    TAGGED = 1
    CONTROL = 2
    MESSAGES = 3


TAGGED_LANES = (Lane.TAGGED, Lane.MESSAGES)

CALL_LANES = (Lane.UNTAGGED, Lane.TAGGED)  # the lanes of collectives


class Key(NamedTuple):
    """Names one of a rank's connections. One for collectives belongs to one context (``Context``), others to all."""

    peer: int
    lane: Lane
    context: int = EVERY

    @classmethod
    def of(cls, peer: int, lane: Lane, context: int) -> Key:
        """Return the key of the connection that a context uses."""
        return cls(peer, lane, context if lane in CALL_LANES else EVERY)


SEND_BUFFER_OCTETS = 1024 * 1024
"""Send buffer that a socket asks for. The kernel grants at most ``net.core.wmem_max``; autotuning would begin at
16 KiB. Four chunks of a ring fit, so a sender seldom sleeps for room. 4 MiB are not measurably faster, and cost more
cache. The receive buffer is not set: the kernel's autotuning follows the path, and setting the size would end it."""

BACKLOG: Final = 1024
"""Connections that wait to be taken; strangers may be among them. The kernel grants ``net.core.somaxconn``."""


@dataclass(frozen=True, eq=False)
class Connection:
    """A connection that stands; non-blocking."""

    conn: socket.socket
    # Address and port of this end, as in the NIC's flow table. They are kept here because the kernel forgets them when
    # the connection ends. A connection within the host has none.
    own: tuple[str, int] = ("", 0)
    other: tuple[str, int] = ("", 0)  # address and port of the other end, likewise

    @classmethod
    def of(cls, conn: socket.socket) -> Connection:
        """Set a connected socket's options, and note the addresses of both ends."""
        conn.setblocking(False)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_OCTETS)
        if conn.family == socket.AF_UNIX:
            return cls(conn)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return cls(conn, conn.getsockname(), conn.getpeername())
        except OSError:  # it has ended already: its first use raises the reason
            return cls(conn)


class Listeners:
    """A rank's two listening sockets; none if it is the only rank."""

    def __init__(self, size: int, address: str, marking: Marking | None = None) -> None:
        self.sockets: dict[bool, socket.socket] = {}  # by whether their connections are tagged
        marking = marking or Marking()
        try:
            for lane in (Lane.CONTROL, Lane.TAGGED) if size > 1 else ():
                is_tagged = lane in TAGGED_LANES
                self.sockets[is_tagged] = _listen(lane, address, marking.tos, marking.ports if is_tagged else ())
        except OSError:
            self.close()
            raise

    @property
    def ports(self) -> dict[bool, int]:
        """Return the port of each listener."""
        return {is_tagged: listener.getsockname()[1] for is_tagged, listener in self.sockets.items()}

    def close(self) -> None:
        """Stop listening; accepted connections live on."""
        for listener in self.sockets.values():
            listener.close()


def _listen(lane: Lane, address: str, tos: int, ranges: tuple[tuple[int, int], ...]) -> socket.socket:
    """Return a socket that listens at the first free port of the ranges, or at any port if there are none."""
    for first, last in ranges or ((0, 0),):
        for port in range(first, last + 1):
            listener = tcp_socket(lane, tos)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier set-up's may be in TIME_WAIT
            try:
                listener.bind((address, port))
                listener.listen(BACKLOG)
            except OSError as error:
                listener.close()
                if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                return listener
    ports = format_ports(ranges)
    raise OSError(errno.EADDRINUSE, f"no port of {ports} is free for tagged connections: give the NIC more (--ports)")


def tcp_socket(lane: Lane, tos: int) -> socket.socket:
    """Return a new socket for a lane, whose tagged ones have this ToS."""
    conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    conn.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos if lane in TAGGED_LANES else 0)
    return conn
