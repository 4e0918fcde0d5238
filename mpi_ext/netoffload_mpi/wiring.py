"""Connections between all ranks: who listens, who connects, and which connection is which.

Each rank listens on one port per higher rank and lane, all ranks gather the port tables, each connects to every lower
rank, then accepts. A connection is known by the port it came to, so nothing needs to be said on it. The control lane
comes first. All ranks gather how that went, and begin to watch each other; a failure after that is a farewell on this
lane, and success is ``READY``. So one failure is everybody's, and a rank that dies or stops meanwhile is named.

A NIC judges a tagged connection by its first kilobyte before it compresses anything, and what ranks send first may be
short. So both ends begin a tagged connection with a *preamble*, floats that are nothing but that.

The NICs' ToS is set on the listener before ``listen`` and on the connecting socket before ``connect``: the handshake
itself is tagged, and Linux gives an accepted socket the ToS of its listener. Where NICs take only some ports for
tagged, the listener has one of them.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from netoffload.config import format_ports
from netoffload.errors import CollectiveError
from netoffload_mpi.agreement import Gather, Marking, Offer
from netoffload_mpi.dataplane import LATE_S_DEFAULT, TAGGED_LANES, TIMEOUT_S_DEFAULT, Key, Lane, TcpExchange
from netoffload_mpi.watch import Watch

PREAMBLE: Final = np.ones(320, np.float32).tobytes()
"""Exact under every codec, and more than the kilobyte that a NIC looks at."""


LOOK_S: Final = 0.1
"""How often a rank that waits for a connection looks whether it will come."""


class Listeners:
    """One listening socket per higher rank and lane; a context manager that closes them.

    Args:
        rank: this rank.
        size: number of ranks.
        address: IPv4 address to listen at.
        marking: of tagged connections.

    Raises:
        OSError: the address is not this node's, or none of the marking's ports is free.
    """

    def __init__(self, rank: int, size: int, address: str, marking: Marking | None = None) -> None:
        """Listen."""
        self._open = contextlib.ExitStack()
        self._sockets: dict[Key, socket.socket] = {}
        marking = marking or Marking()
        with contextlib.ExitStack() as undo:
            for peer in range(rank + 1, size):
                for lane in Lane:
                    listener = undo.enter_context(_tcp_socket(lane, marking.tos))
                    _listen(listener, address, marking if lane in TAGGED_LANES else Marking())
                    self._sockets[peer, lane] = listener
            self._open = undo.pop_all()

    @property
    def ports(self) -> dict[tuple[int, int], int]:
        """Return the port of each listener."""
        return {(peer, int(lane)): listener.getsockname()[1] for (peer, lane), listener in self._sockets.items()}

    def accept(self, key: Key, address: str, timeout_s: float, is_over: Callable[[], bool]) -> socket.socket:
        """Return the connection of ``key``, which must come from ``address``.

        Raises:
            TimeoutError: it did not come in time, or ``is_over`` says that it will not come.
        """
        listener, deadline = self._sockets[key], time.monotonic() + timeout_s
        while True:
            listener.settimeout(min(LOOK_S, max(deadline - time.monotonic(), 1e-3)))
            try:
                conn, (source, _port) = listener.accept()
            except TimeoutError:
                if is_over() or time.monotonic() > deadline:
                    raise
                continue
            if source == address:
                return conn
            conn.close()  # a stranger who found the port

    def __enter__(self) -> Listeners:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening; accepted connections live on."""
        self._open.close()


def wire_up(
    rank: int,
    offers: Sequence[Offer],
    listeners: Listeners,
    gather: Gather,
    tos: int = Marking.tos,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    late_s: float = LATE_S_DEFAULT,
) -> TcpExchange:
    """Connect this rank with all others; collective.

    Args:
        rank: this rank.
        offers: of all ranks, in rank order.
        listeners: this rank's, whose ports are in its offer.
        gather: tells all ranks how the first lane went.
        tos: of tagged connections.
        timeout_s: for each connection, and later for a silent peer.
        late_s: for a peer that lives but does not come.

    Raises:
        CollectiveError: a connection of any rank failed; on all ranks.
    """
    wiring = _Wiring(rank, offers, listeners, tos, timeout_s)
    with contextlib.ExitStack() as undo:
        undo.callback(wiring.close)
        failure = wiring.connect([Lane.CONTROL])
        if failures := [text for text in gather(failure) if text]:
            raise CollectiveError(failures[0])
        watch = wiring.begin_watch()
        undo.callback(watch.stop)
        try:
            others = [lane for lane in Lane if lane is not Lane.CONTROL]
            failure = wiring.connect(others) or _exchange_preambles(rank, wiring.connections, timeout_s)
            if failure is not None:  # perhaps because of a rank that is gone
                raise watch.verdict() or CollectiveError(failure)
            exchange = TcpExchange(rank, len(offers), wiring.connections, watch, timeout_s, late_s)
            undo.pop_all()
            undo.callback(exchange.close)
            watch.wait_for_all()
        except BaseException as error:
            watch.give_up(error)
            raise
        undo.pop_all()
    return exchange


class _Wiring:
    """This rank's connections, while they are made.

    Args:
        rank: this rank.
        offers: of all ranks.
        listeners: this rank's.
        tos: of tagged connections.
        timeout_s: for each connection.
    """

    def __init__(self, rank: int, offers: Sequence[Offer], listeners: Listeners, tos: int, timeout_s: float) -> None:
        self.connections: dict[Key, socket.socket] = {}
        self._rank = rank
        self._offers = offers
        self._listeners = listeners
        self._tos = tos
        self._timeout_s = timeout_s
        self._watch: Watch | None = None

    def connect(self, lanes: Sequence[Lane]) -> str | None:
        """Connect these lanes with all ranks; return what went wrong, None if nothing did."""
        own = self._offers[self._rank].address
        for peer, offer in enumerate(self._offers):
            for lane in lanes if peer != self._rank else ():
                try:
                    if peer < self._rank:
                        fresh = _tcp_socket(lane, self._tos)
                        conn = _connect(offer, (self._rank, lane), fresh, own, self._timeout_s)
                    else:
                        conn = self._listeners.accept((peer, lane), offer.address, self._timeout_s, self._is_over)
                except OSError as error:
                    return (
                        f"rank {self._rank} could not connect with rank {peer} at {offer.address}: {error}; set "
                        "$NETOFFLOAD_ADDRESS if that is the wrong interface"
                    )
                self.connections[peer, lane] = conn
        return None

    def begin_watch(self) -> Watch:
        """Watch over the control lane, which is connected."""
        control = {peer: conn for (peer, lane), conn in self.connections.items() if lane is Lane.CONTROL}
        self._watch = Watch(self._rank, len(self._offers), control, self._timeout_s)
        self._watch.start()
        return self._watch

    def close(self) -> None:
        """Close what was connected."""
        for conn in self.connections.values():
            conn.close()

    def _is_over(self) -> bool:
        return self._watch is not None and self._watch.failure is not None


def _exchange_preambles(rank: int, connections: dict[Key, socket.socket], timeout_s: float) -> str | None:
    """Send the preamble on every tagged connection and take the peers'; return what went wrong, or None."""
    tagged = [(peer, conn) for (peer, lane), conn in connections.items() if lane in TAGGED_LANES]
    try:
        for _, conn in tagged:
            conn.settimeout(timeout_s)
            conn.sendall(PREAMBLE)
        for peer, conn in tagged:
            left = len(PREAMBLE)
            while left:
                octets = conn.recv(left)
                if not octets:
                    raise ConnectionResetError(f"rank {peer} closed it")
                left -= len(octets)
    except OSError as error:
        return f"rank {rank} lost a connection before its first octet: {error}"
    return None


def _connect(offer: Offer, key: Key, conn: socket.socket, own_address: str, timeout_s: float) -> socket.socket:
    """Connect a socket to the listener for ``key`` of the rank whose offer this is."""
    try:
        conn.settimeout(timeout_s)
        conn.bind((own_address, 0))  # the route may prefer another of this node's, which the listener would not take
        conn.connect((offer.address, (offer.ports or {})[key]))
    except OSError:
        conn.close()
        raise
    return conn


def _listen(listener: socket.socket, address: str, marking: Marking) -> None:
    """Listen at the first free port of the marking, or at any."""
    for first, last in marking.ports or ((0, 0),):
        for port in range(first, last + 1):
            try:
                listener.bind((address, port))
            except OSError as error:
                if not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
            else:
                listener.listen(4)
                return
    ports = format_ports(marking.ports)
    raise OSError(errno.EADDRINUSE, f"no port of {ports} is free for a tagged connection: give the NIC more (--ports)")


def _tcp_socket(lane: Lane, tos: int) -> socket.socket:
    conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    conn.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos if lane in TAGGED_LANES else 0)
    return conn
