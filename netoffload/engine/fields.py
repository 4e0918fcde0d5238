"""Reading and writing header fields in network order, compiled; offsets come from ``netoffload.wire``."""

from __future__ import annotations

from typing import Any

from netoffload.codec.jit import inline_kernel
from netoffload.codec.octets import load_u16, load_u32, store_u16, store_u32
from netoffload.engine.sums import ones_sum
from netoffload.wire import ipv4


@inline_kernel
def be16(octets: Any, at: Any) -> Any:
    """Return the 16-bit field at ``at``."""
    word = load_u16(octets, at)
    return (word >> 8) | (word & 0xFF) << 8


@inline_kernel
def be32(octets: Any, at: Any) -> Any:
    """Return the 32-bit field at ``at``."""
    word = load_u32(octets, at)
    return (word >> 24) | ((word >> 8) & 0xFF00) | (word & 0xFF00) << 8 | (word & 0xFF) << 24


@inline_kernel
def put_be16(octets: Any, at: Any, value: Any) -> None:
    """Write a 16-bit field."""
    store_u16(octets, at, (value >> 8 & 0xFF) | (value & 0xFF) << 8)


@inline_kernel
def put_be32(octets: Any, at: Any, value: Any) -> None:
    """Write a 32-bit field."""
    swapped = (value >> 24 & 0xFF) | (value >> 8 & 0xFF00) | (value & 0xFF00) << 8 | (value & 0xFF) << 24
    store_u32(octets, at, swapped)


@inline_kernel
def put_ipv4_lengths(octets: Any, at: Any, total_len: Any, ident: Any, protocol: Any) -> None:
    """Change three fields of the option-less IPv4 header at ``at`` and sum it anew."""
    put_be16(octets, at + ipv4.TOTAL_LEN, total_len)
    put_be16(octets, at + ipv4.IDENT, ident)
    octets[at + ipv4.PROTOCOL] = protocol
    store_u16(octets, at + ipv4.CHECKSUM, 0)
    store_u16(octets, at + ipv4.CHECKSUM, ones_sum(octets, at, ipv4.IPV4_MIN_LEN) ^ 0xFFFF)


@inline_kernel
def pseudo_sum(octets: Any, at: Any, protocol: Any, length: Any) -> Any:
    """Return the folded sum of the pseudo-header (RFC 9293, 3.1) of the IPv4 header at ``at``, as a field value."""
    word = ones_sum(octets, at + ipv4.SRC, 8)
    total = ((word >> 8) | (word & 0xFF) << 8) + protocol + length
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
