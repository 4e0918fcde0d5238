"""Every call begins with a meeting: all ranks say what they are about to do, and go on only if all say the same.

The meeting is a dissemination barrier of ceil(log2 p) rounds. In round k rank r sends its announcement to rank
r + 2^k (mod p) and receives one from rank r - 2^k. It goes on to the next round only if both are equal. So a rank that
has finished knows, through a chain of equal announcements, that all ranks entered the same call with the same
arguments. A rank that receives another announcement aborts the exchange with an error that names both sides. The error
reaches every rank that is still in its meeting: no rank moves data, returns garbage or hangs.

An announcement has a fixed length. It holds what the algorithms need as numbers, and the rest in words, for errors:
what the caller is doing (``Exchange.calling``), and lists of counts or groups. If ranks do not know each other's counts
(gatherv, scatterv, alltoallv), the counts travel pairwise, and a second meeting, ``CONFIRM``, tells all ranks whether a
pair disagrees.
"""

from __future__ import annotations

import enum
import itertools
import operator
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np

from netoffload.collectives.exchange import Channel, Exchange, Gathering
from netoffload.collectives.operations import Operation
from netoffload.collectives.transfer import aborting_on_error, move_all, swap_numbers
from netoffload.errors import CollectiveError, UsageError


class Call(enum.IntEnum):
    """What a rank announces that it is about to do."""

    RING_ALLREDUCE = 1
    WORKER_AGGREGATOR = 2
    BARRIER = 3
    AGGREGATOR_ALLREDUCE = 4
    HIERARCHICAL_ALLREDUCE = 5
    REDUCE_SCATTER = 6
    ALLGATHER = 7
    BROADCAST = 8
    REDUCE = 9
    GATHER = 10
    SCATTER = 11
    ALLTOALL = 12
    CONFIRM = 13
    PAYLOAD_GATHER = 14
    PAYLOAD_SERVER = 15
    PAYLOAD_RING = 16
    PLAIN_ALLREDUCE = 17
    REFUSED = 18
    PAYLOAD_ALLTOALL = 19


NO_ROOT = -1

_TEXT_OCTETS = 104
_WORD = struct.Struct(f"!4sBBBxiIQ{_TEXT_OCTETS}s")
_MAGIC = b"NOF3"
_BETWEEN = "\n"  # stands between the caller's words and the algorithm's

ANNOUNCEMENT_OCTETS = _WORD.size  # 128: what follows in a message of `gathering` begins at a cache line


@dataclass(frozen=True)
class Announcement:
    """What must be the same on every rank."""

    call: Call
    count: int = 0  # number of elements if it is the same on every rank; else 0
    tagged: bool = False  # whether data goes over the tagged channels
    operation: Operation | None = None  # operation of a reduction; else None
    root: int = NO_ROOT  # root of a rooted call; else `NO_ROOT`
    details: str = ""  # further arguments of the algorithm in words, such as counts or groups
    calling: str = ""  # what the caller is doing, in words; empty: the algorithm's call says enough
    digest: int = 0  # checksum of `details` and `calling` as they were before a peer's were cut; 0: they are whole

    def to_octets(self) -> bytes:
        """Return the announcement's ``ANNOUNCEMENT_OCTETS`` octets."""
        text = f"{self.calling}{_BETWEEN}{self.details}".encode() if self.calling or self.details else b""
        digest = zlib.crc32(text) if len(text) > _TEXT_OCTETS else 0
        return _WORD.pack(_MAGIC, self.call, self.tagged, self.operation or 0, self.root, digest, self.count, text)

    @classmethod
    def from_octets(cls, octets: bytes) -> Announcement:
        """Return what a peer announced."""
        magic, call, tagged, operation, root, digest, count, text = _WORD.unpack(octets)
        if magic != _MAGIC or call not in tuple(Call) or operation not in (0, *Operation):
            raise CollectiveError("a rank sent something that is no announcement: install the same version everywhere")
        calling, _, details = text.rstrip(b"\0").decode(errors="replace").partition(_BETWEEN)
        done = Operation(operation) if operation else None
        return cls(Call(call), count, bool(tagged), done, root, details, calling, digest)

    def what_is_done(self) -> str:
        """Say what a rank with this announcement does, for an error."""
        return "refuses its arguments, as its own error says" if self.call is Call.REFUSED else f"calls {self}"

    def __str__(self) -> str:
        """Describe the call, for an error."""
        if self.calling:
            words = [self.calling]
        else:
            words = ["" if self.call in (Call.BARRIER, Call.CONFIRM) else "tagged " if self.tagged else "untagged "]
            words.append(self.call.name.lower().replace("_", "-"))
            words += [f" {self.operation.name}"] if self.operation else []
            words += [f" of {self.count} floats"] if self.call not in (Call.BARRIER, Call.CONFIRM) else []
            words += [f" with root {self.root}"] if self.root != NO_ROOT else []
            words += [f", {self.details}"] if self.details else []
        words += [" and more"] if self.digest else []
        return "".join(words)


def in_words(items: Iterable[object]) -> str:
    """Return items as ``3, 4 (5 times), 3``."""
    runs = [(item, len(list(run))) for item, run in itertools.groupby(items)]
    return ", ".join(f"{item}" if times == 1 else f"{item} ({times} times)" for item, times in runs)


def meet(exchange: Exchange, announcement: Announcement) -> None:
    """Return when every rank is known to make the same call; else raise an error that names two that differ."""
    if exchange.size == 1:
        return
    announcement = replace(announcement, calling=exchange.calling) if exchange.calling else announcement
    if exchange.meeting is None:
        outgoing, incoming = np.zeros((2, ANNOUNCEMENT_OCTETS), np.uint8)
        nothing = np.empty((exchange.size, 0), np.float32)
        pairs = pairs_of(exchange)
        exchange.meeting = Gathering(bytes(outgoing), outgoing, incoming, nothing, nothing[0], exchange.rank, pairs)
    exchange.meeting.word = announcement.to_octets()
    exchange.meeting.outgoing.data[:] = exchange.meeting.word
    carry_out(exchange, exchange.meeting, announcement)


def carry_out(exchange: Exchange, round_: Gathering, announcement: Announcement) -> bool:
    """Meet; return whether the transport did it, and has reduced the vectors too."""
    is_driven = exchange.drive(round_)
    if not is_driven:
        _meet(exchange, round_)
    if round_.pairs and round_.heard.tobytes() != round_.word:  # quicker than to compare a memoryview
        raise _disagreement(exchange.rank, announcement, round_.pairs[round_.done - 1][1], bytes(round_.heard))
    return is_driven


def _meet(exchange: Exchange, round_: Gathering) -> None:
    """Do what :class:`~netoffload.collectives.exchange.Gathering` describes, but for the reduction."""
    word, count = len(round_.word), round_.result.nbytes
    outgoing, incoming = round_.outgoing.data, round_.incoming.data
    for number, (ahead, behind) in enumerate(round_.pairs):
        round_.done = number + 1
        length = round_.octets_in(number)
        move_all(exchange, [(ahead, outgoing[:word])], [(behind, incoming[:word])], may_be_late=True)
        if incoming[:word] != outgoing[:word]:  # perhaps a call without values behind its announcement
            return
        move_all(exchange, [(ahead, outgoing[word:length])], [(behind, incoming[word:length])], may_be_late=True)
        start = word + (1 << number) * count
        outgoing[start : start + length - word] = incoming[word:length]


@contextmanager
def met(exchange: Exchange, announcement: Announcement, *, already: bool = False) -> Iterator[None]:
    """Make the body one call of all ranks: they meet before it, and if it raises, the exchange ends on all of them.

    ``already``: the ranks know by another meeting that all make this call, with equal lengths.
    """
    with aborting_on_error(exchange):
        if not already:
            meet(exchange, announcement)
        yield


def pairs_of(exchange: Exchange) -> list[tuple[Channel, Channel]]:
    """Return, per round of a meeting, the channels to send and to receive on: to ranks 1, 2, 4, ... away."""

    def channel(distance: int) -> Channel:
        return exchange.channel((exchange.rank + distance) % exchange.size, tagged=False)

    return [(channel(1 << round_), channel(-1 << round_)) for round_ in range((exchange.size - 1).bit_length())]


def _disagreement(rank: int, announcement: Announcement, behind: Channel, incoming: bytes) -> CollectiveError:
    """Return the error for a ``rank`` that received another announcement from ``behind`` than its own."""
    # The peer may have given up the call, and octets of it are left in the stream. Then the error is the peer's reason,
    # which may take a moment to arrive. A refusal is a reason by itself.
    try:
        announcement, theirs = map(Announcement.from_octets, (announcement.to_octets(), incoming))  # both cut
    except CollectiveError as error:
        return behind.ending() or error
    is_refusal = Call.REFUSED in (announcement.call, theirs.call)
    return (None if is_refusal else behind.ending()) or CollectiveError(
        f"ranks disagree: rank {rank} {announcement.what_is_done()}, rank {behind.peer} "
        f"{_unlike(theirs, announcement)}; all ranks must make the same calls with the same arguments"
    )


def _unlike(theirs: Announcement, ours: Announcement) -> str:
    """Say what a peer does that does something else than this rank, also if their words are the same."""
    done = theirs.what_is_done()
    if done != ours.what_is_done():
        return done
    if replace(theirs, details="", calling="", digest=0) == replace(ours, details="", calling="", digest=0):
        return f"{done}, but its list goes on in another way"
    return f"{done} as {replace(theirs, calling='')} instead of {replace(ours, calling='')}"


def barrier(exchange: Exchange) -> None:
    """Return when every rank has entered."""
    # Unlike an MPI barrier it sleeps instead of spinning, so a rank that arrives early leaves its core to the NICs.
    with aborting_on_error(exchange):
        meet(exchange, Announcement(Call.BARRIER))


def refuse(exchange: Exchange) -> None:
    """Meet the others in a call whose arguments this rank refuses; return if all ranks do, else all raise."""
    with aborting_on_error(exchange):
        meet(exchange, Announcement(Call.REFUSED))


def check_pair_counts(exchange: Exchange, sending: dict[int, int], expecting: dict[int, int], unit: str) -> None:
    """Tell each peer how many elements it will get, hear how many it will send, and meet; if one differs, all raise."""
    for peer, count in swap_numbers(exchange, sending, expecting).items():
        if count != expecting[peer]:
            calling = f" in {exchange.calling}" if exchange.calling else ""
            raise CollectiveError(
                f"counts disagree{calling}: rank {peer} sends {count} {unit} to rank {exchange.rank}, which expects "
                f"{expecting[peer]}"
            )
    meet(exchange, Announcement(Call.CONFIRM))


def check_root(root: SupportsIndex, size: int) -> int:
    """Return a root as Python's integer; raises UsageError if it is not a rank."""
    number = operator.index(root) if isinstance(root, SupportsIndex) else -1
    if not 0 <= number < size:
        raise UsageError(f"root {root} is not a rank: there are {size}, counted from 0")
    return number
