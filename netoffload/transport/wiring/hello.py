"""Hellos: how the two ends of a new connection prove to each other which ranks they are.

All ranks of a meeting share a secret, made of the tokens in their offers. A connection begins with three hellos::

    the end that connects                                 the end that listens
    CALL:   nonce a, MAC(call, ranks, lane, a)    ──►     a stranger is closed at the first hello
    knows the other end  ◄──  ANSWER: nonce b, MAC(answer, ranks, lane, b, a)
    PROOF:  nonce a, MAC(proof, ranks, lane, a, b) ──►    knows the other end: a recorded call has no proof for b

Nothing after them is signed or encrypted. The floats of a hello are four powers of two, which every codec leaves exact.
A NIC judges a tagged connection by its first kilobyte, so a hello is longer: a rank's first data may be shorter.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from netoffload.transport.wiring.lanes import CALL_LANES, EVERY, Lane

HELLO_FLOATS: Final = 320
HELLO_OCTETS: Final = 4 * HELLO_FLOATS

NONCE_OCTETS: Final = 16

_FACTS: Final = struct.Struct("!4sBIIBI16s")
_MAC_OCTETS: Final = 16
_WORD_OCTETS: Final = _FACTS.size + _MAC_OCTETS
_MAGIC: Final = b"NOFJ"
_SHIFTS: Final = np.array([6, 4, 2, 0], np.uint8)


def secret_of(tokens: Iterable[bytes]) -> bytes:
    """Return the secret of a meeting, from the tokens of its ranks in rank order."""
    return hashlib.blake2b(b"".join(tokens), digest_size=32, person=b"netoffload-key").digest()


class Step(enum.IntEnum):
    """Which hello it is."""

    CALL = 1
    ANSWER = 2
    PROOF = 3


@dataclass(frozen=True)
class Hello:
    """One of the three hellos."""

    step: Step
    rank: int  # the sender
    to: int  # the receiver
    lane: Lane  # what the connection is for
    context: int = EVERY  # number of the context that the connection belongs to
    # Random octets of the sender, new for each connection.
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_OCTETS))
    mac: bytes = bytes(_MAC_OCTETS)  # proof that the sender knows the secret, and what the other end said last

    def sealed(self, secret: bytes, peer_nonce: bytes = b"") -> Hello:
        """Return the hello with its MAC; ``peer_nonce`` is the other end's nonce, empty in a call."""
        return replace(self, mac=self._mac(secret, peer_nonce))

    def is_sealed(self, secret: bytes, peer_nonce: bytes = b"") -> bool:
        """Return whether the MAC is right; arguments as for :meth:`sealed`."""
        return hmac.compare_digest(self.mac, self._mac(secret, peer_nonce))

    def answers(self, other: Hello, step: Step) -> bool:
        """Return whether this is hello number ``step`` from the rank that got ``other``, about the same connection."""
        facts = self.step, self.rank, self.to, self.lane, self.context
        return facts == (step, other.to, other.rank, other.lane, other.context)

    def to_octets(self) -> bytes:
        """Return the hello's octets: a float (2, 8, 32 or 128) for every two bits, then twos up to its length."""
        word = np.frombuffer(self._facts() + self.mac, np.uint8)
        floats = np.full(HELLO_FLOATS, 2, "<f4")
        floats[: 4 * word.size] = 2.0 ** (1 + 2 * (word[:, None] >> _SHIFTS & 3).ravel().astype(np.float32))
        return floats.tobytes()

    @classmethod
    def from_octets(cls, octets: bytes | bytearray) -> Hello | None:
        """Return the hello in ``octets``; None if they are not one."""
        exponents = np.frombuffer(octets, "<u4")[: 4 * _WORD_OCTETS] >> 23
        pairs = (exponents - 128 >> 1 & 3).astype(np.uint8).reshape(-1, 4)
        word = (pairs << _SHIFTS).sum(1).astype(np.uint8).tobytes()
        magic, step, rank, to, lane, context, nonce = _FACTS.unpack_from(word)
        if magic != _MAGIC or step not in tuple(Step) or lane not in tuple(Lane):
            return None
        if (Lane(lane) in CALL_LANES) is (context == EVERY):
            return None
        hello = cls(Step(step), rank, to, Lane(lane), context, nonce, word[_FACTS.size :])
        return hello if hello.to_octets() == octets else None

    def _facts(self) -> bytes:
        return _FACTS.pack(_MAGIC, self.step, self.rank, self.to, self.lane, self.context, self.nonce)

    def _mac(self, secret: bytes, peer_nonce: bytes) -> bytes:
        facts = self._facts() + peer_nonce
        return hashlib.blake2b(facts, digest_size=_MAC_OCTETS, key=secret, person=b"netoffload-hello").digest()
