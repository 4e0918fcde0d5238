"""An index of the few values that travel, of n: a bitmap or the gaps between them, whichever is shorter.

::

    form 1 octet | k 4 octets | index

    form 0, gaps     k numbers, LEB128: how many values are left out before each one that is sent
    form 1, bitmap   ceil(n / 8) octets; value i is bit i % 8 of octet i // 8, and the bits behind the last value are 0

Equal lengths take gaps. LEB128 is the variable-length integer of DWARF (version 5, section 7.6): 7 bits per octet, the
lowest first, bit 7 set in all but the last. A last octet of 0 behind another is refused: every gap has one form.

Codes of sent values are never 0, so a dense vector of codes shows which values are sent. With a bitmap, values are
moved together and apart without a branch on the data, which would be mispredicted at most densities. With gaps, the few
positions are listed first, 64 values at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array, Uint64Array
from netoffload.compiled.jit import kernel
from netoffload.compiled.octets import trailing_zeros, whole
from netoffload.errors import CodecError

GAPS: Final = 0
BITMAP: Final = 1
Dense = TypeVar("Dense", Uint8Array, Uint32Array, Float32Array)
"""Sent values, or the dense vector that they come from: signs, multiples or floats."""

INDEX_HEADER: Final = struct.Struct("<BI")
MALFORMED: Final = -1
GAP_OCTETS_MAX: Final = 5  # 32 bits in LEB128

ONES: Final = np.array([octet.bit_count() for octet in range(256)], np.uint8)
"""How many bits are set in each octet."""


@dataclass(frozen=True)
class Index:
    """An index of the values that travel, in the shorter form."""

    form: int  # GAPS or BITMAP
    sent: int  # how many values travel
    body: Uint8Array  # what follows the header
    positions: Uint32Array | None = None  # uint32[sent], where these values are; with GAPS only

    @classmethod
    def of(cls, codes: Uint8Array) -> Index:
        """Return the index of the codes that are not 0, uint8[n]."""
        words = np.zeros(-(-codes.size // 64), np.uint64)
        bitmap = words.view(np.uint8)[: -(-codes.size // 8)]
        bitmap[:] = np.packbits(codes != 0, bitorder="little")
        sent = int(np.count_nonzero(codes))
        if sent <= bitmap.size:  # a gap takes at least one octet
            positions = np.empty(sent, np.uint32)
            fill_positions(words, positions)
            gaps = np.empty(GAP_OCTETS_MAX * sent, np.uint8)
            gaps = gaps[: fill_gaps(positions, gaps)]
            if gaps.size <= bitmap.size:
                return cls(GAPS, sent, gaps, positions)
        return cls(BITMAP, sent, bitmap)

    @property
    def octets(self) -> int:
        """Length of the index on the wire, with its header."""
        return INDEX_HEADER.size + self.body.size

    def write(self, target: Uint8Array) -> None:
        """Write header and index to uint8[octets]."""
        INDEX_HEADER.pack_into(target.data, 0, self.form, self.sent)
        target[INDEX_HEADER.size :] = self.body

    def gather(self, codes: Uint8Array, source: Dense) -> Dense:
        """Return the values of ``source`` that are sent: [sent] of its type."""
        if self.positions is not None:
            return source[self.positions]
        packed = np.empty(self.sent + 1, source.dtype)
        pack_sent(codes, source, packed)
        return packed[:-1]


def read_header(body: Uint8Array, count: int) -> tuple[int, int]:
    """Return the form of an index and how many of ``count`` values are sent."""
    if body.size < INDEX_HEADER.size:
        raise CodecError("payload ends before its index")
    form, sent = INDEX_HEADER.unpack_from(body.data)
    if form not in (GAPS, BITMAP) or sent > count:
        raise CodecError(f"index of form {form} with {sent} of {count} values")
    return form, sent


def scatter(index: Uint8Array, form: int, packed: Dense, dense: Dense) -> None:
    """Write the k sent values to their positions in ``dense``, [n] of the same type; every element is written.

    ``index`` has no header. ``packed`` has one element more than values: any value, which a kernel reads and drops.
    """
    sent = packed.size - 1
    if form == BITMAP:
        extra = -dense.size % 8
        ones = int(ONES[index].sum(dtype=np.int64))
        if index.size != -(-dense.size // 8) or (extra and index[-1] >> (8 - extra)) or ones != sent:
            raise CodecError(f"bitmap of {index.size} octets does not say where {sent} values are")
        unpack_bitmap(index, packed, dense)
    elif unpack_gaps(index, packed, dense) == MALFORMED:
        raise CodecError(f"gaps of {index.size} octets do not say where {sent} of {dense.size} values are")


@kernel
def fill_positions(words: Uint64Array, positions: Uint32Array) -> None:
    """Write the numbers of the bits that are set in a bitmap, uint64[], to uint32[sent]."""
    cursor = np.uint64(0)
    for at in range(words.size):
        word = words[at]
        while word:
            positions[cursor] = 64 * at + trailing_zeros(word)
            cursor += np.uint64(1)
            word &= word - np.uint64(1)


@kernel
def fill_gaps(positions: Uint32Array, out: Uint8Array) -> int:
    """Write the gaps between positions to uint8[GAP_OCTETS_MAX * sent]; return how many octets they take."""
    cursor = np.uint64(0)
    following = 0
    for k in range(positions.size):
        gap = whole(positions[k]) - following
        following = whole(positions[k]) + 1
        while gap >= 128:
            out[cursor] = gap & 127 | 128
            gap >>= 7
            cursor += np.uint64(1)
        out[cursor] = gap
        cursor += np.uint64(1)
    return whole(cursor)


@kernel
def pack_sent(codes: Uint8Array, source: Dense, packed: Dense) -> None:
    """Move the elements of ``source`` whose code is not 0 together; ``packed`` has one element more than that."""
    cursor = np.uint64(0)
    for i in range(codes.size):
        packed[cursor] = source[i]
        cursor += np.uint64(codes[i] != 0)


@kernel
def unpack_bitmap(bitmap: Uint8Array, packed: Dense, dense: Dense) -> None:
    """Do :func:`scatter` for a checked bitmap."""
    cursor = np.uint64(0)
    for i in range(dense.size):
        bit = np.uint64(bitmap[np.uint64(i) >> np.uint64(3)] >> np.uint8(i & 7)) & np.uint64(1)
        dense[i] = packed[cursor] * bit
        cursor += bit


@kernel
def unpack_gaps(gaps: Uint8Array, packed: Dense, dense: Dense) -> int:
    """Do :func:`scatter` for gaps; return MALFORMED if no encoder makes these gaps."""
    dense[:] = 0
    cursor = 0
    following = 0
    for k in range(packed.size - 1):
        gap = 0
        shift = 0
        octet = 128
        while octet >= 128:
            if cursor >= gaps.size or shift > 28:
                return MALFORMED
            octet = int(gaps[cursor])
            cursor += 1
            gap |= (octet & 127) << shift
            shift += 7
        position = following + gap
        if (octet == 0 and shift > 7) or position >= dense.size:
            return MALFORMED
        dense[position] = packed[k]
        following = position + 1
    return MALFORMED if cursor < gaps.size else 0
