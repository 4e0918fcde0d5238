"""The watch: a thread that makes a group's connections, knows which of its ranks live, and moves messages.

**Contexts.** A communicator is a context: a number that all its ranks know (``plane``). Each context has its own
connections for collectives; control lanes, messages lanes, listeners and this thread are shared. A receive takes only
messages of its own context.

**Liveness.** Every rank sends a heartbeat on each of its control lanes (``links`` says to which ranks) four times per
``timeout_s``, and reads theirs. So the others know that a rank lives, though it computes for minutes between two calls.
What ends all contexts: a control connection that ends without a farewell (the process died), silence for ``timeout_s``
(host, link or NIC died, or the process is stopped), a frame that no rank of this version sends, any exception in this
thread. A farewell with a reason ends the context that it names. The first reason counts, and each rank that hears of it
sends it on: all ranks raise the same error. Then the rank shuts its connections down, which wakes a thread that sleeps
on one. A process that keeps the interpreter lock for ``timeout_s`` cannot send heartbeats, and counts as lost.

**Messages.** A message's header (context, tag, count) goes on the control lane as soon as it is posted, its floats on
the messages lane; ``mailbox`` decides which receive gets them. Messages to one peer go in the order of posting.
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
from netoffload.errors import CollectiveError, MalformedError, PeerLostError, UsageError
from netoffload.transport.messages.frames import Frame, Kind, farewell, reason_of, take_frames
from netoffload.transport.messages.links import Links, Peer, Send
from netoffload.transport.messages.mailbox import Mailbox, Message, Receive, hopeless
from netoffload.transport.messages.requests import Arrival, Request
from netoffload.transport.wiring.lanes import CALL_LANES, EVERY, Connection, Key, Lane

FIRST_CONTEXT = 1  # the context number of the communicator that starts the watch

BEATS_PER_TIMEOUT = 4
CHANGE_S = 0.2  # how long `is_free` waits for the lock. No other thread holds it so long, so the caller itself must

READ_OCTETS = 64 * 1024

AHEAD_MAX = 64
"""Most contexts that peers name before this rank enters them. Its set-ups meet, so a peer is hardly ahead by one."""

MESSAGES_MAX = 2**20  # most messages that were announced and not received; their headers take memory

NO_FAREWELL = "its connections closed without a farewell"

GRACE_S = 1.0  # how long to wait for the reason why a connection ended, and for a farewell to leave

_forks = 0  # how often this process is a fork of a fork; takes a tenth of os.getpid()


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def fork_count() -> int:
    """Return how often this process is a fork of a fork: 0 in the first one that imports this."""
    return _forks


class Watch:
    """One rank's watch, alive as long as it has contexts. Callers' threads use the public methods, its own does not."""

    def __init__(self, links: Links, timeout_s: float) -> None:
        self.failure: CollectiveError | None = None  # why all contexts ended; None while they have not
        self.rank = links.rank
        self.links = links
        self.mailbox = Mailbox()
        self.lock = threading.Lock()  # guards everything that both this thread and callers touch
        self.changed = threading.Condition(self.lock)
        self.thread = threading.Thread(target=self._run, name=f"watch-{links.rank}", daemon=True)
        self._timeout_s = timeout_s
        self._contexts: dict[int, Context] = {}
        self._ahead: set[int] = set()  # contexts that a peer named, and this rank has not entered
        self._holders = 0
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def start(self) -> None:
        """Begin to watch, and to connect with the neighbours; raise if they are not connected within ``timeout_s``."""
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
                self._check_silence()  # before connections: one to a silent rank is late too, and silence says why
                self._connect(ready)
                now_s = time.monotonic()
                if now_s >= next_beat_s:
                    next_beat_s = now_s + beat_s
                    if not self._is_over():
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
            is_over = self._is_over()
            peers_of = self.links.register(poller, None if is_over else self.mailbox, is_stopping=self._stopping)
            silent_s = float("inf") if is_over else self.links.heard_s() + self._timeout_s
            return poller, peers_of, min(self.links.deadline_s(), silent_s)

    def _is_over(self) -> bool:
        return self.failure is not None or self._stopping

    def _check_silence(self) -> None:
        if self._is_over() or self.links.silence(time.monotonic(), self._timeout_s) is None:
            return
        self._serve(list(self.links.peers))  # heartbeats may wait, if this thread got neither core nor lock
        if self.failure is None and (lost := self.links.silence(time.monotonic(), self._timeout_s)) is not None:
            self._fail(lost)

    def _serve(self, ready: list[int]) -> None:
        peers = self.links.peers
        for rank in dict.fromkeys(ready):
            try:
                self._read_control(rank, peers[rank])
                if self.failure is None:
                    peers[rank].read_message(rank, self.mailbox)
            except CollectiveError as error:
                self._fail(error)
            except OSError as error:
                self._explain(rank, peers[rank], error)
                peers[rank].messages = None
                self._fail_hopeless()
        if self.failure is None:
            for rank, peer in list(peers.items()):
                try:
                    peer.write_messages()
                except OSError as error:  # if it has closed, what it sent may still be read
                    self._explain(rank, peer, error)
                    peer.fail_sends(rank, self.rank)

    def _explain(self, rank: int, peer: Peer, error: OSError) -> None:
        """Fail because a connection to ``peer`` broke, unless it has said farewell or does so in a moment."""
        if peer.has_left or self._stopping:
            return
        # Read first: a farewell may have come, and its reason explains more than this error. A heartbeat may be before.
        until_s = time.monotonic() + self.links.probe_s
        try:
            while peer.is_watched and (wait_s := until_s - time.monotonic()) > 0:
                self._read_control(rank, peer, wait_s)
        except CollectiveError as reason:
            self._fail(reason)
        else:
            if not peer.has_left:
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

    def _read_control(self, rank: int, peer: Peer, wait_s: float = 0.0) -> None:
        """Read the control lane of ``peer``; wait for something to read."""
        if peer.has_left or peer.control is None:
            return
        if wait_s > 0:
            poller = select.poll()  # not select(2), which knows descriptors below 1024 only
            poller.register(peer.control, select.POLLIN)
            poller.poll(wait_s * 1000)
        try:
            octets = peer.control.recv(READ_OCTETS, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            peer.has_left = True
            # The kernel resets a connection whose process died before it had read all.
            is_closed = isinstance(error, ConnectionResetError)
            raise self.links.lost(rank, NO_FAREWELL if is_closed else error.strerror or str(error)) from error
        peer.heard_s = time.monotonic()
        peer.incoming += octets
        try:
            for frame in take_frames(peer.incoming):
                self._check_context(frame.context)
                self._handle(rank, peer, frame)
        except MalformedError as error:
            peer.incoming.clear()
            raise MalformedError(f"rank {rank} {error}") from error
        if not octets and not peer.has_left:
            peer.has_left = True
            raise self.links.lost(rank, NO_FAREWELL)

    def _handle(self, rank: int, peer: Peer, frame: Frame) -> None:
        if frame.kind is Kind.MESSAGE:
            octets = frame.count * FLOAT_OCTETS
            self._on_announcement(Message(rank, frame.tag, octets, context=frame.context, words=frame.text))
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

    def _on_announcement(self, message: Message) -> None:
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
                self._context(frame.context).on_farewell(frame)
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
                self._explain(rank, peer, error)


class Context:
    """One communicator's part of a watch. Callers' threads use the public methods, the watch's own does not."""

    def __init__(self, watch: Watch, number: int) -> None:
        self.number = number
        self.failure: CollectiveError | None = watch.failure  # why the context ended; None while it has not
        self.shared = watch  # the watch, which contexts of the same ranks share
        self._rank = watch.rank
        self._lock, self._changed = watch.lock, watch.changed
        self._links, self._mailbox = watch.links, watch.mailbox
        self._is_closed = False
        self._forks = _forks

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that connected."""
        return self._forks != _forks

    def refuse_in_fork(self) -> None:
        """Raise UsageError in a child of the process that connected: the connections are its parent's."""
        if self.is_forked:
            raise UsageError(
                f"process {os.getpid()} is a fork of the process that connected, and its parent uses the connections: "
                "let it set up a communicator of its own"
            )

    def connection(self, peer: int, lane: Lane) -> Connection:
        """Return the connection to ``peer``, made if there is none; raise if either side has ended the context."""
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
        """Post a message of float32 to ``peer``, which may be this rank. ``words`` tell the receiver what it is."""
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
            header, sending = frame.to_octets(), Send(data, request, self.number)
            # Nothing is called between these two: a Ctrl-C would leave a header without its data.
            to.outgoing += header
            if data:
                to.outbox.append(sending)
            elif to.control is None:
                to.empty.append(sending)
            else:  # complete: its header is queued, and it has no floats that could wait in the stream
                request.complete()
            self.shared.wake()
        return request

    def receive(self, source: int | None, tag: int | None, into: memoryview) -> Request:
        """Post a receive of float32; None as source or tag matches any. It fails when no rank is left that could
        satisfy it.
        """
        self.refuse_in_fork()
        request = Request(self._withdraw)
        with self._lock:
            if not self._refused(request):
                self._links.want_control(source)
                self._mailbox.post(Receive(source, tag, into, request, self.number))
                self.fail_hopeless()
            self.shared.wake()
        return request

    def probe(self, source: int | None, tag: int | None, *, wait: bool) -> Arrival | None:
        """Return what a receive would get, without receiving it; if nothing came, ``wait`` or return None."""
        self.refuse_in_fork()
        with self._changed:
            links = self._links
            while (reason := self._why_not()) is None:
                known = len(links.peers)
                links.want_control(source)
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

    def sent_octets(self, peer: int) -> int:
        """Return the octets of messages sent to ``peer``, by all contexts that share the connection."""
        with self._lock:
            return self._links.peers[peer].sent_octets

    def left(self) -> set[int]:
        """Return the ranks known to have closed this context."""
        with self._lock:
            return self._links.left(self.number)

    def explain(self, peer: int, reason: str) -> CollectiveError:
        """Return why the connection to ``peer`` ended; wait a moment for the reason, else take what the kernel said."""
        return self.ending(peer) or PeerLostError(f"rank {peer} is gone: {reason}")

    def ending(self, peer: int) -> CollectiveError | None:
        """Return why the context ended or ``peer`` left it; None if neither happens within a moment."""
        with self._changed:
            other = self._links.peers[peer]
            self._changed.wait_for(
                lambda: self.failure is not None or other.is_gone(self.number) or self._is_closed, GRACE_S
            )
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
            self._changed.wait_for(lambda: self.failure is not None, GRACE_S)
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
        """Close the connections of this context, after :meth:`stop`, and the shared ones with the last context."""
        if is_forked:
            # All, and without the lock: a child's copy may stay locked.
            self._links.close(is_forked=True)
            return
        with self._lock:
            self.shared.forget(self)
        self.shared.release()

    # What follows is called under the lock.

    def on_farewell(self, frame: Frame) -> None:
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
