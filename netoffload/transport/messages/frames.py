"""What travels on the control lane: heartbeats, farewells, headers of messages, requests to connect.

Each frame is a fixed part and a text. Several communicators of the same ranks share a control lane, so a frame names
its context (``watch``), or all contexts. Every field is checked here, before anything uses it.
"""

import enum
import struct
from dataclasses import dataclass

from netoffload.errors import CollectiveError, MalformedError, NetOffloadError, PeerLostError
from netoffload.transport.wiring.lanes import CALL_LANES, EVERY, Lane

_FIXED = struct.Struct("!4sBBHiIQ")
_MAGIC = b"NOFC"
MAX_TEXT_OCTETS = 1000

MAX_WORDS_OCTETS = 100  # longest text of a MESSAGE. A million of them may wait (`watch.MESSAGES_MAX`)

MESSAGE_FLOATS_MAX = 2**40  # longest message that a frame may announce: more than any machine's memory


class Kind(enum.IntEnum):
    """What a frame says."""

    BEAT = 1  # I live
    CLOSED = 2  # I close my connections, all is well
    LOST = 3  # I give up: the text names a rank that is lost
    ERROR = 4  # I give up: the text says why
    MESSAGE = 5  # a message follows on the messages lane: `tag`, `count` floats
    CONNECT = 6  # connect to me for the lane `tag`: you are the higher rank


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: Kind
    text: str = ""  # reason, in LOST and ERROR; what the message is, in MESSAGE
    tag: int = 0  # tag of the message in MESSAGE; lane in CONNECT
    count: int = 0  # floats of the message in MESSAGE
    context: int = EVERY  # number of the context that the frame concerns

    def to_octets(self) -> bytes:
        """Return the frame's octets."""
        text = self.text.encode(errors="replace")[: MAX_WORDS_OCTETS if self.kind is Kind.MESSAGE else MAX_TEXT_OCTETS]
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
    """Take every whole frame from the front of ``octets``; an error's words begin after the sender's name."""
    frames = []
    while len(octets) >= _FIXED.size:
        magic, kind, zero, length, tag, context, count = _FIXED.unpack_from(octets)
        if magic != _MAGIC or kind not in tuple(Kind) or zero or length > MAX_TEXT_OCTETS:
            raise _malformed("its header is none")
        if len(octets) < _FIXED.size + length:
            break
        text = octets[_FIXED.size : _FIXED.size + length].decode(errors="replace")
        del octets[: _FIXED.size + length]
        frame = Frame(Kind(kind), "".join(each if each.isprintable() else "?" for each in text), tag, count, context)
        _check(frame)
        frames.append(frame)
    return frames


def _check(frame: Frame) -> None:
    """Refuse a field that no frame of its kind has."""
    kind = frame.kind
    has_reason = kind in (Kind.LOST, Kind.ERROR)
    longest = MAX_WORDS_OCTETS if kind is Kind.MESSAGE else MAX_TEXT_OCTETS if has_reason else 0
    if len(frame.text) > longest or (has_reason and not frame.text):
        raise _malformed(f"a {kind.name} with a text of {len(frame.text)} characters")
    if kind is Kind.MESSAGE:
        if frame.context == EVERY or frame.count > MESSAGE_FLOATS_MAX:
            raise _malformed(f"a message of {frame.count} floats in context {frame.context}")
    elif kind is Kind.CONNECT:
        is_lane = frame.tag in (Lane.UNTAGGED, Lane.TAGGED, Lane.MESSAGES)
        if not is_lane or (frame.tag in CALL_LANES) is (frame.context == EVERY) or frame.count:
            raise _malformed(f"a request for lane {frame.tag} of context {frame.context}")
    elif frame.tag or frame.count or (kind is Kind.BEAT and frame.context != EVERY):
        raise _malformed(f"a {kind.name} with more than it says")


def _malformed(reason: str) -> MalformedError:
    return MalformedError(f"sent something that is no control frame ({reason}): install the same version everywhere")
