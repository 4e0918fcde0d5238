"""What travels on the control lane: heartbeats, farewells, headers of messages, requests to connect.

Each frame is a fixed part and a text. Several communicators of the same ranks share a control lane, so a frame names
its context (``contexts``), or all contexts.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from netoffload.errors import CollectiveError, NetOffloadError, PeerLostError

_FIXED = struct.Struct("!4sBBHiIQ")
_MAGIC = b"NOFC"
MAX_TEXT_OCTETS = 1000

EVERY = 0
"""In place of a context number: all contexts, or a connection that they share."""


class Kind(enum.IntEnum):
    """What a frame says."""

    BEAT = 1
    """I live."""
    CLOSED = 2
    """I close my connections, all is well."""
    LOST = 3
    """I give up: the text names a rank that is lost."""
    ERROR = 4
    """I give up: the text says why."""
    MESSAGE = 5
    """A message follows on the messages lane: ``tag``, ``count`` floats."""
    CONNECT = 6
    """Connect to me for the lane ``tag``: you are the higher rank."""


@dataclass(frozen=True)
class Frame:
    """One frame.

    Attributes:
        kind: what the frame says.
        text: reason, in LOST and ERROR; what the message is, in MESSAGE.
        tag: tag of the message in MESSAGE; lane in CONNECT.
        count: floats of the message in MESSAGE.
        context: number of the context that the frame concerns.
    """

    kind: Kind
    text: str = ""
    tag: int = 0
    count: int = 0
    context: int = EVERY

    def to_octets(self) -> bytes:
        """Return the frame's octets."""
        text = self.text.encode()[:MAX_TEXT_OCTETS]
        return _FIXED.pack(_MAGIC, self.kind, 0, len(text), self.tag, self.context, self.count) + text


def farewell(rank: int, error: BaseException, context: int = EVERY) -> Frame:
    """Return the frame with which ``rank`` gives up a context because of ``error``."""
    if isinstance(error, PeerLostError):
        return Frame(Kind.LOST, str(error), context=context)
    if isinstance(error, CollectiveError):
        return Frame(Kind.ERROR, str(error), context=context)
    reason = str(error) if isinstance(error, NetOffloadError) else f"{type(error).__name__}: {error}"
    return Frame(Kind.ERROR, f"rank {rank} gave up: {reason}", context=context)


def reason_of(frame: Frame) -> CollectiveError:
    """Return the error that a LOST or an ERROR stands for."""
    return (PeerLostError if frame.kind is Kind.LOST else CollectiveError)(frame.text)


def take_frames(octets: bytearray) -> list[Frame]:
    """Take every whole frame from the front of ``octets``.

    Raises:
        CollectiveError: the octets are not a frame of this version.
    """
    frames = []
    while len(octets) >= _FIXED.size:
        magic, kind, _, length, tag, context, count = _FIXED.unpack_from(octets)
        if magic != _MAGIC or kind not in tuple(Kind):
            raise CollectiveError("a rank sent something that is no control frame: install the same version everywhere")
        if len(octets) < _FIXED.size + length:
            break
        text = octets[_FIXED.size : _FIXED.size + length].decode(errors="replace")
        del octets[: _FIXED.size + length]
        frames.append(Frame(Kind(kind), text, tag, count, context))
    return frames
