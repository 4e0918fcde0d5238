"""Which message goes into which receive: MPI's matching rules, without I/O.

Messages from one source are matched in the order in which they were sent, receives in the order in which they were
posted; both of one context only (``contexts``). Source and tag may be wildcards (None). What arrives in a stream must
be read in its order, so a message that nobody has asked for stays in the stream (and holds its sender back) until a
later one of the same source is wanted; then it is read into memory of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.requests import Arrival, Request


@dataclass(eq=False)
class Receive:
    """A posted receive: room for at most ``len(into)`` octets. None as source or tag matches any."""

    source: int | None
    tag: int | None
    into: memoryview
    request: Request
    context: int = 0

    def takes(self, message: Message) -> bool:
        """Return whether ``message`` may go here."""
        return message.suits(self.source, self.tag, self.context)


@dataclass(eq=False)
class Message:
    """A message that was announced: perhaps still in its stream, perhaps in memory of its own."""

    source: int
    tag: int
    octets: int
    receive: Receive | None = None
    own: memoryview | None = None
    got: int = 0
    context: int = 0
    is_unwanted: bool = False
    """Its context has ended: it is read, because others follow it, and dropped."""

    def suits(self, source: int | None, tag: int | None, context: int) -> bool:
        """Return whether a receive with these arguments takes it; None matches any."""
        return self.context == context and source in (None, self.source) and tag in (None, self.tag)

    @property
    def is_asked(self) -> bool:
        """Whether its octets may be read now."""
        return self.receive is not None or self.is_unwanted

    def target(self) -> memoryview:
        """Return where the octets go."""
        if self.own is None and self.receive is not None and len(self.receive.into) >= self.octets:
            return self.receive.into[: self.octets]
        if self.own is None:  # nobody asked yet, or it does not fit: the stream has to go on
            self.own = memoryview(bytearray(self.octets))
        return self.own

    def deliver(self) -> None:
        """Complete the receive, if the message is whole and has one."""
        if self.receive is None or self.got < self.octets:
            return
        into, request = self.receive.into, self.receive.request
        if len(into) < self.octets:
            request.fail(
                CollectiveError(
                    f"message truncated: rank {self.source} sent {self.octets // FLOAT_OCTETS} floats with tag "
                    f"{self.tag} to a buffer of {len(into) // FLOAT_OCTETS}"
                )
            )
            return
        if self.own is not None:
            into[: self.octets] = self.own
        request.complete(self.arrival())

    def arrival(self) -> Arrival:
        """Return what it is to whoever receives it."""
        return Arrival(self.source, self.tag, self.octets // FLOAT_OCTETS)


@dataclass
class Mailbox:
    """All receives and messages of one rank that have not met yet, and what is in the streams."""

    posted: list[Receive] = field(default_factory=list)
    unasked: list[Message] = field(default_factory=list)
    """In order of arrival."""
    streams: dict[int, deque[Message]] = field(default_factory=dict)
    """By source, in the order of the stream: messages that are not whole yet."""
    asked: dict[int, int] = field(default_factory=dict)
    """By source: how many of those have a receive. There may be thousands, and this is asked at every turn."""

    def post(self, receive: Receive) -> None:
        """Add a receive."""
        for index, message in enumerate(self.unasked):
            if receive.takes(message):
                del self.unasked[index]
                self._match(message, receive)
                message.deliver()
                return
        self.posted.append(receive)

    def first(self, source: int | None, tag: int | None, context: int) -> Arrival | None:
        """Return what a receive with these arguments would get now (None matches any), None if nothing."""
        for message in self.unasked:
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
        """Add a message that was announced, and is whole if it is in memory of its own."""
        for index, receive in enumerate(self.posted):
            if receive.takes(message):
                del self.posted[index]
                self._match(message, receive)
                break
        else:
            self.unasked.append(message)
        self._await(message)
        message.deliver()

    def drop(self, message: Message) -> None:
        """Add a message that was announced in a context that has ended."""
        message.is_unwanted = True
        if message.octets:
            self.asked[message.source] = self.asked.get(message.source, 0) + 1
        self._await(message)

    def wanted(self, source: int) -> memoryview | None:
        """Return what to fill next from the stream of ``source``; None: nothing may be read now."""
        stream = self.streams.get(source)
        if not stream or not self.asked.get(source):
            return None
        return stream[0].target()[stream[0].got :]

    def filled(self, source: int, count: int) -> None:
        """Note that the first ``count`` octets of what was wanted are there."""
        stream = self.streams[source]
        stream[0].got += count
        if stream[0].got == stream[0].octets:
            self.asked[source] -= stream[0].is_asked
            stream.popleft().deliver()

    def fail_hopeless(self, context: int, rank: int, left: Collection[int], everybody_left: bool) -> None:
        """Fail the posted receives of a context that only ranks which have closed it could satisfy.

        What was announced still comes.

        A receive from any source is hopeless once all other ranks have closed: what a rank may yet send to itself
        does not count.

        Args:
            context: which.
            rank: this one, for the error.
            left: the ranks that have closed; all that they sent has been announced.
            everybody_left: whether those are all others.
        """
        posted, self.posted = self.posted, []
        for receive in posted:
            mine = receive.context == context
            reason = hopeless(receive.source, rank, left, everybody_left) if mine else None
            if reason is None:
                self.posted.append(receive)
            else:
                receive.request.fail(reason)

    def end_context(self, context: int, error: Exception) -> None:
        """Fail the receives of a context. Its messages that are in a stream will be read, and dropped."""
        for receive in self.posted:
            if receive.context == context:
                receive.request.fail(error)
        self.posted = [receive for receive in self.posted if receive.context != context]
        self.unasked = [message for message in self.unasked if message.context != context]
        for source, stream in self.streams.items():
            for message in stream:
                if message.context == context and not message.is_unwanted:
                    self.asked[source] = self.asked.get(source, 0) + (not message.is_asked)
                    message.own = message.own or memoryview(bytearray(message.octets))  # not the receive's any more
                    message.is_unwanted = True
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
        """Fail the receives of messages of which nothing more will come."""
        for message in self.streams.get(source, ()):
            if message.receive is not None:
                message.receive.request.fail(error)

    def _await(self, message: Message) -> None:
        if message.got < message.octets:
            self.streams.setdefault(message.source, deque()).append(message)

    def _match(self, message: Message, receive: Receive) -> None:
        message.receive = receive
        if message.got < message.octets:
            self.asked[message.source] = self.asked.get(message.source, 0) + 1


def hopeless(source: int | None, rank: int, left: Collection[int], everybody_left: bool) -> PeerLostError | None:
    """Return why nothing can come from ``source`` any more, None if something can; see ``Mailbox.fail_hopeless``."""
    if source in left:
        return PeerLostError(f"rank {source} closed its communicator while rank {rank} waited for it")
    if source is None and everybody_left:
        return PeerLostError(f"all other ranks closed their communicators while rank {rank} waited for any of them")
    return None
