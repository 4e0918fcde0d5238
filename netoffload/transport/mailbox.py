"""Which message goes into which receive: MPI's matching rules, without I/O.

Messages from one source are matched in the order in which they were sent, receives in the order in which they were
posted; source and tag may be wildcards (None). What arrives in a stream must be read in its order, so a message that
nobody has asked for stays in the stream (and holds its sender back) until a later one of the same source is wanted;
then it is read into memory of its own.
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

    def takes(self, message: Message) -> bool:
        """Return whether ``message`` may go here."""
        return self.source in (None, message.source) and self.tag in (None, message.tag)


@dataclass(eq=False)
class Message:
    """A message that was announced: perhaps still in its stream, perhaps in memory of its own."""

    source: int
    tag: int
    octets: int
    receive: Receive | None = None
    own: memoryview | None = None
    got: int = 0

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

    def first(self, source: int | None, tag: int | None) -> Arrival | None:
        """Return what a receive from ``source`` with ``tag`` would get now (None matches any), None if nothing."""
        for message in self.unasked:
            if source in (None, message.source) and tag in (None, message.tag):
                return message.arrival()
        return None

    def waits_for_any(self) -> bool:
        """Return whether a posted receive takes from any source."""
        return any(receive.source is None for receive in self.posted)

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
        if message.got < message.octets:
            self.streams.setdefault(message.source, deque()).append(message)
        message.deliver()

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
            self.asked[source] -= stream[0].receive is not None
            stream.popleft().deliver()

    def fail_hopeless(self, rank: int, left: Collection[int], everybody_left: bool) -> None:
        """Fail the posted receives that only ranks which have closed could satisfy; announced messages still come.

        A receive from any source is hopeless once all other ranks have closed: what a rank may yet send to itself
        does not count.

        Args:
            rank: this one, for the error.
            left: the ranks that have closed; all that they sent has been announced.
            everybody_left: whether those are all others.
        """
        posted, self.posted = self.posted, []
        for receive in posted:
            reason = hopeless(receive.source, rank, left, everybody_left)
            if reason is None:
                self.posted.append(receive)
            else:
                receive.request.fail(reason)

    def fail(self, error: Exception) -> None:
        """Fail every receive."""
        waiting = [receive.request for receive in self.posted]
        for stream in self.streams.values():
            waiting += [message.receive.request for message in stream if message.receive is not None]
        for request in waiting:
            request.fail(error)
        self.posted.clear()
        self.streams.clear()

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
