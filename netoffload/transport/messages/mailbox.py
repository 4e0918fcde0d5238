"""Which message goes into which receive: MPI's matching rules, without I/O.

Messages from one source are matched in the order in which they were sent, receives in the order in which they were
posted. A stream can only be read in order. So a message without a receive stays in the stream, and holds its sender
back, until a receive wants a later message of the same source. Then it is read into a buffer of its own, which grows
with the octets that come: what a header announces takes no memory. What no receive has room for is read and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages.requests import Arrival, Request

GROWTH_OCTETS: Final = 256 * 1024  # a message's own buffer grows by at least so much

_DROPPED: Final = memoryview(bytearray(64 * 1024))  # where octets go that nobody reads; all mailboxes write to it


@dataclass(eq=False)
class Receive:
    """A posted receive: room for at most ``len(into)`` octets. None as source or tag matches any."""

    source: int | None
    tag: int | None
    into: memoryview
    request: Request
    context: int = 0

    def takes(self, message: Message) -> bool:
        """Return whether this receive may take ``message``."""
        return message.suits(self.source, self.tag, self.context)


@dataclass(eq=False, slots=True)
class Message:
    """A message that was announced: its octets are still in the stream, in a buffer of its own, or in a receive's."""

    source: int
    tag: int
    octets: int
    receive: Receive | None = None
    own: bytearray | None = None
    got: int = 0
    context: int = 0
    words: str = ""  # what it is, as its sender says
    is_unwanted: bool = False
    """Its context has ended, or its receive is too small: it is read, because others follow it, and dropped."""

    def suits(self, source: int | None, tag: int | None, context: int) -> bool:
        """Return whether a receive with these arguments takes this message; None matches any."""
        return self.context == context and source in (None, self.source) and tag in (None, self.tag)

    @property
    def is_readable(self) -> bool:
        """Whether its octets may be read now."""
        return self.receive is not None or self.is_unwanted

    def target(self) -> memoryview:
        """Return where the next octets go; drop the view before the next call."""
        if self.is_unwanted:
            return _DROPPED[: self.octets - self.got]
        if self.own is None and self.receive is not None:
            return self.receive.into[self.got : self.octets]
        if self.own is None:
            self.own = bytearray()
        if len(self.own) == self.got:
            self.own.extend(bytes(min(self.octets - self.got, max(self.got, GROWTH_OCTETS))))
        return memoryview(self.own)[self.got :]

    def deliver(self) -> None:
        """Complete the receive, if the message is whole and has one."""
        if self.receive is None or self.got < self.octets:
            return
        if self.own is not None:
            self.receive.into[: self.octets] = self.own
        self.receive.request.complete(self.arrival())

    def truncation(self, into: memoryview) -> CollectiveError | None:
        """Return the error if this message does not fit into a receive's room; None if it does."""
        if self.octets <= len(into):
            return None
        sent = self.words or f"{self.octets // FLOAT_OCTETS} floats"
        return CollectiveError(
            f"message truncated: rank {self.source} sent {sent} with tag {self.tag} to a buffer of "
            f"{len(into) // FLOAT_OCTETS} floats"
        )

    def arrival(self) -> Arrival:
        """Return source, tag and length, as a receive or a probe reports them."""
        return Arrival(self.source, self.tag, self.octets // FLOAT_OCTETS, self.words)


@dataclass
class Mailbox:
    """All receives and messages of one rank that are not matched yet, and the messages in the streams."""

    posted: list[Receive] = field(default_factory=list)
    """Receives without a message, in the order in which they were posted."""
    unmatched: list[Message] = field(default_factory=list)  # messages without a receive, in order of arrival
    streams: dict[int, deque[Message]] = field(default_factory=dict)
    """By source, in the order of the stream: messages that are not whole yet."""
    readable: dict[int, int] = field(default_factory=dict)
    """By source: how many messages in its stream may be read. A count, because a stream may hold thousands."""

    def waiting(self, source: int) -> int:
        """Return how many messages have no receive, or have not come whole from ``source``; the larger number."""
        return max(len(self.unmatched), len(self.streams.get(source, ())))

    def post(self, receive: Receive) -> None:
        """Add a receive."""
        for index, message in enumerate(self.unmatched):
            if receive.takes(message):
                del self.unmatched[index]
                self._match(message, receive)
                message.deliver()
                return
        self.posted.append(receive)

    def first(self, source: int | None, tag: int | None, context: int) -> Arrival | None:
        """Return what a receive with these arguments would get, None if nothing; as an argument None matches any."""
        for message in self.unmatched:
            if message.suits(source, tag, context):
                return message.arrival()
        return None

    def waits_for_any(self, context: int) -> bool:
        """Return whether a posted receive takes from any source."""
        return any(receive.source is None for receive in self.posted if receive.context == context)

    def withdraw(self, request: Request) -> bool:
        """Take back the receive of ``request``; False if a message is on its way into it."""
        kept = [receive for receive in self.posted if receive.request is not request]
        withdrawn = len(kept) < len(self.posted)
        self.posted = kept
        return withdrawn

    def arrive(self, message: Message) -> None:
        """Add a message that was announced; one that this rank sent to itself is whole already."""
        for index, receive in enumerate(self.posted):
            if receive.takes(message):
                del self.posted[index]
                self._match(message, receive)
                break
        else:
            self.unmatched.append(message)
        self._await(message)
        message.deliver()

    def drop(self, message: Message) -> None:
        """Add a message that was announced in a context that has ended."""
        message.is_unwanted = True
        if message.octets:
            self.readable[message.source] = self.readable.get(message.source, 0) + 1
        self._await(message)

    def wanted(self, source: int) -> memoryview | None:
        """Return the buffer to fill next from the stream of ``source``; None: nothing may be read now."""
        stream = self.streams.get(source)
        if not stream or not self.readable.get(source):
            return None
        return stream[0].target()

    def filled(self, source: int, count: int) -> None:
        """Note that the first ``count`` octets of the buffer that :meth:`wanted` returned are filled."""
        stream = self.streams[source]
        stream[0].got += count
        if stream[0].got == stream[0].octets:
            self.readable[source] -= stream[0].is_readable
            stream.popleft().deliver()

    def fail_hopeless(self, context: int, rank: int, left: Collection[int], everybody_left: bool) -> None:
        """Fail the posted receives of a context that only ranks which have closed it could satisfy."""
        # Messages that were announced still come. A receive from any source is hopeless once all other ranks have
        # closed, although this rank could still send to itself.
        posted, self.posted = self.posted, []
        for receive in posted:
            mine = receive.context == context
            reason = hopeless(receive.source, rank, left, everybody_left) if mine else None
            if reason is None:
                self.posted.append(receive)
            else:
                receive.request.fail(reason)

    def end_context(self, context: int, error: Exception) -> None:
        """Fail the receives of a context. Its messages that are still in a stream are read later, and dropped."""
        for receive in self.posted:
            if receive.context == context:
                receive.request.fail(error)
        self.posted = [receive for receive in self.posted if receive.context != context]
        self.unmatched = [message for message in self.unmatched if message.context != context]
        for source, stream in self.streams.items():
            for message in stream:
                if message.context == context and not message.is_unwanted:
                    self.readable[source] = self.readable.get(source, 0) + (not message.is_readable)
                    message.own, message.is_unwanted = None, True  # what comes is dropped, which frees both buffers
                    if message.receive is not None:
                        message.receive.request.fail(error)
                        message.receive = None

    def fail(self, error: Exception) -> None:
        """Fail every receive."""
        for receive in self.posted:
            receive.request.fail(error)
        for source in self.streams:
            self.fail_stream(source, error)
        self.posted.clear()

    def fail_stream(self, source: int, error: Exception) -> None:
        """Fail the receives of messages whose stream has ended."""
        for message in self.streams.get(source, ()):
            if message.receive is not None:
                message.receive.request.fail(error)

    def _await(self, message: Message) -> None:
        if message.got < message.octets:
            self.streams.setdefault(message.source, deque()).append(message)

    def _match(self, message: Message, receive: Receive) -> None:
        if (error := message.truncation(receive.into)) is None:
            message.receive = receive
        else:
            receive.request.fail(error)
            message.own, message.is_unwanted = None, True
        if message.got < message.octets:
            self.readable[message.source] = self.readable.get(message.source, 0) + 1


def hopeless(source: int | None, rank: int, left: Collection[int], everybody_left: bool) -> PeerLostError | None:
    """Return why no message can come from ``source``, None if one can; see ``Mailbox.fail_hopeless``."""
    if source in left:
        return PeerLostError(f"rank {source} closed its communicator while rank {rank} waited for it")
    if source is None and everybody_left:
        return PeerLostError(f"all other ranks closed their communicators while rank {rank} waited for any of them")
    return None
