"""What a compressor does to a vector, and how fast: variance ratio, bias, errors, octets, octets per second.

The variance ratio is what convergence depends on (Jiang and Agrawal, NeurIPS 2018, Eq. 13 and Theorem 2)::

    q(v) = E |Q(v) - v|^2 / |v|^2        Eq. 13's q is its supremum over v; this is its value for one v

The expectation is the mean over repeats. Each repeat takes the next step of one state without a residual, so the same
seed gives the same figures. The bias is |E Q(v) - v| / |v|. The mean of R repeats of an unbiased method is still off by
sqrt(q / R). That part is estimated from the spread of the repeats and subtracted. So an unbiased method shows about 0
for any R, and a deterministic one shows its error.

Speeds are octets of float32 per second of this thread's processor time, medians. They do not count other processes, but
they count page faults of new payloads.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Float64Array
from netoffload.compressors.base import Compressor
from netoffload.compressors.layout import Layout
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import Contender, take_turns

WARM_RUNS: Final = 2

SHORTEST_S: Final = 1e-9
"""The clock's resolution: the least time that is used."""


@dataclass(frozen=True)
class Quality:
    """How a vector differs after encoding and decoding.

    Attributes:
        variance_ratio: mean of |Q(v) - v|^2 / |v|^2; 0 for a vector of zeros.
        bias: |mean of Q(v) - v| / |v|, without the part that the finite number of repeats adds; None for one repeat.
        mean_relative_error: mean of abs(Q(v) - v) / abs(v) over values that are not 0.
    """

    ratio: float
    variance_ratio: float
    bias: float | None
    mean_error: float
    mean_relative_error: float
    max_error: float


@dataclass(frozen=True)
class Speeds:
    """Octets of float32 per second of processor time, over 1e9, medians."""

    encode_GBps: float  # noqa: N815 - the unit as it is written
    decode_GBps: float  # noqa: N815


def quality(
    compressor: Compressor, values: Float32Array, layout: Layout | None = None, *, repeats: int = 8, seed: int = 1
) -> Quality:
    """Encode and decode a vector ``repeats`` times and compare in float64.

    Args:
        values: float32[n], n > 0, finite.
        repeats: how often; 1 is enough for a method without randomness, but its bias is then not known.
    """
    if repeats < 1 or not values.size:
        raise UsageError(f"a compressor's quality needs values and repeats, not {values.size} and {repeats}")
    layout = layout or Layout.flat(values.size)
    state = compressor.make_state(layout, seed=seed)
    exact = values.astype(np.float64)
    magnitudes = np.abs(exact)
    nonzero = magnitudes > 0
    total = np.zeros(values.size)
    octets = squares = absolute = relative = largest = 0.0
    for _ in range(repeats):
        payload = compressor.encode(values, state)
        error = compressor.decode(payload, layout) - exact
        total += error
        octets += payload.size
        squares += float(error @ error)
        np.abs(error, out=error)
        absolute += float(error.mean())
        relative += float((error[nonzero] / magnitudes[nonzero]).mean()) if nonzero.any() else 0.0
        largest = max(largest, float(error.max()))
    energy = float(exact @ exact)
    return Quality(
        ratio=values.nbytes * repeats / octets,
        variance_ratio=squares / repeats / energy if energy else 0.0,
        bias=_bias(total / repeats, squares, repeats, energy) if repeats > 1 else None,
        mean_error=absolute / repeats,
        mean_relative_error=relative / repeats,
        max_error=largest,
    )


def speeds(compressor: Compressor, values: Float32Array, layout: Layout | None = None, *, repeats: int = 9) -> Speeds:
    """Time encoding and decoding a finite float32[n], in turn, each ``repeats`` times."""
    layers = layout or Layout.flat(values.size)
    state = compressor.make_state(layers)
    payload = compressor.encode(values, state)

    def encode(_number: int) -> float:
        nonlocal payload
        started_s = time.thread_time()
        payload = compressor.encode(values, state)
        return max(time.thread_time() - started_s, SHORTEST_S)

    def decode(_number: int) -> float:
        started_s = time.thread_time()
        compressor.decode(payload, layers)
        return max(time.thread_time() - started_s, SHORTEST_S)

    contenders = [Contender("encode", encode), Contender("decode", decode)]
    take_turns(contenders, repeats, warm_ups=WARM_RUNS)
    encode_s, decode_s = (statistics.median(contender.samples) for contender in contenders)
    return Speeds(values.nbytes / encode_s / 1e9, values.nbytes / decode_s / 1e9)


def _bias(mean_error: Float64Array, squares: float, repeats: int, energy: float) -> float:
    of_mean = float(mean_error @ mean_error)
    spread = (squares - repeats * of_mean) / (repeats - 1)
    return float(np.sqrt(max(of_mean - spread / repeats, 0.0) / energy)) if energy else 0.0
