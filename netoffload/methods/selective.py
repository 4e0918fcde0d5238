"""A reducer around another one: some layers stay exact, and values are scaled to where the codec works (``scales``).

Three kinds of buckets travel exact instead, so that a scale never makes a gradient worse than no compression:

- A bucket with an infinite or NaN value. The caller sees it, as a loss scaler must, and nothing remembers it.
- With ``auto``, a bucket whose last sum was rounded to nothing although a gradient was not 0.

- With error feedback, a bucket that is much larger or smaller than the last one. Its residuals go with it. Else a spike
  would leave a residual as large as many gradients, which would be the next step's.

Each layer has its scale. With error feedback its residual is kept in that scale, so a new scale multiplies it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from netoffload import log
from netoffload.collectives import Half, Operation, ShortAllreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods import scales
from netoffload.methods.base import Bucket, GradientReducer, Member, Memory, MethodSpec
from netoffload.methods.buckets import RememberingReducer, Unsent, layers_of, layout_of
from netoffload.methods.floats import RingReducer
from netoffload.methods.registry import FAMILIES, method_for

JUMP_MAX: Final = 3
"""Most by which an exponent changes before a bucket with residuals travels exact. Gradients seldom change eightfold."""

RISE_MAX: Final = 64
"""Most by which the exponent of one layer rises before its bucket travels exact: residuals multiplied stay finite."""

FIRST: Final = 1024  # a vector with a value other than 0 mostly has one among its first ones


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which layers are compressed, and in what scale."""

    exact: frozenset[int] = frozenset()  # layers that travel exact
    scale: float | str | None = None  # ``auto``, or a power of two; None: values are compressed as they are
    auto_rms: float | None = None  # the root mean square to which ``auto`` scales; None: it does not scale
    keeps_bits: bool = False  # a ring's tagged floats come back bit for bit: all layers take it, unscaled


class SelectiveReducer(GradientReducer):
    """Sums gradients by a method that has a :class:`GradientReducer`, except the layers that travel exact."""

    def __init__(self, spec: MethodSpec, member: Member, selection: Selection) -> None:
        super().__init__(spec, member)
        inner = method_for(spec, member)
        if not isinstance(inner, GradientReducer):
            raise UsageError(f"{spec.name} moves weights, not gradients")
        self._inner = inner
        # Of a method that keeps none they are empty, and stay so.
        self._residuals = inner.residuals if isinstance(inner, RememberingReducer) else Unsent(member.layout)
        self._is_lossless = selection.keeps_bits and isinstance(inner, RingReducer)
        plain = inner if self._is_lossless else method_for(MethodSpec("inc", "inc", FAMILIES["inc"]), member)
        assert isinstance(plain, RingReducer)
        self._plain = plain
        self.sent = self._plain.sent = inner.sent
        self._exact = selection.exact
        self._auto_rms = selection.auto_rms if selection.scale == scales.AUTO else None
        self._fixed = scales.fixed_exponent(selection.scale)
        self._exponents: dict[int, int] = {}
        self._again: set[int] = set()  # layers that travel exact the next time
        self._maxima: dict[int, ShortAllreduce] = {}
        self.vanished = 0  # number of buckets whose sum was rounded to nothing

    def reduce(
        self,
        gradient: Float32Array,
        bucket: Bucket | None = None,
        *,
        exact: bool = False,
        pieces: Sequence[Bucket] = (),
        divisor: int = 1,
        half: Half | None = None,
    ) -> Float32Array:
        """Return the sum over all workers in ``gradient``'s memory; with ``exact`` all layers travel exact this time.

        ``pieces`` are buckets to sum instead, one by one. ``divisor`` is the number of workers for their mean: dividing
        here saves a pass over a scaled sum. If all values are of the type ``half``, what travels exact does so in 16
        bits, and its mean is of that type.
        """
        layers = layers_of(self._member.layout, bucket)
        parts = self._parts(gradient, layers)
        if pieces and list(pieces) != [layers]:
            for piece in pieces:
                reduce = partial(self.reduce, bucket=piece, exact=exact, divisor=divisor, half=half)
                self._sum(parts, piece, reduce)
            return gradient
        exact_layers = self._exact | self._again
        chosen = () if exact or self._is_lossless else tuple(layer for layer in layers if layer not in exact_layers)
        self._again.difference_update(layers)
        if chosen == layers:
            if (total := self._scaled(gradient, layers, divisor, half)) is not gradient:
                gradient[:] = total
        elif not chosen:
            self._plain.average(gradient, layers, half, divisor)
        else:
            others = tuple(layer for layer in layers if layer not in set(chosen))
            self._sum(parts, chosen, lambda values: self._scaled(values, chosen, divisor, half))
            self._sum(parts, others, lambda values: self._plain.average(values, others, half, divisor))
        return gradient

    def scales(self) -> dict[int, float]:
        """Return, by layer, the latest factor by which its values were multiplied before compression."""
        return {layer: 2.0**exponent for layer, exponent in self._exponents.items()}

    def take_unsent(self, layers: Bucket) -> dict[int, Float32Array]:
        """Return the residuals of some layers, in the scale of the gradient, and forget them; empty: there are none."""
        unsent = self._residuals.take(layers).items()
        return {layer: scales.multiply(residual, -self._exponents.get(layer, 0)) for layer, residual in unsent}

    def memory(self) -> Memory:
        """See :meth:`~netoffload.methods.base.Method.memory`."""
        return {
            "inner": self._inner.memory(),
            "exponents": dict(self._exponents),
            "again": sorted(self._again),
            "vanished": self.vanished,
        }

    def remember(self, memory: Memory) -> None:
        """See :meth:`~netoffload.methods.base.Method.remember`."""
        self._inner.remember(memory["inner"])
        self._exponents = dict(memory["exponents"])
        self._again, self.vanished = set(memory.get("again", ())), memory.get("vanished", 0)

    def _parts(self, values: Float32Array, layers: Bucket) -> dict[int, Float32Array]:
        """Return views of the layers of a bucket."""
        return dict(zip(layers, layout_of(self._member.layout, layers).split(values), strict=True))

    def _sum(
        self, parts: Mapping[int, Float32Array], some: Bucket, reduce: Callable[[Float32Array], Float32Array]
    ) -> None:
        """Replace some layers of a bucket by their sums."""
        total = reduce(np.concatenate([parts[layer] for layer in some]))
        for layer, values in self._parts(total, some).items():
            parts[layer][:] = values

    def _scaled(self, values: Float32Array, layers: Bucket, divisor: int, half: Half | None) -> Float32Array:
        """Sum by the inner method, each layer in its scale, and divide."""
        parts = self._parts(values, layers)
        has_values, exponents, have_met = self._agreed(values, parts)
        if exponents is None:
            half = None if self._member.error_feedback else half  # with residuals 16 bits do not hold the values
            return self._plain.average(values, layers, half, divisor, have_met=have_met)
        reduce = self._inner.reduce_met if have_met else self._inner.reduce
        self._move(exponents)
        for layer, part in parts.items():
            scales.multiply(part, exponents[layer])
        total = reduce(values, layers)
        # Where a rank gets a part of the sum, its own gradient is in there exact.
        if has_values and not self._member.owners and not _has_values(total):
            self._note_vanished(layers)
        for layer, part in self._parts(total, layers).items():
            _divided(part, exponents[layer], divisor)
        return total

    def _agreed(
        self, values: Float32Array, parts: Mapping[int, Float32Array]
    ) -> tuple[bool, dict[int, int] | None, bool]:
        """Return whether a bucket is not all 0, the exponent of each layer's scale, and whether the ranks have met.

        No exponents: the bucket travels exact. If it does because its size jumped, the residuals are added here. With
        ``auto`` this is collective, and the same on every rank. Ranks with buckets of different lengths have not met,
        and the next meeting fails.
        """
        if self._auto_rms is None:
            return _has_values(values), dict.fromkeys(parts, self._fixed), False
        if (count := scales.meeting_floats(len(parts))) not in self._maxima:
            self._maxima[count] = ShortAllreduce(self._exchange, count, tagged=False, operation=Operation.MAX)
        loudness, have_met = scales.meet_loudest(list(parts.values()), self._maxima[count])
        fitting = scales.exponents_for(self._auto_rms, loudness, [part.size for part in parts.values()])
        if fitting is None:
            return True, None, have_met
        # A layer of zeros fits every scale: it keeps its own.
        exponents = {
            layer: exponent if one else self._exponents.get(layer, exponent)
            for layer, one, exponent in zip(parts, loudness, fitting, strict=True)
        }
        if self._member.error_feedback and self._has_jumped(exponents):
            # In this bucket's new scale the residuals could be as large as many gradients: they travel now, exact too.
            for layer, residual in self.take_unsent(tuple(parts)).items():
                np.add(parts[layer], residual, out=parts[layer])
            self._exponents.update(exponents)
            return True, None, have_met
        return any(loudness), exponents, have_met

    def _has_jumped(self, exponents: Mapping[int, int]) -> bool:
        """Return whether a bucket is much larger or smaller than the last one, or one of its layers vastly smaller."""
        known = {layer: self._exponents.get(layer, exponent) for layer, exponent in exponents.items()}
        sizes = self._member.layout.sizes
        power, before = (
            sum(sizes[layer] * 4.0**-exponent for layer, exponent in one.items()) for one in (exponents, known)
        )
        if before == 0:  # layers without values
            return False
        rise = max(exponent - known[layer] for layer, exponent in exponents.items())
        return rise > RISE_MAX or not 4.0**-JUMP_MAX <= power / before <= 4.0**JUMP_MAX

    def _move(self, exponents: Mapping[int, int]) -> None:
        """Take over the exponents of some layers, and bring their residuals to them."""
        moved = {layer: exponent - self._exponents.get(layer, exponent) for layer, exponent in exponents.items()}
        if any(moved.values()):
            self._residuals.rescale({layer: 2.0**by for layer, by in moved.items() if by})
        self._exponents.update(exponents)

    def _note_vanished(self, layers: Bucket) -> None:
        """Count a bucket that was rounded to nothing; report the first one."""
        self.vanished += 1
        if self._auto_rms is not None:
            self._again.update(layers)
        if self.vanished == 1:
            cure = (
                "it travels exact the next time" if self._auto_rms is not None else 'set scale="auto", or a larger one'
            )
            log.say(
                "vanished",
                f"the gradient of layers {', '.join(map(str, layers[:4]))}{', ...' * (len(layers) > 4)} was rounded to "
                f"nothing: {cure}; later ones are only counted",
                level="warning",
                layers=list(layers),
            )


def _divided(total: Float32Array, exponent: int, divisor: int) -> Float32Array:
    """Divide a sum by its scale 2^exponent and a number, in one pass and in place."""
    if divisor == 1 or exponent > scales.EXPONENT_MAX // 2:  # the product below could overflow
        total, exponent = scales.multiply(total, -exponent), 0
    return total if divisor == 1 else np.divide(total, np.float32(divisor * 2.0**exponent), out=total)


def _has_values(values: Float32Array) -> bool:
    """Return whether a value is not 0."""
    return bool(values[:FIRST].any() or values.any())
