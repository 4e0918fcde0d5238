"""Unaligned little-endian loads and stores in an octet array: each is one machine instruction, and has a Python twin.

The floats of a frame begin where the headers end, often at no multiple of 4; NumPy's typed views cannot start there.
The compiled forms do not check bounds; callers do. The twins run under ``NUMBA_DISABLE_JIT=1`` and are the definition.
Header fields are in network order; their offsets come from ``netoffload.wire``.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits
from netoffload.compiled.jit import inline_kernel

_I64: Final = ir.IntType(64)


def _make_load(bits: int) -> Callable[[Uint8Array, int], int]:
    def slow(octets: Uint8Array, at: int) -> int:
        word = bytes(octets[at : at + bits // 8]).ljust(bits // 8, b"\0")
        return int.from_bytes(word, "little", signed=bits == 64)

    @emits(types.int64, ARRAY, types.int64, twin=slow)
    def load(builder: Builder, octets: Value, at: Value) -> Value:
        """Unaligned load."""
        pointer = builder.bitcast(builder.gep(octets, [at]), ir.IntType(bits).as_pointer())
        word = builder.load(pointer, align=1)
        return word if bits == 64 else builder.zext(word, _I64)

    return load


def _make_store(bits: int) -> Callable[[Uint8Array, int, int], None]:
    def slow(octets: Uint8Array, at: int, word: int) -> None:
        low = (int(word) & (1 << bits) - 1).to_bytes(bits // 8, "little")
        octets[at : at + bits // 8] = np.frombuffer(low, np.uint8)

    @emits(types.none, ARRAY, types.int64, types.int64, twin=slow)
    def store(builder: Builder, octets: Value, at: Value, word: Value) -> None:
        """Unaligned store."""
        pointer = builder.bitcast(builder.gep(octets, [at]), ir.IntType(bits).as_pointer())
        builder.store(word if bits == 64 else builder.trunc(word, ir.IntType(bits)), pointer, align=1)

    return store


@emits(types.int64, types.uintp, twin=lambda address: ctypes.c_int32.from_address(int(address)).value)
def int32_at(builder: Builder, address: Value) -> Value:
    """Return the 32-bit integer at an address of memory."""
    return builder.sext(builder.load(builder.inttoptr(address, ir.IntType(32).as_pointer())), _I64)


@emits(types.int64, types.int64, twin=lambda word: (int(word) & 0xFFFF).bit_count())
def popcount_u16(builder: Builder, word: Value) -> Value:
    """Return how many of the low 16 bits are set."""
    return builder.zext(builder.ctpop(builder.trunc(word, ir.IntType(16))), _I64)


@emits(types.int64, types.int64, twin=lambda word: (int(word) & (1 << 64) - 1).bit_count())
def popcount_u64(builder: Builder, word: Value) -> Value:
    """Return how many of 64 bits are set."""
    return builder.ctpop(word)


@emits(types.int64, types.uint64, twin=lambda word: (int(word) & -int(word)).bit_length() - 1)
def trailing_zeros(builder: Builder, word: Value) -> Value:
    """Return the number of the lowest bit set in a 64-bit word that is not 0."""
    return builder.cttz(word, ir.Constant(ir.IntType(1), 1))


@emits(types.int64, types.int64, twin=lambda word: int(word).bit_length())
def bit_length(builder: Builder, word: Value) -> Value:
    """Return how many bits a number of 0 or more has, without zeros in front."""
    return builder.sub(_I64(64), builder.ctlz(word, ir.Constant(ir.IntType(1), 0)))


@emits(types.int64, types.float32, twin=lambda value: int(np.float32(value).view(np.uint32)))
def float32_bits(builder: Builder, value: Value) -> Value:
    """Return the bits of a float32."""
    return builder.zext(builder.bitcast(value, ir.IntType(32)), _I64)


@emits(types.float32, types.int64, twin=lambda word: np.uint32(word).view(np.float32))
def bits_float32(builder: Builder, word: Value) -> Value:
    """Return the float32 with these bits."""
    return builder.bitcast(builder.trunc(word, ir.IntType(32)), ir.FloatType())


def _copy(source: Uint8Array, source_at: int, target: Uint8Array, target_at: int, count: int) -> None:
    target[target_at : target_at + count] = source[source_at : source_at + count]


@emits(types.none, ARRAY, types.int64, ARRAY, types.int64, types.int64, twin=_copy)
def copy_octets(
    builder: Builder, source: Value, source_at: Value, target: Value, target_at: Value, count: Value
) -> None:
    """Copy ``count`` octets between two arrays that do not overlap (memcpy)."""
    begin, to = builder.gep(source, [source_at]), builder.gep(target, [target_at])
    cgutils.raw_memcpy(builder, to, begin, count, 1)


def _clear(target: Uint8Array, at: int, count: int) -> None:
    target[at : at + count] = 0


@emits(types.none, ARRAY, types.int64, types.int64, twin=_clear)
def clear_octets(builder: Builder, target: Value, at: Value, count: Value) -> None:
    """Set ``count`` octets to 0 (memset)."""
    cgutils.memset(builder, builder.gep(target, [at]), count, 0)


load_u16, load_u32, load_u64 = _make_load(16), _make_load(32), _make_load(64)
"""(octets, at): Return the little-endian word at ``at``; one of 64 bits is signed."""

store_u16, store_u32, store_u64 = _make_store(16), _make_store(32), _make_store(64)
"""(octets, at, word): Store the low bits of ``word`` at ``at``, little-endian."""


@inline_kernel
def whole(value: int | np.integer[Any]) -> int:
    """Return a number as a signed 64-bit integer, so that arithmetic with it cannot wrap."""
    return np.int64(value)  # type: ignore[return-value]  # in compiled code this is an int


@inline_kernel
def u8(octets: Uint8Array, at: int) -> int:
    """Return the octet at ``at`` as a signed 64-bit integer."""
    return whole(octets[at])


@inline_kernel
def be16(octets: Uint8Array, at: int) -> int:
    """Return the 16-bit header field at ``at``."""
    word = load_u16(octets, at)
    return (word >> 8) | (word & 0xFF) << 8


@inline_kernel
def be32(octets: Uint8Array, at: int) -> int:
    """Return the 32-bit header field at ``at``."""
    word = load_u32(octets, at)
    return (word >> 24) | ((word >> 8) & 0xFF00) | (word & 0xFF00) << 8 | (word & 0xFF) << 24


@inline_kernel
def be64(octets: Uint8Array, at: int) -> int:
    """Return the 64-bit header field at ``at`` as a signed integer, which serves only for comparisons."""
    high = be32(octets, at)
    return (high - ((high & 0x80000000) << 1)) << 32 | be32(octets, at + 4)


@inline_kernel
def put_be16(octets: Uint8Array, at: int, value: int) -> None:
    """Write a 16-bit header field."""
    store_u16(octets, at, (value >> 8 & 0xFF) | (value & 0xFF) << 8)


@inline_kernel
def put_be32(octets: Uint8Array, at: int, value: int) -> None:
    """Write a 32-bit header field."""
    swapped = (value >> 24 & 0xFF) | (value >> 8 & 0xFF00) | (value & 0xFF00) << 8 | (value & 0xFF) << 24
    store_u32(octets, at, swapped)
