"""A reducer around another one: some layers stay exact, and values are scaled to where the codec works.

The NIC's codecs have an absolute error bound, so the relative error depends on the size of the gradient. With ``AUTO``
each bucket is multiplied by a power of two that brings its root mean square to about :data:`AUTO_RMS`. All ranks must
take the same power. So each rank computes it from values that are bit-identical on all ranks: the latest sums of the
same layers. A layer without a sum travels exact the first time::

    sum of step t  ──►  mean square of each layer  ──►  2^e of step t + 1, the same on every rank

The mean square is taken over at most :data:`SAMPLE` values. They are added one by one, in the same order on every
machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors.halves import Half
from netoffload.compressors.nic import Nic
from netoffload.errors import UsageError
from netoffload.methods.base import Bucket, GradientReducer, Member, Memory, MethodSpec
from netoffload.methods.buckets import layout_of
from netoffload.methods.floats import RingReducer
from netoffload.methods.registry import FAMILIES, method_for

AUTO: Final = "auto"

AUTO_RMS: Final = 2.0**-6
"""Sixteen times the bound 2^-10: eight bits hold eight times this root mean square with the codec ``bounded``."""

AUTO_RMS_INCEPTIONN: Final = 2.0**-4
"""``inceptionn`` keeps nothing below 2^-7."""

SAMPLE: Final = 4096
EXPONENT_MAX: Final = 60
"""Largest absolute exponent of a scale: 2^60 and 2^-60 are well within the range of float32."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which layers are compressed, and in what scale.

    Attributes:
        exact: layers that travel exact.
        scale: ``auto``, or a power of two; None: values are compressed as they are.
        auto_rms: the root mean square to which ``auto`` scales (:func:`auto_rms`); None: ``auto`` does not scale.
    """

    exact: frozenset[int] = frozenset()
    scale: float | str | None = None
    auto_rms: float | None = None


class SelectiveReducer(GradientReducer):
    """Sums gradients by a method, except the layers that travel exact.

    Args:
        spec: the method for the other layers; it must have a :class:`GradientReducer`.
        member: this rank.
        selection: which layers travel exact, and the scale of the others.
    """

    def __init__(self, spec: MethodSpec, member: Member, selection: Selection) -> None:
        """Nothing is summed yet."""
        super().__init__(spec, member)
        inner = method_for(spec, member)
        if not isinstance(inner, GradientReducer):
            raise UsageError(f"{spec.name} moves weights, not gradients")
        self._inner = inner
        self._plain = RingReducer(MethodSpec("inc", "inc", FAMILIES["inc"]), member)
        self.sent = self._plain.sent = inner.sent
        self._exact = selection.exact
        self._auto_rms = selection.auto_rms if selection.scale == AUTO else None
        self._fixed = math.frexp(selection.scale)[1] - 1 if isinstance(selection.scale, float) else 0
        self._exponents: dict[int, int] = {}
        self._squares: dict[int, float] = {}

    def reduce(
        self,
        gradient: Float32Array,
        bucket: Bucket | None = None,
        *,
        exact: bool = False,
        pieces: Sequence[Bucket] = (),
    ) -> Float32Array:
        """Return the sum over all workers, in ``gradient``'s memory.

        Args:
            gradient: float32[n], this worker's gradient.
            bucket: the layers in it; None: all.
            exact: all layers of the bucket travel exact this time.
            pieces: sum the bucket as if it came in these buckets; empty: as it is.
        """
        layers = tuple(range(len(self._member.layout.sizes))) if bucket is None else bucket
        parts = self._parts(gradient, layers)
        if pieces and list(pieces) != [layers]:
            for piece in pieces:
                self._sum(parts, piece, lambda values, piece=piece: self.reduce(values, piece, exact=exact))  # type: ignore[misc]
            return gradient
        chosen = () if exact else tuple(layer for layer in layers if self._is_compressed(layer))
        if chosen == layers:
            if (total := self._scaled(gradient, layers)) is not gradient:
                gradient[:] = total
        elif not chosen:
            self._plain.reduce(gradient, layers)
        else:
            others = tuple(layer for layer in layers if layer not in set(chosen))
            self._sum(parts, chosen, lambda values: self._scaled(values, chosen))
            self._sum(parts, others, lambda values: self._plain.reduce(values, others))
        if self._auto_rms is not None:
            self._observe(parts)
        return gradient

    def scales(self) -> dict[int, float]:
        """Return, by layer, the latest factor by which its values were multiplied before compression."""
        return {layer: 2.0**exponent for layer, exponent in self._exponents.items()}

    def memory(self) -> Memory:
        """See :meth:`~netoffload.methods.base.Method.memory`."""
        return {
            "inner": self._inner.memory(),
            "exponents": dict(self._exponents),
            "squares": dict(self._squares),
        }

    def remember(self, memory: Memory) -> None:
        """See :meth:`~netoffload.methods.base.Method.remember`."""
        self._inner.remember(memory["inner"])
        self._exponents, self._squares = dict(memory["exponents"]), dict(memory["squares"])

    def rescale(self, factors: Mapping[int, float]) -> None:
        """See :meth:`~netoffload.methods.base.GradientReducer.rescale`."""
        self._inner.rescale(factors)

    def _parts(self, values: Float32Array, layers: Bucket) -> dict[int, Float32Array]:
        """Return views of the layers of a bucket."""
        offsets = layout_of(self._member.layout, layers).offsets
        return dict(zip(layers, np.split(values, offsets[1:-1]), strict=True))

    def _sum(
        self, parts: Mapping[int, Float32Array], some: Bucket, reduce: Callable[[Float32Array], Float32Array]
    ) -> None:
        """Replace some layers of a bucket by their sums."""
        total = reduce(np.concatenate([parts[layer] for layer in some]))
        for layer, values in self._parts(total, some).items():
            parts[layer][:] = values

    def _is_compressed(self, layer: int) -> bool:
        return layer not in self._exact and (self._auto_rms is None or layer in self._squares)

    def _scaled(self, values: Float32Array, layers: Bucket) -> Float32Array:
        """Sum by the inner method, in the scale of these layers."""
        exponent = self._exponent(layers)
        known = {layer: self._exponents.get(layer, exponent) for layer in layers}
        factors = {layer: 2.0 ** (exponent - before) for layer, before in known.items() if before != exponent}
        if factors:
            self._inner.rescale(factors)
        self._exponents.update(dict.fromkeys(layers, exponent))
        if exponent == 0:
            return self._inner.reduce(values, layers)
        total = self._inner.reduce(np.multiply(values, np.float32(2.0**exponent), out=values), layers)
        return np.multiply(total, np.float32(2.0**-exponent), out=total)

    def _exponent(self, layers: Bucket) -> int:
        """Return the exponent of a bucket's scale; it stays while it is right within a factor of two."""
        if self._auto_rms is None:
            return self._fixed
        sizes = self._member.layout.sizes
        known = self._exponents.get(layers[0], 0)
        power = sum(sizes[layer] * self._squares[layer] for layer in layers)
        if not 0 < power < math.inf:
            return known
        doubled = doubled_exponent(self._auto_rms, power, sum(sizes[layer] for layer in layers))
        if layers[0] in self._exponents and -2 < doubled - 2 * known < 2:
            return known
        return max(-EXPONENT_MAX, min(doubled // 2, EXPONENT_MAX))

    def _observe(self, sums: Mapping[int, Float32Array]) -> None:
        """Keep the mean square of each layer's mean gradient."""
        workers = self._exchange.size
        for layer, values in sums.items():
            square = mean_square(values) / workers**2
            if math.isfinite(square):
                self._squares[layer] = square


def checked_scale(scale: float | str | None) -> float | str | None:
    """Return ``scale`` if it is ``auto``, a power of two, or None.

    Raises:
        UsageError: it is something else.
    """
    if scale in (None, AUTO):
        return scale
    if isinstance(scale, str) or not (0 < scale < math.inf and math.frexp(scale)[0] == 0.5):
        raise UsageError(f"scale {scale!r} is not a power of two: write 64, auto or None")
    return float(scale)


def auto_rms(spec: MethodSpec, codec: str) -> float | None:
    """Return the root mean square to which ``auto`` scales; None: the method takes any size, or has its own threshold.

    Args:
        spec: the method.
        codec: name of the codec that rounds tagged floats.
    """
    compressor = spec.compressor
    if isinstance(compressor, Nic):
        codec = compressor.codec
    elif not spec.tagged and not isinstance(compressor, Half):
        return None
    return AUTO_RMS_INCEPTIONN if codec == "inceptionn" else AUTO_RMS


def doubled_exponent(rms: float, power: float, count: int = 1) -> int:
    """Return twice the exponent e for which values times 2^e have a root mean square of about ``rms``.

    Args:
        rms: the root mean square that is wanted.
        power: sum of the squares of the values, or their mean with a count of 1; more than 0.
        count: number of values.
    """
    return math.frexp(rms**2 * count / power)[1] - 1  # exact: a logarithm is not the same on every machine


def mean_square(values: Float32Array) -> float:
    """Return the mean of the squares of at most :data:`SAMPLE` values, the same on every machine; 0 for no values.

    The distance between two samples has no common divisor with the vector's length, so no row or column is left out.
    """
    distance = max(1, values.size // SAMPLE)
    while math.gcd(distance, values.size) > 1 and distance < values.size:
        distance += 1
    sample = values[::distance].astype(np.float64)
    if not sample.size:
        return 0.0
    return float(np.cumsum(np.square(sample, out=sample))[-1]) / sample.size
