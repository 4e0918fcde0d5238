"""General compressors: lz4, snappy and zstd (cramjam), and zfp, which is lossy with an error bound (zfpy).

Both packages are optional. A payload is the library's own block, without a length before it.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CodecError

PACKAGES: Final = {"lz4": "cramjam", "snappy": "cramjam", "zstd-1": "cramjam", "zfp": "zfpy"}
"""Every library and the package it comes from."""


def missing() -> list[str]:
    """Return the packages that are not installed, each once."""
    return [package for package in dict.fromkeys(PACKAGES.values()) if load(package) is None]


def available() -> list[str]:
    """Return the names of the libraries that are installed."""
    return [name for name, package in PACKAGES.items() if load(package) is not None]


def load(package: str) -> Any:
    """Return a package of :data:`PACKAGES`, None where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        return None


def compress(name: str, values: Float32Array, bound_k: int) -> Uint8Array:
    """Return a library's payload of float32[n], contiguous; zfp without its header, and nothing for n = 0.

    zfp's tolerance is 2**-bound_k; the others ignore it.
    """
    octets = values.view(np.uint8)
    if name == "zfp":  # with an empty array, zfpy 1.0.1 reads memory outside it
        tolerance = 2.0**-bound_k
        payload = load("zfpy").compress_numpy(values, tolerance=tolerance, write_header=False) if values.size else b""
    elif name == "lz4":
        payload = load("cramjam").lz4.compress_block(octets, store_size=False)
    elif name == "snappy":
        payload = load("cramjam").snappy.compress_raw(octets)
    else:
        payload = load("cramjam").zstd.compress(octets, level=1)
    return np.frombuffer(bytes(payload), np.uint8)


def decompress(name: str, payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
    """Return the ``count`` floats of a payload that :func:`compress` made with the same name and bound.

    CodecError if it does not hold so many; for zfp only if it is too long.
    """
    if name == "zfp":
        return _zfp_floats(payload, count, bound_k)
    cramjam, target = load("cramjam"), np.empty(4 * count, np.uint8)
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
    """Decompress with room for the longest stream, 140 bits per four floats: zfp does not check its stream's end."""
    zfpy, longest = load("zfpy"), 18 * -(-count // 4) + 8
    if payload.size > longest or (count == 0 and payload.size):
        raise CodecError(f"zfp payload of {payload.size} octets is too long for {count} floats")
    if count == 0:
        return np.empty(0, np.float32)
    stream = np.zeros(longest + 8, np.uint8)
    stream[: payload.size] = payload
    kind = zfpy.dtype_to_ztype(np.dtype(np.float32))
    return np.asarray(zfpy._decompress(stream, kind, (count,), tolerance=2.0**-bound_k), np.float32)
