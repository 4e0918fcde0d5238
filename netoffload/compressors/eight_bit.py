"""``8bit``: every float becomes one octet of an 8-bit data type (Dettmers, ICLR 2016, section 3.1).

``tables`` defines the meaning of the octets. The paper has two ways to bring a gradient into a type's range:

- ``norm=max``: a group (layer, or ``bucket`` consecutive floats of a layer) is divided by its largest magnitude, which
  travels as a float32 scaler; decoding multiplies. The paper does so for ``dynamic`` and ``linear``.
- ``norm=offset``: the type's numbers are multiplied by 10^offset, and no scaler travels. The paper does so for
  ``static`` and ``mantissa``, with 10^1, and 10^2 for N(0, 10^2). Larger values become the largest number.

The division, the comparison with the middle between two numbers and the multiplication are IEEE 754 float32 operations,
rounded to nearest, so that every machine agrees.

Body: scalers, float32 per group (``norm=max`` only) | octets, one per float.

The nearest of 128 numbers is found without a search. A float's exponent and the first seven bits of its mantissa are
its cell. A table has the rank of the cell's first float, and one comparison with that rank's limit decides whether this
float has the next rank. No cell of any type holds two limits.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import bits_float32
from netoffload.compressors import Compressor, Layout, State
from netoffload.compressors.base import HEADER_OCTETS, MethodId, empty_payload, first_not_finite, largest_word
from netoffload.compressors.scalers import scalers_of
from netoffload.compressors.tables import CELL_SHIFT, TYPES, Table, table_of
from netoffload.config import check_choice
from netoffload.errors import CodecError, UsageError

NORMS: Final = ("max", "offset")
MAX_OFFSET: Final = 15

BLOCK: Final = 1024
"""Floats that are divided before they are looked up; their quotients fit the first-level cache."""


@dataclass(frozen=True)
class EightBit(Compressor):
    """One octet per float."""

    type: str = "dynamic"  # dynamic, static, mantissa or linear
    norm: str = "max"  # max or offset
    bucket: int = 0  # floats of a layer that share a scaler; 0: a layer is one group. For ``norm=max``
    offset: int = 0  # the numbers are multiplied by 10^offset, -15..15. For ``norm=offset``

    name: ClassVar[str] = "8bit"
    method_id: ClassVar[MethodId] = MethodId.EIGHT_BIT

    def __post_init__(self) -> None:
        """Refuse impossible parameters."""
        check_choice("8-bit type", self.type, TYPES)
        check_choice("8bit: norm", self.norm, NORMS)
        if self.bucket < 0 or (self.bucket and self.norm != "max"):
            raise UsageError(f"8bit: bucket {self.bucket} must be 0 or more, and 0 with norm=offset")
        if abs(self.offset) > MAX_OFFSET or (self.offset and self.norm != "offset"):
            raise UsageError(f"8bit: offset {self.offset} must be -15 to 15, and 0 with norm=max")

    @property
    def flags(self) -> int:
        """Type in bits 0 and 1, norm in bit 2, the offset modulo 32 in bits 3 to 7."""
        return TYPES.index(self.type) | NORMS.index(self.norm) << 2 | (self.offset & 31) << 3

    @property
    def table(self) -> Table:
        """The type's table, with the offset."""
        return table_of(self.type, self.offset)

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        payload = empty_payload(self._body_octets(state.layout))
        groups, octets = self._groups(state.layout), payload[payload.size - values.size :]
        scalers = payload[HEADER_OCTETS : payload.size - values.size].view(np.float32)
        table = self.table
        lookup = Lookup(table.cells, table.limits, table.octets, np.empty(BLOCK, np.float32))
        encode_groups(values, groups, scalers, self.norm == "max", lookup, octets)
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if body.size != self._body_octets(layout):
            raise CodecError(f"payload of {body.size} octets does not hold {layout.count} floats")
        scalers = scalers_of(body[: body.size - layout.count])
        values = np.empty(layout.count, np.float32)
        octets = body[body.size - layout.count :]
        decode_groups(octets, self._groups(layout), scalers, self.norm == "max", self.table.values, values)
        if (first := first_not_finite(values)) is not None:
            raise CodecError(f"octet {first}, {octets[first]:#04x}, is not of the type {self.type}")
        return values

    def _groups(self, layout: Layout) -> Int64Array:
        return layout.groups(self.bucket) if self.norm == "max" else np.array([0, layout.count], np.int64)

    def _body_octets(self, layout: Layout) -> int:
        return layout.count + (4 * (self._groups(layout).size - 1) if self.norm == "max" else 0)


class Lookup(NamedTuple):
    """A type's tables (``tables.Table``), which turn a quotient into an octet."""

    cells: Uint8Array
    limits: Uint32Array
    octets: Uint8Array
    quotients: Float32Array  # float32[BLOCK], scratch


@kernel
def encode_groups(
    values: Float32Array, groups: Int64Array, scalers: Float32Array, by_max: bool, lookup: Lookup, out: Uint8Array
) -> None:
    """Write an octet per float, and with ``by_max`` a scaler per group, float32[g].

    ``groups``, int64[g + 1], has where groups start, and n.
    """
    words = values.view(np.uint32)
    for group in range(groups.size - 1):
        first, end = groups[group], groups[group + 1]
        divisor = np.float32(1.0)
        if by_max:
            scalers[group] = bits_float32(largest_word(words[first:end]))
            if scalers[group]:
                divisor = scalers[group]
        for start in range(first, end, BLOCK):
            # Two passes: LLVM makes vector code of the division, but not of look-ups in tables.
            stop = min(start + BLOCK, end)
            _divide(values[start:stop], divisor, lookup.quotients)
            _look_up(words[start:stop], lookup, out[start:stop])


@inline_kernel
def _divide(values: Float32Array, divisor: np.float32, quotients: Float32Array) -> None:
    for i in range(values.size):
        quotients[i] = abs(values[i]) / divisor


@inline_kernel
def _look_up(value_words: Uint32Array, lookup: Lookup, out: Uint8Array) -> None:
    cells, limits, octets, words = lookup.cells, lookup.limits, lookup.octets, lookup.quotients.view(np.uint32)
    # Indices are unsigned: for a signed index Numba first checks whether it is negative.
    for i in range(value_words.size):
        rank = np.uint64(cells[words[i] >> np.uint32(CELL_SHIFT)])
        rank += np.uint64(words[i] > limits[rank])
        out[i] = octets[rank | np.uint64(value_words[i] >> np.uint32(31)) << np.uint64(7)]


@kernel
def decode_groups(
    octets: Uint8Array, groups: Int64Array, scalers: Float32Array, by_max: bool, table: Float32Array, out: Float32Array
) -> None:
    """Write the float32[n] of the octets uint8[n]; the other arguments are as in :func:`encode_groups`."""
    for group in range(groups.size - 1):
        scaler = scalers[group] if by_max else np.float32(1.0)
        part, target = octets[groups[group] : groups[group + 1]], out[groups[group] : groups[group + 1]]
        for i in range(part.size):
            target[i] = table[part[i]] * scaler
