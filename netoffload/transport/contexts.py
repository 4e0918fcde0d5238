"""Contexts: how communicators of the same ranks stay apart on connections that they share.

A communicator is a context: a number that all its ranks know (``sharing``). Each context has its own connections for
collectives, because calls of two communicators may be under way at the same time. Contexts share control lanes,
messages lanes, listeners and the watch's thread. A receive takes only messages of its own context. A context ends when
its communicator is closed or gives up because of an error; the other contexts go on. A lost rank ends all contexts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, PeerLostError, UsageError
from netoffload.transport.frames import Frame, Kind, farewell, reason_of
from netoffload.transport.lanes import CALL_LANES, EVERY, Key, Lane
from netoffload.transport.listening import Connection
from netoffload.transport.mailbox import Message, Receive, hopeless
from netoffload.transport.peers import Send
from netoffload.transport.requests import Arrival, Request

if TYPE_CHECKING:  # a watch has contexts
    from netoffload.transport.watch import Watch

GRACE_S = 1.0
"""How long to wait for the reason why a connection ended, and for a farewell to leave."""


class Context:
    """One communicator's part of a watch. Callers' threads use the public methods, the watch's own does not.

    Args:
        watch: the watch, which has the connections.
        number: the number of this context; not ``EVERY``.
    """

    def __init__(self, watch: Watch, number: int) -> None:
        """Wait for nothing yet; made under the watch's lock."""
        self.number = number
        self.failure: CollectiveError | None = watch.failure
        """Why the context ended; None while it has not."""
        self.shared = watch
        """The watch, which contexts of the same ranks share."""
        self._rank = watch.rank
        self._lock, self._changed = watch.lock, watch.changed
        self._links, self._mailbox = watch.links, watch.mailbox
        self._is_closed = False
        self._owner = os.getpid()

    def refuse_in_fork(self) -> None:
        """Raise UsageError in a child of the process that connected: the connections are its parent's."""
        if os.getpid() != self._owner:
            raise UsageError(
                f"process {os.getpid()} is a fork of the process that connected, and its parent uses the connections: "
                "let it set up a communicator of its own"
            )

    def connection(self, peer: int, lane: Lane) -> Connection:
        """Return the connection to ``peer``, and make it if there is none.

        Raises:
            CollectiveError: the context ended, or ``peer`` closed it.
        """
        key = Key.of(peer, lane, self.number)
        with self._changed:
            links = self._links
            if self._why_not() is None:
                links.want(*key)
                self.shared.wake()
            self._changed.wait_for(
                lambda: (
                    self._why_not() is not None or key in links.connections or links.peers[peer].is_gone(self.number)
                )
            )
            if (reason := self._why_not()) is not None:
                raise reason
            if (found := links.connections.get(key)) is not None:
                return found
        raise self._has_left(peer)

    def connections(self, lanes: Collection[Lane] = tuple(Lane)) -> list[tuple[tuple[int, Lane], Connection]]:
        """Return this context's connections on these lanes, by peer and lane; shared ones included."""
        with self._lock:
            return [
                ((key.peer, key.lane), one)
                for key, one in self._links.connections.items()
                if key.lane in lanes and key.context in (EVERY, self.number)
            ]

    def send(self, peer: int, tag: int, data: memoryview, words: str = "") -> Request:
        """Post a message of float32 to ``peer``, which may be this rank. It cannot be cancelled.

        Args:
            peer: the receiver.
            tag: the message's tag.
            data: its octets.
            words: what it is, for the receiver.
        """
        self.refuse_in_fork()
        request = Request()
        with self._lock:
            if self._refused(request):
                return request
            if peer == self._rank:
                own = bytearray(data)
                self._mailbox.arrive(
                    Message(peer, tag, len(own), own=own, got=len(own), context=self.number, words=words)
                )
                self._changed.notify_all()
                request.complete()
                return request
            self._links.want(peer, Lane.MESSAGES if data else Lane.CONTROL)
            to = self._links.peers[peer]
            if to.is_gone(self.number):
                request.fail(
                    PeerLostError(f"rank {peer} closed its communicator before rank {self._rank} could send to it")
                )
                return request
            # Announced at once, though messages before it have yet to leave: the receiver may ask for this one first.
            frame = Frame(Kind.MESSAGE, words, tag, count=len(data) // FLOAT_OCTETS, context=self.number)
            to.outgoing += frame.to_octets()
            if data:
                to.outbox.append(Send(data, request, self.number))
            elif to.control is None:
                to.empty.append(Send(data, request, self.number))
            else:  # complete: its header is queued, and it has no floats that could wait in the stream
                request.complete()
            self.shared.wake()
        return request

    def receive(self, source: int | None, tag: int | None, into: memoryview) -> Request:
        """Post a receive of float32; None as source or tag matches any.

        It fails when every rank that could satisfy it has closed its communicator.
        """
        self.refuse_in_fork()
        request = Request(self._withdraw)
        with self._lock:
            if not self._refused(request):
                self._links.hear_of(source)
                self._mailbox.post(Receive(source, tag, into, request, self.number))
                self.fail_hopeless()
            self.shared.wake()
        return request

    def probe(self, source: int | None, tag: int | None, *, wait: bool) -> Arrival | None:
        """Return what a receive would get, without receiving it; None as source or tag matches any.

        Args:
            source: the sender.
            tag: the message's tag.
            wait: sleep until there is such a message; else return None if there is none.

        Raises:
            CollectiveError: the context ended, or no such message can come.
        """
        self.refuse_in_fork()
        with self._changed:
            links = self._links
            while (reason := self._why_not()) is None:
                known = len(links.peers)
                links.hear_of(source)
                if (found := self._mailbox.first(source, tag, self.number)) is not None:
                    return found
                all_left = source is None and links.all_left(self.number)
                if len(links.peers) > known:  # the watch's thread does not wait for the new ones yet
                    self.shared.wake()
                if (reason := hopeless(source, self._rank, links.left(self.number), all_left)) is not None:
                    break
                if not wait:
                    break
                self._changed.wait()
        if reason is not None:
            raise reason
        time.sleep(0)  # lets the watch's thread run: a caller that probes in a loop would hold both locks
        return None

    def is_current_thread(self) -> bool:
        """Return whether the caller runs in the watch's thread."""
        return threading.current_thread() is self.shared.thread

    def is_free(self) -> bool:
        """Return whether the calling thread does not hold the watch's lock."""
        return self.shared.is_free()

    def sent_octets(self, peer: int) -> int:
        """Return the octets of messages sent to ``peer``, by all contexts that share the connection."""
        with self._lock:
            return self._links.peers[peer].sent_octets

    def left(self) -> set[int]:
        """Return the ranks known to have closed this context."""
        with self._lock:
            return self._links.left(self.number)

    def explain(self, peer: int, said: str) -> CollectiveError:
        """Return why the connection to ``peer`` ended; wait a moment for the reason, else take what the kernel said."""
        return self.ending(peer) or PeerLostError(f"rank {peer} is gone: {said}")

    def ending(self, peer: int) -> CollectiveError | None:
        """Return why the context ended or ``peer`` left it; None if neither happens within a moment."""
        with self._changed:
            other = self._links.peers[peer]
            self._wait_until(lambda: self.failure is not None or other.is_gone(self.number) or self._is_closed)
            if self.failure is not None:
                return self.failure
            if other.is_gone(self.number):
                return self._has_left(peer)
            if self._is_closed:  # by another thread
                return PeerLostError(f"rank {self._rank} closed its communicator")
        return None

    def verdict(self) -> CollectiveError | None:
        """Return ``failure``; wait a moment if there is none: the watch may be about to find a silent rank lost."""
        with self._changed:
            self._wait_until(lambda: self.failure is not None)
            return self.failure

    def give_up(self, error: BaseException) -> None:
        """Tell all ranks that this one ends the context because of ``error``; do nothing if it has ended already."""
        with self._lock:
            if self.failure is None:
                frame = farewell(self._rank, error, self.number)
                self.failure = reason_of(frame)
                self._links.announce(frame)
                self._changed.notify_all()

    def stop(self) -> None:
        """Say farewell, unless the context has failed, and end all requests; then the context may be closed."""
        with self._lock:
            if self.failure is None:
                self._links.announce(Frame(Kind.CLOSED, context=self.number))
            self.end_requests(self.failure or PeerLostError(f"rank {self._rank} closed its communicator"))
            self._is_closed = True
            self._changed.notify_all()
            self.shared.wake()

    def shut_down(self) -> None:
        """End the connections of this context, so that a thread that sleeps on one wakes up; after :meth:`stop`."""
        with self._lock:
            self._links.shut_down(CALL_LANES, self.number)

    def close(self, *, is_forked: bool = False) -> None:
        """Close the connections of this context, and the shared ones if no other context uses them.

        Called after :meth:`stop`, or in a forked child. A child closes all, without the lock: its copy may stay locked.
        """
        if is_forked:
            self._links.close(is_forked=True)
            return
        with self._lock:
            self.shared.forget(self)
        self.shared.release()

    # What follows is called under the lock.

    def hear_farewell(self, frame: Frame) -> None:
        """Take note that a peer has left this context, perhaps with a reason to end it."""
        if frame.kind is Kind.CLOSED:
            self.fail_hopeless()
        elif self.failure is None:
            self.failure = reason_of(frame)
            self._links.announce(farewell(self._rank, self.failure, self.number))
            self.end_requests(self.failure)
            self._links.shut_down(CALL_LANES, self.number)

    def end_requests(self, error: CollectiveError) -> None:
        """Fail the sends and receives of this context."""
        self._mailbox.end_context(self.number, error)
        for peer in self._links.peers.values():
            peer.end_context(self.number, error)

    def fail_hopeless(self) -> None:
        """Fail the sends and receives that only ranks which have left could complete."""
        if not (left := self._links.left(self.number)):
            return
        for rank in left:
            self._links.peers[rank].fail_hopeless(rank, self._rank)
        for rank in self._links.silent():
            self._mailbox.fail_stream(rank, PeerLostError(f"rank {rank} closed its communicator before a message left"))
        if self._mailbox.posted:
            all_left = self._mailbox.waits_for_any(self.number) and self._links.all_left(self.number)
            self._mailbox.fail_hopeless(self.number, self._rank, left, all_left)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(condition, GRACE_S)

    def _has_left(self, peer: int) -> PeerLostError:
        return PeerLostError(f"rank {peer} closed its communicator while rank {self._rank} waited for it")

    def _refused(self, request: Request) -> bool:
        reason = self._why_not()
        if reason is not None:
            request.fail(reason)
        return reason is not None

    def _why_not(self) -> CollectiveError | None:
        if self.failure is None and self._is_closed:
            return PeerLostError(f"rank {self._rank} has closed its connections, by request or after an error")
        return self.failure

    def _withdraw(self, request: Request) -> bool:
        with self._lock:
            return self._mailbox.withdraw(request)
