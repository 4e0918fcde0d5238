"""General compressors beside the NIC's codecs: speed, ratio and error of lz4, snappy, zstd and zfp.

``sz-like`` does what SZ does without its predictor, which finds nothing in gradients. It rounds floats to whole
multiples of twice the bound, and zstd compresses these, as 8-bit integers if they fit, else as 16 or 32.

Before a time is taken the answer is checked. Lossless compressors must return every bit. zfp may be off by twice its
tolerance, and its worst error is reported: of 4 million floats of N(0, 0.01), with a tolerance of 2^-6, zfpy 1.0.1
returned some that were off by 1.4 times the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compressors.libraries import available, load
from netoffload.errors import RunError
from netoffload.lab.bench.codec_speed import SAMPLE_OCTETS, Speed, errors, speeds

QUANTISING: Final = "sz-like"

WITH_BOUND: Final = ("zfp", QUANTISING)
"""The compressors that take an error bound."""


def peers() -> list[str]:
    """Return the names of the compressors that can be measured here."""
    names = available()
    return [*names, QUANTISING] if "zstd-1" in names else names


@dataclass(frozen=True)
class LibraryMeasurement:
    """One compressor and vector."""

    compress: Speed
    decompress: Speed
    ratio: float
    max_error: float


@dataclass(frozen=True)
class _Buffers:
    source: Uint8Array
    payload: Uint8Array
    target: Uint8Array


def measure_library(name: str, values: Float32Array, bound_k: int, repeat: int) -> LibraryMeasurement:
    """Check one of :func:`peers` on a contiguous float32[n], then time it; a tolerance is 2**-bound_k."""
    source = values.view(np.uint8)
    buffers = _Buffers(source, np.zeros(source.size * 2 + 1024, np.uint8), np.zeros(source.size, np.uint8))
    if name == "zfp":
        compress, decompress = _zfp(values, 2.0**-bound_k, buffers)
    elif name == QUANTISING:
        compress, decompress = _quantising(values, 2.0**-bound_k, buffers)
    else:
        compress, decompress = _lossless(name, buffers)
    length = compress()
    decompress()
    worst, _ = errors(values, buffers.target.view(np.float32))
    allowed = {"zfp": 2.0, QUANTISING: 1.0001}.get(name, 0.0) * 2.0**-bound_k
    if worst > allowed:
        raise RunError(f"{name} returned floats that are {worst} off")
    times = max(1, math.ceil(SAMPLE_OCTETS / source.size))

    def repeatedly(task: Callable[[], int]) -> Callable[[], object]:
        return lambda: [task() for _ in range(times)]

    tasks = {"compress": repeatedly(compress), "decompress": repeatedly(decompress)}
    return LibraryMeasurement(**speeds(tasks, times * source.size, repeat), ratio=source.size / length, max_error=worst)


def _lossless(name: str, buffers: _Buffers) -> tuple[Callable[[], int], Callable[[], int]]:
    cramjam = load("cramjam")
    length = 0

    def compress() -> int:
        nonlocal length
        if name == "lz4":
            length = cramjam.lz4.compress_block_into(buffers.source, buffers.payload, store_size=False)
        elif name == "snappy":
            length = cramjam.snappy.compress_raw_into(buffers.source, buffers.payload)
        else:
            length = cramjam.zstd.compress_into(buffers.source, buffers.payload, level=1)
        return int(length)

    def decompress() -> int:
        payload = buffers.payload[:length]
        if name == "lz4":
            return int(cramjam.lz4.decompress_block_into(payload, buffers.target, output_len=buffers.target.size))
        if name == "snappy":
            return int(cramjam.snappy.decompress_raw_into(payload, buffers.target))
        return int(cramjam.zstd.decompress_into(payload, buffers.target))

    return compress, decompress


def _quantising(
    values: Float32Array, tolerance: float, buffers: _Buffers
) -> tuple[Callable[[], int], Callable[[], int]]:
    zstd = load("cramjam").zstd
    step = np.float32(2 * tolerance)
    largest = float(np.abs(values).max(initial=0)) / float(step)
    kind = np.int8 if largest <= 127 else np.int16 if largest <= 32767 else np.int32
    codes = np.zeros(values.size, kind)
    length = 0

    def compress() -> int:
        nonlocal length
        length = int(zstd.compress_into(np.rint(values / step).astype(kind).view(np.uint8), buffers.payload, level=1))
        return length

    def decompress() -> int:
        count = int(zstd.decompress_into(buffers.payload[:length], codes.view(np.uint8)))
        np.multiply(codes, step, out=buffers.target.view(np.float32), casting="unsafe")
        return count

    return compress, decompress


def _zfp(values: Float32Array, tolerance: float, buffers: _Buffers) -> tuple[Callable[[], int], Callable[[], int]]:
    zfpy = load("zfpy")
    payload = b""

    def compress() -> int:
        nonlocal payload
        payload = zfpy.compress_numpy(values, tolerance=tolerance)
        return len(payload)

    def decompress() -> int:
        decoded = zfpy.decompress_numpy(payload)
        buffers.target[:] = decoded.view(np.uint8)
        return int(decoded.size)

    return compress, decompress
