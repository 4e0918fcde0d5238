"""What codecs and compressors do to gradients on this CPU.

Vectors go through the chunks of an inline ring on one core; only that core's time counts. They are multiplied by the
power of two that ``scale="auto"`` takes. The ratio is measured on the sum of half of the ranks' gradients and on the
sum of all, because a ring's first phase carries partial sums and its second whole ones. Compressors encode the gradient
itself.
"""

from __future__ import annotations

import math
import time
from typing import Final

import numpy as np

from netoffload.codec.bursts import LANES
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.lab.bench.compressor_quality import SHORTEST_S, quality, speeds
from netoffload.lab.models.advice import Coding
from netoffload.methods.scales import codec_rms, exponent_for, root_mean_square
from netoffload.transport.rendezvous.agreement import Precision
from netoffload.transport.wiring import chunks

REPEATS: Final = 5
"""Repeats of everything that is timed."""


def coding_of(precision: Precision, vectors: Float32Array, ranks: int) -> Coding:
    """Measure a codec as an inline ring uses it on gradients float32[v, n]; rank r has row r modulo v."""
    factor = auto_factor(vectors[0], precision)
    scaled = vectors[0] * factor
    encode_s, decode_s, _, decoded = min(
        (_coded(scaled, precision) for _ in range(REPEATS)), key=lambda one: one[0] + one[1]
    )
    octets = 0
    for count in (-(-ranks // 2), ranks):
        partial: Float32Array = vectors[np.arange(count) % len(vectors)].sum(axis=0)
        octets += _coded(np.multiply(partial, factor), precision)[2]
    exact = scaled.astype(np.float64)
    error, power = np.abs(np.subtract(decoded, exact)), float(exact @ exact)
    return Coding(
        2 * scaled.nbytes / octets,
        scaled.nbytes / encode_s,
        scaled.nbytes / decode_s,
        math.sqrt(float(error @ error) / power) if power else 0.0,
        float(error.max()) * 2**precision.bound_k,
        f'codec="{precision.codec}", bound={precision.bound_k}',
    )


def coding_by(name: str, values: Float32Array, layout: Layout) -> Coding:
    """Measure a compressor on one gradient."""
    compressor = registry.parse(name)
    seen, fast = quality(compressor, values, layout, repeats=2), speeds(compressor, values, layout, repeats=REPEATS)
    speeds_Bps = fast.encode_GBps * 1e9, fast.decode_GBps * 1e9  # noqa: N806 - the unit as it is written
    return Coding(seen.ratio, *speeds_Bps, math.sqrt(seen.variance_ratio), None, f'compressor="{name}"')


def auto_factor(values: Float32Array, precision: Precision | None) -> np.float32:
    """Return the factor by which ``scale="auto"`` multiplies a gradient like this one."""
    exponent = None if precision is None else exponent_for(codec_rms(precision.codec), root_mean_square(values))
    return np.float32(2.0 ** (exponent or 0))


def _coded(values: Float32Array, precision: Precision) -> tuple[float, float, int, Float32Array]:
    """Encode and decode a vector in chunks; return seconds of either, octets, and the decoded float32[n]."""
    coding = chunks.make_coding(int(precision.quantiser().codec_id), precision.bound_k)
    source, state = values.view(np.uint8), coding.state
    arrived = np.empty(values.size + LANES, np.float32)
    encode_s = decode_s = 0.0
    octets = 0
    for first in range(0, values.size, chunks.CODED_FLOATS):
        started_s = time.thread_time()
        chunks.pack(coding, source, 4 * first, min(values.size - first, chunks.CODED_FLOATS))
        packed_s = time.thread_time()
        length = int(state[chunks.OUT_END])
        chunks.count_sent(coding, length)
        coding.incoming[:length] = coding.outgoing[:length]
        for part in (chunks.HEADER_OCTETS, length - chunks.HEADER_OCTETS):
            chunks.count_received(coding, part, chunks.CODED_FLOATS)
        received_s = time.thread_time()
        chunks.unpack(coding, arrived.view(np.uint8), 4 * first)
        encode_s, decode_s = encode_s + packed_s - started_s, decode_s + time.thread_time() - received_s
        octets += length
    return max(encode_s, SHORTEST_S), max(decode_s, SHORTEST_S), octets, arrived[: values.size]
