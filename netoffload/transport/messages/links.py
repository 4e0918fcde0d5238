"""One rank's connections, each made when it is first wanted, and what the watch knows of the ranks at their other ends.

A rank has a control connection to the ranks at distances 1, 2, 4, ... on either side, which it meets in calls
(``neighbours``), and to each rank with which it has another connection, or from which it waits for a message. With p
ranks that is about 2 log2 p instead of p - 1. A rank that finds another one lost tells every rank to which it has a
control connection, and each of those does the same. The news reaches every rank within log2 p hops, over 2 log2 p
paths, so no single rank can stop it.
"""

import contextlib
import errno
import math
import select
import socket
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.messages.mailbox import Mailbox
from netoffload.transport.messages.requests import Request
from netoffload.transport.rendezvous.agreement import Marking, Offer, Quantiser
from netoffload.transport.wiring.coded_socket import CodedSocket
from netoffload.transport.wiring.joining import Failed, Joined, Joiner
from netoffload.transport.wiring.lanes import CALL_LANES, EVERY, TAGGED_LANES, Connection, Key, Lane, Listeners

REFUSED_S = 0.5
"""Time after which a rank that refused a connection counts as closed. If it died, the watch finds out sooner."""

PROBE_S = 2.0
"""Longest time for which a rank that lives keeps a connection: on busy cores a killed one kept one for over 0.5 s."""


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
            self.fail_sends(rank, own_rank)

    def fail_sends(self, rank: int, own_rank: int) -> None:
        """Fail the sends to it, because it has closed."""
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
        """Read once what ``mailbox`` wants from this peer, which is ``rank``; raise OSError if the lane broke."""
        into = mailbox.wanted(rank)
        if into is None or self.messages is None:
            return
        try:
            count = self.messages.recv_into(into, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if count == 0:
            raise ConnectionResetError("it closed in the middle of a message")
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


def neighbours(rank: int, size: int) -> list[int]:
    """Return the ranks that ``rank`` watches from the beginning; of up to five ranks, all others."""
    distances = [1 << bit for bit in range((size - 1).bit_length())]
    return sorted({(rank + way * distance) % size for distance in distances for way in (1, -1)} - {rank})


class Links:
    """One rank's connections. Every method is called under the watch's lock. :meth:`close` closes ``listeners``."""

    def __init__(
        self,
        rank: int,
        offers: Sequence[Offer],
        listeners: Listeners,
        tos: int = Marking.tos,
        timeout_s: float = 30.0,
        coding: Quantiser | None = None,
        coded_lanes: Collection[Lane] = TAGGED_LANES,
    ) -> None:
        self.rank = rank
        self.size = len(offers)
        self.peers: dict[int, Peer] = {}  # the ranks with which this one has or wants a connection
        self.connections: dict[Key, Connection] = {}
        self.ended: set[int] = set()  # contexts that this rank has closed
        self._farewells: list[bytes] = []  # farewells sent so far; a control lane that is made later sends them first
        self._offers = offers
        self._coding, self._coded_lanes = coding, coded_lanes
        self._joiner = Joiner(rank, offers, listeners, tos, timeout_s)
        self.probe_s = min(PROBE_S, timeout_s / 4)  # while it probes, this rank sends no heartbeat

    def want(self, peer: int, lane: Lane, context: int = EVERY) -> None:
        """Make a connection, and the control lane, unless they stand or are being made."""
        if (one := self.peers.get(peer)) is None:
            one = self.peers[peer] = Peer()
        if (lane, context) in one.wanted or one.is_gone(context):
            return
        one.wanted.add((lane, context))
        if lane is not Lane.CONTROL:
            self.want(peer, Lane.CONTROL)
        if peer < self.rank or lane is Lane.CONTROL:
            self._joiner.begin(Key(peer, lane, context))
        else:
            one.outgoing += Frame(Kind.CONNECT, tag=lane, context=context).to_octets()

    def want_control(self, source: int | None) -> None:
        """Make the control lane over which ``source`` says when it closes; None stands for any rank."""
        if source is not None and source != self.rank:
            self.want(source, Lane.CONTROL)

    def want_neighbours(self) -> None:
        """Make the first control lanes; every rank does so."""
        for peer in neighbours(self.rank, self.size):
            self.peers[peer] = Peer(wanted={(Lane.CONTROL, EVERY)})
            if peer < self.rank:
                self._joiner.begin(Key(peer, Lane.CONTROL))

    def all_left(self, context: int) -> bool:
        """Return whether all other ranks have closed a context."""
        if not self.peers or any(not peer.is_gone(context) for peer in self.peers.values()):
            return False
        # All watched ranks have closed it: from now on this one watches the others too.
        for peer in range(self.size):
            if peer != self.rank:
                self.want(peer, Lane.CONTROL)
        return all(peer.is_gone(context) for peer in self.peers.values())

    def left(self, context: int) -> set[int]:
        """Return the ranks known to have closed a context."""
        return {rank for rank, peer in self.peers.items() if peer.is_gone(context)}

    def silent(self) -> list[int]:
        """Return the ranks that have closed everything, and have no connection over which a message could come."""
        return [
            rank
            for rank, peer in self.peers.items()
            if peer.has_left and peer.messages is None and not self._joiner.is_making(Key(rank, Lane.MESSAGES))
        ]

    def is_making(self) -> bool:
        """Return whether connections are being made."""
        return self._joiner.is_making()

    def is_begun(self) -> bool:
        """Return whether the first control lanes stand, or one of them cannot be made."""
        waiting = [peer for peer in self.peers.values() if peer.control is None]
        return not waiting or any(peer.has_left for peer in waiting)

    def check_begun(self) -> None:
        """Raise CollectiveError if a control lane could not be made."""
        for rank, peer in self.peers.items():
            if peer.control is None:
                raise CollectiveError(self.explain(rank, "it takes no connection" if peer.has_left else "timed out"))

    def heard_s(self) -> float:
        """Return when the rank that has been silent longest was last heard."""
        return min((peer.heard_s for peer in self.peers.values() if peer.is_watched), default=float("inf"))

    def silence(self, now_s: float, timeout_s: float) -> PeerLostError | None:
        """Return the error for ranks that were silent for ``timeout_s``; None: no rank was."""
        # A rank that hears no other one is cut off itself. It counts all that are silent for half the limit, because
        # the last heartbeats of different ranks came at different times.
        watched = sum(peer.control is not None for peer in self.peers.values())
        silences_s = {rank: now_s - peer.heard_s for rank, peer in self.peers.items() if peer.is_watched}
        silent = [peer for peer, silence_s in silences_s.items() if silence_s >= timeout_s]
        quiet = [peer for peer, silence_s in silences_s.items() if silence_s > timeout_s / 2]
        if not silent:
            return None
        if len(quiet) == watched > 1:
            return PeerLostError(
                f"rank {self.rank} has heard no other rank for {timeout_s:g} s: its link or its NIC is down"
            )
        names = ", ".join(map(str, silent))
        return PeerLostError(
            f"rank {names} was silent for {timeout_s:g} s: its host, link or NIC is down, or its process is stopped"
        )

    def announce(self, frame: Frame) -> None:
        """Queue a frame for every rank to which this one has a control lane."""
        if frame.kind is not Kind.BEAT:
            self._farewells.append(frame.to_octets())
        for peer in self.peers.values():
            # One waiting heartbeat is enough for a peer that takes nothing because it is stopped or cut off.
            if peer.is_watched and not (frame.kind is Kind.BEAT and peer.outgoing):
                peer.outgoing += frame.to_octets()

    def deadline_s(self) -> float:
        """Return when to call :meth:`serve` even if nothing is ready."""
        refused_s = min((peer.refused_s for peer in self.peers.values() if not peer.has_left), default=float("inf"))
        return min(self._joiner.deadline_s(), refused_s + REFUSED_S)

    def register(self, poller: select.poll, mailbox: Mailbox | None, *, is_stopping: bool) -> dict[int, int]:
        """Register every connection with ``poller``; return the rank that each descriptor leads to.

        ``mailbox`` says from which ranks messages are wanted; None: from no rank.
        """
        peers_of: dict[int, int] = {}

        def add(rank: int, conn: socket.socket | None, events: int) -> None:
            if conn is not None and events:
                poller.register(conn, events)
                peers_of[conn.fileno()] = rank

        for fd, events in self._joiner.wanted().items():
            poller.register(fd, events)
        for rank, peer in self.peers.items():
            leaving = select.POLLOUT if peer.outgoing else 0
            # A watch that is stopping waits only for ranks to which control frames have yet to leave.
            reading = 0 if peer.has_left or (is_stopping and not leaving) else select.POLLIN
            add(rank, peer.control, reading | leaving)
            if mailbox is not None:
                coming = 0 if mailbox.wanted(rank) is None else select.POLLIN
                add(rank, peer.messages, coming | (select.POLLOUT if peer.outbox else 0))
        return peers_of

    def serve(self, ready: Collection[int]) -> list[Failed]:
        """Go on with connections that are being made; return those that failed, except refused ones."""
        failed = []
        for event in self._joiner.serve(ready):
            if isinstance(event, Joined):
                self._join(event)
            elif not isinstance(event, Failed):
                self.want(event.peer, Lane.CONTROL)
                if self.peers[event.peer].control is not None:
                    self._joiner.end_knock(event.peer)
            elif event.key is None or not isinstance(event.error, ConnectionError):
                failed.append(event)
            elif event.key.lane is not Lane.CONTROL or self.peers[event.key.peer].control is None:
                self.peers[event.key.peer].refused_s = min(self.peers[event.key.peer].refused_s, time.monotonic())
        return failed

    def have_newly_left(self, now_s: float) -> bool:
        """Return whether a rank that refused a connection begins to count as closed."""
        gone = [one for one in self.peers.values() if not one.has_left and now_s > one.refused_s + REFUSED_S]
        for one in gone:
            one.has_left = True
        return bool(gone)

    def explain(self, peer: int, reason: str) -> str:
        """Return the error text for a connection that could not be made."""
        return (
            f"rank {self.rank} could not connect with rank {peer} at {self._offers[peer].address}: {reason}; set "
            "$NETOFFLOAD_ADDRESS if that is the wrong interface"
        )

    def lost(self, peer: int, reason: str) -> PeerLostError:
        """Return the error for a connection to ``peer`` that ended without a farewell."""
        offer = self._offers[peer]
        assert offer.ports is not None
        if not _is_served((offer.address, offer.ports[False]), self.probe_s):
            return PeerLostError(f"rank {peer} died: {reason}")
        # It lives, and the connection was cut. Both ends raise the same error.
        first, second = sorted((self.rank, peer))
        return PeerLostError(f"the connection between rank {first} and rank {second} was cut, though both live")

    def error_of(self, failed: Failed) -> CollectiveError:
        """Return the error for a connection that :meth:`serve` returned."""
        if failed.error.errno in (errno.EMFILE, errno.ENFILE):
            return CollectiveError(
                f"rank {self.rank} has no file descriptor left for a connection ({len(self.connections)} stand): raise "
                "`ulimit -n`"
            )
        if failed.key is None:
            return CollectiveError(f"rank {self.rank} could not take a connection: {failed.error}")
        return PeerLostError(self.explain(failed.key.peer, failed.error.strerror or str(failed.error)))

    def shut_down(self, lanes: Collection[Lane] = CALL_LANES, context: int | None = None) -> None:
        """End connections, so that a thread sleeping on one wakes up; context None stands for all contexts."""
        for key, one in list(self.connections.items()):
            if key.lane in lanes and context in (None, key.context):
                with contextlib.suppress(OSError):  # it had ended already
                    one.conn.shutdown(socket.SHUT_RDWR)

    def close_context(self, context: int) -> None:
        """Close the connections of one context; one that is made later is closed at once."""
        self.ended.add(context)
        for key in [key for key in self.connections if key.context == context]:
            self.connections.pop(key).conn.close()

    def close(self, *, is_forked: bool = False) -> None:
        """Close everything, after a farewell; a forked child says none, because its parent goes on."""
        self._joiner.close(b"" if is_forked else b"".join(self._farewells))
        for one in list(self.connections.values()):
            one.conn.close()

    def _join(self, event: Joined) -> None:
        peer, lane, context = event.key
        if event.key in self.connections or context in self.ended:  # no rank of the group connects twice
            event.connection.conn.close()
            return
        connection = event.connection
        if self._coding is not None and lane in self._coded_lanes:
            connection = replace(connection, conn=CodedSocket.over(connection.conn, self._coding, peer))
        self.connections[event.key] = connection
        one = self.peers.setdefault(peer, Peer())
        one.wanted.add((lane, context))
        one.stand(lane, connection.conn)
        if lane is Lane.CONTROL:
            one.outgoing += b"".join(self._farewells)
            one.refused_s = math.inf
            self._joiner.end_knock(peer)


def _is_served(address: tuple[str, int], wait_s: float) -> bool:
    """Return whether a process takes a connection and keeps it for ``wait_s``."""
    # The kernel closes those of a dead one. A dying process may close its other connections a moment before its
    # listener.
    try:
        probe = socket.create_connection(address, wait_s)
    except OSError:
        return False
    with probe:
        is_own = probe.getsockname() == probe.getpeername()  # the kernel connects a free port with itself
        try:
            return not is_own and len(probe.recv(1)) > 0
        except TimeoutError:
            return True
        except OSError:
            return False


def _saved_octets(conn: socket.socket) -> int:
    return conn.saved_octets if isinstance(conn, CodedSocket) else 0
