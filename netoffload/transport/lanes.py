"""Lanes: the connections between two ranks, and the hello with which both ends begin.

A *hello* names the receiver's token, the sender and the lane. Its floats are four powers of two, which every codec
leaves exact. A NIC judges a tagged connection by its first kilobyte, so a hello is longer than that: a rank's first
data may be shorter. A stranger who finds the port does not know the token.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from netoffload.transport.frames import EVERY

HELLO_FLOATS: Final = 320
HELLO_OCTETS: Final = 4 * HELLO_FLOATS

_WORD: Final = struct.Struct("!4s16sIBI")
_MAGIC: Final = b"NOFJ"
_SHIFTS: Final = np.array([6, 4, 2, 0], np.uint8)


class Lane(enum.IntEnum):
    """What a connection between two ranks is for."""

    UNTAGGED = 0
    TAGGED = 1
    CONTROL = 2
    MESSAGES = 3


TAGGED_LANES = (Lane.TAGGED, Lane.MESSAGES)

CALL_LANES = (Lane.UNTAGGED, Lane.TAGGED)
"""The lanes of collectives."""


class Key(NamedTuple):
    """Names one of a rank's connections. One for collectives belongs to one context (``contexts``), others to all."""

    peer: int
    lane: Lane
    context: int = EVERY

    @classmethod
    def of(cls, peer: int, lane: Lane, context: int) -> Key:
        """Return the key of the connection that a context uses."""
        return cls(peer, lane, context if lane in CALL_LANES else EVERY)


@dataclass(frozen=True)
class Hello:
    """What both ends of a connection say first.

    Attributes:
        token: token of the receiver.
        rank: the sender.
        lane: what the connection is for.
        context: number of the context that the connection belongs to.
    """

    token: bytes
    rank: int
    lane: Lane
    context: int = EVERY

    def to_octets(self) -> bytes:
        """Return the hello's octets: a float (2, 8, 32 or 128) for every two bits, then twos up to its length."""
        word = np.frombuffer(_WORD.pack(_MAGIC, self.token, self.rank, self.lane, self.context), np.uint8)
        floats = np.full(HELLO_FLOATS, 2, "<f4")
        floats[: 4 * word.size] = 2.0 ** (1 + 2 * (word[:, None] >> _SHIFTS & 3).ravel().astype(np.float32))
        return floats.tobytes()

    @classmethod
    def from_octets(cls, octets: bytes | bytearray) -> Hello | None:
        """Return the hello in ``octets``; None if they are not one."""
        exponents = np.frombuffer(octets, "<u4")[: 4 * _WORD.size] >> 23
        pairs = (exponents - 128 >> 1 & 3).astype(np.uint8).reshape(-1, 4)
        magic, token, rank, lane, context = _WORD.unpack((pairs << _SHIFTS).sum(1).astype(np.uint8).tobytes())
        hello = cls(token, rank, Lane(lane), context) if magic == _MAGIC and lane in tuple(Lane) else None
        return None if hello is None or hello.to_octets() != octets else hello
