"""The watch: a thread per communicator that makes its connections, knows which ranks live, and moves messages.

**Liveness.** The watch begins before the first connection of a communicator. Every rank sends a heartbeat on each of
its control lanes (``links`` says to whom it has one) four times per ``timeout_s``, and reads theirs. So a rank that
computes for minutes between two calls is known to live. Three things end the communicator: a control connection that
ends without a farewell (the process died), silence for ``timeout_s`` (host, link or NIC died, or the process is
stopped), and a farewell that gives a reason (that rank met an error). The first reason counts. Each rank that hears of
it sends it on, so that all of them raise the same error, and not only the neighbours of whoever is gone; then the
connections are shut down, which wakes a thread that sleeps on one. A process that keeps the interpreter lock for
``timeout_s`` without a break (a C extension that never lets go) cannot send heartbeats, and counts as dead.

**Messages.** A header (tag, count) goes on the control lane as soon as a message is posted, the floats on the messages
lane; ``mailbox`` decides where they go. Sends to one peer follow one another in the order in which they were posted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Collection

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.frames import Frame, Kind, farewell, take_frames
from netoffload.transport.joining import Connection, Key, Lane
from netoffload.transport.links import Links
from netoffload.transport.mailbox import Mailbox, Message, Receive, hopeless
from netoffload.transport.peers import Peer, Send
from netoffload.transport.requests import Arrival, Request

BEATS_PER_TIMEOUT = 4
GRACE_S = 1.0
"""How long to wait for the reason why a connection ended, and for a farewell to leave."""
READ_OCTETS = 64 * 1024


class Watch:
    """One rank's watch. All methods are for other threads than its own.

    Args:
        links: this rank's connections; owned from now on.
        timeout_s: silence after which a rank is dead.
    """

    def __init__(self, links: Links, timeout_s: float) -> None:
        """Look at nothing yet."""
        self.failure: CollectiveError | None = None
        """Why the communicator ended, None while it has not."""
        self._rank = rank = links.rank
        self._timeout_s = timeout_s
        self._links = links
        self._mailbox = Mailbox()
        self._lock = threading.Lock()  # of everything that both this thread and callers touch
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"watch-{rank}", daemon=True)

    def start(self) -> None:
        """Begin to watch, and to connect with the neighbours.

        Raises:
            CollectiveError: that did not come about in ``timeout_s``, or a rank is gone.
        """
        if self._links.size == 1:
            return
        with self._changed:
            self._links.want_neighbours()
            self._thread.start()
            self._changed.wait_for(lambda: self.failure is not None or self._links.is_begun(), self._timeout_s)
            if self.failure is not None:
                raise self.failure
            self._links.check_begun()

    def connection(self, peer: int, lane: Lane) -> Connection:
        """Return the connection to ``peer``, and make it if there is none.

        Raises:
            CollectiveError: the communicator ended, or ``peer`` closed it.
        """
        with self._changed:
            links = self._links
            if self._why_not() is None:
                links.want(peer, lane)
                self._wake()
            self._changed.wait_for(
                lambda: self._why_not() is not None or (peer, lane) in links.connections or links.peers[peer].has_left
            )
            if (reason := self._why_not()) is not None:
                raise reason
            if (found := links.connections.get((peer, lane))) is not None:
                return found
        raise PeerLostError(f"rank {peer} closed its communicator while rank {self._rank} waited for it")

    def connections(self, lanes: Collection[Lane] = tuple(Lane)) -> list[tuple[Key, Connection]]:
        """Return those of these lanes that stand."""
        with self._lock:
            return [(key, one) for key, one in self._links.connections.items() if key[1] in lanes]

    def send(self, peer: int, tag: int, data: memoryview) -> Request:
        """Post a message of float32 to ``peer``, this rank included. It cannot be taken back."""
        request = Request()
        with self._lock:
            if self._refused(request):
                return request
            if peer == self._rank:
                own = memoryview(bytearray(data))
                self._mailbox.arrive(Message(peer, tag, len(own), own=own, got=len(own)))
                self._changed.notify_all()
                request.complete()
                return request
            # Announced now, however long those before it take: the receiver may ask for this one first.
            self._links.want(peer, Lane.MESSAGES if data else Lane.CONTROL)
            to = self._links.peers[peer]
            to.outgoing += Frame(Kind.MESSAGE, tag=tag, count=len(data) // FLOAT_OCTETS).to_octets()
            if data:
                to.outbox.append(Send(data, request))
                to.fail_hopeless(peer, self._rank)
            elif to.control is None and not to.has_left:
                to.empty.append(request)
            else:  # no octet of it waits behind those that nobody has asked for
                request.complete()
            self._wake()
        return request

    def receive(self, source: int | None, tag: int | None, into: memoryview) -> Request:
        """Post a receive of float32; None as source or tag matches any.

        It fails when every rank that could satisfy it has closed its communicator.
        """
        request = Request(self._withdraw)
        with self._lock:
            if not self._refused(request):
                self._links.hear_of(source)
                self._mailbox.post(Receive(source, tag, into, request))
                self._fail_hopeless()
            self._wake()
        return request

    def probe(self, source: int | None, tag: int | None, *, wait: bool) -> Arrival | None:
        """Return what a receive would get, without receiving it; None as source or tag matches any.

        Args:
            source: a rank.
            tag: of the message.
            wait: sleep until there is such a message; else None is returned where there is none.

        Raises:
            CollectiveError: the communicator ended, or nothing can come any more.
        """
        with self._changed:
            links = self._links
            while (reason := self._why_not()) is None:
                known = len(links.peers)
                links.hear_of(source)
                if (found := self._mailbox.first(source, tag)) is not None:
                    return found
                all_left = source is None and links.all_left()
                if len(links.peers) > known:  # which no thread of ours waits for yet
                    self._wake()
                if (reason := hopeless(source, self._rank, links.left(), all_left)) is not None:
                    break
                if not wait:
                    break
                self._changed.wait()
        if reason is not None:
            raise reason
        time.sleep(0)  # whoever asks again and again holds lock and interpreter, and the watch could hear nothing
        return None

    def is_current_thread(self) -> bool:
        """Return whether the caller runs in the watch's thread."""
        return threading.current_thread() is self._thread

    def sent_octets(self, peer: int) -> int:
        """Return the octets of messages sent to ``peer``."""
        with self._lock:
            return self._links.peers[peer].sent_octets

    def explain(self, peer: int, said: str) -> CollectiveError:
        """Return why the connection to ``peer`` ended, the kernel having ``said`` so; wait a moment for the reason."""
        return self.ending(peer) or PeerLostError(f"rank {peer} is gone: {said}")

    def ending(self, peer: int) -> CollectiveError | None:
        """Return why the exchange ended or ``peer`` left, waiting a moment for the reason; None if neither did."""
        with self._changed:
            left = self._links.peers[peer]
            self._changed.wait_for(lambda: self.failure is not None or left.has_left or self._stopping, GRACE_S)
            if self.failure is not None:
                return self.failure
            if left.has_left:
                return PeerLostError(f"rank {peer} closed its communicator while rank {self._rank} waited for it")
            if self._stopping:  # by another thread
                return PeerLostError(f"rank {self._rank} closed its communicator")
        return None

    def verdict(self) -> CollectiveError | None:
        """Return ``failure``, waiting a moment if there is none yet: a silence may be about to be called one."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, GRACE_S)
            return self.failure

    def give_up(self, error: BaseException) -> None:
        """Tell all ranks that this one ends because of ``error``, unless it ends because of another one already."""
        with self._lock:
            if self.failure is None:
                frame = farewell(self._rank, error)
                self.failure = PeerLostError(frame.text) if frame.kind is Kind.LOST else CollectiveError(frame.text)
                self._links.announce(frame)
                self._changed.notify_all()

    def stop(self) -> None:
        """Say farewell, unless that was done, and end the thread; then the sockets may be closed."""
        with self._lock:
            if self.failure is None:
                self._links.announce(Frame(Kind.CLOSED))
                self._end_requests(PeerLostError(f"rank {self._rank} closed its communicator"))
            else:
                self._end_requests(self.failure)
            self._stopping = True
            self._changed.notify_all()
            self._wake()
        if self._thread.is_alive():
            self._thread.join(2 * GRACE_S)
        if not self._thread.is_alive():
            with self._lock:
                wake_fd, self._wake_fd = self._wake_fd, -1
            if wake_fd >= 0:
                os.close(wake_fd)

    def shut_down(self) -> None:
        """End the connections, so that a thread that sleeps on one wakes up; after :meth:`stop`."""
        self._links.shut_down(tuple(Lane))

    def close(self, *, is_forked: bool = False) -> None:
        """Close the connections; after :meth:`stop`, or in a forked child, where a lock may be held by no thread."""
        self._links.close(is_forked=is_forked)

    # What follows runs in the watch's thread, or under the lock.

    def _run(self) -> None:
        beat_s = self._timeout_s / BEATS_PER_TIMEOUT
        next_beat_s, deadline_s = time.monotonic(), float("inf")
        while True:
            poller, peers_of, wake_s = self._poller()
            sleep_s = max(0.0, min(next_beat_s, deadline_s, wake_s) - time.monotonic())
            ready = {fd for fd, _ in poller.poll(sleep_s * 1000)}
            with self._changed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._serve([peers_of[fd] for fd in ready if fd in peers_of])
                self._connect(ready)
                now_s = time.monotonic()
                is_over = self.failure is not None or self._stopping
                if not is_over and (lost := self._links.silence(now_s, self._timeout_s)) is not None:
                    self._fail(lost)
                if now_s >= next_beat_s:
                    next_beat_s = now_s + beat_s
                    if not is_over:
                        self._links.announce(Frame(Kind.BEAT))
                self._flush()
                if self._stopping:
                    deadline_s = min(deadline_s, now_s + GRACE_S)
                    if now_s >= deadline_s or not any(peer.outgoing for peer in self._links.peers.values()):
                        return

    def _poller(self) -> tuple[select.poll, dict[int, int], float]:
        """Return what to wait for, whose the descriptors are, and for how long, apart from heartbeats."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        with self._lock:
            is_over = self.failure is not None or self._stopping
            peers_of = self._links.register(poller, None if is_over else self._mailbox, is_stopping=self._stopping)
            silent_s = float("inf") if is_over else self._links.heard_s() + self._timeout_s
            return poller, peers_of, min(self._links.deadline_s(), silent_s)

    def _serve(self, ready: list[int]) -> None:
        peers = self._links.peers
        for rank in dict.fromkeys(ready):
            try:
                self._hear(rank, peers[rank])
                if self.failure is None:
                    peers[rank].read_message(rank, self._mailbox)
            except CollectiveError as error:
                self._fail(error)
        if self.failure is None:
            for rank, peer in list(peers.items()):
                try:
                    peer.write_messages()
                except OSError as error:
                    self._fail(PeerLostError(f"rank {rank} is gone: {error.strerror or error}"))

    def _connect(self, ready: set[int]) -> None:
        """Go on with connections that are being made."""
        links, stood = self._links, len(self._links.connections)
        for failed in links.serve(ready):
            if not self._stopping:
                self._fail(links.error_of(failed))
        if newly_left := links.have_newly_left(time.monotonic()):
            self._fail_hopeless()
        if newly_left or len(links.connections) > stood:
            self._changed.notify_all()

    def _hear(self, rank: int, peer: Peer) -> None:
        """Read the control lane of ``peer``."""
        if peer.has_left or peer.control is None:
            return
        try:
            octets = peer.control.recv(READ_OCTETS, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            peer.has_left = True
            raise PeerLostError(f"rank {rank} died: {error.strerror or error}") from error
        peer.heard_s = time.monotonic()
        peer.incoming += octets
        for frame in take_frames(peer.incoming):
            if frame.kind is Kind.MESSAGE:
                self._mailbox.arrive(Message(rank, frame.tag, frame.count * FLOAT_OCTETS))
                self._changed.notify_all()
            elif frame.kind is Kind.CONNECT:
                self._links.want(rank, Lane(frame.tag))
            elif frame.kind is not Kind.BEAT:
                peer.has_left = True
                self._changed.notify_all()
                if frame.kind is not Kind.CLOSED:
                    raise (PeerLostError if frame.kind is Kind.LOST else CollectiveError)(frame.text)
                self._fail_hopeless()
        if not octets and not peer.has_left:
            peer.has_left = True
            raise PeerLostError(f"rank {rank} died: its connections closed without a farewell")

    def _fail_hopeless(self) -> None:
        if not (left := self._links.left()):
            return
        for rank in left:
            self._links.peers[rank].fail_hopeless(rank, self._rank)
        if self._mailbox.posted:
            self._mailbox.fail_hopeless(self._rank, left, self._mailbox.waits_for_any() and self._links.all_left())

    def _fail(self, error: CollectiveError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._links.announce(farewell(self._rank, error))
        self._flush()
        self._end_requests(error)
        self._changed.notify_all()
        self._links.shut_down()

    def _end_requests(self, error: CollectiveError) -> None:
        self._mailbox.fail(error)
        for peer in self._links.peers.values():
            peer.fail(error)

    def _flush(self) -> None:
        for rank, peer in list(self._links.peers.items()):
            if not peer.outgoing or peer.control is None:
                if peer.has_left:
                    peer.outgoing.clear()
                continue
            try:
                del peer.outgoing[: peer.control.send(peer.outgoing, socket.MSG_DONTWAIT)]
            except BlockingIOError:
                continue
            except OSError as error:
                peer.outgoing.clear()
                if not (peer.has_left or self._stopping):
                    # Read first: a farewell may lie there, and is the better explanation.
                    try:
                        self._hear(rank, peer)
                    except CollectiveError as reason:
                        self._fail(reason)
                    else:
                        if not peer.has_left:
                            self._fail(PeerLostError(f"rank {rank} died: {error.strerror or error}"))

    def _refused(self, request: Request) -> bool:
        reason = self._why_not()
        if reason is not None:
            request.fail(reason)
        return reason is not None

    def _why_not(self) -> CollectiveError | None:
        if self.failure is None and self._stopping:
            return PeerLostError(f"rank {self._rank} has closed its connections, by request or after an error")
        return self.failure

    def _withdraw(self, request: Request) -> bool:
        with self._lock:
            return self._mailbox.withdraw(request)

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)
