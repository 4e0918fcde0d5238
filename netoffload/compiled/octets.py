"""Unaligned little-endian loads and stores in an octet array: each is one machine instruction, and has a Python twin.

The floats of a frame begin where the headers end, often at no multiple of 4; NumPy's typed views cannot start there.
The compiled forms do not check bounds; callers do. The twins run under ``NUMBA_DISABLE_JIT=1`` and are the definition.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel

if JIT_DISABLED:

    def load_u16(octets: Uint8Array, at: int) -> int:
        """Return the 16-bit little-endian word at ``at``."""
        return int(octets[at]) | int(octets[at + 1]) << 8

    def load_u32(octets: Uint8Array, at: int) -> int:
        """Return the 32-bit little-endian word at ``at``."""
        return int.from_bytes(bytes(octets[at : at + 4]).ljust(4, b"\0"), "little")

    def load_u64(octets: Uint8Array, at: int) -> int:
        """Return the 64-bit little-endian word at ``at`` as a signed number."""
        return int.from_bytes(bytes(octets[at : at + 8]).ljust(8, b"\0"), "little", signed=True)

    def store_u16(octets: Uint8Array, at: int, word: int) -> None:
        """Store the low 16 bits of ``word`` at ``at``, little-endian."""
        octets[at : at + 2] = np.frombuffer((int(word) & 0xFFFF).to_bytes(2, "little"), np.uint8)

    def store_u32(octets: Uint8Array, at: int, word: int) -> None:
        """Store the low 32 bits of ``word`` at ``at``, little-endian."""
        octets[at : at + 4] = np.frombuffer((int(word) & 0xFFFFFFFF).to_bytes(4, "little"), np.uint8)

    def store_u64(octets: Uint8Array, at: int, word: int) -> None:
        """Store the low 64 bits of ``word`` at ``at``, little-endian."""
        octets[at : at + 8] = np.frombuffer((int(word) & (1 << 64) - 1).to_bytes(8, "little"), np.uint8)

    def bit_length(word: int) -> int:
        """Return how many bits a number of 0 or more has, without zeros in front."""
        return int(word).bit_length()

    def popcount_u16(word: int) -> int:
        """Return how many of the low 16 bits are set."""
        return (int(word) & 0xFFFF).bit_count()

    def popcount_u64(word: int) -> int:
        """Return how many of 64 bits are set."""
        return (int(word) & (1 << 64) - 1).bit_count()

    def trailing_zeros(word: int) -> int:
        """Return the number of the lowest bit set in a 64-bit word that is not 0."""
        return (int(word) & -int(word)).bit_length() - 1

    def float32_bits(value: np.float32) -> int:
        """Return the bits of a float32."""
        return int(np.float32(value).view(np.uint32))

    def bits_float32(word: int) -> np.float32:
        """Return the float32 with these bits."""
        return np.uint32(word).view(np.float32)

    def copy_octets(source: Uint8Array, source_at: int, target: Uint8Array, target_at: int, count: int) -> None:
        """Copy ``count`` octets between two arrays that do not overlap."""
        target[target_at : target_at + count] = source[source_at : source_at + count]

    def clear_octets(target: Uint8Array, at: int, count: int) -> None:
        """Set ``count`` octets to 0."""
        target[at : at + count] = 0

    def int32_at(address: int) -> int:
        """Return the 32-bit integer at an address of memory."""
        return ctypes.c_int32.from_address(int(address)).value

else:

    def _pointer(
        context: Context, builder: Builder, array_type: NumbaType, array: Value, at: Value, bits: int
    ) -> Value:
        data = context.make_array(array_type)(context, builder, array).data
        return builder.bitcast(builder.gep(data, [at]), ir.IntType(bits).as_pointer())

    def _make_load(bits: int, result: NumbaType) -> Any:
        @intrinsic
        def load(typing_context: TypingContext, octets: NumbaType, at: NumbaType) -> Intrinsic:
            """Unaligned load."""

            def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
                pointer = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
                word = builder.load(pointer, align=1)
                return word if bits == 64 else builder.zext(word, ir.IntType(64))

            return result(octets, types.int64), codegen

        return load

    def _make_store(bits: int) -> Any:
        @intrinsic
        def store(typing_context: TypingContext, octets: NumbaType, at: NumbaType, word: NumbaType) -> Intrinsic:
            """Unaligned store."""

            def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
                pointer = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
                word = args[2] if bits == 64 else builder.trunc(args[2], ir.IntType(bits))
                builder.store(word, pointer, align=1)
                return context.get_dummy_value()

            return types.none(octets, types.int64, types.int64), codegen

        return store

    load_u16 = _make_load(16, types.int64)
    load_u32 = _make_load(32, types.int64)
    load_u64 = _make_load(64, types.int64)
    store_u16 = _make_store(16)
    store_u32 = _make_store(32)
    store_u64 = _make_store(64)

    @intrinsic
    def int32_at(typing_context: TypingContext, address: NumbaType) -> Intrinsic:
        """Return the 32-bit integer at an address of memory."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            word = builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))
            return builder.sext(word, ir.IntType(64))

        return types.int64(types.uintp), codegen

    @intrinsic
    def popcount_u16(typing_context: TypingContext, word: NumbaType) -> Intrinsic:
        """Return how many of the low 16 bits are set."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            low = builder.trunc(args[0], ir.IntType(16))
            return builder.zext(builder.ctpop(low), ir.IntType(64))

        return types.int64(types.int64), codegen

    @intrinsic
    def popcount_u64(typing_context: TypingContext, word: NumbaType) -> Intrinsic:
        """Return how many of 64 bits are set."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            return builder.ctpop(args[0])

        return types.int64(types.int64), codegen

    @intrinsic
    def trailing_zeros(typing_context: TypingContext, word: NumbaType) -> Intrinsic:
        """Return the number of the lowest bit set in a 64-bit word that is not 0."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.uint64), codegen

    @intrinsic
    def bit_length(typing_context: TypingContext, word: NumbaType) -> Intrinsic:
        """Return how many bits a number of 0 or more has, without zeros in front."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
            return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

        return types.int64(types.int64), codegen

    @intrinsic
    def float32_bits(typing_context: TypingContext, value: np.float32) -> Intrinsic:
        """Return the bits of a float32."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            return builder.zext(builder.bitcast(args[0], ir.IntType(32)), ir.IntType(64))

        return types.int64(types.float32), codegen

    @intrinsic
    def bits_float32(typing_context: TypingContext, word: NumbaType) -> Intrinsic:
        """Return the float32 with these bits."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

        return types.float32(types.int64), codegen

    @intrinsic
    def copy_octets(
        typing_context: TypingContext,
        source: NumbaType,
        source_at: NumbaType,
        target: NumbaType,
        target_at: NumbaType,
        count: NumbaType,
    ) -> Intrinsic:
        """Copy ``count`` octets between two arrays that do not overlap (memcpy)."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            from_pointer = _pointer(context, builder, signature.args[0], args[0], args[1], 8)
            to_pointer = _pointer(context, builder, signature.args[2], args[2], args[3], 8)
            cgutils.raw_memcpy(builder, to_pointer, from_pointer, args[4], 1)
            return context.get_dummy_value()

        return types.none(source, types.int64, target, types.int64, types.int64), codegen

    @intrinsic
    def clear_octets(typing_context: TypingContext, target: NumbaType, at: NumbaType, count: NumbaType) -> Intrinsic:
        """Set ``count`` octets to 0 (memset)."""

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            cgutils.memset(builder, _pointer(context, builder, signature.args[0], args[0], args[1], 8), args[2], 0)
            return context.get_dummy_value()

        return types.none(target, types.int64, types.int64), codegen


@inline_kernel
def whole(value: int | np.integer[Any]) -> int:
    """Return a number as a signed 64-bit integer, so that arithmetic with it cannot wrap."""
    return np.int64(value)  # type: ignore[return-value]  # in compiled code this is an int


@inline_kernel
def u8(octets: Uint8Array, at: int) -> int:
    """Return the octet at ``at`` as a signed 64-bit integer."""
    return whole(octets[at])
