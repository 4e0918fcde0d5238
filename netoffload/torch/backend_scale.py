"""The scales of a compressed sum over the backend.

A tensor has no layers, no name and no history. So it is cut into segments, and each has a scale that follows from it.
DDP's buckets are such tensors, in which layers lie one after the other.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload.collectives import Operation, ShortAllreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.methods.scales import (
    AUTO,
    codec_rms,
    exponents_for,
    fixed_exponent,
    meet_loudest,
    meeting_floats,
    multiply,
)
from netoffload.torch.backend_reductions import Reduction, all_reduce
from netoffload.transport import DataPlane

SEGMENT_FLOATS: Final = 4096
SEGMENTS_MAX: Final = 256
"""Longer tensors have longer segments: the ranks exchange a float for each."""


class ScaledSum:
    """Sums one tensor after the other over connections that compress, each in its scale.

    Args:
        scale: as in :class:`~netoffload.torch.options.Options`.
    """

    def __init__(self, scale: float | str | None) -> None:
        """Exchange nothing yet."""
        self._is_auto, self._fixed = scale == AUTO, fixed_exponent(scale)
        self._maxima: dict[int, ShortAllreduce] = {}

    def __call__(self, plane: DataPlane, values: Float32Array, reduction: Reduction) -> None:
        """Do :func:`~netoffload.torch.backend_reductions.all_reduce` in these scales; collective.

        With ``auto`` values travel exact if one is not finite.
        """
        parts = _segments(values)
        exponents = self._exponents(plane, parts)
        if exponents is None:
            all_reduce(plane, values, reduction)
            return
        for part, exponent in zip(parts, exponents, strict=True):
            multiply(part, exponent)
        all_reduce(plane, values, reduction, tagged=True)
        for part, exponent in zip(parts, exponents, strict=True):
            multiply(part, -exponent)

    def _exponents(self, plane: DataPlane, parts: list[Float32Array]) -> list[int] | None:
        if not self._is_auto or plane.precision is None:
            return [self._fixed] * len(parts)
        if (count := meeting_floats(len(parts))) not in self._maxima:
            self._maxima[count] = ShortAllreduce(plane.exchange, count, tagged=False, operation=Operation.MAX)
        loudness, _ = meet_loudest(parts, self._maxima[count])
        return exponents_for(codec_rms(plane.precision.codec), loudness, [part.size for part in parts])


def _segments(values: Float32Array) -> list[Float32Array]:
    """Return views of a vector's segments; they depend on its length only, and so are the same on every rank."""
    length = max(SEGMENT_FLOATS, -(-values.size // SEGMENTS_MAX))
    return np.split(values, range(length, values.size, length))
