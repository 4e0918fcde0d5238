"""What travels on the control lane: heartbeats, farewells, headers of messages, requests to connect.

Each is a fixed part and some text.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from netoffload.errors import CollectiveError, NetOffloadError, PeerLostError

_FIXED = struct.Struct("!4sBBHiQ")
_MAGIC = b"NOFC"
MAX_TEXT_OCTETS = 1000


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
        kind: what it says.
        text: of LOST and ERROR.
        tag: of MESSAGE; lane of CONNECT.
        count: floats of MESSAGE.
    """

    kind: Kind
    text: str = ""
    tag: int = 0
    count: int = 0

    def to_octets(self) -> bytes:
        """Return what travels."""
        text = self.text.encode()[:MAX_TEXT_OCTETS]
        return _FIXED.pack(_MAGIC, self.kind, 0, len(text), self.tag, self.count) + text


def farewell(rank: int, error: BaseException) -> Frame:
    """Return the frame with which ``rank`` gives up because of ``error``."""
    if isinstance(error, PeerLostError):
        return Frame(Kind.LOST, str(error))
    if isinstance(error, CollectiveError):
        return Frame(Kind.ERROR, str(error))
    reason = str(error) if isinstance(error, NetOffloadError) else f"{type(error).__name__}: {error}"
    return Frame(Kind.ERROR, f"rank {rank} gave up: {reason}")


def take_frames(octets: bytearray) -> list[Frame]:
    """Take every whole frame from the front of ``octets``.

    Raises:
        CollectiveError: no frame of this version.
    """
    frames = []
    while len(octets) >= _FIXED.size:
        magic, kind, _, length, tag, count = _FIXED.unpack_from(octets)
        if magic != _MAGIC or kind not in tuple(Kind):
            raise CollectiveError("a rank sent something that is no control frame: do all run the same version?")
        if len(octets) < _FIXED.size + length:
            break
        text = octets[_FIXED.size : _FIXED.size + length].decode(errors="replace")
        del octets[: _FIXED.size + length]
        frames.append(Frame(Kind(kind), text, tag, count))
    return frames
