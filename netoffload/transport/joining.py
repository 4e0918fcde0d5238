"""How two ranks get a connection: who connects to whom, and what they say first.

Each rank has two listening sockets, one for tagged lanes and one for the others. All ranks know these ports. Of two
ranks the higher one connects, so a pair never makes a connection twice. A lower rank that wants the first connection
*knocks*: it connects and says hello, and the higher rank connects back, which ends the knock. A knock that ends without
a connection back reached a rank that is closing. For all further lanes the lower rank asks over the control lane.

Both ends begin with a *hello* (``lanes``).

The NICs' ToS is set on the listener before ``listen`` and on the connecting socket before ``connect``: the handshake
itself is tagged, and Linux gives an accepted socket the ToS of its listener. If NICs compress only some ports, the
listener has one of them.

Ranks of one network namespace connect their untagged lanes without TCP (``nearby``).

Nothing here blocks. The watch calls :meth:`Joiner.serve` when a socket is ready.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from netoffload.config import format_ports
from netoffload.transport import nearby
from netoffload.transport.agreement import Marking, Offer
from netoffload.transport.lanes import HELLO_OCTETS, TAGGED_LANES, Hello, Key, Lane

SEND_BUFFER_OCTETS = 1024 * 1024
"""Send buffer that a socket asks for. The kernel grants at most ``net.core.wmem_max``; autotuning would begin at
16 KiB. Four chunks of a ring fit, so a sender seldom sleeps for room. 4 MiB are not measurably faster, and cost more
cache. The receive buffer is not set: the kernel's autotuning follows the path, and setting the size would end it."""

_BIND_ADDRESS_NO_PORT: Final = 24
"""``IP_BIND_ADDRESS_NO_PORT``, linux/in.h: ``connect`` chooses the port, and only for its destination."""


@dataclass(frozen=True, eq=False)
class Connection:
    """A connection that stands; non-blocking.

    Attributes:
        conn: the socket.
        own: address and port of this end, as in the NIC's flow table. They are kept here because the kernel forgets
            them when the connection ends. A connection within the host has none.
        other: address and port of the other end, likewise.
    """

    conn: socket.socket
    own: tuple[str, int] = ("", 0)
    other: tuple[str, int] = ("", 0)

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
    """A rank's two listening sockets; none if it is the only rank.

    Args:
        size: number of ranks.
        address: IPv4 address to listen at.
        marking: marking of tagged connections.

    Raises:
        OSError: this node does not have the address, or all ports of the marking are in use.
    """

    def __init__(self, size: int, address: str, marking: Marking | None = None) -> None:
        """Listen."""
        self.sockets: dict[bool, socket.socket] = {}
        """By whether their connections are tagged."""
        marking = marking or Marking()
        try:
            for lane in (Lane.CONTROL, Lane.TAGGED) if size > 1 else ():
                is_tagged = lane in TAGGED_LANES
                listener = self.sockets[is_tagged] = _tcp_socket(lane, marking.tos)
                _listen(listener, address, marking if is_tagged else Marking(), size)
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


@dataclass(frozen=True)
class Joined:
    """A connection stands."""

    key: Key
    connection: Connection


@dataclass(frozen=True)
class Knocked:
    """A lower rank wants its first connection."""

    peer: int


@dataclass(frozen=True)
class Failed:
    """A connection could not be made. The key is None if ``accept`` failed."""

    key: Key | None
    error: OSError


Event = Joined | Knocked | Failed


@dataclass(eq=False)
class _Opening:
    """A connection that does not stand yet; the key is None until the connecting end has said who it is."""

    conn: socket.socket
    deadline_s: float
    key: Key | None = None
    source: str = ""
    is_connected: bool = False
    heard: bytearray = field(default_factory=bytearray)


class Joiner:
    """Makes one rank's connections.

    Args:
        rank: this rank.
        offers: the offers of all ranks, in rank order.
        listeners: this rank's listeners, whose ports are in its offer; :meth:`close` closes them.
        tos: ToS of tagged connections; 0: no connection is tagged.
        timeout_s: limit for making a connection.
    """

    def __init__(
        self, rank: int, offers: Sequence[Offer], listeners: Listeners, tos: int = Marking.tos, timeout_s: float = 30.0
    ) -> None:
        """Make no connection yet."""
        self._rank = rank
        self._offers = offers
        self._tos = tos
        self._timeout_s = timeout_s
        self._opening: dict[int, _Opening] = {}
        self._knocks: dict[int, socket.socket] = {}
        self._events: list[Event] = []
        self._is_deaf = False
        self._doors = list(listeners.sockets.values())
        if self._doors:
            with contextlib.suppress(OSError):  # TCP serves instead
                self._doors.append(nearby.listen(offers[rank].token))
        for door in self._doors:
            door.setblocking(False)

    def begin(self, key: Key) -> None:
        """Begin to connect to a lower rank, or to knock at a higher one."""
        try:
            conn = nearby.connect(self._offers[key.peer].token) if key.lane is Lane.UNTAGGED else None
            conn = conn or self._connecting(key)
        except OSError as error:
            self._events.append(Failed(key, error))
            return
        self._opening[conn.fileno()] = _Opening(conn, time.monotonic() + self._timeout_s, key)

    def _connecting(self, key: Key) -> socket.socket:
        """Return a TCP socket that has begun to connect."""
        offer, lane = self._offers[key.peer], key.lane
        conn = _tcp_socket(lane, self._tos)
        try:
            conn.setblocking(False)
            # Without bind, the route may choose another address of this node, which the listener would not accept.
            conn.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            conn.bind((self._offers[self._rank].address, 0))
            number = conn.connect_ex((offer.address, (offer.ports or {})[lane in TAGGED_LANES and self._tos != 0]))
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except OSError:
            conn.close()
            raise
        return conn

    def is_making(self, key: Key | None = None) -> bool:
        """Return whether this rank has begun to make a connection (None: any) that does not stand yet."""
        return any(key in (None, one.key) for one in self._opening.values())

    def wanted(self) -> dict[int, int]:
        """Return what to wait for: descriptor -> events of poll(2)."""
        wanted = {fd: select.POLLIN if one.is_connected else select.POLLOUT for fd, one in self._opening.items()}
        if not self._is_deaf:
            wanted |= {door.fileno(): select.POLLIN for door in self._doors}
        return wanted

    def deadline_s(self) -> float:
        """Return when to call :meth:`serve` even if nothing is ready."""
        return 0.0 if self._events else min((one.deadline_s for one in self._opening.values()), default=float("inf"))

    def serve(self, ready: Collection[int]) -> list[Event]:
        """Go on with the descriptors that are ready; return what has happened."""
        now_s = time.monotonic()
        for fd, one in list(self._opening.items()):
            try:
                if fd in ready:
                    self._go_on(one)
                elif now_s > one.deadline_s:
                    raise TimeoutError(errno.ETIMEDOUT, "timed out")
            except OSError as error:
                self._drop(fd)
                if one.source == "":  # this rank made it; an accepted connection may be a stranger's
                    self._events.append(Failed(one.key, error))
        for door in self._doors:
            if door.fileno() in ready:
                self._accept(door)
        events, self._events = self._events, []
        return events

    def end_knock(self, peer: int) -> None:
        """Close a rank's knock, which tells it that the connection stands."""
        if (conn := self._knocks.pop(peer, None)) is not None:
            conn.close()

    def close(self, farewell: bytes) -> None:
        """Close the listeners, and the connections that do not stand yet.

        A control lane may stand at its other end already, so it is sent ``farewell``.
        """
        for door in self._doors:
            door.close()
        for peer in list(self._knocks):
            self.end_knock(peer)
        for one in list(self._opening.values()):
            if farewell and one.is_connected and one.key is not None and one.key.lane is Lane.CONTROL:
                with contextlib.suppress(OSError):
                    one.conn.send(farewell)
            one.conn.close()
        self._opening.clear()

    def _accept(self, door: socket.socket) -> None:
        try:
            while not self._is_deaf:
                conn, address = door.accept()
                conn.setblocking(False)
                deadline_s = time.monotonic() + self._timeout_s
                source = address[0] if address else nearby.HERE
                self._opening[conn.fileno()] = _Opening(conn, deadline_s, source=source, is_connected=True)
        except BlockingIOError:
            pass
        except ConnectionError:  # it ended before it was taken
            pass
        except OSError as error:
            self._is_deaf = True  # else poll would return at once for the same connection, again and again
            self._events.append(Failed(None, error))

    def _go_on(self, one: _Opening) -> None:
        """Do the next step with a connection that is ready."""
        if not one.is_connected:
            self._begin_to_talk(one)
            return
        try:
            octets = one.conn.recv(HELLO_OCTETS - len(one.heard))
        except BlockingIOError:
            return
        if not octets:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        one.heard += octets
        if len(one.heard) < HELLO_OCTETS:
            return
        hello = Hello.from_octets(one.heard)
        if hello is None or hello.token != self._offers[self._rank].token or hello.rank >= len(self._offers):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "another program listens there")
        if one.key is None:
            self._take(one, hello)
        elif (hello.rank, hello.lane, hello.context) == one.key:
            self._stand(one, hello)
        else:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"rank {hello.rank} listens there")

    def _begin_to_talk(self, one: _Opening) -> None:
        """Say hello on a connection that this rank has made."""
        if number := one.conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, os.strerror(number))
        assert one.key is not None
        one.is_connected = True
        self._say_hello(one.conn, one.key)

    def _take(self, one: _Opening, hello: Hello) -> None:
        """Answer an accepted connection that has said which rank it comes from."""
        if one.source not in (self._offers[hello.rank].address, nearby.HERE) or hello.rank == self._rank:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"that is not rank {hello.rank}")
        if hello.rank < self._rank:
            del self._opening[one.conn.fileno()]
            self.end_knock(hello.rank)
            self._knocks[hello.rank] = one.conn
            self._events.append(Knocked(hello.rank))
            return
        self._say_hello(one.conn, Key(hello.rank, hello.lane, hello.context))
        self._stand(one, hello)

    def _say_hello(self, conn: socket.socket, to: Key) -> None:
        hello = Hello(self._offers[to.peer].token, self._rank, to.lane, to.context).to_octets()
        if conn.send(hello) < len(hello):  # the first octets of a connection: its send buffer is empty
            raise OSError(errno.ENOBUFS, "the kernel has no room for the first kilobyte")

    def _stand(self, one: _Opening, hello: Hello) -> None:
        del self._opening[one.conn.fileno()]
        self._events.append(Joined(Key(hello.rank, hello.lane, hello.context), Connection.of(one.conn)))

    def _drop(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._opening.pop(fd).conn.close()


def _listen(listener: socket.socket, address: str, marking: Marking, backlog: int) -> None:
    """Listen at the first free port of the marking, or at any port if it names none."""
    for first, last in marking.ports or ((0, 0),):
        for port in range(first, last + 1):
            try:
                listener.bind((address, port))
                listener.listen(backlog)
            except OSError as error:
                if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                return
    ports = format_ports(marking.ports)
    raise OSError(errno.EADDRINUSE, f"no port of {ports} is free for tagged connections: give the NIC more (--ports)")


def _tcp_socket(lane: Lane, tos: int) -> socket.socket:
    conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    conn.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos if lane in TAGGED_LANES else 0)
    return conn
