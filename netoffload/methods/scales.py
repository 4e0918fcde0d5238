"""Scales: powers of two that bring a vector to where a codec with an absolute error bound rounds well.

The relative error of such a codec depends on the size of the values. With ``AUTO`` each layer of a bucket has its own
scale, because a layer may have gradients of a thousandth of another's. The loudest rank's root mean square is brought
to :data:`AUTO_RMS`, or down to half of it, before anything is rounded. All ranks must take the same power. So they
exchange it with their meeting, and take the largest::

    values of this rank ──► root mean square ──┐
                                               ├─ maximum over all ranks ──► 2^e, the same on every rank
    values of the others ──► likewise ─────────┘

The scale follows from the very values that it multiplies, and nothing is remembered. So a spike costs no later step
anything, and the first gradient that is not 0 is as good as the hundredth. No rank's arithmetic must equal another's:
only the maximum decides.

Because all n squares are added, the root mean square is at least the largest value divided by sqrt(n). So no value is
scaled beyond :data:`AUTO_RMS` sqrt(n), and no finite value becomes infinite.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from netoffload.codec_specs import SPECS, CodecId, Exact
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors.nic import Half, Nic
from netoffload.errors import UsageError
from netoffload.methods.base import MethodSpec

AUTO: Final = "auto"

AUTO_RMS: Final = 2.0**-6
"""Sixteen times the bound 2^-10: eight bits hold eight times this root mean square with the codec ``bounded``."""

AUTO_RMS_INCEPTIONN: Final = 2.0**-4  # `inceptionn` keeps nothing below 2^-7

EXPONENT_MAX: Final = 120
"""Largest absolute exponent of a scale: 2^120 and 2^-120 are normal float32."""

POWERS_SAFE: Final = (2.0**-80, 2.0**126)
"""Sums of squares between these lost nothing that matters to underflow in float32, and did not overflow."""

LENGTH_BASE: Final = 2**20  # float32 has integers up to 2^24

Maximum = Callable[[Float32Array, Float32Array], None]
"""Collective: replaces the second vector by the maxima of every rank's first; NaN where one is NaN."""


def checked_scale(scale: float | str | None) -> float | str | None:
    """Return ``scale`` if it is ``auto``, a power of two, or None; else raise UsageError."""
    if scale in (None, AUTO):
        return scale
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not (0 < scale <= sys.float_info.max and math.frexp(scale)[0] == 0.5):  # type: ignore[operator,arg-type]
        raise UsageError(f"scale {scale!r} is not a power of two: write 64, auto or None")
    return float(scale)


def auto_rms(spec: MethodSpec, codec: str) -> float | None:
    """Return the root mean square to which ``auto`` scales.

    None: the method takes any size, has its own threshold, or keeps every bit. ``codec`` rounds tagged floats; it may
    be empty.
    """
    compressor = spec.compressor
    if isinstance(compressor, Nic):
        codec = compressor.codec
    elif not spec.tagged and not isinstance(compressor, Half):
        return None
    return codec_rms(codec)


def codec_rms(codec: str) -> float | None:
    """Return the root mean square to which ``auto`` scales for a codec, or for a half type if there is none.

    None: the codec keeps every bit.
    """
    if codec and isinstance(SPECS[CodecId[codec.upper()]].form, Exact):
        return None
    return AUTO_RMS_INCEPTIONN if codec == "inceptionn" else AUTO_RMS


def fixed_exponent(scale: float | str | None) -> int:
    """Return the exponent of a scale that :func:`checked_scale` returned; 0 for ``auto`` and None."""
    return math.frexp(scale)[1] - 1 if isinstance(scale, float) else 0


def root_mean_square(values: Float32Array) -> float:
    """Return the root mean square of float32[n]: 0 only if all values are 0, infinite or NaN only if one is."""
    if not values.size:
        return 0.0
    power = _power(values)
    if POWERS_SAFE[0] < power < POWERS_SAFE[1]:
        return math.sqrt(power / values.size)
    largest = max(float(values.max()), -float(values.min()))
    if largest == 0 or not math.isfinite(largest):
        return largest
    exponent = max(-126, min(math.frexp(largest)[1], 126))
    near_one = np.ldexp(values, -exponent)
    return math.ldexp(math.sqrt(_power(near_one) / values.size), exponent)


def meet_loudest(parts: Sequence[Float32Array], maximum: Maximum) -> tuple[list[float], bool]:
    """Return, by part of a vector, the largest root mean square of all ranks, and whether all vectors are equally long.

    Both are the same on every rank. A root mean square is infinite or NaN if a value of some rank is not finite. The
    exchange is a meeting, too: ranks that know their lengths to be equal need no other one before they sum.

    ``parts`` are this rank's, as many on every rank. ``maximum`` reduces :func:`meeting_floats` floats.
    """
    high, low = divmod(sum(part.size for part in parts), LENGTH_BASE)
    with np.errstate(over="ignore", under="ignore"):
        words = np.array([*map(root_mean_square, parts), high, low, -high, -low], np.float32)
    for at, part in enumerate(parts):
        if words[at] == 0 and part.any():  # rounded to 0, which must mean that all values are 0
            words[at] = np.finfo(np.float32).smallest_subnormal
    maximum(words, words)
    *loudness, most_high, most_low, less_high, less_low = words.tolist()
    return loudness, (most_high, most_low) == (-less_high, -less_low)


def meeting_floats(parts: int) -> int:
    """Return how many floats ranks exchange: by part a root mean square; the length as two digits, and their negatives.

    The maximum of a number and of its negative are equal but for the sign if all ranks have the same number.
    """
    return parts + 4


def exponent_for(rms: float, loudness: float) -> int | None:
    """Return the exponent of the largest scale that brings ``loudness`` to at most ``rms``; 0 for 0.

    It is at most :data:`EXPONENT_MAX`, either way. None: the values are not finite.
    """
    if loudness == 0:
        return 0
    return _exponent(rms, loudness) if math.isfinite(loudness) else None


def exponents_for(rms: float, loudness: Sequence[float], sizes: Sequence[int]) -> list[int] | None:
    """Return the exponents of the scales of a vector's parts, of the given sizes; None: a value is not finite.

    No part gets a smaller scale than the vector as a whole would get. So loud parts, which are short (or they would
    make the vector loud), are rounded finer than they need, for few octets.
    """
    power = sum(size * one**2 for size, one in zip(sizes, loudness, strict=True))
    whole = exponent_for(rms, math.sqrt(power / max(sum(sizes), 1)) if math.isfinite(power) else math.inf)
    if whole is None:
        return None
    return [whole if one == 0 else max(whole, _exponent(rms, one)) for one in loudness]


def multiply(values: Float32Array, exponent: int) -> Float32Array:
    """Multiply by a power of two, in place; return ``values``."""
    return np.multiply(values, np.float32(2.0**exponent), out=values) if exponent else values


def _exponent(rms: float, loudness: float) -> int:
    exponent = math.frexp(rms / loudness)[1] - 1  # exact: a logarithm is not the same on every machine
    return max(-EXPONENT_MAX, min(exponent, EXPONENT_MAX))


def _power(values: Float32Array) -> float:
    """Return the sum of the squares, in float32 and in one pass; infinite if it overflows."""
    with np.errstate(all="ignore"):
        return float(np.einsum("i,i", values, values))
