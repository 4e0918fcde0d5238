"""What the watch knows of another rank: two connections, and the frames and messages under way in both directions."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from dataclasses import dataclass, field

from netoffload.errors import PeerLostError
from netoffload.transport.messages.mailbox import Mailbox
from netoffload.transport.messages.requests import Request
from netoffload.transport.wiring.coded_socket import CodedSocket
from netoffload.transport.wiring.lanes import Lane


@dataclass(eq=False)
class Send:
    """A posted message, announced already: the octets of ``data`` from ``sent`` on have yet to leave."""

    data: memoryview
    request: Request
    context: int
    sent: int = 0


@dataclass(eq=False)
class Peer:
    """One other rank, as the watch's thread sees it. Its connections are None until they stand."""

    control: socket.socket | None = None
    messages: socket.socket | None = None
    wanted: set[tuple[Lane, int]] = field(default_factory=set)
    """Lanes and contexts of connections that stand, or are being made."""
    heard_s: float = 0.0
    refused_s: float = math.inf  # when it refused a connection, because it has closed or died
    outgoing: bytearray = field(default_factory=bytearray)  # control frames that have not left
    incoming: bytearray = field(default_factory=bytearray)
    outbox: deque[Send] = field(default_factory=deque)
    empty: list[Send] = field(default_factory=list)
    """Sends of messages without data, which end when the control lane stands."""
    has_left: bool = False  # whether it has closed everything: it said farewell, or refused a connection
    left: set[int] = field(default_factory=set)  # the contexts that it has closed
    sent_octets: int = 0  # octets of messages sent to it

    @property
    def is_watched(self) -> bool:
        """Whether heartbeats from it are expected."""
        return self.control is not None and not self.has_left

    def stand(self, lane: Lane, conn: socket.socket) -> None:
        """Take a new connection, if its lane is one of the watch's."""
        if lane is Lane.CONTROL:
            self.control, self.heard_s = conn, time.monotonic()
            while self.empty:
                self.empty.pop().request.complete()
        elif lane is Lane.MESSAGES:
            self.messages = conn

    def fail_hopeless(self, rank: int, own_rank: int) -> None:
        """Fail the sends that have no connection, and get none because this peer, ``rank``, has closed."""
        if self.has_left and (self.empty or self.messages is None):
            self.fail(PeerLostError(f"rank {rank} closed its communicator before rank {own_rank} could send to it"))

    def fail(self, error: Exception) -> None:
        """Fail the sends to it."""
        while self.empty:
            self.empty.pop().request.fail(error)
        while self.outbox:
            self.outbox.popleft().request.fail(error)

    def end_context(self, context: int, error: Exception) -> None:
        """Fail the sends of one context. The stream goes on, so announced messages are still sent, from a copy."""
        for one in (*self.empty, *self.outbox):
            if one.context == context and not one.request.test():
                one.data = memoryview(bytes(one.data))
                one.request.fail(error)

    def is_gone(self, context: int) -> bool:
        """Return whether it has closed this context."""
        return self.has_left or context in self.left

    def read_message(self, rank: int, mailbox: Mailbox) -> None:
        """Read once what ``mailbox`` wants from this peer, which is ``rank``."""
        into = mailbox.wanted(rank)
        if into is None or self.messages is None:
            return
        try:
            count = self.messages.recv_into(into, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLostError(f"rank {rank} is gone: {error.strerror or error}") from error
        if count == 0:
            raise PeerLostError(f"rank {rank} closed its communicator in the middle of a message")
        mailbox.filled(rank, count)

    def write_messages(self) -> None:
        """Send what the kernel takes."""
        while self.outbox and self.messages is not None:
            first = self.outbox[0]
            with contextlib.suppress(BlockingIOError):
                saved_octets = _saved_octets(self.messages)
                count = self.messages.send(first.data[first.sent :], socket.MSG_DONTWAIT)
                first.request.outcome.saved_octets += _saved_octets(self.messages) - saved_octets
                first.sent += count
                self.sent_octets += count
            if first.sent < len(first.data):
                return
            self.outbox.popleft()
            first.request.complete()


def _saved_octets(conn: socket.socket) -> int:
    return conn.saved_octets if isinstance(conn, CodedSocket) else 0
