"""Codes <-> octets: any width from 1 to 16 bits, and five ternary digits in an octet.

A stream of ``count`` codes of ``width`` bits is one little-endian integer, code i at bit ``i * width``, in the least
number of octets; unused bits of the last octet are 0. Codes are uint16 in memory. Three masked shifts fold eight codes
into ``width`` octets, because eight codes of any width are whole octets.

A ternary stream holds five digits in an octet, digit i of weight 3^i: 3^5 = 243 of 256. A value takes 1.6 bits, where
log2(3) = 1.585 is the least (TernGrad, 3.1). Digit 0 is the value 0, 1 is +1, 2 is -1.

The target of a packing must be zero. The target and a stream to unpack must have SLACK octets behind them.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint8Array, Uint16Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u32, load_u64, store_u64, whole

Codes = Uint16Array

MAX_WIDTH: Final = 16
TRITS: Final = 5
"""Ternary digits in an octet."""

LARGEST_TRITS: Final = 3**TRITS - 1

SLACK: Final = 16
"""Octets that kernels may read and write behind a stream."""

_LOW16: Final = 0x0000FFFF0000FFFF
_EVERY32: Final = 0x0000000100000001


def stream_octets(count: int, width: int) -> int:
    """Return the octets of ``count`` codes of ``width`` bits."""
    return (count * width + 7) // 8


def trit_octets(count: int) -> int:
    """Return the octets of ``count`` ternary digits."""
    return -(-count // TRITS)


def padded(body: Uint8Array) -> Uint8Array:
    """Return a copy of octets with the slack that unpacking needs."""
    octets = np.zeros(body.size + SLACK, np.uint8)
    octets[: body.size] = body
    return octets


@inline_kernel
def put_bits(target: Uint8Array, at: int, word: int, bits: int) -> int:
    """Set the ``bits`` bits from bit ``at`` on, up to 57, which are 0 before; return where they end."""
    octet = at >> 3
    store_u64(target, octet, load_u64(target, octet) | int(word) << (at & 7))
    return at + bits


@inline_kernel
def _fold4(word: int, width: int) -> int:
    """Return four codes of ``width`` bits each, from four codes of 16 bits each."""
    pairs = (word & _LOW16) | ((word >> 16) & _LOW16) << width
    return (pairs & 0xFFFFFFFF) | ((pairs >> 32) & 0xFFFFFFFF) << (2 * width)


@inline_kernel
def _unfold4(word: int, width: int) -> int:
    """Undo :func:`_fold4`."""
    pair, one = (1 << (2 * width)) - 1, ((1 << width) - 1) * _EVERY32
    pairs = (word & pair) | ((word >> (2 * width)) & pair) << 32
    return (pairs & one) | ((pairs >> width) & one) << 16


@kernel
def pack(codes: Uint8Array, first: int, count: int, width: int, target: Uint8Array, at: int) -> int:
    """Write ``count`` codes from index ``first`` on as a stream at ``at``; return where it ends.

    ``codes`` is the octet view of uint16 codes below 2^width, 1 <= width <= 16.
    """
    for block in range(count >> 3):
        source = 2 * first + 16 * block
        low = _fold4(load_u64(codes, source), width)
        high = _fold4(load_u64(codes, source + 8), width)
        # Every shift takes two steps, because a shift by 64 (width 16) is undefined.
        store_u64(target, at + block * width, low | (high << (2 * width)) << (2 * width))
        store_u64(target, at + block * width + 8, (high >> (32 - 2 * width)) >> (32 - 2 * width))
    for i in range(count & ~7, count):
        code = whole(codes[2 * (first + i)]) | whole(codes[2 * (first + i) + 1]) << 8
        put_bits(target, 8 * at + i * width, code, width)
    return at + ((count * width + 7) >> 3)


@kernel
def unpack(stream: Uint8Array, at: int, codes: Uint8Array, first: int, count: int, width: int) -> int:
    """Write the ``count`` codes of the stream at ``at`` to index ``first`` on; return where the stream ends, or -1.

    ``codes`` is the octet view of uint16. The result is -1 if the rest of the last octet is not 0.
    """
    rest = 64 - 4 * width
    four, low_rest = (1 << (4 * width)) - 1 if width < 16 else -1, (1 << rest) - 1
    for block in range(count >> 3):
        low, high = load_u64(stream, at + block * width), load_u64(stream, at + block * width + 8)
        target = 2 * first + 16 * block
        upper = (((low >> (2 * width)) >> (2 * width)) & low_rest) | high << rest
        store_u64(codes, target, _unfold4(low & four, width))
        store_u64(codes, target + 8, _unfold4(upper & four, width))
    for i in range(count & ~7, count):
        bit = i * width
        code = (load_u32(stream, at + (bit >> 3)) >> (bit & 7)) & ((1 << width) - 1)
        codes[2 * (first + i)] = code & 0xFF
        codes[2 * (first + i) + 1] = code >> 8
    bits = count * width
    if bits & 7 and whole(stream[at + (bits >> 3)]) >> (bits & 7):
        return -1
    return at + ((bits + 7) >> 3)


@inline_kernel
def _trit(code: np.uint16) -> int:
    """Return the digit 0, 1, 2 of the sign-and-level code 0, 2, 3."""
    return whole(code) - int(code > 0)


@kernel
def pack_trits(codes: Uint16Array, count: int, target: Uint8Array, at: int) -> None:
    """Write ``count`` sign-and-level codes (uint16: 0, 2 or 3) as a ternary stream at ``at``."""
    fives = count // TRITS
    for j in range(fives):
        i = TRITS * j
        low = _trit(codes[i]) + 3 * _trit(codes[i + 1]) + 9 * _trit(codes[i + 2])
        target[at + j] = low + 27 * _trit(codes[i + 3]) + 81 * _trit(codes[i + 4])
    octet, weight = 0, 1
    for i in range(TRITS * fives, count):
        octet += weight * _trit(codes[i])
        weight *= 3
    if weight > 1:
        target[at + fives] = octet


@kernel
def unpack_trits(stream: Uint8Array, at: int, codes: Uint16Array, count: int) -> bool:
    """Write the ``count`` codes of the ternary stream at ``at`` to uint16 ``codes``; return whether it is valid.

    It is invalid if an octet is above 242, or a digit beyond the last one is not 0.
    """
    fives = count // TRITS
    largest = 0
    for j in range(fives):
        rest = whole(stream[at + j])
        largest = max(largest, rest)
        for i in range(TRITS):
            third = (rest * 171) >> 9  # rest // 3 for every octet
            digit = rest - 3 * third
            codes[TRITS * j + i] = digit + (digit > 0)
            rest = third
    last = whole(stream[at + fives]) if count % TRITS else 0
    for i in range(TRITS * fives, count):
        digit = last % 3
        codes[i] = digit + (digit > 0)
        last //= 3
    return bool(largest <= LARGEST_TRITS and last == 0)
