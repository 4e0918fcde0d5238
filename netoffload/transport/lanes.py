"""Lanes: the connections between two ranks, and their names."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

EVERY: Final = 0
"""In place of a context number: all contexts, or a connection that they share."""


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
