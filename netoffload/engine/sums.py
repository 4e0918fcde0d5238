"""The two sums over a frame, compiled: the IPv4 header checksum and the block's CRC32C.

CRC32C is one instruction on x86 since SSE 4.2: eight octets in three cycles, but a new one can start in each. So long
runs are three lanes that are summed side by side and joined: a CRC is linear, and adding n octets of 0 to it is four
table lookups. Elsewhere a table of 256 words takes one octet at a time. The definitions are in
``netoffload.wire.checksum``.

Gopal et al.: Fast CRC computation for iSCSI polynomial using CRC32 instruction (Intel, 2011).
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.codec.jit import JIT_DISABLED, inline_kernel
from netoffload.codec.octets import load_u16, u8
from netoffload.wire.checksum import CRC32C_TABLE

HAS_CRC32C: Final = not JIT_DISABLED and bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))
"""Asking an x86 intrinsic of a CPU that lacks it aborts the process, so it is only compiled where this holds."""

_TABLE: Final = np.array(CRC32C_TABLE, np.int64)

_LANE_WORDS: Final = 32
"""Words of eight octets in one of three lanes: short enough that a block of MTU 1500 has one round of them."""


def _make_lane_table() -> npt.NDArray[np.int64]:
    """Return what a lane of zeros makes of a CRC, by its four octets: int64[4 * 256]."""
    columns = np.left_shift(1, np.arange(32, dtype=np.int64))
    for _ in range(8 * _LANE_WORDS):
        columns = columns >> 8 ^ _TABLE[columns & 0xFF]
    values = np.arange(256)
    table = np.zeros((4, 256), np.int64)
    for bit in range(32):
        table[bit // 8] ^= np.where(values >> bit % 8 & 1, columns[bit], 0)
    return table.reshape(-1)


_LANE_TABLE: Final = _make_lane_table()

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
    def _behind_lane(crc: Any) -> Any:
        """Return the CRC after a lane of zeros."""
        low = _LANE_TABLE[crc & 0xFF] ^ _LANE_TABLE[256 + (crc >> 8 & 0xFF)]
        return low ^ _LANE_TABLE[512 + (crc >> 16 & 0xFF)] ^ _LANE_TABLE[768 + (crc >> 24 & 0xFF)]

    @inline_kernel
    def _crc_words(crc: Any, octets: Any, at: Any, words: Any) -> Any:
        lane_len = 8 * _LANE_WORDS
        end = at + 8 * words
        while end - at >= 3 * lane_len:
            second = third = 0
            for index in range(at, at + lane_len, 8):
                crc = _crc32c_u64(crc, octets, index)
                second = _crc32c_u64(second, octets, index + lane_len)
                third = _crc32c_u64(third, octets, index + 2 * lane_len)
            crc = _behind_lane(_behind_lane(crc) ^ second) ^ third
            at += 3 * lane_len
        for index in range(at, end, 8):
            crc = _crc32c_u64(crc, octets, index)
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
