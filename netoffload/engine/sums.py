"""The two sums over a frame, compiled: the IPv4 header checksum and the block's CRC32C.

CRC32C is one instruction on x86 since SSE 4.2 (eight octets in three cycles); elsewhere a table of 256 words takes one
octet at a time. The definitions are in ``netoffload.wire.checksum``.
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec.jit import JIT_DISABLED, inline_kernel
from netoffload.codec.octets import load_u16, u8
from netoffload.wire.checksum import CRC32C_TABLE

HAS_CRC32C: Final = not JIT_DISABLED and bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))
"""Asking an x86 intrinsic of a CPU that lacks it aborts the process, so it is only compiled where this holds."""

_TABLE: Final = np.array(CRC32C_TABLE, np.int64)

if HAS_CRC32C:

    @intrinsic
    def _crc32c_u64(typing_context: Any, crc: Any, octets: Any, at: Any) -> Any:
        """Add eight octets to a running CRC32C."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word64 = ir.IntType(64)
            data = context.make_array(signature.args[1])(context, builder, args[1]).data
            word = builder.load(builder.bitcast(builder.gep(data, [args[2]]), word64.as_pointer()), align=1)
            function_type = ir.FunctionType(word64, [word64, word64])
            function = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=function_type)
            return builder.call(function, [args[0], word])

        return types.int64(types.int64, octets, types.int64), codegen

    @inline_kernel
    def _crc_words(crc: Any, octets: Any, at: Any, words: Any) -> Any:
        for word in range(words):
            crc = _crc32c_u64(crc, octets, at + 8 * word)
        return crc

else:

    @inline_kernel
    def _crc_words(crc: Any, octets: Any, at: Any, words: Any) -> Any:
        for index in range(at, at + 8 * words):
            crc = crc >> 8 ^ _TABLE[(crc ^ u8(octets, index)) & 0xFF]
        return crc


@inline_kernel
def crc32c(octets: Any, at: int, length: int, crc: int) -> int:
    """Return the CRC32C of ``length`` octets from ``at``, going on from ``crc`` (0 to start)."""
    crc ^= 0xFFFFFFFF
    words = length // 8
    crc = _crc_words(crc, octets, at, words)
    for index in range(at + 8 * words, at + length):
        crc = crc >> 8 ^ _TABLE[(crc ^ u8(octets, index)) & 0xFF]
    return crc ^ 0xFFFFFFFF


@inline_kernel
def ones_sum(octets: Any, at: Any, length: Any) -> Any:
    """Return the folded ones' complement sum of an even number of octets, in the octets' own (little-endian) order.

    A ones' complement sum may be taken in either order and swapped at the end (RFC 1071, 2 B).
    """
    total = 0
    for index in range(at, at + length, 2):
        total += load_u16(octets, index)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
