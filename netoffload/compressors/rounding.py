"""Stochastic rounding to levels, which TernGrad and QSGD share.

A value v of a group with scaler c and s levels gets the level next to s |v|/c, below or above, at random. The mean of
l/s is |v|/c (QSGD, section 3.1; TernGrad, Eq. 2, where s = 1)::

    x = |v| / c * s,  at most s        l = floor(x) + (u < x - floor(x)),  u uniform in [0, 1)

Its code is l << 1 | sign, and 0 for level 0: a sign without a level is not a code. The code's value is
sign * (l / s) * c.

Every operation is one float32 operation of IEEE 754, in this order. u is the upper 24 bits of the value's random word
over 2^24; x - floor(x) and its comparison with u are exact. So machines with and without vector instructions round
alike. A probability is off by at most 2^-24, the precision of a float32 next to the scaler.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint16Array
from netoffload.compiled.jit import kernel
from netoffload.compressors.rng import random_word

MAX_LEVEL: Final = 2**15 - 1
"""A code has 16 bits, one of them the sign."""


@kernel
def round_to_levels(
    values: Float32Array,
    bounds: Int64Array,
    scalers: Float32Array,
    levels: Float32Array,
    key0: int,
    key1: int,
    codes: Uint16Array,
) -> None:
    """Write the code of every value, uint16[n], for float32[n], finite; value i takes the random word of index i.

    ``scalers``, float32[g], are not negative; all codes of a group with scaler 0 are 0. ``levels`` has each group's
    s, at least 1, perhaps no integer; no value's level may exceed MAX_LEVEL.
    """
    low, high = np.uint32(key0), np.uint32(key1)
    for group in range(scalers.size):
        scaler, s = scalers[group], levels[group]
        divisor = scaler if scaler > np.float32(0) else np.float32(1)
        most = s if scaler > np.float32(0) else np.float32(0)
        # Slices: LLVM makes vector code only where an index cannot be negative.
        first = bounds[group]
        inside, made = values[first : bounds[group + 1]], codes[first : bounds[group + 1]]
        for i in range(inside.size):
            value = inside[i]
            x = abs(value) / divisor * s
            x = x if x < most else most
            below = np.int32(x)
            drawn = np.float32(np.int32(random_word(np.uint32(first + i), low, high) >> np.uint32(8)))
            up = np.int32(drawn < (x - np.float32(below)) * np.float32(16777216.0))
            level = np.int32(below + up)
            made[i] = np.int32(level << 1) | np.int32((value < np.float32(0)) & (level > np.int32(0)))


@kernel
def values_of_levels(
    codes: Uint16Array, bounds: Int64Array, scalers: Float32Array, levels: Float32Array, values: Float32Array
) -> int:
    """Write the value of every code, float32[n]; return how many codes are invalid.

    Invalid are a sign without a level, a level above the group's s rounded up, and codes other than 0 with scaler 0.
    """
    bad = 0
    for group in range(scalers.size):
        scaler, s = scalers[group], levels[group]
        most = np.int32(np.ceil(s)) if scaler > np.float32(0) else np.int32(0)
        read, made = codes[bounds[group] : bounds[group + 1]], values[bounds[group] : bounds[group + 1]]
        for i in range(read.size):
            code = np.int32(read[i])
            level = code >> 1
            bad += (code == 1) | (level > most)
            magnitude = np.float32(level) / s * scaler
            made[i] = -magnitude if code & 1 else magnitude
    return bad
