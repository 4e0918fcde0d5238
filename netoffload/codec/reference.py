"""The slow oracle: Algorithms 2 and 3 of INCEPTIONN in plain NumPy, bit by bit as they are written there.

This is the specification. Nothing here is clever, and the burst format is built one burst at a time with Python
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from netoffload.codec_specs import SPECS, CodecId, Cut, Masked
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.errors import CodecError, UsageError

TAG_OCTETS: Final = (0, 1, 2, 4)
"""Octets of a lane per tag."""


def compress_inceptionn(values: Float32Array, bound_k: int) -> tuple[Uint8Array, Uint32Array]:
    """Algorithm 2 for every float: (tags, codes), both with the shape of ``values``."""
    words = values.view(np.uint32)
    sign, exponent, mantissa = words >> 31, (words >> 23 & 0xFF).astype(np.int32), words & 0x7FFFFF
    error_bound = 127 - bound_k
    sixteen_from = error_bound + -(-(127 - error_bound) // 2)
    shifted = ((1 << 23) | mantissa) >> np.clip(127 - exponent, 0, 31).astype(np.uint32)
    whole = exponent >= 127
    nothing = exponent < error_bound
    sixteen = ~whole & ~nothing & (exponent >= sixteen_from)
    eight = ~whole & ~nothing & ~sixteen
    tags = np.select([whole, sixteen, eight], [3, 2, 1], 0).astype(np.uint8)
    codes = np.select(
        [whole, sixteen, eight], [words, sign << 15 | shifted >> 8, sign << 7 | shifted >> 16], np.uint32(0)
    )
    return tags, codes


def decompress_inceptionn(tags: Uint8Array, codes: Uint32Array, bound_k: int) -> Float32Array:
    """Algorithm 3 for every (tag, code); an all-zero magnitude, which the algorithm leaves open, is +0."""
    del bound_k  # the tags say everything
    words = np.where(tags == 3, codes, np.uint32(0))
    for tag, bits in ((1, 7), (2, 15)):
        chosen = np.flatnonzero(tags == tag)
        sign, magnitude = codes[chosen] >> bits & 1, codes[chosen] & ((1 << bits) - 1)
        length = np.frexp(magnitude.astype(np.float32))[1]  # bits from the first 1 on
        n_shift = (bits - length + 1).astype(np.uint32)  # place of the first 1 from the MSB, from 1
        mantissa = ((magnitude << n_shift) & ((1 << bits) - 1)) << (23 - bits)
        word = sign << 31 | (127 - n_shift) << 23 | mantissa
        words[chosen] = np.where(magnitude == 0, np.uint32(0), word)
    return words.view(np.float32)


def compress_bounded(values: Float32Array, bound_k: int) -> tuple[Uint8Array, Uint32Array]:
    """``bounded`` for every float: (tags, codes).

    A form is a sign and a whole number of units: 2^(1-k) in the 8-bit form, 2^-15 in the 16-bit form. The smallest form
    is taken in which the number nearest to |x| (ties to even) fits the form's bits, is below 1, and would be read as
    that same form again.
    """
    words = values.view(np.uint32)
    whole = (words >> 23 & 0xFF) >= 127
    small = np.abs(np.where(whole, 0, values).astype(np.float64))
    nearest8 = np.rint(small * 2.0 ** (bound_k - 1)).astype(np.uint32)
    nearest16 = np.rint(small * 2.0**15).astype(np.uint32)
    largest8 = min(127, 2 ** (bound_k - 1) - 1)
    reread8 = np.rint(nearest16 * 2.0**-15 * 2.0 ** (bound_k - 1))
    nothing = ~whole & (nearest8 == 0)
    eight = ~whole & ~nothing & (nearest8 <= largest8)
    sixteen = ~whole & ~nothing & ~eight & (nearest16 < 2**15) & (reread8 > largest8)
    sign = words >> 31
    tags = np.select([nothing, eight, sixteen], [0, 1, 2], 3).astype(np.uint8)
    codes = np.select([nothing, eight, sixteen], [np.uint32(0), sign << 7 | nearest8, sign << 15 | nearest16], words)
    return tags, codes


def decompress_bounded(tags: Uint8Array, codes: Uint32Array, bound_k: int) -> Float32Array:
    """Return the floats that (tag, code) stand for."""
    values = codes.view(np.float32).copy()
    for tag, bits, unit in ((0, 7, 0.0), (1, 7, 2.0 ** (1 - bound_k)), (2, 15, 2.0**-15)):
        chosen = np.flatnonzero(tags == tag)
        magnitude = (codes[chosen] & ((1 << bits) - 1)) * unit
        negative = (codes[chosen] >> bits & 1 == 1) & (magnitude != 0)
        values[chosen] = np.where(negative, -magnitude, magnitude)
    return values


def pack(tags: Uint8Array, codes: Uint32Array) -> Uint8Array:
    """Return the bursts of a codec with tags."""
    payload = bytearray()
    for first in range(0, tags.size, 8):
        lanes = range(first, min(first + 8, tags.size))
        payload += sum(int(tags[i]) << 2 * (i - first) for i in lanes).to_bytes(2, "little")
        for i in lanes:
            payload += int(codes[i]).to_bytes(4, "little")[: TAG_OCTETS[tags[i]]]
    return np.frombuffer(bytes(payload), np.uint8)


def unpack(payload: Uint8Array, count: int) -> tuple[Uint8Array, Uint32Array]:
    """Return (tags, codes) of the ``count`` floats in ``payload``.

    Raises:
        CodecError: the tags and the length contradict each other.
    """
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
    return tags, codes


def pack_groups(tags: Uint8Array, codes: Uint32Array) -> Uint8Array:
    """Return the groups of the masked codec, from the tags and codes of ``bounded``."""
    payload = bytearray()
    for first in range(0, tags.size, 64):
        lanes = [
            (int(tag), int(code)) for tag, code in zip(*(of[first : first + 64] for of in (tags, codes)), strict=True)
        ]
        bursts = [lanes[at : at + 8] for at in range(0, len(lanes), 8)]
        masks = [sum((tag != 0) << i for i, (tag, _) in enumerate(burst)) for burst in bursts]
        payload.append(sum((mask != 0) << i for i, mask in enumerate(masks)))
        payload += bytes(mask for mask in masks if mask)
        payload += bytes((code, 0x80, 0x00)[tag - 1] for tag, code in lanes if tag)
        payload += b"".join(code.to_bytes(2, "little") for tag, code in lanes if tag == 2)
        payload += b"".join(code.to_bytes(4, "little") for tag, code in lanes if tag == 3)
    return np.frombuffer(bytes(payload), np.uint8)


def unpack_groups(payload: Uint8Array, count: int) -> tuple[Uint8Array, Uint32Array]:
    """Return (tags, codes) of the ``count`` floats in groups.

    Raises:
        CodecError: no encoder makes these octets of so many floats.
    """
    octets = iter(payload.tobytes())
    tags = np.zeros(count, np.uint8)
    codes = np.zeros(count, np.uint32)
    try:
        for first in range(0, count, 64):
            last = min(first + 64, count)
            present = next(octets)
            masks = [next(octets) if present >> burst & 1 else None for burst in range(8)]
            there = [first + 8 * burst + i for burst in range(8) for i in range(8) if (masks[burst] or 0) >> i & 1]
            if 0 in masks or present >> -(-(last - first) // 8) or (there and there[-1] >= last):
                raise CodecError("masks are not those of an encoder")
            for lane in there:
                codes[lane] = next(octets)
                tags[lane] = {0x80: 2, 0x00: 3}.get(int(codes[lane]), 1)
            for tag, length in ((2, 2), (3, 4)):
                for lane in there:
                    if tags[lane] == tag:
                        codes[lane] = int.from_bytes(bytes(next(octets) for _ in range(length)), "little")
    except (StopIteration, RuntimeError) as error:  # what a generator makes of the former
        raise CodecError("payload ends inside a group") from error
    if any(True for _ in octets):
        raise CodecError("payload is longer than its masks announce")
    return tags, codes


@dataclass(frozen=True)
class Oracle:
    """The slow definition of a codec; ``encode`` and ``round_trip`` take (values, bound_k), ``decode`` (payload, count,
    bound_k). A codec with tags or masks also has what makes tags and codes, ``compress`` and ``decompress``, and these
    are fast enough to ask about every float32 there is."""

    encode: Callable[[Float32Array, int], Uint8Array]
    decode: Callable[[Uint8Array, int, int], Float32Array]
    round_trip: Callable[[Float32Array, int], Float32Array]
    compress: Callable[[Float32Array, int], tuple[Uint8Array, Uint32Array]] | None = None
    decompress: Callable[[Uint8Array, Uint32Array, int], Float32Array] | None = None


def tagged(
    compress: Callable[[Float32Array, int], tuple[Uint8Array, Uint32Array]],
    decompress: Callable[[Uint8Array, Uint32Array, int], Float32Array],
) -> Oracle:
    """Return the oracle of a codec with tags, from what it does to each float."""
    return Oracle(
        encode=lambda values, bound_k: pack(*compress(values, bound_k)),
        decode=lambda payload, count, bound_k: decompress(*unpack(payload, count), bound_k),
        round_trip=lambda values, bound_k: decompress(*compress(values, bound_k), bound_k),
        compress=compress,
        decompress=decompress,
    )


def masked(values: Oracle) -> Oracle:
    """Return the oracle of a codec with masks that has the floats of a codec with tags."""
    assert values.compress is not None
    assert values.decompress is not None
    compress, decompress = values.compress, values.decompress
    return Oracle(
        encode=lambda floats, bound_k: pack_groups(*compress(floats, bound_k)),
        decode=lambda payload, count, bound_k: decompress(*unpack_groups(payload, count), bound_k),
        round_trip=values.round_trip,
        compress=compress,
        decompress=decompress,
    )


def truncating(kept_bits: int) -> Oracle:
    """Return the oracle of a codec that keeps the ``kept_bits`` (8, 10, 16 or 32) most significant bits."""
    mask = np.uint32(0xFFFFFFFF >> (32 - kept_bits) << (32 - kept_bits))

    def encode(values: Float32Array, bound_k: int) -> Uint8Array:
        del bound_k
        words = np.zeros(-(-values.size // 8) * 8, np.uint32)
        words[: values.size] = values.view(np.uint32) >> (32 - kept_bits)
        bursts = [sum(int(word) << kept_bits * i for i, word in enumerate(burst)) for burst in words.reshape(-1, 8)]
        return np.frombuffer(b"".join(burst.to_bytes(kept_bits, "little") for burst in bursts), np.uint8)

    def decode(payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
        del bound_k
        if payload.size != -(-count // 8) * kept_bits:
            raise CodecError(f"payload of {payload.size} octets does not hold {count} floats")
        bursts = [int.from_bytes(burst.tobytes(), "little") for burst in payload.reshape(-1, kept_bits)]
        codes = [burst >> kept_bits * i & ((1 << kept_bits) - 1) for burst in bursts for i in range(8)]
        words = np.array(codes, np.uint64).astype(np.uint32) << np.uint32(32 - kept_bits)
        return words[:count].view(np.float32)

    def round_trip(values: Float32Array, bound_k: int) -> Float32Array:
        del bound_k
        return (values.view(np.uint32) & mask).view(np.float32)

    return Oracle(encode, decode, round_trip)


ORACLES: Final = {
    CodecId.INCEPTIONN: tagged(compress_inceptionn, decompress_inceptionn),
    CodecId.BOUNDED: tagged(compress_bounded, decompress_bounded),
}
"""The oracle of every codec with tags, and of every one with arithmetic of its own."""


def oracle_of(codec_id: CodecId) -> Oracle:
    """Return the slow definition of a codec.

    Raises:
        UsageError: nobody has written one.
    """
    form = SPECS[codec_id].form
    if type(form) is Cut:
        return truncating(form.bits)
    if isinstance(form, Masked):
        return masked(oracle_of(form.values))
    if codec_id not in ORACLES:
        raise UsageError(f"codec {SPECS[codec_id].name} has no oracle: netoffload.codec.reference must have one")
    return ORACLES[codec_id]
