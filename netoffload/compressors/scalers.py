"""The scaler by which a group is divided: its largest magnitude, perhaps limited to c deviations, or its length.

Sums are float64 and have a fixed order: lane j adds values j, j + 4, j + 8, ... and the result is
(lane 0 + lane 1) + (lane 2 + lane 3). So every machine gets the same bits, and four additions run side by side. Largest
magnitudes are found on the bits, because floats without their sign have the order of their bits.
"""

import enum
import math
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import bits_float32
from netoffload.compressors.base import INFINITY_WORD, largest_word
from netoffload.errors import CodecError, NotFiniteError

Bounds = Int64Array
"""The start of each group, then the end of the last one: ``Layout.groups``."""

LANES: Final = 4


class Scale(enum.IntEnum):
    """The kind of a group's scaler."""

    LARGEST = 0
    LENGTH = 1


def group_scalers(values: Float32Array, bounds: Bounds, scale: Scale, clip_factor: float = 0.0) -> Float32Array:
    """Return the scaler of every group, float32[g], not negative, for float32[n], finite.

    ``clip_factor`` c limits the largest magnitude to c standard deviations of the group (TernGrad, Eq. 9); 0: no limit.
    """
    scalers = np.zeros(bounds.size - 1, np.float32)
    _fill_scalers(values, values.view(np.uint32), bounds, int(scale), float(clip_factor), scalers)
    if not np.isfinite(scalers).all():
        raise NotFiniteError("the length of the gradient is not a finite float32: scale the loss down")
    return scalers


def clip_groups(values: Float32Array, bounds: Bounds, limits: Float32Array) -> Float32Array:
    """Return the values with magnitudes limited to the limit of their group (TernGrad, Eq. 9), float32[n].

    ``limits``, float32[g], are not negative. Values behind the last group stay.
    """
    clipped = values.copy()
    _clip(bounds, limits, clipped)
    return clipped


def scalers_of(octets: Uint8Array) -> Float32Array:
    """Return the scalers that a peer sent; CodecError if one is negative or not finite."""
    scalers = np.frombuffer(octets, np.float32).copy()
    # The bits of a negative number have bit 31 set, so they are above those of infinity.
    if (scalers.view(np.uint32) >= INFINITY_WORD).any():
        raise CodecError("a scaler in the payload is negative or not finite")
    return scalers


@inline_kernel
def _sums(values: Float32Array) -> tuple[float, float]:
    """Return (sum, sum of squares) of a group, added in lanes."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
    for block in range(values.size >> 2):
        v0, v1 = np.float64(values[4 * block]), np.float64(values[4 * block + 1])
        v2, v3 = np.float64(values[4 * block + 2]), np.float64(values[4 * block + 3])
        a0 += v0
        a1 += v1
        a2 += v2
        a3 += v3
        b0 += v0 * v0
        b1 += v1 * v1
        b2 += v2 * v2
        b3 += v3 * v3
    rest = values[values.size & ~3 :]
    if rest.size > 0:
        a0 += np.float64(rest[0])
        b0 += np.float64(rest[0]) * np.float64(rest[0])
    if rest.size > 1:
        a1 += np.float64(rest[1])
        b1 += np.float64(rest[1]) * np.float64(rest[1])
    if rest.size > 2:
        a2 += np.float64(rest[2])
        b2 += np.float64(rest[2]) * np.float64(rest[2])
    return (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)


@kernel
def _clip(bounds: Int64Array, limits: Float32Array, values: Float32Array) -> None:
    for group in range(limits.size):
        limit = limits[group]
        inside = values[bounds[group] : bounds[group + 1]]
        for i in range(inside.size):
            inside[i] = min(max(inside[i], -limit), limit)


@kernel
def _fill_scalers(
    values: Float32Array, words: Uint32Array, bounds: Int64Array, scale: int, clip_factor: float, scalers: Float32Array
) -> None:
    for group in range(scalers.size):
        inside = values[bounds[group] : bounds[group + 1]]
        if scale == 1:  # Scale.LENGTH: kernels take plain numbers
            _, squares = _sums(inside)
            scalers[group] = np.float32(math.sqrt(squares))
            continue
        largest = bits_float32(largest_word(words[bounds[group] : bounds[group + 1]]))
        if clip_factor > 0.0:
            total, squares = _sums(inside)
            mean = total / inside.size
            deviation = math.sqrt(max(squares / inside.size - mean * mean, 0.0))
            limit = np.float32(min(clip_factor * deviation, np.float64(largest)))
            largest = limit if limit > np.float32(0.0) else largest
        scalers[group] = largest
