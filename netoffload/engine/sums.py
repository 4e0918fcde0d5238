"""The two sums over a frame, compiled: the IPv4 header checksum and the block's CRC32C.

A CRC is the remainder of a polynomial, so early octets may be replaced by others with the same remainder. *Folding*
does so: it multiplies 128 bits, without carries, by a constant for the distance to later bits, and adds the product to
those. A register holds one, two or four such lanes (``FOLDING``, by CPU), and four registers are folded side by side.
In the end the four registers have the same CRC as all octets that were folded. SSE 4.2 computes it with one instruction
per eight octets. It also handles stretches shorter than four registers, and all octets on a CPU that cannot fold.
Without SSE 4.2 each octet takes a look-up in a table of 256 words. ``netoffload.wire.checksum`` has the definitions.

Gopal et al.: Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction (Intel, 2009).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits
from netoffload.compiled.jit import cpu_features, inline_kernel
from netoffload.compiled.octets import load_u16, u8
from netoffload.wire.checksum import CRC32C_POLYNOMIAL, CRC32C_TABLE

_FEATURES: Final = cpu_features()
HAS_CRC32C: Final = _FEATURES.get("crc32", False)
FOLDING: Final = {
    4: ("vpclmulqdq", "avx512f", "crc32"),
    2: ("vpclmulqdq", "avx2", "crc32"),
    1: ("pclmul", "crc32"),
}
"""Lanes of 128 bits in a register, most first, and the CPU features that each needs."""
USABLE_LANES: Final = [lanes for lanes, needed in FOLDING.items() if all(_FEATURES.get(name, False) for name in needed)]

_TABLE: Final = np.array(CRC32C_TABLE, np.int64)
_I64: Final = ir.IntType(64)
_REGISTERS: Final = 4
"""Registers that are folded side by side: a CPU can start the next multiplication before one ends."""


def _multiplier(bits: int) -> int:
    """Return the factor that moves 64 bits on by ``bits``: x**bits modulo the polynomial, with its bits reversed.

    It is moved up by one bit, because the product of two reversed numbers is one bit too low.
    """
    remainder = 1 << 31
    for _ in range(bits):
        remainder = remainder >> 1 ^ (CRC32C_POLYNOMIAL if remainder & 1 else 0)
    return remainder << 1


class _Folder:
    """Emits the instructions that fold registers of ``lanes`` lanes."""

    def __init__(self, builder: Builder, lanes: int, data: Value) -> None:
        self._builder = builder
        self._lanes = lanes
        self._data = data
        self.register = ir.VectorType(_I64, 2 * lanes)
        self.register_len = 16 * lanes

    def load(self, at: Value) -> Value:
        """Return the octets at ``at`` that fill one register."""
        pointer = self._builder.bitcast(self._builder.gep(self._data, [at]), self.register.as_pointer())
        return self._builder.load(pointer, align=1)

    def fold(self, early: Value, late: Value, registers: int) -> Any:
        """Return a register that replaces ``early`` and ``late``; ``late`` begins ``registers`` registers later."""
        bits = 8 * registers * self.register_len
        by = ir.Constant(self.register, [_multiplier(bits + 32), _multiplier(bits - 32)] * self._lanes)
        name = "llvm.x86.pclmulqdq" + {1: "", 2: ".256", 4: ".512"}[self._lanes]
        signature = ir.FunctionType(self.register, [self.register, self.register, ir.IntType(8)])
        function = self._builder.module.declare_intrinsic(name, fnty=signature)
        # The product of the low halves, and the product of the high halves.
        low, high = (self._builder.call(function, [early, by, ir.IntType(8)(which)]) for which in (0x00, 0x11))
        return self._builder.xor(self._builder.xor(low, high), late)


def make_fold(lanes: int) -> Callable[[int, Uint8Array, int, int], int]:
    """Return the kernel that folds, for registers of ``lanes`` lanes (see ``FOLDING``).

    The kernel takes a running CRC32C, a uint8 array, the index to start at, and how many registers to add, at least
    four. It returns the CRC.
    """

    @emits(types.int64, types.int64, ARRAY, types.int64, types.int64)
    def fold(builder: Builder, crc: Value, octets: Value, at: Value, count: Value) -> Value:
        """Add ``count`` registers of octets to a running CRC32C."""
        folder = _Folder(builder, lanes, octets)
        step = _I64(_REGISTERS * folder.register_len)
        starts = [builder.add(at, _I64(index * folder.register_len)) for index in range(_REGISTERS)]
        begun = builder.insert_element(ir.Constant(folder.register, [0] * 2 * lanes), crc, _I64(0))
        first = [folder.load(start) for start in starts]
        first[0] = builder.xor(first[0], begun)
        sums = [cgutils.alloca_once_value(builder, value) for value in first]
        rounds = builder.sub(builder.udiv(count, _I64(_REGISTERS)), _I64(1))
        with cgutils.for_range(builder, rounds) as loop:
            ahead = builder.mul(builder.add(loop.index, _I64(1)), step)
            for place, start in zip(sums, starts, strict=True):
                late = folder.load(builder.add(start, ahead))
                builder.store(folder.fold(builder.load(place), late, _REGISTERS), place)
        for early, late in pairwise(sums):
            builder.store(folder.fold(builder.load(early), builder.load(late), 1), late)
        rest_at = builder.add(at, builder.mul(builder.add(rounds, _I64(1)), step))
        with cgutils.for_range(builder, builder.urem(count, _I64(_REGISTERS))) as loop:
            late = folder.load(builder.add(rest_at, builder.mul(loop.index, _I64(folder.register_len))))
            builder.store(folder.fold(builder.load(sums[-1]), late, 1), sums[-1])
        whole = builder.load(sums[-1])
        crc = _I64(0)
        for index in range(2 * lanes):
            crc = _add_word(builder, crc, builder.extract_element(whole, _I64(index)))
        return crc

    return cast(Callable[[int, Uint8Array, int, int], int], fold)


def _add_word(builder: Builder, crc: Value, word: Value) -> Value:
    """Add eight octets to a running CRC32C (SSE 4.2)."""
    function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=ir.FunctionType(_I64, [_I64, _I64]))
    return builder.call(function, [crc, word])


@inline_kernel
def _crc_octets(crc: int, octets: Uint8Array, at: int, length: int) -> int:
    for index in range(at, at + length):
        crc = crc >> 8 ^ _TABLE[(crc ^ u8(octets, index)) & 0xFF]
    return crc


if HAS_CRC32C:

    @emits(types.int64, types.int64, ARRAY, types.int64)
    def _crc32c_u64(builder: Builder, crc: Value, octets: Value, at: Value) -> Value:
        """Add eight octets to a running CRC32C."""
        word = builder.load(builder.bitcast(builder.gep(octets, [at]), _I64.as_pointer()), align=1)
        return _add_word(builder, crc, word)

    @inline_kernel
    def _crc_words(crc: int, octets: Uint8Array, at: int, words: int) -> int:
        for index in range(at, at + 8 * words, 8):
            crc = _crc32c_u64(crc, octets, index)
        return crc

else:

    @inline_kernel
    def _crc_words(crc: int, octets: Uint8Array, at: int, words: int) -> int:
        return _crc_octets(crc, octets, at, 8 * words)


if USABLE_LANES:
    _REGISTER_LEN: Final = 16 * USABLE_LANES[0]
    _fold = make_fold(USABLE_LANES[0])

    @inline_kernel
    def _crc_most(crc: int, octets: Uint8Array, at: int, length: int) -> tuple[int, int]:
        """Add all octets that can be folded; return the CRC and how many octets they are."""
        registers = length // _REGISTER_LEN
        if registers < _REGISTERS:
            return crc, 0
        return _fold(crc, octets, at, registers), registers * _REGISTER_LEN

else:

    @inline_kernel
    def _crc_most(crc: int, octets: Uint8Array, at: int, length: int) -> tuple[int, int]:
        return crc, 0


@inline_kernel
def crc32c(octets: Uint8Array, at: int, length: int, crc: int) -> int:
    """Return the CRC32C of ``length`` octets from ``at``, going on from ``crc`` (0 to start)."""
    crc, done = _crc_most(crc ^ 0xFFFFFFFF, octets, at, length)
    words = (length - done) // 8
    crc = _crc_words(crc, octets, at + done, words)
    done += 8 * words
    return _crc_octets(crc, octets, at + done, length - done) ^ 0xFFFFFFFF


@inline_kernel
def ones_sum(octets: Uint8Array, at: int, length: int) -> int:
    """Return the folded ones' complement sum of octets, in their own (little-endian) order.

    A ones' complement sum may be taken in either order and swapped at the end (RFC 1071, 2 B).
    """
    total = 0
    for index in range(at, at + length - 1, 2):
        total += load_u16(octets, index)
    if length & 1:
        total += u8(octets, at + length - 1)  # padded with a 0 behind it
    return folded(total)


@inline_kernel
def folded(total: int) -> int:
    """Return a sum as 16 bits: carries are added at the low end."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@inline_kernel
def swapped(word: int) -> int:
    """Return a field value as the sum of its octets in their own order, and the reverse."""
    return word >> 8 | (word & 0xFF) << 8
