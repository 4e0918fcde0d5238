"""One TCP connection as a ``Channel``, which sends and receives without waiting."""

from __future__ import annotations

import socket

from netoffload.errors import CollectiveError
from netoffload.transport.messages.watch import Context
from netoffload.transport.wiring.coded_socket import CodedSocket

CLOSED = "it closed its connection"  # reason given for an end of the stream, for which the kernel has no error text


class TcpChannel:
    """One connection; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, conn: socket.socket, peer: int, watch: Context) -> None:
        self.peer = peer
        self.conn = conn
        self.coded = conn if isinstance(conn, CodedSocket) else None
        """The connection if both ranks code on it, else None."""
        self.sent_octets = 0
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
        """Take the octets that the kernel has."""
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
        """Return why the exchange ended or the peer left; None if neither happened."""
        return self._watch.ending(self.peer)

    def fileno(self) -> int:
        """Return the descriptor, -1 once it is closed."""
        return self.conn.fileno()
