"""How two ranks get a connection: who connects to whom, and how they come to know each other.

Of two ranks the higher one connects, so a pair never makes a connection twice. A lower rank that wants the first
connection *knocks*: it connects and says who it is, and the higher rank connects back, which ends the knock. A knock
that ends without a connection back reached a rank that is closing. For further lanes the lower rank asks over the
control lane.

Both ends begin with hellos (``hello``). Until a connection's first hello is right, it may be a stranger's. A rank keeps
the newest ``STRANGERS_MAX`` of them, and a few descriptors in reserve, so strangers cannot take the last ones. A rank
whose connection ends before it was answered was perhaps taken for a stranger, and connects again.
"""

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from netoffload.transport.rendezvous.agreement import Marking, Offer
from netoffload.transport.wiring import nearby
from netoffload.transport.wiring.hello import HELLO_OCTETS, Hello, Step, secret_of
from netoffload.transport.wiring.lanes import TAGGED_LANES, Connection, Key, Lane, Listeners, tcp_socket

T = TypeVar("T")

_BIND_ADDRESS_NO_PORT: Final = 24
"""``IP_BIND_ADDRESS_NO_PORT``, linux/in.h: ``connect`` chooses the port, and only for its destination."""

STRANGERS_MAX: Final = 64  # most connections that have not said a right hello; the oldest is closed for a new one

RESERVE: Final = 4  # file descriptors kept for connections of ranks

ACCEPTS_MAX: Final = 256  # most connections that are taken before other sockets have their turn

LIVES: Final = b"\0"  # what a rank that ends sends to whom it does not know

TRIES_MAX: Final = 8
AGAIN_S: Final = 0.01
"""How often a rank connects if it gets no answer, and its first pause; each pause is twice the one before."""


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
    """A connection that does not stand yet."""

    conn: socket.socket
    deadline_s: float
    key: Key | None = None  # None until the end that connected has said a right hello
    source: str = ""  # where an accepted connection comes from; "": this rank made the connection
    tries: int = 1
    is_connected: bool = False
    sent: Hello | None = None  # this end's latest hello
    is_answered: bool = False  # whether this end connected, and knows the other one
    received: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class _Again:
    key: Key
    when_s: float
    deadline_s: float
    tries: int


class Joiner:
    """Makes one rank's connections. :meth:`close` closes ``listeners``. With ``tos`` 0 no connection is tagged."""

    def __init__(
        self, rank: int, offers: Sequence[Offer], listeners: Listeners, tos: int = Marking.tos, timeout_s: float = 30.0
    ) -> None:
        self._rank = rank
        self._offers = offers
        self._secret = secret_of(offer.token for offer in offers)
        self._tos = tos
        self._timeout_s = timeout_s
        self._opening: dict[int, _Opening] = {}  # by descriptor, the oldest first
        self._again: list[_Again] = []
        self._knocks: dict[int, socket.socket] = {}
        self._events: list[Event] = []
        self._is_deaf = False
        self._listeners = list(listeners.sockets.values())
        self._reserve: list[int] = []
        if self._listeners:
            with contextlib.suppress(OSError):  # TCP serves instead
                self._listeners.append(nearby.listen(offers[rank].token))
            self._fill_reserve()
        for listener in self._listeners:
            listener.setblocking(False)

    def begin(self, key: Key) -> None:
        """Begin to connect to a lower rank, or to knock at a higher one."""
        self._begin(key, time.monotonic() + self._timeout_s)

    def _begin(self, key: Key, deadline_s: float, tries: int = 1) -> None:
        try:
            conn = self._with_room(lambda: self._connecting(key))
        except OSError as error:
            self._events.append(Failed(key, error))
            return
        self._opening[conn.fileno()] = _Opening(conn, deadline_s, key, tries=tries)

    def _connecting(self, key: Key) -> socket.socket:
        offer, lane = self._offers[key.peer], key.lane
        if lane is Lane.UNTAGGED and (near := nearby.connect(offer.token)) is not None:
            return near
        conn = tcp_socket(lane, self._tos)
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
        keys = [*(one.key for one in self._opening.values()), *(one.key for one in self._again)]
        return bool(keys) if key is None else key in keys

    def wanted(self) -> dict[int, int]:
        """Return what to wait for: descriptor -> events of poll(2)."""
        wanted = {fd: select.POLLIN if one.is_connected else select.POLLOUT for fd, one in self._opening.items()}
        if not self._is_deaf:
            wanted |= {listener.fileno(): select.POLLIN for listener in self._listeners}
        return wanted

    def deadline_s(self) -> float:
        """Return when to call :meth:`serve` even if nothing is ready."""
        times_s = [*(one.deadline_s for one in self._opening.values()), *(one.when_s for one in self._again)]
        return 0.0 if self._events else min(times_s, default=float("inf"))

    def serve(self, ready: Collection[int]) -> list[Event]:
        """Go on with the descriptors that are ready; return what has happened."""
        now_s = time.monotonic()
        for fd, one in list(self._opening.items()):
            if fd in ready:
                self._attempt(one)
            elif now_s > one.deadline_s:
                self._end(one, TimeoutError(errno.ETIMEDOUT, "timed out"))
        for listener in self._listeners:
            if listener.fileno() in ready:
                self._accept(listener)
        for again in [one for one in self._again if one.when_s <= now_s]:
            self._again.remove(again)
            self._begin(again.key, again.deadline_s, again.tries)
        self._fill_reserve()
        events, self._events = self._events, []
        return events

    def end_knock(self, peer: int) -> None:
        """Close a rank's knock, which tells it that the connection stands."""
        if (conn := self._knocks.pop(peer, None)) is not None:
            conn.close()

    def close(self, farewell: bytes) -> None:
        """Close the listeners, and the connections that do not stand yet."""
        for listener in self._listeners:
            if farewell:  # else this is a fork, and its parent accepts
                self._accept(listener)  # the kernel resets what it finds waiting, as it does for a dead process
            listener.close()
        for peer in list(self._knocks):
            self.end_knock(peer)
        for one in list(self._opening.values()):
            # A control lane may stand at its other end already. Who has not spoken may be a rank that probes whether
            # this one lives (`links`).
            is_control = one.source != "" and one.key is not None and one.key.lane is Lane.CONTROL
            if farewell and (is_control or one.key is None):
                with contextlib.suppress(OSError):
                    one.conn.send(farewell if is_control else LIVES)
            one.conn.close()
        self._opening.clear()
        self._again.clear()
        while self._reserve:
            os.close(self._reserve.pop())

    def _accept(self, listener: socket.socket) -> None:
        try:
            for _ in range(ACCEPTS_MAX):
                conn, address = self._with_room(listener.accept)
                conn.setblocking(False)
                if listener.family == socket.AF_UNIX and not nearby.is_trusted(conn):
                    conn.close()
                    continue
                deadline_s = time.monotonic() + self._timeout_s
                source = address[0] if address else nearby.HERE
                self._opening[conn.fileno()] = _Opening(conn, deadline_s, source=source, is_connected=True)
                self._close_oldest_strangers(STRANGERS_MAX)
        except (BlockingIOError, ConnectionError):  # there is none any more, or it ended before it was taken
            pass
        except OSError as error:
            self._is_deaf = True  # else poll would return at once for the same connection, again and again
            self._events.append(Failed(None, error))

    def _close_oldest_strangers(self, kept: int) -> bool:
        """Close the oldest connections without a right hello until there are only ``kept``; return whether one was."""
        strangers = [one for one in self._opening.values() if one.key is None]
        for one in strangers[: max(len(strangers) - kept, 0)]:
            self._attempt(one)  # it may have spoken meanwhile
            if one.key is None and one.conn.fileno() in self._opening:
                self._drop(one)
        return len(strangers) > kept

    def _with_room(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns; if no descriptor is left, take one from a stranger or from the reserve."""
        while True:
            try:
                return make()
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                if self._close_oldest_strangers(max(sum(one.key is None for one in self._opening.values()) - 1, 0)):
                    continue
                if not self._reserve:
                    raise
                os.close(self._reserve.pop())

    def _fill_reserve(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._reserve) < RESERVE:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _attempt(self, one: _Opening) -> None:
        try:
            self._go_on(one)
        except OSError as error:
            self._end(one, error)

    def _end(self, one: _Opening, error: OSError) -> None:
        """End a connection that failed; an accepted one may be a stranger's, and is no event."""
        self._drop(one)
        if one.source or one.key is None:
            return
        is_unanswered = not one.is_answered and isinstance(error, (ConnectionResetError, BrokenPipeError))
        if is_unanswered and one.tries < TRIES_MAX:
            when_s = time.monotonic() + AGAIN_S * 2**one.tries
            self._again.append(_Again(one.key, when_s, one.deadline_s, one.tries + 1))
        else:
            self._events.append(Failed(one.key, error))

    def _go_on(self, one: _Opening) -> None:
        """Do the next step with a connection that is ready."""
        if not one.is_connected:
            self._call(one)
            return
        try:
            octets = one.conn.recv(HELLO_OCTETS - len(one.received))
        except BlockingIOError:
            return
        if not octets:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        one.received += octets
        if len(one.received) < HELLO_OCTETS:
            return
        hello = Hello.from_octets(one.received)
        one.received.clear()
        if hello is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "another program listens there")
        if one.sent is None:
            self._answer(one, hello)
        elif one.source == "":
            self._prove(one, hello, one.sent)
        elif hello.answers(one.sent, Step.PROOF) and hello.is_sealed(self._secret, one.sent.nonce):
            self._let_in(one, hello)
        else:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "it did not prove who it is")

    def _call(self, one: _Opening) -> None:
        """Say hello on a connection that this rank has made."""
        if number := one.conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, os.strerror(number))
        assert one.key is not None
        with contextlib.suppress(BlockingIOError):  # poll spoke of an older socket with the same descriptor
            self._send_hello(one, Hello(Step.CALL, self._rank, one.key.peer, one.key.lane, one.key.context))
            one.is_connected = True

    def _answer(self, one: _Opening, hello: Hello) -> None:
        """Answer an accepted connection that has said which rank it comes from."""
        is_rank = hello.rank < len(self._offers) and hello.rank != self._rank == hello.to
        if hello.step is not Step.CALL or not is_rank or not hello.is_sealed(self._secret):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "another program connected")
        one.key = Key(hello.rank, hello.lane, hello.context)  # no stranger: it is not dropped to make room
        address = self._offers[hello.rank].address
        is_near = one.source == nearby.HERE and hello.lane is Lane.UNTAGGED
        is_there = one.source == address or (is_near and self._with_room(lambda: nearby.is_here(address)))
        if not is_there or (hello.rank < self._rank and hello.lane is not Lane.CONTROL):
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"that is not rank {hello.rank}")
        self._send_hello(one, Hello(Step.ANSWER, self._rank, hello.rank, hello.lane, hello.context), hello.nonce)

    def _prove(self, one: _Opening, hello: Hello, sent: Hello) -> None:
        """Check an answer, and prove that this is no recorded call; unless it is a knock, the connection stands."""
        if one.is_answered or not hello.answers(sent, Step.ANSWER) or not hello.is_sealed(self._secret, sent.nonce):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "another program listens there")
        one.is_answered = True
        self._send_hello(one, Hello(Step.PROOF, self._rank, sent.to, sent.lane, sent.context, sent.nonce), hello.nonce)
        if sent.to < self._rank:
            self._stand(one)

    def _let_in(self, one: _Opening, hello: Hello) -> None:
        """Take a connection that has proved which rank it comes from."""
        if hello.rank > self._rank:
            self._stand(one)
            return
        del self._opening[one.conn.fileno()]
        self.end_knock(hello.rank)
        self._knocks[hello.rank] = one.conn
        self._events.append(Knocked(hello.rank))

    def _send_hello(self, one: _Opening, hello: Hello, peer_nonce: bytes = b"") -> None:
        one.sent = hello.sealed(self._secret, peer_nonce)
        octets = one.sent.to_octets()
        if one.conn.send(octets) < len(octets):  # among the first octets of a connection: its send buffer has room
            raise OSError(errno.ENOBUFS, "the kernel has no room for the first kilobytes")

    def _stand(self, one: _Opening) -> None:
        assert one.key is not None
        del self._opening[one.conn.fileno()]
        self._events.append(Joined(one.key, Connection.of(one.conn)))

    def _drop(self, one: _Opening) -> None:
        self._opening.pop(one.conn.fileno(), None)  # it may have been dropped to make room
        one.conn.close()
