"""General compressors beside ours: lz4, snappy and zstd (cramjam), and zfp, which is lossy with an error bound (zfpy).

Both packages are optional. Before a time is taken the answer is checked: the lossless ones must return every bit. Of
zfp twice its tolerance is accepted and the worst error reported: of 4 million floats of N(0, 0.01), with a tolerance of
2^-6, zfpy 1.0.1 returned some that were 1.4 times that off.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import numpy as np

from netoffload.codec.measure import SAMPLE_OCTETS, Speed, errors, interleaved
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CodecError, RunError

PACKAGES: Final = {"lz4": "cramjam", "snappy": "cramjam", "zstd-1": "cramjam", "zfp": "zfpy"}
"""Every peer and the package it comes from."""


@dataclass(frozen=True)
class PeerMeasurement:
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


def missing() -> list[str]:
    """Return the packages that are not installed, each once."""
    return [package for package in dict.fromkeys(PACKAGES.values()) if _load(package) is None]


def available() -> list[str]:
    """Return the names of the peers that can be measured here."""
    return [name for name, package in PACKAGES.items() if _load(package) is not None]


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    return {package: metadata.version(package) for package in dict.fromkeys(PACKAGES.values()) if _load(package)}


def _load(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        return None


def compress(name: str, values: Float32Array, bound_k: int) -> Uint8Array:
    """Return what a peer makes of float32[n], contiguous; zfp without its header, and nothing of nothing.

    Args:
        name: one of :func:`available`.
        values: float32[n].
        bound_k: zfp's tolerance is 2**-bound_k; the others ignore it.
    """
    octets = values.view(np.uint8)
    if name == "zfp":  # of nothing, zfpy 1.0.1 reads memory that is not its own
        tolerance = 2.0**-bound_k
        payload = _load("zfpy").compress_numpy(values, tolerance=tolerance, write_header=False) if values.size else b""
    elif name == "lz4":
        payload = _load("cramjam").lz4.compress_block(octets, store_size=False)
    elif name == "snappy":
        payload = _load("cramjam").snappy.compress_raw(octets)
    else:
        payload = _load("cramjam").zstd.compress(octets, level=1)
    return np.frombuffer(bytes(payload), np.uint8)


def decompress(name: str, payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
    """Return the ``count`` floats of what :func:`compress` made with the same name and bound.

    Raises:
        CodecError: a payload that does not hold them. Of zfp only one that is too long is noticed.
    """
    if name == "zfp":
        return _zfp_floats(payload, count, bound_k)
    cramjam, target = _load("cramjam"), np.empty(4 * count, np.uint8)
    try:
        if name == "lz4":
            length = cramjam.lz4.decompress_block_into(payload, target, output_len=target.size)
        elif name == "snappy":
            length = cramjam.snappy.decompress_raw_into(payload, target)
        else:
            length = cramjam.zstd.decompress_into(payload, target)
    except cramjam.DecompressionError as error:
        raise CodecError(f"{name} cannot decompress {payload.size} octets to {count} floats: {error}") from error
    if length != target.size:
        raise CodecError(f"{name} payload holds {length} octets, not {count} floats")
    return target.view(np.float32)


def _zfp_floats(payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
    """zfp does not check where its stream ends: it is given room for the longest there is, 140 bits per four floats."""
    zfpy, longest = _load("zfpy"), 18 * -(-count // 4) + 8
    if payload.size > longest or (count == 0 and payload.size):
        raise CodecError(f"zfp payload of {payload.size} octets is too long for {count} floats")
    if count == 0:
        return np.empty(0, np.float32)
    stream = np.zeros(longest + 8, np.uint8)
    stream[: payload.size] = payload
    kind = zfpy.dtype_to_ztype(np.dtype(np.float32))
    return np.asarray(zfpy._decompress(stream, kind, (count,), tolerance=2.0**-bound_k), np.float32)


def measure_peer(name: str, values: Float32Array, bound_k: int, repeat: int) -> PeerMeasurement:
    """Check a compressor on a vector, then time it; it is one of :func:`available`.

    Args:
        name: of the peer.
        values: float32[n], contiguous.
        bound_k: zfp's tolerance is 2**-bound_k; the others ignore it.
        repeat: samples.

    Raises:
        RunError: what comes back is not what went in, or too far from it.
    """
    source = values.view(np.uint8)
    buffers = _Buffers(source, np.zeros(source.size * 2 + 1024, np.uint8), np.zeros(source.size, np.uint8))
    if name == "zfp":
        compress, decompress = _zfp(values, 2.0**-bound_k, buffers)
    else:
        compress, decompress = _lossless(name, buffers)
    length = compress()
    decompress()
    worst, _ = errors(values, buffers.target.view(np.float32))
    if worst > (2 * 2.0**-bound_k if name == "zfp" else 0.0):
        raise RunError(f"{name} returned floats that are {worst} off")
    times = max(1, math.ceil(SAMPLE_OCTETS / source.size))

    def repeatedly(task: Callable[[], int]) -> Callable[[], object]:
        return lambda: [task() for _ in range(times)]

    speeds = interleaved([repeatedly(compress), repeatedly(decompress)], times * source.size, repeat)
    return PeerMeasurement(speeds[0], speeds[1], source.size / length, worst)


def _lossless(name: str, buffers: _Buffers) -> tuple[Callable[[], int], Callable[[], int]]:
    cramjam = _load("cramjam")
    length = 0

    def compress() -> int:
        nonlocal length
        if name == "lz4":
            length = cramjam.lz4.compress_block_into(buffers.source, buffers.payload, store_size=False)
        elif name == "snappy":
            length = cramjam.snappy.compress_raw_into(buffers.source, buffers.payload)
        else:
            length = cramjam.zstd.compress_into(buffers.source, buffers.payload, level=1)
        return length

    def decompress() -> int:
        payload = buffers.payload[:length]
        if name == "lz4":
            return int(cramjam.lz4.decompress_block_into(payload, buffers.target, output_len=buffers.target.size))
        if name == "snappy":
            return int(cramjam.snappy.decompress_raw_into(payload, buffers.target))
        return int(cramjam.zstd.decompress_into(payload, buffers.target))

    return compress, decompress


def _zfp(values: Float32Array, tolerance: float, buffers: _Buffers) -> tuple[Callable[[], int], Callable[[], int]]:
    zfpy = _load("zfpy")
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
