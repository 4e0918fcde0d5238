"""Connections between all ranks: who listens, who connects, and which connection is which.

Each rank listens on one port per higher rank and lane, all ranks gather the port tables, each connects to every lower
rank, then accepts. A connection is known by the port it came to, so nothing needs to be said on it. Afterwards every
rank says how it went, so that one failure is everybody's.

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
from collections.abc import Sequence
from typing import Final

import numpy as np

from netoffload.config import format_ports
from netoffload.errors import CollectiveError
from netoffload_mpi.agreement import Gather, Marking, Offer
from netoffload_mpi.dataplane import LATE_S_DEFAULT, TAGGED_LANES, TIMEOUT_S_DEFAULT, Key, Lane, TcpExchange

PREAMBLE: Final = np.ones(320, np.float32).tobytes()
"""Exact under every codec, and more than the kilobyte that a NIC looks at."""


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

    def accept(self, key: Key, address: str, timeout_s: float) -> socket.socket:
        """Return the connection of ``key``, which must come from ``address``.

        Raises:
            TimeoutError: it did not come in time.
        """
        listener, deadline = self._sockets[key], time.monotonic() + timeout_s
        while True:
            listener.settimeout(max(deadline - time.monotonic(), 1e-3))
            conn, (source, _port) = listener.accept()
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
        gather: tells all ranks how it went.
        tos: of tagged connections.
        timeout_s: for each connection, and later for a silent peer.
        late_s: for a peer that lives but does not come.

    Raises:
        CollectiveError: a connection of any rank failed; on all ranks.
    """
    failure: str | None = None
    with contextlib.ExitStack() as undo:
        connections: dict[Key, socket.socket] = {}
        try:
            for peer, offer in enumerate(offers):
                for lane in Lane:
                    if peer < rank:
                        key = (rank, lane)
                        conn = _connect(offer, key, _tcp_socket(lane, tos), offers[rank].address, timeout_s)
                    elif peer > rank:
                        conn = listeners.accept((peer, lane), offer.address, timeout_s)
                    else:
                        continue
                    connections[peer, lane] = undo.enter_context(conn)
        except OSError as error:
            failure = f"rank {rank} could not connect with rank {peer} at {offer.address}: {error}"
        else:
            failure = _exchange_preambles(rank, connections, timeout_s)
        if failures := [text for text in gather(failure) if text]:
            raise CollectiveError(f"{failures[0]}; set $NETOFFLOAD_ADDRESS if that is the wrong interface")
        undo.pop_all()
    return TcpExchange(rank, len(offers), connections, timeout_s, late_s)


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
