"""Arithmetic with TCP sequence numbers, which wrap at 2**32 (RFC 9293, 3.4); every result is a number of 32 bits.

Numbers are compared by their distance, so they must be less than 2**31 apart.
"""

from __future__ import annotations

from netoffload.compiled.jit import inline_kernel


@inline_kernel
def advance(seq: int, octets: int) -> int:
    """Return the number ``octets`` after ``seq``; a negative ``octets`` goes back."""
    return (seq + octets) & 0xFFFFFFFF


@inline_kernel
def distance(first: int, second: int) -> int:
    """Return how many octets ``second`` is behind ``first`` in the stream: -2**31 .. 2**31 - 1."""
    return ((second - first + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@inline_kernel
def is_before(first: int, second: int) -> bool:
    """Whether ``first`` comes before ``second``."""
    return (first - second) & 0x80000000 != 0
