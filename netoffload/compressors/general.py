"""``general``: general-purpose compressors for comparison: lz4, snappy, zstd (level 1) and zfp.

zfp (P. Lindstrom, 2014) has an absolute tolerance, 2^-bound; the error of some floats is 1.4 times that (``netoffload
bench codec``). The packages are optional: ``pip install 'netoffload[bench]'``.

Body, lossless: the library's block. Body of zfp: length of the stream, 32 bits | the stream without a header; the
length is needed because zfp does not notice a truncated stream.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Final

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compressors import libraries
from netoffload.compressors.base import HEADER_OCTETS, Compressor, MethodId, State, empty_payload
from netoffload.compressors.layout import Layout
from netoffload.config import BOUND_K_DEFAULT, check_bound_k, check_choice
from netoffload.errors import CodecError, UsageError

LIBRARIES: Final = tuple(libraries.PACKAGES)
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True)
class General(Compressor):
    """A general-purpose library."""

    library: str = "zstd-1"  # lz4, snappy, zstd-1 or zfp
    bound: int = BOUND_K_DEFAULT  # zfp's tolerance is 2^-bound, 1..16

    name: ClassVar[str] = "general"
    method_id: ClassVar[MethodId] = MethodId.GENERAL
    unbiased: ClassVar[bool] = False
    variants: ClassVar[tuple[str, ...]] = tuple(f"library={name}" for name in libraries.available() if name != "zstd-1")

    def __post_init__(self) -> None:
        """Refuse an unknown or missing library and a bound out of range."""
        check_choice("general: library", self.library, LIBRARIES)
        if self.library not in libraries.available():
            raise UsageError(
                f"{self.library} needs {libraries.PACKAGES[self.library]}: pip install 'netoffload[bench]'"
            )
        check_bound_k(self.bound)

    @property
    def flags(self) -> int:
        """Library in bits 0 and 1; bound - 1 above, with zfp."""
        return LIBRARIES.index(self.library) | (self.bound - 1 if self._ahead else 0) << 2

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        stream = libraries.compress(self.library, values, self.bound)
        payload = empty_payload(self._ahead + stream.size)
        if self._ahead:
            _LENGTH.pack_into(payload.data, HEADER_OCTETS, stream.size)
        payload[HEADER_OCTETS + self._ahead :] = stream
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        if self._ahead and (body.size < _LENGTH.size or _LENGTH.unpack_from(body.data)[0] != body.size - _LENGTH.size):
            raise CodecError(f"zfp payload of {body.size} octets is not as long as it states")
        return libraries.decompress(self.library, body[self._ahead :], layout.count, self.bound)

    @property
    def _ahead(self) -> int:
        """Octets before the stream: zfp's have a length."""
        return _LENGTH.size if self.library == "zfp" else 0
