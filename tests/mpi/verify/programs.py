"""Random programs that MPI allows: which rank calls what in which order, and what every receive must get.

A program is written as one sequence of steps for all ranks; each rank's calls are its part of the steps. Calls of the
same or of earlier steps match a blocking call, by the rules of MPI: messages of one source in the order of sending,
receives in the order of posting. So every prefix can end, and the program cannot hang, even if sends wait for their
receives. The writer matches while it writes, so it knows every result.

Only one thing is random in a run: the order in which ``ANY_SOURCE`` takes messages of different ranks. The receives of
such a step are compared by source.

``generate`` draws from a ``random.Random``, so a seed defines a program. Hypothesis can pass its own, whose draws it
can shrink.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mpi4py import MPI

COUNTS: Final = (0, 1, 7, 300, 5_000, 60_000)
"""Floats of a message or vector. The longest exceeds the small socket buffers of threads."""
TAGS: Final = (0, 1, 2)
FIRST_FRESH_TAG: Final = 100
MOST_STEPS: Final = 16
SPARE: Final = 3  # most floats by which a receive buffer exceeds its message

COLLECTIVES: Final = ("Allreduce", "Bcast", "Reduce", "Gather", "Scatter", "Allgather", "Alltoallv", "Barrier")
WAITS: Final = ("each", "all", "any", "test")


@dataclass(frozen=True)
class Sent:
    """A message as its receiver must get it."""

    source: int
    tag: int
    count: int
    number: int


@dataclass
class Op:
    """One call of one rank, by mpi4py's name.

    ``Wait`` completes the requests ``slots``, as ``how`` says; ``RecvAny`` receives ``count`` messages of any source.
    ``peer`` is the other rank or the root, ``source`` that of a Sendrecv's receive. ``number`` counts messages and
    collectives, and decides their values. ``capacity`` is of the receive buffer, ``got`` what a receive must get.
    """

    call: str
    peer: int = 0
    tag: int = 0
    count: int = 0
    number: int = -1
    slot: int = -1
    slots: tuple[int, ...] = ()
    how: str = "each"
    source: int = 0
    capacity: int = 0
    got: list[Sent] = field(default_factory=list)


@dataclass(frozen=True)
class Program:
    """What every rank does, in order; ``key`` decides all values."""

    key: int
    ranks: Sequence[Sequence[Op]]

    @property
    def size(self) -> int:
        return len(self.ranks)


def generate(draw: random.Random, size: int, counts: Sequence[int] = COUNTS) -> Program:
    """Return a random program for ``size`` ranks with vectors of ``counts`` floats."""
    writer = _Writer(draw, size, counts)
    for _ in range(draw.randint(1, MOST_STEPS)):
        draw.choice(writer.steps)()
    writer.finish()
    return Program(draw.randrange(2**32), writer.ranks)


@dataclass(eq=False)
class _Send:
    dest: int
    what: Sent
    is_matched: bool = False


@dataclass(eq=False)
class _Receive:
    rank: int
    source: int
    op: Op

    def takes(self, source: int, tag: int) -> bool:
        return self.source == source and self.op.tag in (MPI.ANY_TAG, tag)


class _Writer:
    """A program under way, with its open calls: unmatched sends and receives, and requests without a wait."""

    def __init__(self, draw: random.Random, size: int, counts: Sequence[int]) -> None:
        self.ranks: list[list[Op]] = [[] for _ in range(size)]
        self._draw = draw
        self._size = size
        self._counts = counts
        self._sends: list[_Send] = []
        self._receives: list[_Receive] = []
        self._open: list[dict[int, _Send | _Receive | None]] = [{} for _ in range(size)]  # None: a collective
        self._numbers = 0
        self._fresh_tag = FIRST_FRESH_TAG
        self.steps = [
            *[self._start_send, self._start_receive] * 3,
            *[self._send_and_receive, self._wait, self._collective] * 2,
            *[self._ring, self._probe, self._from_anybody],
        ]

    def finish(self) -> None:
        for send in list(self._sends):
            self._receive(send.dest, send.what.source, send.what.tag)
        for receive in list(self._receives):
            tag = self._draw.choice(TAGS) if receive.op.tag == MPI.ANY_TAG else receive.op.tag
            self._send(receive.source, receive.rank, tag)
        for rank in range(self._size):
            if slots := list(self._open[rank]):
                self._draw.shuffle(slots)
                self._complete(rank, slots)

    def _start_send(self) -> None:
        self._send(self._any_rank(), self._any_rank(), self._draw.choice(TAGS), is_blocking=False)

    def _start_receive(self) -> None:
        self._receive(self._any_rank(), self._any_rank(), self._any_tag(), is_blocking=False)

    def _send_and_receive(self) -> None:
        """Write a blocking send and a blocking receive, or only the one that an open call matches."""
        source, dest, tag, wanted = self._any_rank(), self._any_rank(), self._draw.choice(TAGS), self._any_tag()
        if self._receive_for(source, dest, tag) is not None:
            self._send(source, dest, tag)
        elif self._send_for(dest, source, wanted) is not None:
            self._receive(dest, source, wanted)
        elif source != dest and wanted in (tag, MPI.ANY_TAG):
            self._send(source, dest, tag)
            self._receive(dest, source, wanted)

    def _wait(self) -> None:
        rank = self._any_rank()
        ready = [slot for slot, one in self._open[rank].items() if one is None or self._is_matched(one)]
        if ready:
            self._complete(rank, self._draw.sample(ready, self._draw.randint(1, len(ready))))

    def _collective(self) -> None:
        call, root, count = self._draw.choice(COLLECTIVES), self._any_rank(), self._draw.choice(self._counts)
        is_blocking = call == "Barrier" or self._draw.random() < 0.5
        number = self._next_number()
        for rank in range(self._size):
            slot = -1 if is_blocking else self._open_slot(rank, None)
            self.ranks[rank].append(Op(call, peer=root, count=count, number=number, slot=slot))

    def _ring(self) -> None:
        """Write a Sendrecv of all ranks, unless an open receive of any tag could take one of its messages."""
        tag = self._next_tag()
        if any(receive.op.tag == MPI.ANY_TAG for receive in self._receives):
            return
        count = self._draw.choice(self._counts)
        sent = [Sent(rank, tag, count, self._next_number()) for rank in range(self._size)]
        for rank, calls in enumerate(self.ranks):
            right, left = (rank + 1) % self._size, (rank - 1) % self._size
            op = Op("Sendrecv", right, tag, count, sent[rank].number, source=left, capacity=count + SPARE)
            op.got.append(sent[left])
            calls.append(op)

    def _probe(self) -> None:
        rank, source, tag = self._any_rank(), self._any_rank(), self._any_tag()
        if (send := self._send_for(rank, source, tag)) is not None:
            call = self._draw.choice(("Probe", "Iprobe"))
            self.ranks[rank].append(Op(call, source, tag, got=[send.what]))

    def _from_anybody(self) -> None:
        root, tag = self._any_rank(), self._next_tag()
        if any(one.rank == root and one.op.tag == MPI.ANY_TAG for one in self._receives):
            return
        others = [rank for rank in range(self._size) if rank != root]
        op = Op("RecvAny", MPI.ANY_SOURCE, tag, len(others), capacity=max(self._counts))
        for rank in others:
            count = self._draw.choice(self._counts)
            op.got.append(Sent(rank, tag, count, self._next_number()))
            self.ranks[rank].append(Op("Send", root, tag, count, op.got[-1].number))
        self.ranks[root].append(op)

    def _send(self, source: int, dest: int, tag: int, *, is_blocking: bool = True) -> None:
        count, receive = self._draw.choice(self._counts), self._receive_for(source, dest, tag)
        if receive is not None:
            count = min(count, receive.op.capacity)
        send = _Send(dest, Sent(source, tag, count, self._next_number()))
        if receive is None:
            self._sends.append(send)
        else:
            self._receives.remove(receive)
            receive.op.got.append(send.what)
            send.is_matched = True
        slot = -1 if is_blocking else self._open_slot(source, send)
        self.ranks[source].append(Op("Send" if is_blocking else "Isend", dest, tag, count, send.what.number, slot))

    def _receive(self, rank: int, source: int, tag: int, *, is_blocking: bool = True) -> None:
        send = self._send_for(rank, source, tag)
        op = Op("Recv" if is_blocking else "Irecv", source, tag)
        op.capacity = self._draw.choice(self._counts) if send is None else send.what.count
        op.capacity += self._draw.randint(0, SPARE)
        receive = _Receive(rank, source, op)
        if send is None:
            self._receives.append(receive)
        else:
            self._sends.remove(send)
            op.got.append(send.what)
            send.is_matched = True
        op.slot = -1 if is_blocking else self._open_slot(rank, receive)
        self.ranks[rank].append(op)

    def _complete(self, rank: int, slots: list[int]) -> None:
        for slot in slots:
            del self._open[rank][slot]
        self.ranks[rank].append(Op("Wait", slots=tuple(slots), how=self._draw.choice(WAITS)))

    def _receive_for(self, source: int, dest: int, tag: int) -> _Receive | None:
        return next((one for one in self._receives if one.rank == dest and one.takes(source, tag)), None)

    def _send_for(self, rank: int, source: int, tag: int) -> _Send | None:
        wanted = [one for one in self._sends if (one.dest, one.what.source) == (rank, source)]
        return next((one for one in wanted if tag in (MPI.ANY_TAG, one.what.tag)), None)

    @staticmethod
    def _is_matched(one: _Send | _Receive) -> bool:
        return one.is_matched if isinstance(one, _Send) else bool(one.op.got)

    def _open_slot(self, rank: int, one: _Send | _Receive | None) -> int:
        slot = sum(op.slot >= 0 for op in self.ranks[rank])
        self._open[rank][slot] = one
        return slot

    def _any_rank(self) -> int:
        return self._draw.randrange(self._size)

    def _any_tag(self) -> int:
        return self._draw.choice((*TAGS, MPI.ANY_TAG))

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _next_tag(self) -> int:
        self._fresh_tag += 1
        return self._fresh_tag
