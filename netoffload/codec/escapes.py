"""Codes of 16 and 32 bits behind a group: the 8-bit codes that mark them, and how they are written and read.

``ESCAPE16`` and ``ESCAPE32`` are the 8-bit codes of -0 and +0, which floats other than 0 never have. Every variant of
the kernels writes and reads escapes one by one.
"""

from typing import Final, NamedTuple

from netoffload.codec.bursts import MALFORMED
from netoffload.codec.scalar import MAGNITUDE_BITS, ROUNDER, SCALE16, UNIT16, decode_short
from netoffload.compiled.arrays import Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import (
    bits_float32,
    float32_bits,
    load_u16,
    load_u32,
    popcount_u64,
    store_u16,
    store_u32,
    trailing_zeros,
)

ESCAPE16: Final = 0x80
ESCAPE32: Final = 0x00


class Coded(NamedTuple):
    """The octets of an encoded group, its floats that are not 0, and how many of them take 16 and 32 bits."""

    octets: int
    codes: int
    in16: int
    in32: int


@inline_kernel
def with_escapes(
    source: Uint8Array, first: int, longs: int, wholes: int, target: Uint8Array, at: int, cursor: int, codes: int
) -> Coded:
    """Write the escapes of the group at ``at``, whose ``codes`` end at ``cursor``; return the group's size.

    Bit i of ``longs`` says that float i takes 16 bits or more, bit i of ``wholes`` that it takes 32.
    """
    if longs == 0:
        return Coded(cursor - at, codes, 0, 0)
    in16, in32 = longs & ~wholes, wholes
    while in16:
        word = load_u32(source, first + 4 * trailing_zeros(in16))
        nearest = float32_bits(bits_float32((word & MAGNITUDE_BITS) + SCALE16) + ROUNDER) & 0x7FFF
        store_u16(target, cursor, nearest | (word >> 16 & 0x8000))
        cursor += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, cursor, load_u32(source, first + 4 * trailing_zeros(in32)))
        cursor += 4
        in32 &= in32 - 1
    return Coded(cursor - at, codes, popcount_u64(longs & ~wholes), popcount_u64(wholes))


@inline_kernel
def get_escapes(payload: Stretch, escapes_at: int, in16: int, in32: int, target: Uint8Array, target_at: int) -> int:
    """Read the escapes into the floats of a group at the start of ``payload``; return its octets or MALFORMED."""
    octets, at = payload.octets, escapes_at
    if in16 | in32 == 0:
        return at - payload.at
    if at + 2 * popcount_u64(in16) + 4 * popcount_u64(in32) > payload.at + payload.length:
        return MALFORMED
    while in16:
        word = decode_short(load_u16(octets, at), UNIT16)
        store_u32(target, target_at + 4 * trailing_zeros(in16), word)
        at += 2
        in16 &= in16 - 1
    while in32:
        store_u32(target, target_at + 4 * trailing_zeros(in32), load_u32(octets, at))
        at += 4
        in32 &= in32 - 1
    return at - payload.at
