"""The four 8-bit data types, as tables: the value of every octet, and the octet nearest to a number.

T. Dettmers, "8-bit approximations for parallelism in deep learning" (ICLR 2016), section 3.1. An octet is a sign in bit
7 and 7 bits of magnitude. A type defines the number of each of the 128 magnitudes:

============  =================================  ==================================================================
type          magnitude, bit 6 to bit 0          number
============  =================================  ==================================================================
``dynamic``   n zeros, a one, 6 - n tree bits    10^-n x tree(bits); no one at all is 0
``static``    3 exponent bits e, 4 tree bits     10^-e x tree(bits)
``mantissa``  3 exponent bits e, 4 bits m        10^-e x m, m = 0..15
``linear``    7 bits k                           k / 127
============  =================================  ==================================================================

``tree(bits)`` is a path of bisections of (0.1, 1): every bit, from the highest, keeps the lower (0) or the upper (1)
part, and the number is the next cut of the remaining part. The paper does not print the place of the first cut, but its
three worked examples determine it: 0.2345678 -> 0.236719 and 0.0000234 -> 0.000019 in the dynamic type, and 0.23125 on
the way to the former. These follow if the first cut is at 0.45, half the interval's *length*, and every later cut in
the middle of its part. With a first cut at 0.55, the middle, they would be 0.23359 and 0.0000213. So the first cut is
at 0.45 here; ``netoffload bench eight-bit`` compares it with 0.55. The clusterNet program has other tables: 126 numbers
and octets that mean the maximum itself; the tables here have one number more, 0.45e-6.

All of a type's numbers can be multiplied by a power of ten, the paper's exponent offset. They are rounded to float32
once, here. If two octets mean the same number (``mantissa``: 10 x 10^-1 = 1, and eight zeros), the lower octet is used
and the other is forbidden; so is every negative zero. A number is coded as the nearest one; exactly between two, as the
smaller. Numbers above the largest are coded as the largest.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.errors import UsageError

TYPES: Final = ("dynamic", "static", "mantissa", "linear")

FIRST_CUT: Final = Fraction(45, 100)
MIDDLE_CUT: Final = Fraction(55, 100)
TREE: Final = (Fraction(1, 10), Fraction(1))
"""The interval that is bisected."""

MAGNITUDES: Final = 128
FORBIDDEN: Final = np.float32(np.nan)
"""Marks an octet in a table of values that no encoder makes."""

CELL_SHIFT: Final = 16
"""A float's bits without the sign, shifted by this, are its cell: 2^7 cells between two powers of two."""

CELLS: Final = 1 << (31 - CELL_SHIFT)


@dataclass(frozen=True)
class Table:
    """A data type."""

    values: Float32Array  # float32[256], the value of each octet; NaN for a forbidden octet
    ranked: Float32Array  # float32[r], the different magnitudes, ascending
    octets: Uint8Array  # uint8[256], the octet of rank r with sign s at r + 128 s
    limits: Uint32Array  # uint32[128], the bits of the largest float32 that has rank r or less
    cells: Uint8Array  # uint8[CELLS], the rank of the smallest float32 in a cell; no cell holds more than one limit


def magnitudes(kind: str, first_cut: Fraction = FIRST_CUT) -> list[Fraction]:
    """Return the exact number of each of the 128 magnitudes of a type."""
    if kind == "dynamic":
        return [_dynamic(magnitude, first_cut) for magnitude in range(MAGNITUDES)]
    if kind == "static":
        return [tree_number(m & 15, 4, first_cut) / 10 ** (m >> 4) for m in range(MAGNITUDES)]
    if kind == "mantissa":
        return [Fraction(m & 15, 10 ** (m >> 4)) for m in range(MAGNITUDES)]
    if kind == "linear":
        return [Fraction(m, MAGNITUDES - 1) for m in range(MAGNITUDES)]
    raise UsageError(f"8-bit type {kind!r} is unknown: choose from {', '.join(TYPES)}")


def tree_number(path: int, bits: int, first_cut: Fraction = FIRST_CUT) -> Fraction:
    """Return the next cut of the part of the interval that remains after ``bits`` decisions.

    ``path`` has the first decision in the highest of these bits; 1 keeps the upper part.
    """
    low, high = TREE
    cut = first_cut
    for at in reversed(range(bits)):
        low, high = (cut, high) if path >> at & 1 else (low, cut)
        cut = (low + high) / 2
    return cut


def _dynamic(magnitude: int, first_cut: Fraction) -> Fraction:
    if magnitude == 0:
        return Fraction(0)
    tree_bits = magnitude.bit_length() - 1
    return tree_number(magnitude - (1 << tree_bits), tree_bits, first_cut) / 10 ** (6 - tree_bits)


@lru_cache(maxsize=32)
def table_of(kind: str, offset: int = 0, first_cut: Fraction = FIRST_CUT) -> Table:
    """Return the table of a type, its numbers multiplied by 10^offset, -30..30."""
    if not -30 <= offset <= 30:
        raise UsageError(f"exponent offset {offset} is outside -30 to 30")
    numbers = [np.float32(float(number * Fraction(10) ** offset)) for number in magnitudes(kind, first_cut)]
    ranked = np.array(sorted(set(numbers)), np.float32)
    values = np.full(2 * MAGNITUDES, FORBIDDEN, np.float32)
    octets = np.zeros(2 * MAGNITUDES, np.uint8)
    for rank, number in enumerate(ranked):
        octet = numbers.index(number)
        negative = octet | 0x80 if number else octet  # no octet means -0
        octets[rank], octets[rank + MAGNITUDES] = octet, negative
        values[negative], values[octet] = -number, number
    limits = _limits(ranked)
    first_words = np.arange(CELLS, dtype=np.uint32) << np.uint32(CELL_SHIFT)
    cells = np.searchsorted(limits[: ranked.size - 1], first_words, side="left").astype(np.uint8)
    _check_cells(limits[: ranked.size - 1])
    return Table(values, ranked, octets, limits, cells)


def _limits(ranked: Float32Array) -> Uint32Array:
    """Return the bits of the largest float32 that is not above the middle between each number and the next."""
    limits = np.full(MAGNITUDES, 0xFFFFFFFF, np.uint32)
    for rank in range(ranked.size - 1):
        middle = (Fraction(float(ranked[rank])) + Fraction(float(ranked[rank + 1]))) / 2
        word = int(np.float32(float(middle)).view(np.uint32))
        # A middle may lie between two float32, and the nearest one on either side of it.
        while Fraction(float(np.uint32(word).view(np.float32))) > middle:
            word -= 1
        while Fraction(float(np.uint32(word + 1).view(np.float32))) <= middle:
            word += 1
        limits[rank] = word
    return limits


def _check_cells(limits: Uint32Array) -> None:
    # A limit that is the last float of its cell does not split it.
    split = (limits >> np.uint32(CELL_SHIFT))[(limits & np.uint32((1 << CELL_SHIFT) - 1)) != (1 << CELL_SHIFT) - 1]
    if np.unique(split).size != split.size:
        raise UsageError("two limits of an 8-bit type lie in one cell: it needs another offset")
