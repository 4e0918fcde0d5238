"""The watch: a thread that makes a group's connections, knows which of its ranks live, and moves messages.

**Liveness.** The watch begins before the first connection of a group of ranks. Every rank sends a heartbeat on each of
its control lanes (``links`` says to which ranks) four times per ``timeout_s``, and reads theirs. So the others know
that a rank lives, though it computes for minutes between two calls. Two things end all contexts of the group: a control
connection that ends without a farewell (the process died), and silence for ``timeout_s`` (host, link or NIC died, or
the process is stopped). A frame that no rank of this version sends, and any exception in this thread, end them too. A
farewell that gives a reason ends the context that it names. The first reason counts. Each
rank that hears of it sends it on. So all ranks raise the same error, not only the neighbours of the lost rank. Then the
rank shuts its connections down, which wakes a thread that sleeps on one. A process that keeps the interpreter lock for
``timeout_s`` without a break (in a C extension that never releases it) cannot send heartbeats, and counts as lost.

**Messages.** The header of a message (context, tag, count) goes on the control lane as soon as the message is posted.
Its floats go on the messages lane; ``mailbox`` decides which receive gets them. Messages to one peer go in the order in
which they were posted.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, MalformedError
from netoffload.transport.contexts import GRACE_S, Context
from netoffload.transport.frames import Frame, Kind, farewell, reason_of, take_frames
from netoffload.transport.lanes import EVERY, Lane
from netoffload.transport.links import Links
from netoffload.transport.mailbox import Mailbox, Message
from netoffload.transport.peers import Peer

FIRST_CONTEXT = 1
"""The context number of the communicator that starts the watch."""

BEATS_PER_TIMEOUT = 4
CHANGE_S = 0.2
"""How long :meth:`Watch.is_free` waits for the lock. No other thread holds it so long, so the caller itself must."""

READ_OCTETS = 64 * 1024

AHEAD_MAX = 64
"""Most contexts that peers name before this rank enters them. Its set-ups meet, so a peer is hardly ahead by one."""

MESSAGES_MAX = 2**20
"""Most messages that were announced and not received; their headers take memory."""


class Watch:
    """One rank's watch, alive as long as it has contexts. Callers' threads use the public methods, its own does not.

    Args:
        links: this rank's connections; :meth:`release` closes them.
        timeout_s: silence after which a rank is lost.
    """

    def __init__(self, links: Links, timeout_s: float) -> None:
        """Watch nothing yet."""
        self.failure: CollectiveError | None = None
        """Why all contexts ended; None while they have not."""
        self.rank = links.rank
        self.links = links
        self.mailbox = Mailbox()
        self.lock = threading.Lock()
        """Guards everything that both this thread and callers touch."""
        self.changed = threading.Condition(self.lock)
        self.thread = threading.Thread(target=self._run, name=f"watch-{links.rank}", daemon=True)
        self._timeout_s = timeout_s
        self._contexts: dict[int, Context] = {}
        self._ahead: set[int] = set()
        """Contexts that a peer named, and this rank has not entered."""
        self._holders = 0
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def start(self) -> None:
        """Begin to watch, and to connect with the neighbours.

        Raises:
            CollectiveError: the neighbours were not connected within ``timeout_s``, or a rank is lost.
        """
        with self.changed:
            if self.links.size == 1 or self.thread.ident is not None:
                return
            self.links.want_neighbours()
            self.thread.start()
            self.changed.wait_for(lambda: self._reason() is not None or self.links.is_begun(), self._timeout_s)
            if (reason := self._reason()) is not None:
                raise reason
            self.links.check_begun()

    def attach(self, number: int) -> Context:
        """Return a context, made here or when a peer's frame named it; it holds the watch until it is closed."""
        with self.lock:
            self._holders += 1
            self._ahead.discard(number)
            return self._context(number)

    @property
    def is_alive(self) -> bool:
        """Whether a context, or a caller of :meth:`hold`, holds the watch."""
        return self._holders > 0

    def is_free(self) -> bool:
        """Return whether the calling thread does not hold the lock; other threads soon release it."""
        is_free = self.lock.acquire(timeout=CHANGE_S)
        if is_free:
            self.lock.release()
        return is_free

    def hold(self) -> bool:
        """Keep the watch alive until :meth:`release`; return False if it has ended, or is about to."""
        with self.lock:
            is_usable = self._holders > 0 and self.failure is None
            self._holders += is_usable
            return is_usable

    def release(self) -> None:
        """End a :meth:`hold` or a context; the last one says farewell and closes everything."""
        with self.lock:
            self._holders -= 1
            if self._holders > 0:
                return
            self.links.announce(Frame(Kind.CLOSED))
            self._stopping = True
            self.wake()
        if self.thread.is_alive():
            self.thread.join(2 * GRACE_S)
        if not self.thread.is_alive():
            with self.lock:
                wake_fd, self._wake_fd = self._wake_fd, -1
            if wake_fd >= 0:
                os.close(wake_fd)
        self.links.shut_down(tuple(Lane))
        self.links.close()

    def wake(self) -> None:
        """Wake the watch's thread, so that it looks at new work."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def forget(self, context: Context) -> None:
        """Remove a context that is closed; under the lock."""
        self._contexts.pop(context.number, None)
        self._ahead.discard(context.number)
        self.links.close_context(context.number)

    # What follows runs in the watch's thread, or under the lock.

    def _run(self) -> None:
        for _ in range(2):  # after an exception it goes on, to tell the other ranks; a second one ends it
            try:
                self._watch()
            except BaseException as error:  # else it would die in silence, and its callers would wait for ever
                with self.changed:
                    self._break(error)
            else:
                return

    def _break(self, error: BaseException) -> None:
        """End all contexts, because this thread raised something that nobody expects."""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        try:
            self._fail(CollectiveError(f"rank {self.rank} gave up: the watch of its connections failed: {reason}"))
        except BaseException:  # the first exception is the reason, and what it broke may raise again
            self.links.shut_down(tuple(Lane))
        self.changed.notify_all()

    def _watch(self) -> None:
        beat_s = self._timeout_s / BEATS_PER_TIMEOUT
        next_beat_s, deadline_s = time.monotonic(), float("inf")
        while True:
            poller, peers_of, wake_s = self._poller()
            sleep_s = max(0.0, min(next_beat_s, deadline_s, wake_s) - time.monotonic())
            ready = {fd for fd, _ in poller.poll(sleep_s * 1000)}
            with self.changed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._serve([peers_of[fd] for fd in ready if fd in peers_of])
                self._connect(ready)
                now_s = time.monotonic()
                is_over = self.failure is not None or self._stopping
                if not is_over and (lost := self.links.silence(now_s, self._timeout_s)) is not None:
                    self._fail(lost)
                if now_s >= next_beat_s:
                    next_beat_s = now_s + beat_s
                    if not is_over:
                        self.links.announce(Frame(Kind.BEAT))
                self._flush()
                if self._stopping:
                    deadline_s = min(deadline_s, now_s + GRACE_S)
                    if now_s >= deadline_s or not any(peer.outgoing for peer in self.links.peers.values()):
                        return

    def _poller(self) -> tuple[select.poll, dict[int, int], float]:
        """Return a poller, the rank of each descriptor, and when to wake up (apart from heartbeats)."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        with self.lock:
            is_over = self.failure is not None or self._stopping
            peers_of = self.links.register(poller, None if is_over else self.mailbox, is_stopping=self._stopping)
            silent_s = float("inf") if is_over else self.links.heard_s() + self._timeout_s
            return poller, peers_of, min(self.links.deadline_s(), silent_s)

    def _serve(self, ready: list[int]) -> None:
        peers = self.links.peers
        for rank in dict.fromkeys(ready):
            try:
                self._hear(rank, peers[rank])
                if self.failure is None:
                    peers[rank].read_message(rank, self.mailbox)
            except CollectiveError as error:
                self._fail(error)
        if self.failure is None:
            for rank, peer in list(peers.items()):
                try:
                    peer.write_messages()
                except OSError as error:
                    self._fail(self.links.lost(rank, error.strerror or str(error)))

    def _connect(self, ready: set[int]) -> None:
        """Go on with connections that are being made."""
        links, stood, is_making = self.links, len(self.links.connections), self.links.is_making()
        for failed in links.serve(ready):
            if not self._stopping:
                self._fail(links.error_of(failed))
        newly_left = links.have_newly_left(time.monotonic())
        if newly_left or is_making:
            self._fail_hopeless()
        if newly_left or len(links.connections) > stood:
            self.changed.notify_all()

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
            raise self.links.lost(rank, error.strerror or str(error)) from error
        peer.heard_s = time.monotonic()
        peer.incoming += octets
        try:
            for frame in take_frames(peer.incoming):
                self._check_context(frame.context)
                self._obey(rank, peer, frame)
        except MalformedError as error:
            peer.incoming.clear()
            raise MalformedError(f"rank {rank} {error}") from error
        if not octets and not peer.has_left:
            peer.has_left = True
            raise self.links.lost(rank, "its connections closed without a farewell")

    def _obey(self, rank: int, peer: Peer, frame: Frame) -> None:
        """Do what a frame asks for."""
        if frame.kind is Kind.MESSAGE:
            octets = frame.count * FLOAT_OCTETS
            self._announced(Message(rank, frame.tag, octets, context=frame.context, words=frame.text))
        elif frame.kind is Kind.CONNECT:
            if rank > self.rank:
                raise MalformedError("asked a lower rank to connect: install the same version everywhere")
            if frame.context not in self.links.ended:
                self.links.want(rank, Lane(frame.tag), frame.context)
        elif frame.kind is not Kind.BEAT:
            self._farewell(peer, frame)

    def _check_context(self, number: int) -> None:
        """Refuse a context that is too far ahead of this rank."""
        if number == EVERY or number in self._contexts or number in self.links.ended:
            return
        if len(self._ahead) >= AHEAD_MAX:
            raise MalformedError(f"named {AHEAD_MAX} communicators that this rank does not know")
        self._ahead.add(number)
        self._context(number)

    def _announced(self, message: Message) -> None:
        if self.mailbox.waiting(message.source) >= MESSAGES_MAX:
            raise MalformedError(f"announced {MESSAGES_MAX} messages that this rank has not received")
        if message.context in self.links.ended or self._context(message.context).failure is not None:
            self.mailbox.drop(message)
        else:
            self.mailbox.arrive(message)
        self.changed.notify_all()

    def _farewell(self, peer: Peer, frame: Frame) -> None:
        self.changed.notify_all()
        if frame.context != EVERY:
            peer.left.add(frame.context)
            if frame.context not in self.links.ended:
                self._context(frame.context).hear_farewell(frame)
            return
        peer.has_left = True
        if frame.kind is not Kind.CLOSED:
            raise reason_of(frame)
        self._fail_hopeless()

    def _reason(self) -> CollectiveError | None:
        """Return why all contexts ended, or one of them."""
        return next((one.failure for one in self._contexts.values() if one.failure is not None), self.failure)

    def _context(self, number: int) -> Context:
        if (found := self._contexts.get(number)) is None:
            found = self._contexts[number] = Context(self, number)
        return found

    def _fail_hopeless(self) -> None:
        for context in list(self._contexts.values()):
            context.fail_hopeless()

    def _fail(self, error: CollectiveError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self.links.announce(farewell(self.rank, error))
        self._flush()
        for context in self._contexts.values():
            context.failure = context.failure or error
        self.mailbox.fail(error)
        for peer in self.links.peers.values():
            peer.fail(error)
        self.changed.notify_all()
        self.links.shut_down()

    def _flush(self) -> None:
        for rank, peer in list(self.links.peers.items()):
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
                    # Read first: a farewell may have come, and its reason explains more than this error.
                    try:
                        self._hear(rank, peer)
                    except CollectiveError as reason:
                        self._fail(reason)
                    else:
                        if not peer.has_left:
                            self._fail(self.links.lost(rank, error.strerror or str(error)))
