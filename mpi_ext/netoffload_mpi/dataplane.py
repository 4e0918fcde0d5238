"""TCP connections between all ranks, and the ``Exchange`` over them.

Wiring: each rank listens on one port per higher rank and tag, all ranks gather the port tables, each connects to every
lower rank, then accepts. A connection is known by the port it came to, so nothing needs to be said on it. Afterwards
every rank says how it went, so that one failure is everybody's.

ToS 0x28 is set on the listener before ``listen`` and on the connecting socket before ``connect``: the handshake
itself is tagged, and Linux gives an accepted socket the ToS of its listener.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Mapping, Sequence

import numpy as np

from netoffload.collectives import Channel, Float32Array
from netoffload.config import TOS_COMPRESS
from netoffload.errors import CollectiveError, PeerLostError
from netoffload_mpi.agreement import Gather, Offer

TIMEOUT_S_DEFAULT = 30.0

SEND_BUFFER_OCTETS = 1024 * 1024
"""Asked for; the kernel gives at most ``net.core.wmem_max``, and autotuning would begin at 16 KiB. Four chunks of the
ring fit, so a sender seldom sleeps for room. Against 4 MiB no difference could be measured that exceeds the noise, and
it costs less cache. The receive buffer stays with the kernel's autotuning, which follows the path; setting it would end
that."""

Key = tuple[int, bool]
"""(peer, tagged)."""


class TcpChannel:
    """One connection; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, conn: socket.socket, peer: int) -> None:
        """Own ``conn``, which must be connected, and make it non-blocking."""
        conn.setblocking(False)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_OCTETS)
        self.peer = peer
        self.conn = conn

    def send_some(self, data: memoryview) -> int:
        """Hand a prefix of ``data`` to the kernel."""
        try:
            return self.conn.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerLostError(f"rank {self.peer} is gone: {error.strerror or error}") from error

    def receive_some(self, into: memoryview) -> int:
        """Take what the kernel has."""
        try:
            count = self.conn.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerLostError(f"rank {self.peer} is gone: {error.strerror or error}") from error
        if count == 0:
            raise PeerLostError(f"rank {self.peer} closed its connection")
        return count


class TcpExchange:
    """One rank's connections; see :class:`~netoffload.collectives.exchange.Exchange`. Made by :func:`wire_up`.

    Args:
        rank: this rank.
        size: number of ranks.
        connections: one connected socket per (peer, tagged); owned from now on.
        timeout_s: silence after which a rank gives up.
    """

    def __init__(self, rank: int, size: int, connections: Mapping[Key, socket.socket], timeout_s: float) -> None:
        """Take over the connections."""
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._channels = {key: TcpChannel(conn, key[0]) for key, conn in connections.items()}
        self._scratch = np.empty(0, dtype=np.float32)
        self._closed = False

    def channel(self, peer: int, *, tagged: bool) -> TcpChannel:
        """Return the connection to ``peer``."""
        if self._closed:
            raise PeerLostError(f"rank {self.rank} has closed its connections, by request or after an error")
        return self._channels[peer, tagged]

    def wait(self, readable: Sequence[Channel], writable: Sequence[Channel]) -> None:
        """Sleep in poll(2) until one of the channels is ready."""
        events: dict[TcpChannel, int] = {}
        for channels, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for channel in channels:
                if not isinstance(channel, TcpChannel):
                    raise TypeError(f"not a channel of this exchange: {channel!r}")
                events[channel] = events.get(channel, 0) | event
        poller = select.poll()
        for channel, event in events.items():
            poller.register(channel.conn, event)
        if not poller.poll(self._timeout_s * 1000):
            peers = ", ".join(str(peer) for peer in sorted({channel.peer for channel in events}))
            raise PeerLostError(f"rank {peers} was silent for {self._timeout_s:g} s")

    def scratch(self, count: int) -> Float32Array:
        """Return ``count`` floats of this rank's scratch memory."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, dtype=np.float32)
        return self._scratch[:count]

    def close(self) -> None:
        """Close all connections; what was sent is still delivered."""
        self._closed = True
        for channel in self._channels.values():
            channel.conn.close()


class Listeners:
    """One listening socket per higher rank and tag; a context manager that closes them.

    Args:
        rank: this rank.
        size: number of ranks.
        address: IPv4 address to listen at.

    Raises:
        OSError: the address is not this node's.
    """

    def __init__(self, rank: int, size: int, address: str) -> None:
        """Listen."""
        self._open = contextlib.ExitStack()
        self._sockets: dict[Key, socket.socket] = {}
        with contextlib.ExitStack() as undo:
            for peer in range(rank + 1, size):
                for tagged in (False, True):
                    listener = undo.enter_context(_tcp_socket(tagged))
                    listener.bind((address, 0))
                    listener.listen(4)
                    self._sockets[peer, tagged] = listener
            self._open = undo.pop_all()

    @property
    def ports(self) -> dict[Key, int]:
        """Return the port of each listener."""
        return {key: listener.getsockname()[1] for key, listener in self._sockets.items()}

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
    rank: int, offers: Sequence[Offer], listeners: Listeners, gather: Gather, timeout_s: float = TIMEOUT_S_DEFAULT
) -> TcpExchange:
    """Connect this rank with all others; collective.

    Args:
        rank: this rank.
        offers: of all ranks, in rank order.
        listeners: this rank's, whose ports are in its offer.
        gather: tells all ranks how it went.
        timeout_s: for each connection, and later for a silent peer.

    Raises:
        CollectiveError: a connection of any rank failed; on all ranks.
    """
    failure: str | None = None
    with contextlib.ExitStack() as undo:
        connections: dict[Key, socket.socket] = {}
        try:
            for peer, offer in enumerate(offers):
                for tagged in (False, True):
                    if peer < rank:
                        conn = _connect(offer, rank, tagged, timeout_s)
                    elif peer > rank:
                        conn = listeners.accept((peer, tagged), offer.address, timeout_s)
                    else:
                        continue
                    connections[peer, tagged] = undo.enter_context(conn)
        except OSError as error:
            failure = f"rank {rank} could not connect with rank {peer} at {offer.address}: {error}"
        if failures := [text for text in gather(failure) if text]:
            raise CollectiveError(f"{failures[0]}; set $NETOFFLOAD_ADDRESS if that is the wrong interface")
        undo.pop_all()
    return TcpExchange(rank, len(offers), connections, timeout_s)


def _connect(offer: Offer, rank: int, tagged: bool, timeout_s: float) -> socket.socket:
    conn = _tcp_socket(tagged)
    try:
        conn.settimeout(timeout_s)
        conn.connect((offer.address, (offer.ports or {})[rank, tagged]))
    except OSError:
        conn.close()
        raise
    return conn


def _tcp_socket(tagged: bool) -> socket.socket:
    conn = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    conn.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_COMPRESS if tagged else 0)
    return conn
