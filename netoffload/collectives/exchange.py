"""What the algorithms ask of a transport.

A transport is a set of ranks and, between every two of them, two reliable duplex octet streams: an untagged one, and
a tagged one whose octets a NIC may compress (so it carries float32 only). Sending and receiving never block. A rank
sleeps only in :meth:`Exchange.wait`, which also keeps the time limits. One thread per rank drives these channels.

A transport may carry out whole rounds by itself (:meth:`Exchange.drive`). The algorithms pass it a description
(:class:`RingRound` or :class:`Gathering`) of what they would do channel by channel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from netoffload.collectives.operations import Operation, apply
from netoffload.collectives.schedule import Span
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CollectiveError

Vector = npt.NDArray[np.number[Any]]
"""Float32, or another type that only untagged channels carry (``transfer.EXACT_TYPES``)."""

Quantise = Callable[[Float32Array], None]  # rounds a float32 vector as the codec does, in place

FLOAT_OCTETS = 4


class Stopwatch:
    """Where the time of a rank's calls went, by ``now_s``, a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.wire_s = 0.0  # time asleep until a channel was ready
        self.late_s = 0.0  # part of `wire_s` in which a peer may have been late (`wait`), so the path may have idled
        self.reduce_s = 0.0  # time of the operation, such as adding
        self.codec_s = 0.0  # time that the host's codec took for rounding, without the NIC's
        self.aside_octets = 0
        """Octets that tagged calls sent untagged: short vectors and their announcements (``gathering``)."""


class Channel(Protocol):
    """A duplex octet stream to one peer."""

    peer: int  # rank at the other end

    def send_some(self, data: memoryview) -> int:
        """Send a prefix of ``data`` and return its length in octets, 0 if nothing fits now."""

    def receive_some(self, into: memoryview) -> int:
        """Fill a prefix of ``into`` (not empty) and return its length in octets; 0 if nothing is there now."""

    def ending(self) -> CollectiveError | None:
        """Return why the exchange ended or the peer left, None if neither happens within a moment."""
        # A peer may have given up a call whose octets are already in the stream; the reason comes a moment later.


@dataclass(frozen=True, eq=False)
class RingRound:
    """What one rank does in a ring; :mod:`~netoffload.collectives.ring` says how."""

    values: Vector  # contiguous vector; float32 if `quantise` is given
    walk: Sequence[Span]  # at least two spans of `values`: in step s `walk[s]` is sent and `walk[s + 1]` is received
    reducing: int  # number of first steps that combine what comes with what is there; later steps overwrite
    operation: Operation
    quantise: Quantise | None  # applied to what the last of these steps completes, piece by piece and once per element
    outward: Channel  # channel to the right neighbour
    inward: Channel  # channel from the left neighbour; with two ranks the same channel
    staged: Vector  # scratch memory of the type of `values`; its length is what is combined and forwarded at a time
    is_crossing: bool = False  # a peer may be busy with other ranks for longer than a call may stand still


@dataclass(eq=False)
class Gathering:
    """What one rank does in a meeting (:mod:`~netoffload.collectives.announcement`); peers may be late.

    Vectors may travel behind the announcement, and be reduced; :mod:`~netoffload.collectives.gathering` says how.
    Places are counted backwards from this rank: place j is rank - j's. A meeting alone has places of no floats.
    """

    word: bytes  # the announcement
    outgoing: Uint8Array  # uint8; the announcement, and behind it a place per rank. This rank's vector is in place 0
    incoming: Uint8Array  # uint8; room for the announcement and half of the places
    values: Float32Array  # float32[ranks, n], the places
    result: Float32Array  # float32[n], where the reduction goes
    rank: int
    # Per round, the channel on which it sends and the one on which it receives.
    pairs: Sequence[tuple[Channel, Channel]]
    spans: Sequence[Span] = ()  # the ring's blocks, one per rank; a meeting alone reduces none
    operation: Operation = Operation.SUM  # how two values are combined
    quantise: Quantise | None = None  # applied to each finished block, and on every hop in `rounded_hops`
    rounded_hops: Sequence[bool] = ()  # per rank, whether what it sends to its right neighbour is rounded on the way
    done: int = 0  # number of complete rounds. The first round that receives another announcement is the last
    prepared: Any = field(default=None, repr=False)  # what a transport keeps for the next time that it carries this out
    heard: memoryview = field(init=False, repr=False)  # the announcement that came in the latest round

    def __post_init__(self) -> None:
        """Keep what each call needs: to make it anew takes half a microsecond, and a short call eight."""
        self.heard = self.incoming.data[: len(self.word)]

    def octets_in(self, round_: int) -> int:
        """Return the length of a round's message, in each direction: a round doubles the places that are filled."""
        places = min(1 << round_, len(self.values) - (1 << round_))
        return len(self.word) + places * self.result.nbytes


class Exchange(Protocol):
    """One rank's view of all ranks."""

    rank: int  # this rank, 0 .. size - 1
    size: int  # number of ranks
    calling: str
    """What this rank's caller is doing, in words; announced in meetings. Empty: the algorithm's name says it."""
    stopwatch: Stopwatch  # the transport counts `wire_s` and `late_s`, the algorithms the rest
    meeting: Gathering | None  # what meetings without vectors keep from call to call

    def channel(self, peer: int, *, tagged: bool) -> Channel:
        """Return the stream to ``peer``, the same object in every call; raise if the exchange is closed."""

    def wait(self, readable: Sequence[Channel], writable: Sequence[Channel], *, may_be_late: bool = False) -> None:
        """Sleep until one of ``readable`` has octets (or has ended) or one of ``writable`` takes some.

        Peers that ``may_be_late`` may not have entered this call yet: a transport that can tell late ranks from lost
        ones waits longer for them. An error names the ranks that are lost or did nothing for the time limit.
        """

    def drive(self, round_: RingRound | Gathering) -> bool:
        """Carry out a whole round if this transport has a faster way than channel by channel; else return False."""
        # If it returns True, it has counted times and raised errors as `wait` and the channels would have.

    def scratch(self, count: int) -> Float32Array:
        """Return a float32 vector of ``count`` elements, kept between calls; its content lasts for one call."""

    def abort(self, error: BaseException) -> None:
        """Tell the other ranks why this one gives up, and end all channels; a closed exchange ignores it."""
        # The algorithms do so after an error, when streams are at unknown positions.


class Scratch:
    """A rank's scratch memory; see :meth:`Exchange.scratch`."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def __call__(self, count: int) -> Float32Array:
        """Return ``count`` floats of it."""
        if self._memory.size < count:
            self._memory = np.empty(count, np.float32)
        return self._memory[:count]


def combine(exchange: Exchange, operation: Operation, target: Float32Array, incoming: Float32Array) -> None:
    """Do :func:`apply`, and count its time."""
    watch = exchange.stopwatch
    start_s = watch.now_s()
    apply(operation, target, incoming)
    watch.reduce_s += watch.now_s() - start_s


def quantise_own(exchange: Exchange, quantise: Quantise | None, values: Float32Array) -> None:
    """Round a block that this rank owns as NICs round it on its way to the others, and count the time."""
    if quantise is None or not values.size:
        return
    watch = exchange.stopwatch
    start_s = watch.now_s()
    quantise(values)
    watch.codec_s += watch.now_s() - start_s
