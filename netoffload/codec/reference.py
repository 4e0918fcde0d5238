"""The slow oracle: Algorithms 2 and 3 of INCEPTIONN in plain NumPy, bit by bit as in the paper.

This is the specification, so it is kept simple: Python integers build the burst format, one burst at a time.
"""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from netoffload.codec_specs import SPECS, CodecId, Cut, Exact, Packed
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.errors import CodecError, UsageError

TAG_OCTETS: Final = (0, 1, 2, 4)
"""Octets of a lane per tag."""

_HALF_OCTETS: Final = tuple(sum(TAG_OCTETS[half >> shift & 3] for shift in (0, 2, 4, 6)) for half in range(256))
"""Octets of the four lanes whose tags are in one half of a tag word."""


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

    A form is a sign and an integer number of units: 2^(1-k) in the 8-bit form, 2^-15 in the 16-bit form. The smallest
    form is taken for which the number nearest to |x| (ties to even) fits the form's bits, is below 1, and would be
    encoded in the same form again.
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


def tags_of(payload: Uint8Array, count: int) -> Uint8Array:
    """Return the tags of the ``count`` floats in bursts."""
    octets, at, words = payload.tobytes(), 0, []
    for _ in range(0, count, 8):
        if at + 2 > len(octets):
            raise CodecError("payload ends before a tag word")
        words.append(octets[at] | octets[at + 1] << 8)
        at += 2 + _HALF_OCTETS[octets[at]] + _HALF_OCTETS[octets[at + 1]]
    tags = np.array(words, np.uint16)[:, np.newaxis] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    if at != len(octets) or tags.reshape(-1)[count:].any():
        raise CodecError("tags and length contradict each other")
    return tags.reshape(-1)[:count].astype(np.uint8)


def unpack(payload: Uint8Array, count: int) -> tuple[Uint8Array, Uint32Array]:
    """Return (tags, codes) of the ``count`` floats in bursts."""
    tags, octets, at = tags_of(payload, count), payload.tobytes(), 0
    codes = np.zeros(count, np.uint32)
    for lane, tag in enumerate(tags.tolist()):
        at += 2 if lane % 8 == 0 else 0
        codes[lane] = int.from_bytes(octets[at : at + TAG_OCTETS[tag]], "little")
        at += TAG_OCTETS[tag]
    return tags, codes


Lanes: TypeAlias = list[tuple[int, int]]
"""(tag, code) of each float of a group."""


def pack_groups(tags: Uint8Array, codes: Uint32Array) -> Uint8Array:
    """Return the groups and runs of a packed codec, from the tags and codes of ``bounded``."""
    payload = b""
    for is_empty, groups in itertools.groupby(_groups(tags, codes), lambda lanes: all(tag == 0 for tag, _ in lanes)):
        if is_empty:
            left = len(list(groups))
            payload += b"\x00\xff" * (left // 256) + bytes([0, left % 256 - 1] if left % 256 else [])
            continue
        for lanes in groups:
            fields = [(2 * (code & 127) - 2 + (code >> 7), 255, 254)[tag - 1] for tag, code in lanes if tag]
            width = max(1, *(field.bit_length() for field in fields))
            first = 8 if width == 8 else 3
            bits = width - 1 | sum(field << (first + width * i) for i, field in enumerate(fields))
            payload += _masks(lanes) + bits.to_bytes((first + width * len(fields) + 7) // 8, "little") + _escapes(lanes)
    return np.frombuffer(payload, np.uint8)


def _groups(tags: Uint8Array, codes: Uint32Array) -> list[Lanes]:
    lanes = list(zip(tags.tolist(), codes.tolist(), strict=True))
    return [lanes[at : at + 64] for at in range(0, len(lanes), 64)]


def _masks(lanes: Lanes) -> bytes:
    bursts = [lanes[at : at + 8] for at in range(0, len(lanes), 8)]
    masks = [sum((tag != 0) << i for i, (tag, _) in enumerate(burst)) for burst in bursts]
    return bytes([sum((mask != 0) << i for i, mask in enumerate(masks)), *filter(None, masks)])


def _escapes(lanes: Lanes) -> bytes:
    return b"".join(
        code.to_bytes(length, "little") for form, length in ((2, 2), (3, 4)) for tag, code in lanes if tag == form
    )


def unpack_groups(payload: Uint8Array, count: int) -> tuple[Uint8Array, Uint32Array]:
    """Return (tags, codes) of the ``count`` floats in groups and runs."""
    octets, at, first = payload.tobytes(), 0, 0
    tags, codes = np.zeros(count, np.uint8), np.zeros(count, np.uint32)
    may_run = True
    while first < count:
        if octets[at : at + 1] == b"\0":
            groups = int.from_bytes(octets[at + 1 : at + 2], "little") + 1
            if not may_run or 64 * (groups - 1) >= count - first:
                raise CodecError("runs are not those of an encoder")
            may_run = groups == 256
            at, first = at + 2, first + 64 * groups
        else:
            there, at = _lanes_there(octets, at, min(64, count - first))
            fields, at = _fields(octets, at, len(there))
            lanes = {
                form: [first + lane for lane, code in zip(there, fields, strict=True) if code == mark]
                for form, mark in ((2, 0x80), (3, 0x00))
            }
            tags[[first + lane for lane in there]] = 1
            codes[[first + lane for lane in there]] = fields
            for tag, length in ((2, 2), (3, 4)):
                for lane in lanes[tag]:
                    tags[lane], codes[lane] = tag, int.from_bytes(octets[at : at + length], "little")
                    at += length
            may_run, first = True, first + 64
        if at > len(octets):
            raise CodecError("payload ends inside a group")
    if at != len(octets):
        raise CodecError("masks and length contradict each other")
    return tags, codes


def _lanes_there(octets: bytes, at: int, lanes: int) -> tuple[list[int], int]:
    """Return which floats of the group at ``at`` are not 0, and where its masks end."""
    present = int.from_bytes(octets[at : at + 1], "little")
    masks = octets[at + 1 : at + 1 + present.bit_count()]
    bursts = [burst for burst in range(8) if present >> burst & 1]
    there = [8 * burst + i for burst, mask in zip(bursts, masks, strict=False) for i in range(8) if mask >> i & 1]
    if 0 in masks or (there and there[-1] >= lanes):
        raise CodecError("masks are not those of an encoder")
    if not there or len(masks) < len(bursts):
        raise CodecError("payload ends inside a group")
    return there, at + 1 + len(masks)


def _fields(octets: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return the 8-bit codes of ``count`` fields behind their width, and where they end."""
    width = int.from_bytes(octets[at : at + 1], "little") % 8 + 1
    first = 8 if width == 8 else 3
    end = at + (first + width * count + 7) // 8
    bits = int.from_bytes(octets[at:end], "little")
    fields = [bits >> (first + width * i) & ((1 << width) - 1) for i in range(count)]
    if end > len(octets):
        raise CodecError("payload ends inside a group")
    if bits >> first + width * count or bits % (1 << first) >= 8:
        raise CodecError("bits behind the fields are not 0")
    if max(fields).bit_length() != width and width > 1:
        raise CodecError("fields fit into fewer bits")
    return [(field // 2 + 1) % 128 | (field & 1) << 7 for field in fields], end


FLOAT32, NARROW, BF16 = range(3)
"""Types of values in ``exact``; ``NARROW`` is float32 with zeros in the low half."""


def pack_exact(values: Float32Array) -> Uint8Array:
    """Return the groups of ``exact``."""
    payload, halves = b"", False
    for at in range(0, values.size, 32):
        words = values[at : at + 64].view(np.uint32)
        if at % 4096 == 0:
            halves = len(_exact_halves(words[:32]) + _exact_halves(words[32:])) < len(exact_group(words.tolist(), 32))
        if halves:
            payload += _exact_halves(words[:32])
        elif at % 64 == 0:
            payload += exact_group(words.tolist(), 32)
    return np.frombuffer(payload, np.uint8)


def _exact_halves(words: Uint32Array) -> bytes:
    return exact_group(words.view(np.uint16).tolist(), 16) if words.size else b""


def _bits(truths: Iterable[object]) -> bytes:
    """Return truth values as bits, from the low end of the first octet on."""
    return np.packbits(np.array([bool(truth) for truth in truths], np.uint8), bitorder="little").tobytes()


def exact_group(values: list[int], bits: int) -> bytes:
    """Return the shortest form of a group of values of 32 or 16 bits."""
    there = [value for value in values if value]
    form = BF16 if bits == 16 else NARROW if all(value & 0xFFFF == 0 for value in there) else FLOAT32
    if not there:
        return bytes([BF16 << 4 if bits == 16 else 0])
    exponents = [value >> bits - 9 & 0xFF for value in there]
    top = max(exponents)
    forms = {0: b""} if min(exponents) == top else {}
    for width in range(1, 7):
        escape = 2**width - 1
        distances = [min(top - exponent, escape) for exponent in exponents]
        planes = [_bits(distance >> bit & 1 for distance in distances) for bit in range(width)]
        escapes = bytes(exponent for exponent in exponents if top - exponent >= escape)
        forms[width] = b"".join(planes) + escapes
    width = min(forms, key=lambda width: len(forms[width]))
    mask = _bits(values) if len(there) < len(values) else b""
    rests = [value << 1 & 2 ** (bits - 8) - 1 | value >> bits - 1 for value in there]
    octets = b"".join(
        rest.to_bytes(3, "little") if form == FLOAT32 else bytes([rest >> 16 | rest & 1 if form == NARROW else rest])
        for rest in rests
    )
    group = bytes([2 << 6 | form << 4 | bool(mask) << 3 | width, top]) + mask + forms[width] + octets
    raw = bytes([1 << 6 | (form & 2) << 4]) + b"".join(value.to_bytes(bits // 8, "little") for value in values)
    return min(raw, group, key=len)


def unpack_exact(payload: Uint8Array, count: int) -> Float32Array:
    """Return the ``count`` floats in groups of ``exact``."""
    words = [word for _, group in _exact_groups(payload, count) for word in group]
    return np.array(words, np.uint32).view(np.float32)


def _exact_groups(payload: Uint8Array, left: int) -> Iterator[tuple[bool, list[int]]]:
    """Yield groups: whether they are of bf16, and their words."""
    octets = io.BytesIO(payload.tobytes())

    def take(count: int) -> bytes:
        taken = octets.read(count)
        if len(taken) < count:
            raise CodecError("payload ends inside a group")
        return taken

    def flags(count: int) -> list[int]:
        return np.unpackbits(np.frombuffer(take((count + 7) // 8), np.uint8), bitorder="little")[:count].tolist()

    while left > 0:
        head = take(1)[0]
        kind, form, has_mask, width = head >> 6, head >> 4 & 3, head >> 3 & 1, head & 7
        if kind == 3 or form == 3 or width == 7 or (kind < 2 and head & 0x1F):
            raise CodecError("no group begins like this")
        value_len, values = (2, 2 * min(left, 32)) if form == BF16 else (4, min(left, 64))
        if kind < 2:
            raw = take(value_len * values) if kind else bytes(value_len * values)
        else:
            top = take(1)[0]
            there = flags(values) if has_mask else [1] * values
            count = sum(there)
            if count == 0:
                raise CodecError("a group with a mask has no value that is not 0")
            planes = [flags(count) for _ in range(width)]
            distances = [sum(plane[i] << bit for bit, plane in enumerate(planes)) for i in range(count)]
            exponents = [take(1)[0] if width and d == 2**width - 1 else top - d & 0xFF for d in distances]
            rest_len = 3 if form == FLOAT32 else 1
            coded = [one << 8 * rest_len | int.from_bytes(take(rest_len), "little") for one in exponents]
            rotated = iter([value >> 1 | (value & 1) << 8 * rest_len + 7 for value in coded])
            shift = 16 if form == NARROW else 0
            made = [next(rotated) << shift if one else 0 for one in there]
            raw = np.array(made, f"<u{value_len}").tobytes()
        words = np.frombuffer(raw, np.uint32).tolist()
        yield form == BF16, words
        left -= len(words)
    if octets.read(1):
        raise CodecError("masks and length contradict each other")


Classes: TypeAlias = tuple[int, int, int, int]
"""How many floats take 0, 8, 16 and 32 bits."""


def _counted(tags: Uint8Array) -> Classes:
    none, eight, sixteen, whole = np.bincount(tags, minlength=4).tolist()
    return none, eight, sixteen, whole


def _exact_classes(payload: Uint8Array, count: int) -> Classes:
    """Count words of 0 in groups of float32, words in groups of bf16, and others."""
    groups = list(_exact_groups(payload, count))
    none = sum(words.count(0) for is_bf16, words in groups if not is_bf16)
    pairs = sum(len(words) for is_bf16, words in groups if is_bf16)
    return none, 0, pairs, count - none - pairs


@dataclass(frozen=True)
class Oracle:
    """The slow definition of a codec; ``decode`` raises :class:`~netoffload.errors.CodecError`.

    A codec with tags or groups also has ``compress`` and ``decompress``, which make and read tags and codes. These two
    are fast enough to run on all float32 values.
    """

    encode: Callable[[Float32Array, int], Uint8Array]
    decode: Callable[[Uint8Array, int, int], Float32Array]
    round_trip: Callable[[Float32Array, int], Float32Array]
    classes: Callable[[Uint8Array, int], Classes] | None = None
    """Of the ``count`` floats in a payload; None: all take the same number of bits."""
    compress: Callable[[Float32Array, int], tuple[Uint8Array, Uint32Array]] | None = None
    decompress: Callable[[Uint8Array, Uint32Array, int], Float32Array] | None = None


def tagged(
    compress: Callable[[Float32Array, int], tuple[Uint8Array, Uint32Array]],
    decompress: Callable[[Uint8Array, Uint32Array, int], Float32Array],
) -> Oracle:
    """Return the oracle of a codec with tags, from its functions on single floats."""
    return Oracle(
        encode=lambda values, bound_k: pack(*compress(values, bound_k)),
        decode=lambda payload, count, bound_k: decompress(*unpack(payload, count), bound_k),
        round_trip=lambda values, bound_k: decompress(*compress(values, bound_k), bound_k),
        classes=lambda payload, count: _counted(tags_of(payload, count)),
        compress=compress,
        decompress=decompress,
    )


def packed(values: Oracle) -> Oracle:
    """Return the oracle of a codec with groups that has the same values as ``values``."""
    assert values.compress is not None
    assert values.decompress is not None
    compress, decompress = values.compress, values.decompress
    return replace(
        values,
        encode=lambda floats, bound_k: pack_groups(*compress(floats, bound_k)),
        decode=lambda payload, count, bound_k: decompress(*unpack_groups(payload, count), bound_k),
        classes=lambda payload, count: _counted(unpack_groups(payload, count)[0]),
    )


def truncating(kept_bits: int) -> Oracle:
    """Return the oracle of a codec that keeps the ``kept_bits`` (8, 10, 16 or 32) most significant bits."""
    mask = np.uint32(0xFFFFFFFF >> (32 - kept_bits) << (32 - kept_bits))

    def encode(values: Float32Array, _bound_k: int) -> Uint8Array:
        padded = np.pad(values, (0, -values.size % 8))
        bits = np.unpackbits(padded.view(np.uint8), bitorder="little").reshape(-1, 32)
        return np.packbits(bits[:, 32 - kept_bits :], bitorder="little")

    def decode(payload: Uint8Array, count: int, _bound_k: int) -> Float32Array:
        if payload.size != -(-count // 8) * kept_bits:
            raise CodecError(f"payload of {payload.size} octets does not hold {count} floats")
        kept = np.unpackbits(payload, bitorder="little").reshape(-1, kept_bits)
        if kept[count:].any():
            raise CodecError("the lanes beyond the last float are not 0")
        bits = np.pad(kept, ((0, 0), (32 - kept_bits, 0)))
        return np.packbits(bits, bitorder="little").view(np.float32)[:count]

    def round_trip(values: Float32Array, _bound_k: int) -> Float32Array:
        return (values.view(np.uint32) & mask).view(np.float32)

    return Oracle(encode, decode, round_trip)


EXACT: Final = Oracle(
    encode=lambda values, _bound_k: pack_exact(values),
    decode=lambda payload, count, _bound_k: unpack_exact(payload, count),
    round_trip=lambda values, _bound_k: values.copy(),
    classes=_exact_classes,
)

ORACLES: Final = {
    CodecId.INCEPTIONN: tagged(compress_inceptionn, decompress_inceptionn),
    CodecId.BOUNDED: tagged(compress_bounded, decompress_bounded),
}
"""The oracles of codecs with tags, and of codecs whose row in ``codec_specs`` has the arithmetic."""


def oracle_of(codec_id: CodecId) -> Oracle:
    """Return the slow definition of a codec."""
    form = SPECS[codec_id].form
    if type(form) is Cut:
        return truncating(form.bits)
    if isinstance(form, Exact):
        return EXACT
    if isinstance(form, Packed):
        return packed(oracle_of(form.values))
    if codec_id not in ORACLES:
        raise UsageError(f"codec {SPECS[codec_id].name} has no oracle: add one to netoffload.codec.reference")
    return ORACLES[codec_id]
