"""The layout of a flat gradient: where its layers lie, and which groups of values share a scaler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array
from netoffload.errors import UsageError

MAX_COUNT: Final = 2**32 - 1
"""A payload's header counts its floats with 32 bits."""


@dataclass(frozen=True)
class Layout:
    """The lengths of the layers of a flat float32 vector, in order."""

    sizes: tuple[int, ...]  # floats of each layer; a layer may be empty

    def __post_init__(self) -> None:
        """Refuse lengths that a payload's header cannot count."""
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if any(size < 0 for size in self.sizes) or sum(self.sizes) > MAX_COUNT:
            raise UsageError(f"layers must have 0 to {MAX_COUNT} floats together, not {self.sizes[:8]}")

    @classmethod
    def flat(cls, count: int) -> Layout:
        """Return the layout of a vector that is one layer."""
        return cls((count,))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each layer, then the end of the last one: len(sizes) + 1 numbers."""
        return (0, *accumulate(self.sizes))

    @cached_property
    def count(self) -> int:
        """Floats in all layers."""
        return self.offsets[-1]

    def split(self, values: Float32Array) -> list[Float32Array]:
        """Return views of the layers of a vector."""
        return np.split(values, self.offsets[1:-1])

    def groups(self, bucket: int = 0) -> Int64Array:
        """Return the start of each group, then the end of the last one: int64[g + 1].

        A group is a layer, or with ``bucket`` > 0 at most ``bucket`` consecutive floats of a layer. No group is empty.
        """
        starts = [
            np.arange(first, first + size, bucket or max(size, 1), dtype=np.int64)
            for first, size in zip(self.offsets[:-1], self.sizes, strict=True)
        ]
        return np.concatenate((*starts, np.array([self.count], np.int64)))
