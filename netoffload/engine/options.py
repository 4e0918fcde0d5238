"""Finding an option in a TCP header (RFC 9293, 3.1), compiled."""

from __future__ import annotations

from typing import Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import u8
from netoffload.wire import tcp

NO_OPTION: Final = 0
UNREADABLE: Final = -1
"""An option's length is impossible, so nothing behind it can be read."""


@inline_kernel
def find_option(frame: Uint8Array, tcp_at: int, tcp_len: int, wanted: int) -> int:
    """Return where the first option of a kind is, or ``NO_OPTION``, or ``UNREADABLE``.

    Args:
        frame: uint8, with ``tcp_len`` octets of TCP header at ``tcp_at``.
        wanted: the option's kind; ``tcp.OPTION_END`` finds the end of the list.
    """
    at = tcp_at + tcp.TCP_MIN_LEN
    end = tcp_at + tcp_len
    while at < end:
        kind = u8(frame, at)
        if kind == tcp.OPTION_END:
            return at if wanted == tcp.OPTION_END else NO_OPTION
        if kind == tcp.OPTION_NOP:
            at += 1
            continue
        if at + 1 >= end or u8(frame, at + 1) < 2 or at + u8(frame, at + 1) > end:
            return UNREADABLE
        if kind == wanted:
            return at
        at += u8(frame, at + 1)
    return NO_OPTION


@inline_kernel
def find_timestamps(frame: Uint8Array, tcp_at: int, tcp_len: int) -> int:
    """Return where the option for timestamps is (RFC 7323), or ``NO_OPTION``."""
    at = find_option(frame, tcp_at, tcp_len, tcp.OPTION_TIMESTAMPS)
    return at if at > NO_OPTION and u8(frame, at + 1) == tcp.OPTION_TIMESTAMPS_LEN else NO_OPTION


@inline_kernel
def has_signature(frame: Uint8Array, tcp_at: int, tcp_len: int) -> bool:
    """Whether an option signs the segment (TCP-MD5, TCP-AO), or the options cannot be read."""
    return (
        find_option(frame, tcp_at, tcp_len, tcp.OPTION_MD5) != NO_OPTION
        or find_option(frame, tcp_at, tcp_len, tcp.OPTION_AO) != NO_OPTION
    )
