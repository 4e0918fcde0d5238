"""The byte shuffles of AVX2: tables indexed by the eight tag bits of four lanes, and how emitted code reads them.

Lemire, Kurz, Rupp: Stream VByte: Faster byte-oriented integer compression (2018).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from llvmlite import ir

from netoffload.codec import vectors
from netoffload.codec.vectors import I8, I64
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.emitted import Builder, Context, LlvmType, NumbaType, Value

HALF: Final = ir.VectorType(I8, 16)
NO_OCTET: Final = 0x80
"""A shuffle control with the top bit set gives 0."""


def _make_tables() -> tuple[Uint8Array, Uint8Array, Uint8Array, Uint8Array]:
    """Return (squeeze, spread, length, even) by tag octet.

    ``spread`` puts a code into the top octets of its lane; ``even`` puts eight bits onto the even ones of sixteen.
    """
    squeeze = np.full((256, 16), NO_OCTET, np.uint8)
    spread = np.full((256, 16), NO_OCTET, np.uint8)
    length = np.zeros(256, np.uint8)
    for tags in range(256):
        at = 0
        for lane in range(4):
            octets = (0, 1, 2, 4)[tags >> 2 * lane & 3]
            for octet in range(octets):
                squeeze[tags, at] = 4 * lane + octet
                spread[tags, 4 * (lane + 1) - octets + octet] = at
                at += 1
        length[tags] = at
    even = np.array([sum((bits >> i & 1) << 2 * i for i in range(8)) for bits in range(256)], np.uint16)
    return squeeze.reshape(-1), spread.reshape(-1), length, even.view(np.uint8)


SQUEEZE, _SPREAD, LENGTH, EVEN = _make_tables()
SPREAD_AND_LENGTH: Final = np.concatenate([_SPREAD, LENGTH])
"""Both tables of a decoder in one array: one address to keep in a register."""
LENGTH_AT: Final = _SPREAD.size
"""Where the lengths begin in ``SPREAD_AND_LENGTH``."""


def shuffle(builder: Builder, octets: Value, control: Value) -> Value:
    """Return 16 octets: each octet of ``control`` selects one of ``octets``, or 0 (SSSE3)."""
    function = builder.module.declare_intrinsic("llvm.x86.ssse3.pshuf.b.128", fnty=ir.FunctionType(HALF, [HALF, HALF]))
    return builder.call(function, [octets, control])


def entry(
    context: Context, builder: Builder, table_type: NumbaType, table: Value, index: Value, size: int, pointee: LlvmType
) -> Value:
    """Return an entry of a table, of ``size`` octets."""
    at = builder.mul(index, ir.Constant(I64, size))
    return builder.load(vectors.pointer(context, builder, table_type, table, at, pointee), align=1)
