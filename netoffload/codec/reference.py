"""The slow oracle: Algorithms 2 and 3 of INCEPTIONN in plain NumPy, bit by bit as they are written there.

This is the specification. Nothing here is clever, and the burst format is built one burst at a time with Python
integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from netoffload.errors import CodecError

Float32Array = npt.NDArray[np.float32]
Uint8Array = npt.NDArray[np.uint8]

TAG_OCTETS: Final = (0, 1, 2, 4)
"""Octets of a lane per tag."""


def compress(values: Float32Array, bound_k: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Algorithm 2 for every float: (tags, codes), both with the shape of ``values``."""
    words = values.view(np.uint32).astype(np.int64)
    sign, exponent, mantissa = words >> 31, (words >> 23) & 0xFF, words & 0x7FFFFF
    error_bound = 127 - bound_k
    sixteen_from = error_bound + -(-(127 - error_bound) // 2)
    shifted = ((1 << 23) | mantissa) >> np.clip(127 - exponent, 0, 63)
    whole = exponent >= 127
    nothing = exponent < error_bound
    sixteen = ~whole & ~nothing & (exponent >= sixteen_from)
    eight = ~whole & ~nothing & ~sixteen
    tags = np.select([whole, sixteen, eight], [3, 2, 1], 0).astype(np.uint8)
    codes = np.select([whole, sixteen, eight], [words, sign << 15 | shifted >> 8, sign << 7 | shifted >> 16], 0)
    return tags, codes.astype(np.uint32)


def decompress(tags: npt.NDArray[np.uint8], codes: npt.NDArray[np.uint32]) -> Float32Array:
    """Algorithm 3 for every (tag, code); an all-zero magnitude, which the algorithm leaves open, is +0."""
    words = np.zeros(codes.shape, np.int64)
    wide = codes.astype(np.int64)
    words[tags == 3] = wide[tags == 3]
    for tag, bits in ((1, 7), (2, 15)):
        chosen = tags == tag
        sign, magnitude = wide[chosen] >> bits & 1, wide[chosen] & ((1 << bits) - 1)
        n_shift = bits - np.frexp(magnitude.astype(np.float64))[1] + 1  # place of the first 1 from the MSB, from 1
        mantissa = ((magnitude << n_shift) & ((1 << bits) - 1)) << (23 - bits)
        word = sign << 31 | (127 - n_shift) << 23 | mantissa
        words[chosen] = np.where(magnitude == 0, 0, word)
    return words.astype(np.uint32).view(np.float32)


def encode(values: Float32Array, bound_k: int) -> Uint8Array:
    """Return the bursts of ``values`` (float32[n])."""
    tags, codes = compress(values, bound_k)
    payload = bytearray()
    for first in range(0, values.size, 8):
        lanes = range(first, min(first + 8, values.size))
        payload += sum(int(tags[i]) << 2 * (i - first) for i in lanes).to_bytes(2, "little")
        for i in lanes:
            payload += int(codes[i]).to_bytes(4, "little")[: TAG_OCTETS[tags[i]]]
    return np.frombuffer(bytes(payload), np.uint8)


def decode(payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
    """Return the ``count`` floats of ``payload``.

    Raises:
        CodecError: the tags and the length contradict each other.
    """
    del bound_k  # the tags say everything
    octets = payload.tobytes()
    tags = np.zeros(count, np.uint8)
    codes = np.zeros(count, np.uint32)
    at = 0
    for first in range(0, count, 8):
        if at + 2 > len(octets):
            raise CodecError("payload ends before a tag word")
        word = int.from_bytes(octets[at : at + 2], "little")
        at += 2
        for lane in range(8):
            tag = word >> 2 * lane & 3
            if first + lane >= count:
                if tag:
                    raise CodecError("a lane beyond the last float has a tag")
                continue
            length = TAG_OCTETS[tag]
            if at + length > len(octets):
                raise CodecError("payload ends inside a lane")
            tags[first + lane], codes[first + lane] = tag, int.from_bytes(octets[at : at + length], "little")
            at += length
    if at != len(octets):
        raise CodecError(f"payload has {len(octets) - at} octets more than its tags announce")
    return decompress(tags, codes)


def round_trip(values: Float32Array, bound_k: int) -> Float32Array:
    """Return decode(encode(values))."""
    return decompress(*compress(values, bound_k))
