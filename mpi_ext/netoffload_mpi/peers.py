"""What the watch keeps of every other rank: two sockets, and what is on its way to it and from it."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from netoffload.errors import PeerLostError
from netoffload_mpi.mailbox import Mailbox
from netoffload_mpi.requests import CompRequest


@dataclass(eq=False)
class Send:
    """A posted message, announced already: the octets of ``data`` from ``sent`` on have yet to go."""

    data: memoryview
    request: CompRequest
    sent: int = 0


@dataclass(eq=False)
class Peer:
    """One other rank, as the watch's thread sees it."""

    control: socket.socket
    heard_s: float
    messages: socket.socket = field(init=False)
    """Not there before the rank is ready."""
    outgoing: bytearray = field(default_factory=bytearray)
    """Control frames that have not left."""
    incoming: bytearray = field(default_factory=bytearray)
    outbox: deque[Send] = field(default_factory=deque)
    is_ready: bool = False
    """All its connections stand."""
    has_left: bool = False
    """It closed, and said so."""
    sent_octets: int = 0
    """Of messages."""

    def read_message(self, rank: int, mailbox: Mailbox) -> None:
        """Read once what ``mailbox`` wants from this rank, which is ``rank``.

        Raises:
            PeerLostError: it is gone.
        """
        into = mailbox.wanted(rank)
        if into is None:
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
        """Send what the kernel takes.

        Raises:
            OSError: the connection ended.
        """
        while self.outbox:
            first = self.outbox[0]
            with contextlib.suppress(BlockingIOError):
                count = self.messages.send(first.data[first.sent :], socket.MSG_DONTWAIT)
                first.sent += count
                self.sent_octets += count
            if first.sent < len(first.data):
                return
            self.outbox.popleft()
            first.request.complete()


def silence(rank: int, size: int, silences_s: Mapping[int, float], timeout_s: float) -> PeerLostError | None:
    """Return who is lost because nothing was heard of it for ``timeout_s``; None: nobody.

    A rank that hears nobody at all takes itself for the one that is cut off. (Others fall silent a heartbeat apart,
    hence the half.)

    Args:
        rank: this one.
        size: number of ranks.
        silences_s: how long each of the others that have not left has been silent.
        timeout_s: the limit.
    """
    silent = [peer for peer, silence_s in silences_s.items() if silence_s >= timeout_s]
    quiet = [peer for peer, silence_s in silences_s.items() if silence_s > timeout_s / 2]
    if not silent:
        return None
    if len(quiet) == size - 1 > 1:
        return PeerLostError(f"rank {rank} has heard no other rank for {timeout_s:g} s: its link or its NIC is down")
    names = ", ".join(map(str, silent))
    return PeerLostError(
        f"rank {names} was silent for {timeout_s:g} s: its host, link or NIC is down, or its process is stopped"
    )
