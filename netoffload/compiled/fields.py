"""Reading and writing header fields in network order, compiled; offsets come from ``netoffload.wire``."""

from __future__ import annotations

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import load_u16, load_u32, store_u16, store_u32


@inline_kernel
def be16(octets: Uint8Array, at: int) -> int:
    """Return the 16-bit field at ``at``."""
    word = load_u16(octets, at)
    return (word >> 8) | (word & 0xFF) << 8


@inline_kernel
def be32(octets: Uint8Array, at: int) -> int:
    """Return the 32-bit field at ``at``."""
    word = load_u32(octets, at)
    return (word >> 24) | ((word >> 8) & 0xFF00) | (word & 0xFF00) << 8 | (word & 0xFF) << 24


@inline_kernel
def be64(octets: Uint8Array, at: int) -> int:
    """Return the 64-bit field at ``at`` as a signed integer, which serves only for comparisons."""
    high = be32(octets, at)
    return (high - ((high & 0x80000000) << 1)) << 32 | be32(octets, at + 4)


@inline_kernel
def put_be16(octets: Uint8Array, at: int, value: int) -> None:
    """Write a 16-bit field."""
    store_u16(octets, at, (value >> 8 & 0xFF) | (value & 0xFF) << 8)


@inline_kernel
def put_be32(octets: Uint8Array, at: int, value: int) -> None:
    """Write a 32-bit field."""
    swapped = (value >> 24 & 0xFF) | (value >> 8 & 0xFF00) | (value & 0xFF00) << 8 | (value & 0xFF) << 24
    store_u32(octets, at, swapped)
