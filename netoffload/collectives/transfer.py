"""Whole messages over non-blocking channels, the announcement that starts each call, and a barrier that sleeps.

**Announcement.** Every call starts with 16 octets to each rank that will receive our data: which algorithm, tagged or
not, how many floats. It goes over the untagged channel, ahead of or beside the data, so it costs no round trip: the
data follows at once, and the receiver compares before it touches the first value. Ranks that disagree get a
:class:`CollectiveError` that names both numbers, instead of a hang or a wrong sum.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from netoffload.collectives.exchange import Channel, Exchange, Float32Array
from netoffload.errors import CollectiveError, UsageError


class Call(enum.IntEnum):
    """What a rank announces that it is about to do."""

    RING = 1
    WORKER_AGGREGATOR = 2
    BARRIER = 3


_ANNOUNCEMENT = struct.Struct("!4sBB2xQ")
_MAGIC = b"NOFF"


def octets_of(values: Float32Array) -> memoryview:
    """Return the memory of a contiguous float32 vector as octets, without a copy.

    Raises:
        UsageError: not one-dimensional, contiguous float32.
    """
    if values.ndim != 1 or values.dtype.char != "f" or not values.flags.c_contiguous:
        raise UsageError(f"collectives take contiguous float32 vectors, not {values.dtype} of shape {values.shape}")
    # memoryview.cast refuses views of no elements.
    return values.data.cast("B") if values.size else memoryview(bytearray())


@contextmanager
def closing_on_error(exchange: Exchange) -> Iterator[None]:
    """Close ``exchange`` if the body raises: its streams are at unknown positions, and the peers must learn of it."""
    try:
        yield
    except BaseException:
        exchange.close()
        raise


def send_all(exchange: Exchange, channel: Channel, data: memoryview) -> None:
    """Send all of ``data``, sleeping while the peer is slower than we are."""
    sent = 0
    while sent < len(data):
        count = channel.send_some(data[sent:])
        if count == 0:
            exchange.wait([], [channel])
        sent += count


def receive_all(exchange: Exchange, channel: Channel, into: memoryview) -> None:
    """Fill all of ``into``."""
    got = 0
    while got < len(into):
        count = channel.receive_some(into[got:])
        if count == 0:
            exchange.wait([channel], [])
        got += count


def announce(exchange: Exchange, peer: int, call: Call, count: int, *, tagged: bool) -> None:
    """Tell ``peer`` what this rank is about to do with ``count`` floats."""
    word = _ANNOUNCEMENT.pack(_MAGIC, call, tagged, count)
    send_all(exchange, exchange.channel(peer, tagged=False), memoryview(word))


def check_announcement(exchange: Exchange, peer: int, call: Call, count: int, *, tagged: bool) -> None:
    """Receive the announcement of ``peer`` and compare it with what this rank does.

    Raises:
        CollectiveError: the ranks do not do the same.
    """
    word = bytearray(_ANNOUNCEMENT.size)
    receive_all(exchange, exchange.channel(peer, tagged=False), memoryview(word))
    magic, their_call, their_tag, their_count = _ANNOUNCEMENT.unpack(word)
    if magic != _MAGIC or their_call not in tuple(Call):
        raise CollectiveError(f"rank {peer} sent something that is no announcement: are both the same version?")
    ours, theirs = _describe(call, tagged, count), _describe(Call(their_call), bool(their_tag), their_count)
    if ours != theirs:
        raise CollectiveError(
            f"ranks disagree: rank {exchange.rank} calls {ours}, rank {peer} calls {theirs}; "
            "every rank must make the same calls with equally long vectors"
        )


def barrier(exchange: Exchange) -> None:
    """Return when every rank has entered (dissemination barrier, ceil(log2 p) rounds).

    Unlike an MPI barrier it sleeps instead of spinning, so a rank that arrives early leaves its core to the NICs.

    Raises:
        PeerLostError: a rank is gone or silent.
        CollectiveError: a rank is in another call.
    """
    with closing_on_error(exchange):
        distance = 1
        while distance < exchange.size:
            announce(exchange, (exchange.rank + distance) % exchange.size, Call.BARRIER, distance, tagged=False)
            behind = (exchange.rank - distance) % exchange.size
            check_announcement(exchange, behind, Call.BARRIER, distance, tagged=False)
            distance *= 2


def _describe(call: Call, tagged: bool, count: int) -> str:
    name = call.name.lower().replace("_", "-")
    if call is Call.BARRIER:
        return f"{name} (distance {count})"
    return f"{'tagged' if tagged else 'untagged'} {name} of {count} floats"
