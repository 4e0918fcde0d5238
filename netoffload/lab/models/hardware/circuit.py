"""The parts of an engine, counted: bits that are stored, bits that are moved, and the multiplexers that move them."""

from __future__ import annotations

from typing import NamedTuple


class Shifter(NamedTuple):
    """Rows of multiplexers with two inputs: row i moves all bits by 2^i of ``places``, or leaves them."""

    what: str
    bits: int
    places: int
    copies: int = 1

    @property
    def width_bits(self) -> int:
        """Bits that it can move in a cycle."""
        return self.copies * self.bits

    @property
    def multiplexers(self) -> int:
        """Multiplexers of one bit. A circuit has somewhat fewer, since some at the edges of a row are not needed."""
        return self.width_bits * (self.places - 1).bit_length()


class Circuit(NamedTuple):
    """One engine, without the blocks of its lanes; shifters fill or empty its register at any octet."""

    register_bits: int
    shifters: tuple[Shifter, ...]

    @property
    def width_bits(self) -> int:
        """Bits that all shifters can move in a cycle."""
        return sum(shifter.width_bits for shifter in self.shifters)

    @property
    def multiplexers(self) -> int:
        """Multiplexers of one bit in all shifters."""
        return sum(shifter.multiplexers for shifter in self.shifters)


def tree(what: str, code_bits: int, steps: int) -> tuple[Shifter, ...]:
    """Return the three levels that move the codes of eight lanes together, or apart.

    Args:
        code_bits: the longest code.
        steps: the longest code in the unit by which codes move.
    """
    return tuple(
        Shifter(f"{what}, {lanes} lanes", lanes * code_bits, lanes // 2 * steps + 1, 8 // lanes) for lanes in (2, 4, 8)
    )
