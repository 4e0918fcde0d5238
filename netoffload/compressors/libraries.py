"""``general``: general-purpose compressors for comparison: lz4, snappy, zstd (level 1) and zfp.

The packages, cramjam and zfpy, are optional: ``pip install 'netoffload[bench]'``. zfp (P. Lindstrom, 2014) is lossy,
with an absolute tolerance of 2^-bound; the error of some floats is 1.4 times that (``netoffload bench codec``).

Body, lossless: the library's block, without a length. Body of zfp: length of the stream, 32 bits | the stream without a
header; the length is needed because zfp does not notice a truncated stream.
"""

import importlib
import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compressors.base import HEADER_OCTETS, Compressor, Layout, MethodId, State, empty_payload
from netoffload.config import BOUND_K_DEFAULT, check_bound_k, check_choice
from netoffload.errors import CodecError, UsageError

PACKAGES: Final = {"lz4": "cramjam", "snappy": "cramjam", "zstd-1": "cramjam", "zfp": "zfpy"}
"""Every library and the package it comes from."""

LIBRARIES: Final = tuple(PACKAGES)
_LENGTH: Final = struct.Struct("<I")


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


@dataclass(frozen=True)
class General(Compressor):
    """A general-purpose library."""

    library: str = "zstd-1"  # lz4, snappy, zstd-1 or zfp
    bound: int = BOUND_K_DEFAULT  # zfp's tolerance is 2^-bound, 1..16

    name: ClassVar[str] = "general"
    method_id: ClassVar[MethodId] = MethodId.GENERAL

    def __post_init__(self) -> None:
        """Refuse an unknown or missing library and a bound out of range."""
        check_choice("general: library", self.library, LIBRARIES)
        if self.library not in available():
            raise UsageError(f"{self.library} needs {PACKAGES[self.library]}: pip install 'netoffload[bench]'")
        check_bound_k(self.bound)

    @property
    def flags(self) -> int:
        """Library in bits 0 and 1; bound - 1 above, with zfp."""
        return LIBRARIES.index(self.library) | (self.bound - 1 if self._ahead else 0) << 2

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        stream = compress(self.library, values, self.bound)
        payload = empty_payload(self._ahead + stream.size)
        if self._ahead:
            _LENGTH.pack_into(payload.data, HEADER_OCTETS, stream.size)
        payload[HEADER_OCTETS + self._ahead :] = stream
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if self._ahead and (body.size < _LENGTH.size or _LENGTH.unpack_from(body.data)[0] != body.size - _LENGTH.size):
            raise CodecError(f"zfp payload of {body.size} octets is not as long as it states")
        return decompress(self.library, body[self._ahead :], layout.count, self.bound)

    @property
    def _ahead(self) -> int:
        """Octets before the stream: zfp's have a length."""
        return _LENGTH.size if self.library == "zfp" else 0


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
