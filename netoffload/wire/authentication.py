"""The MAC of a block, for NICs that share a key: SipHash-2-4 with 128 bits, in plain Python.

This is the definition. The engine has compiled code (``netoffload.engine.authentication``), and
``tests/engine/test_engine_authentication.py`` compares the two.

Aumasson and Bernstein: SipHash: a fast short-input PRF (INDOCRYPT 2012); the variant of 128 bits is the authors'
reference implementation's.
"""

import hashlib
from typing import Final

MAC_LEN: Final = 16
"""Octets of a MAC."""

KEY_LEN: Final = 32
"""Octets of the key that a user keeps in a file."""

SIPHASH_KEY_LEN: Final = 16
"""Octets of the key that SipHash takes."""

_PURPOSE: Final = b"no-block"
"""Personalisation: other purposes can derive other keys from the same file."""

_ALL_ONES: Final = 0xFFFFFFFFFFFFFFFF

SIPHASH_START: Final = tuple(
    int.from_bytes(b"somepseudorandomlygeneratedbytes"[at : at + 8], "big") for at in range(0, 32, 8)
)
"""Words that the key is combined with; none has its highest bit set."""


def siphash_key(key: bytes) -> bytes:
    """Return SipHash's key of 16 octets, derived from the user's key of 32."""
    return hashlib.blake2s(key, digest_size=SIPHASH_KEY_LEN, person=_PURPOSE).digest()


def siphash128(key: bytes, octets: bytes) -> bytes:
    """Return SipHash-2-4 of ``octets``, 16 octets, under a key of 16 octets."""
    low, high = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    state = [word ^ start for word, start in zip((low, high, low, high), SIPHASH_START, strict=True)]
    state[1] ^= 0xEE
    whole = len(octets) // 8 * 8
    padded = octets + bytes(whole + 7 - len(octets)) + bytes((len(octets) & 0xFF,))
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xEE
    _rounds(state, 4)
    first = state[0] ^ state[1] ^ state[2] ^ state[3]
    state[1] ^= 0xDD
    _rounds(state, 4)
    second = state[0] ^ state[1] ^ state[2] ^ state[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


def _rounds(state: list[int], count: int) -> None:
    """Mix the four words of the state ``count`` times."""
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b & _ALL_ONES, c + d & _ALL_ONES
        b, d = _turn(b, 13) ^ a, _turn(d, 16) ^ c
        a, c = _turn(a, 32) + d & _ALL_ONES, c + b & _ALL_ONES
        b, d = _turn(b, 17) ^ c, _turn(d, 21) ^ a
        c = _turn(c, 32)
    state[:] = a, b, c, d


def _turn(word: int, bits: int) -> int:
    """Return 64 bits rotated to the left."""
    return (word << bits | word >> 64 - bits) & _ALL_ONES
