"""The scale of a compressed sum over the backend. A tensor has no name and no history: the scale follows from it."""

from __future__ import annotations

from netoffload.collectives import Operation, ShortAllreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.methods.scales import (
    AUTO,
    MEETING_FLOATS,
    codec_rms,
    exponent_for,
    fixed_exponent,
    meet_loudest,
    multiply,
)
from netoffload.torch.backend_reductions import Reduction, all_reduce
from netoffload.transport import DataPlane


class ScaledSum:
    """Sums one tensor after the other over connections that compress, each in its scale.

    Args:
        scale: as in :class:`~netoffload.torch.options.Options`.
    """

    def __init__(self, scale: float | str | None) -> None:
        """Make the plan of the exchange with the first tensor."""
        self._is_auto, self._fixed = scale == AUTO, fixed_exponent(scale)
        self._maximum: ShortAllreduce | None = None

    def __call__(self, plane: DataPlane, values: Float32Array, reduction: Reduction) -> None:
        """Do :func:`~netoffload.torch.backend_reductions.all_reduce` in a scale; collective.

        With ``auto`` values travel exact if one is not finite, or if no scale brings them to where the codec works.
        """
        exponent = self._exponent(plane, values)
        if exponent is None:
            all_reduce(plane, values, reduction)
            return
        all_reduce(plane, multiply(values, exponent), reduction, tagged=True)
        multiply(values, -exponent)

    def _exponent(self, plane: DataPlane, values: Float32Array) -> int | None:
        if not self._is_auto or plane.precision is None:
            return self._fixed
        if self._maximum is None:
            count = MEETING_FLOATS
            self._maximum = ShortAllreduce(plane.exchange, count, tagged=False, operation=Operation.MAX)
        loudness, _ = meet_loudest(values, self._maximum)
        return exponent_for(codec_rms(plane.precision.codec), loudness)
