"""One TCP connection as a ``Channel``: what it takes and gives without waiting."""

from __future__ import annotations

import contextlib
import socket

from netoffload.errors import CollectiveError
from netoffload_mpi.watch import Watch

SEND_BUFFER_OCTETS = 1024 * 1024
"""Asked for; the kernel gives at most ``net.core.wmem_max``, and autotuning would begin at 16 KiB. Four chunks of the
ring fit, so a sender seldom sleeps for room. Against 4 MiB no difference could be measured that exceeds the noise, and
it costs less cache. The receive buffer stays with the kernel's autotuning, which follows the path; setting it would end
that."""

CLOSED = "it closed its connection"
"""What the kernel said, in words, where it only said that there is no more."""


class TcpChannel:
    """One connection; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, conn: socket.socket, peer: int, watch: Watch) -> None:
        """Own ``conn``, which must be connected, and make it non-blocking."""
        conn.setblocking(False)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_OCTETS)
        self.peer = peer
        self.conn = conn
        self.sent_octets = 0
        self.own = self.other = ("", 0)
        """Its addresses and ports: those of the NIC's flow. The kernel forgets them when the connection ends."""
        with contextlib.suppress(OSError):  # it has ended already, which the first call will explain
            self.own, self.other = conn.getsockname(), conn.getpeername()
        self._watch = watch

    def send_some(self, data: memoryview) -> int:
        """Hand a prefix of ``data`` to the kernel."""
        try:
            count = self.conn.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._watch.explain(self.peer, error.strerror or str(error)) from error
        self.sent_octets += count
        return count

    def receive_some(self, into: memoryview) -> int:
        """Take what the kernel has."""
        try:
            count = self.conn.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._watch.explain(self.peer, error.strerror or str(error)) from error
        if count == 0:
            raise self._watch.explain(self.peer, CLOSED)
        return count

    def ending(self) -> CollectiveError | None:
        """Return why the exchange ended or the peer left, None if neither did."""
        return self._watch.ending(self.peer)

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""
        return self.conn.fileno()
