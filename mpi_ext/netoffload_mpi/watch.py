"""The watch: a thread per communicator that knows which ranks live, and moves point-to-point messages.

**Liveness.** The watch begins with the first connections of a communicator, while the others are made. Every rank sends
a heartbeat to every other one four times per ``timeout_s``, and reads theirs. So a rank that computes for minutes
between two calls is known to live, and one that was killed, stopped, or cut off by a dead link or NIC is known to be
gone, by every rank and not only by its neighbours in some algorithm. Three things end the communicator: a control
connection that ends without a farewell (the process died), silence for ``timeout_s`` (host, link or NIC died, or the
process is stopped), and a farewell that gives a reason (that rank met an error). The first reason counts. It is sent on
to all ranks, so that all of them raise the same error; then the connections are shut down, which wakes a thread that
sleeps on one. A process that keeps the interpreter lock for ``timeout_s`` without a break (a C extension that never
lets go) cannot send heartbeats, and counts as dead.

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
from collections.abc import Callable, Mapping

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, PeerLostError
from netoffload_mpi.frames import Frame, Kind, farewell, take_frames
from netoffload_mpi.mailbox import Mailbox, Message, Receive, hopeless
from netoffload_mpi.peers import Peer, Send, silence
from netoffload_mpi.requests import Arrival, CompRequest

BEATS_PER_TIMEOUT = 4
GRACE_S = 1.0
"""How long to wait for the reason why a connection ended, and for a farewell to leave."""
READ_OCTETS = 64 * 1024


class Watch:
    """One rank's watch. All methods are for other threads than its own.

    Args:
        rank: this rank.
        size: number of ranks.
        control: connected socket per peer; closed by its owner after :meth:`stop`.
        timeout_s: silence after which a rank is dead.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        control: Mapping[int, socket.socket],
        timeout_s: float,
    ) -> None:
        """Look at nothing yet."""
        self.failure: CollectiveError | None = None
        """Why the communicator ended, None while it has not."""
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._on_failure: Callable[[], None] = lambda: None
        self._peers = {peer: Peer(conn, time.monotonic()) for peer, conn in control.items()}
        self._mailbox = Mailbox()
        self._lock = threading.Lock()  # of everything that both this thread and callers touch
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"watch-{rank}", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        if self._peers:
            self._thread.start()

    def carry(self, messages: Mapping[int, socket.socket], on_failure: Callable[[], None]) -> None:
        """Move messages from now on.

        Args:
            messages: connected socket per peer; closed by its owner after :meth:`stop`.
            on_failure: called once, from the watch's thread, when ``failure`` is set.
        """
        with self._lock:
            for peer, conn in messages.items():
                self._peers[peer].messages = conn
            self._on_failure = on_failure
            self._announce(Frame(Kind.READY))
            self._flush()  # now: whatever becomes of this rank next, it was ready
        self._wake()

    def wait_for_all(self) -> None:
        """Return when all ranks carry messages.

        Raises:
            CollectiveError: a rank could not connect, or is gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or self._is_complete())
            if self.failure is not None and not self._is_complete():
                raise self.failure

    def send(self, peer: int, tag: int, data: memoryview) -> CompRequest:
        """Post a message of float32 to ``peer``, this rank included. It cannot be taken back."""
        request = CompRequest()
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
            self._peers[peer].outgoing += Frame(Kind.MESSAGE, tag=tag, count=len(data) // FLOAT_OCTETS).to_octets()
            if data:
                self._peers[peer].outbox.append(Send(data, request))
            else:  # no octet of it waits behind those that nobody has asked for
                request.complete()
        self._wake()
        return request

    def receive(self, source: int | None, tag: int | None, into: memoryview) -> CompRequest:
        """Post a receive of float32; None as source or tag matches any.

        It fails when every rank that could satisfy it has closed its communicator.
        """
        request = CompRequest(self._withdraw)
        with self._lock:
            if not self._refused(request):
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
            while (reason := self._why_not()) is None:
                if (found := self._mailbox.first(source, tag)) is not None:
                    return found
                left = self._left()
                if (reason := hopeless(source, self._rank, left, 0 < len(left) == len(self._peers))) is not None:
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
        return self._peers[peer].sent_octets

    def explain(self, peer: int, said: str) -> CollectiveError:
        """Return why the connection to ``peer`` ended, the kernel having ``said`` so; wait a moment for the reason."""
        return self.ending(peer) or PeerLostError(f"rank {peer} is gone: {said}")

    def ending(self, peer: int) -> CollectiveError | None:
        """Return why the exchange ended or ``peer`` left, waiting a moment for the reason; None if neither did."""
        with self._changed:
            left = self._peers[peer]
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
                self._announce(frame)
                self._changed.notify_all()

    def stop(self) -> None:
        """Say farewell, unless that was done, and end the thread; then the sockets may be closed."""
        with self._lock:
            if self.failure is None:
                self._announce(Frame(Kind.CLOSED))
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

    # What follows runs in the watch's thread, or under the lock.

    def _run(self) -> None:
        beat_s = self._timeout_s / BEATS_PER_TIMEOUT
        next_beat_s, deadline_s = time.monotonic(), float("inf")
        while True:
            poller, peers_of = self._poller()
            wake_s = min(next_beat_s, deadline_s, self._silence_at_s())
            ready = poller.poll(max(0.0, wake_s - time.monotonic()) * 1000)
            with self._changed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
                self._serve([peers_of[fd] for fd, _ in ready if fd in peers_of])
                now_s = time.monotonic()
                if self.failure is None and not self._stopping:
                    self._judge_silence(now_s)
                if now_s >= next_beat_s:
                    next_beat_s = now_s + beat_s
                    if self.failure is None and not self._stopping:
                        self._announce(Frame(Kind.BEAT))
                self._flush()
                if self._stopping:
                    deadline_s = min(deadline_s, now_s + GRACE_S)
                    if now_s >= deadline_s or not any(peer.outgoing for peer in self._peers.values()):
                        return

    def _poller(self) -> tuple[select.poll, dict[int, int]]:
        poller, peers_of = select.poll(), {}
        poller.register(self._wake_fd, select.POLLIN)
        with self._lock:
            for rank, peer in self._peers.items():
                events = (0 if peer.has_left else select.POLLIN) | (select.POLLOUT if peer.outgoing else 0)
                if events and (not self._stopping or peer.outgoing):
                    poller.register(peer.control, events)
                    peers_of[peer.control.fileno()] = rank
                if self.failure is not None or self._stopping:
                    continue
                events = select.POLLIN if self._mailbox.wanted(rank) is not None else 0
                events |= select.POLLOUT if peer.outbox else 0
                if events:
                    poller.register(peer.messages, events)
                    peers_of[peer.messages.fileno()] = rank
        return poller, peers_of

    def _serve(self, ready: list[int]) -> None:
        for rank in dict.fromkeys(ready):
            try:
                self._hear(rank, self._peers[rank])
                if self.failure is None:
                    self._peers[rank].read_message(rank, self._mailbox)
            except CollectiveError as error:
                self._fail(error)
        if self.failure is None:
            for rank, peer in self._peers.items():
                try:
                    peer.write_messages()
                except OSError as error:
                    self._fail(PeerLostError(f"rank {rank} is gone: {error.strerror or error}"))

    def _hear(self, rank: int, peer: Peer) -> None:
        """Read the control lane of ``peer``."""
        if peer.has_left:
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
            elif frame.kind is Kind.READY:
                peer.is_ready = True
                self._changed.notify_all()
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
        if left := self._left():
            self._mailbox.fail_hopeless(self._rank, left, len(left) == len(self._peers))

    def _is_complete(self) -> bool:
        return all(peer.is_ready for peer in self._peers.values())

    def _left(self) -> set[int]:
        return {rank for rank, peer in self._peers.items() if peer.has_left}

    def _silence_at_s(self) -> float:
        """Return when the first rank will have been silent for too long."""
        if self.failure is not None or self._stopping:
            return float("inf")
        heard = [peer.heard_s for peer in self._peers.values() if not peer.has_left]
        return min(heard, default=float("inf")) + self._timeout_s

    def _judge_silence(self, now_s: float) -> None:
        others = {rank: now_s - peer.heard_s for rank, peer in self._peers.items() if not peer.has_left}
        if (error := silence(self._rank, self._size, others, self._timeout_s)) is not None:
            self._fail(error)

    def _fail(self, error: CollectiveError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._announce(farewell(self._rank, error))
        self._flush()
        self._end_requests(error)
        self._changed.notify_all()
        self._on_failure()

    def _end_requests(self, error: CollectiveError) -> None:
        self._mailbox.fail(error)
        for peer in self._peers.values():
            while peer.outbox:
                peer.outbox.popleft().request.fail(error)

    def _announce(self, frame: Frame) -> None:
        for peer in self._peers.values():
            # A peer that takes nothing, being stopped or cut off, need not have more than one beat waiting.
            if not (peer.has_left or (frame.kind is Kind.BEAT and peer.outgoing)):
                peer.outgoing += frame.to_octets()

    def _flush(self) -> None:
        for rank, peer in self._peers.items():
            if not peer.outgoing:
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

    def _refused(self, request: CompRequest) -> bool:
        reason = self._why_not()
        if reason is not None:
            request.fail(reason)
        return reason is not None

    def _why_not(self) -> CollectiveError | None:
        if self.failure is None and self._stopping:
            return PeerLostError(f"rank {self._rank} has closed its connections, by request or after an error")
        return self.failure

    def _withdraw(self, request: CompRequest) -> bool:
        with self._lock:
            return self._mailbox.withdraw(request)

    def _wake(self) -> None:
        with self._lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)
