"""The scales of a compressed sum over the backend.

A tensor has no layers, no name and no history. So it is cut into segments, and each has a scale that follows from it.
DDP's buckets are such tensors, in which layers lie one after the other.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload.collectives import Operation, barrier
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
from netoffload.torch.backend_reductions import Reduction, all_reduce, compressed_all_reduce
from netoffload.transport import Calls, DataPlane, Lane

SEGMENT_FLOATS: Final = 4096
SEGMENTS_MAX: Final = 256
"""Longer tensors have longer segments: the ranks exchange a float for each."""


class ScaledSum:
    """Sums one tensor after the other over connections that compress, each in its scale.

    Args:
        scale: as in :class:`~netoffload.torch.options.Options`.
        compressed: the calls of the plane that compresses.
    """

    def __init__(self, scale: float | str | None, compressed: Calls[DataPlane]) -> None:
        """Exchange nothing yet."""
        self._is_auto, self._fixed = scale == AUTO, fixed_exponent(scale)
        self._compressed = compressed

    def __call__(self, plane: DataPlane, values: Float32Array, reduction: Reduction) -> None:
        """Do :func:`~netoffload.torch.backend_reductions.all_reduce` in these scales; collective.

        With ``auto`` values travel exact if one is not finite.

        Args:
            plane: the exact plane, where the ranks meet.
            values: as for ``all_reduce``.
            reduction: likewise.
        """
        parts = _segments(values)
        exponents = self._meet(plane, parts)
        if exponents is None:
            all_reduce(plane, values, reduction)
            return
        for part, exponent in zip(parts, exponents, strict=True):
            multiply(part, exponent)
        self._compressed.run(lambda other: compressed_all_reduce(other, values, reduction), (Lane.TAGGED,))
        for part, exponent in zip(parts, exponents, strict=True):
            multiply(part, -exponent)

    def _meet(self, plane: DataPlane, parts: list[Float32Array]) -> list[int] | None:
        """Meet the other ranks, and return each part's exponent; None: a value is not finite."""
        precision = self._compressed.plane.precision
        if not self._is_auto or precision is None:
            barrier(plane.exchange)
            return [self._fixed] * len(parts)
        maximum = plane.short_allreduce(meeting_floats(len(parts)), Operation.MAX, tagged=False)
        loudness, _ = meet_loudest(parts, maximum)
        return exponents_for(codec_rms(precision.codec), loudness, [part.size for part in parts])


def _segments(values: Float32Array) -> list[Float32Array]:
    """Return views of a vector's segments; they depend on its length only, and so are the same on every rank."""
    length = max(SEGMENT_FLOATS, -(-values.size // SEGMENTS_MAX))
    return np.split(values, range(length, values.size, length))
