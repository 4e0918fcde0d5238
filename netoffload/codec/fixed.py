"""The codecs without tags: every float takes the same number of bits, whatever its value.

``none``          the 32 bits as they are; the baseline
``truncate16``    the 16 most significant bits, as the paper's comparison drops 16 of the mantissa (INCEPTIONN, Fig. 14)
``truncate22``    the 10 most significant bits: sign, exponent and one bit of the mantissa
``truncate24``    the 8 most significant bits: sign and seven bits of the exponent

A burst has as many octets as a code has bits, lane 0 first; at 10 bits, lane i starts at bit 10 i of an 80-bit
little-endian word. These four codecs share their kernels, whose parameter is the number of bits. A codec that does more
than cut bits off gets kernels made from the arithmetic in its row of ``netoffload.codec_specs``.

Bits that are cut off come back as 0, so a NaN whose remaining mantissa is 0 comes back as an infinity: truncation has
no error bound. The lanes beyond the last float of the last burst are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED, Middle
from netoffload.codec_specs import Cut, Made
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.jit import compiled_with, inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import copy_octets, load_u16, load_u32, store_u16, store_u32, u8, whole


class Kernels(NamedTuple):
    """The kernels of one codec. ``coding`` and ``decoding`` turn the bound k into the kernels' parameter.

    Attributes:
        encode: ``encode_fit``.
        decode: ``decode``.
        decode_halves: ``decode_halves``.
        round_trip: ``round_trip``.
        coding: from the bound k to the parameter of ``encode`` and ``round_trip``.
        decoding: from the bound k to the parameter of ``decode`` and ``decode_halves``.
    """

    encode: Callable[..., Any]
    decode: Callable[..., Any]
    decode_halves: Callable[..., Any]
    round_trip: Callable[..., Any]
    coding: Callable[[int], int]
    decoding: Callable[[int], Any]


@inline_kernel
def _class_of(bits: int) -> int:
    return 3 if bits == 32 else 1 if bits <= 8 else 2


@inline_kernel
def _cut(word: int, bits: int) -> int:
    return word >> (32 - bits)


@inline_kernel
def _uncut(code: int, bits: int) -> int:
    return code << (32 - bits)


@inlined_with
def _put_burst(
    to_code: Callable[[int, int], int],
    bits: int,
    parameter: int,
    source: Uint8Array,
    first: int,
    lanes: int,
    target: Uint8Array,
    at: int,
) -> None:
    if bits == 32:
        copy_octets(source, first, target, at, 4 * lanes)
        for lane in range(lanes, LANES):
            store_u32(target, at + 4 * lane, 0)
        return
    low = 0  # the codes of half a burst, if a code is not whole octets
    for lane in range(LANES):
        code = to_code(load_u32(source, first + 4 * lane), parameter) if lane < lanes else 0
        if bits == 16:
            store_u16(target, at + 2 * lane, code)
        elif bits == 8:
            target[at + lane] = code
        else:
            low |= code << (bits * (lane & 3))
            if lane & 3 == 3:
                half = at + bits // 2 * (lane >> 2)
                store_u32(target, half, low)
                for octet in range(4, bits // 2):
                    target[half + octet] = low >> (8 * octet) & 0xFF
                low = 0


@inline_kernel
def _get_code(bits: int, payload: Uint8Array, at: int, lane: int) -> int:
    if bits == 32:
        return load_u32(payload, at + 4 * lane)
    if bits == 16:
        return load_u16(payload, at + 2 * lane)
    if bits == 8:
        return u8(payload, at + lane)
    half = at + bits // 2 * (lane >> 2)
    word = load_u32(payload, half) | (load_u32(payload, half + 4) & 0xFFFFFF) << 32  # four codes of 14 bits at most
    return word >> (bits * (lane & 3)) & ((1 << bits) - 1)


@inlined_with
def _encode(
    to_code: Callable[[int, int], int],
    bits: int,
    parameter: int,
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of codes of ``bits`` bits, each ``to_code(float bits, parameter)``."""
    done = 0
    target, at = room.octets, room.at
    end = at + room.length
    while done < count and at + bits <= end:
        lanes = min(LANES, count - done)
        _put_burst(to_code, bits, parameter, source, source_at + 4 * done, lanes, target, at)
        at += bits
        done += lanes
    classes[_class_of(bits)] += done
    return done, at - room.at


@inlined_with
def _decode(
    to_word: Callable[[int, int], int],
    bits: int,
    parameter: int,
    coded: Stretch,
    count: int,
    target: Uint8Array,
    target_at: int,
) -> int:
    length = (count + LANES - 1) // LANES * bits
    if length > coded.length:
        return MALFORMED
    for index in range(count):
        code = _get_code(bits, coded.octets, coded.at + index // LANES * bits, index % LANES)
        store_u32(target, target_at + 4 * index, to_word(code, parameter))
    return length


@kernel
def encode_cut(
    source: Uint8Array,
    source_at: int,
    count: int,
    kept_bits: int,
    target: Uint8Array,
    target_at: int,
    capacity: int,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit`` of the codecs that keep the ``kept_bits`` most significant bits.

    The usual widths are constants here, so that the compiled loops have no branch on the width.
    """
    room = Stretch(target, target_at, capacity)
    if kept_bits == 32:
        return _encode(_cut, 32, 32, source, source_at, count, room, classes)
    if kept_bits == 16:
        return _encode(_cut, 16, 16, source, source_at, count, room, classes)
    if kept_bits == 10:
        return _encode(_cut, 10, 10, source, source_at, count, room, classes)
    if kept_bits == 8:
        return _encode(_cut, 8, 8, source, source_at, count, room, classes)
    return _encode(_cut, kept_bits, kept_bits, source, source_at, count, room, classes)


@kernel
def decode_cut(
    payload: Uint8Array, payload_at: int, available: int, count: int, kept_bits: int, target: Uint8Array, target_at: int
) -> int:
    """``decode`` of the codecs that keep the ``kept_bits`` most significant bits."""
    coded = Stretch(payload, payload_at, available)
    if kept_bits == 32:
        return _decode(_uncut, 32, 32, coded, count, target, target_at)
    if kept_bits == 16:
        return _decode(_uncut, 16, 16, coded, count, target, target_at)
    if kept_bits == 10:
        return _decode(_uncut, 10, 10, coded, count, target, target_at)
    if kept_bits == 8:
        return _decode(_uncut, 8, 8, coded, count, target, target_at)
    return _decode(_uncut, kept_bits, kept_bits, coded, count, target, target_at)


@kernel
def decode_cut_halves(
    payload: Uint8Array,
    payload_at: int,
    available: int,
    count: int,
    middle: Middle,
    kept_bits: int,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves`` of these codecs: all bursts are equally long, so the middle is only checked."""
    if middle.octets != middle.floats // LANES * kept_bits:
        return MALFORMED
    return decode_cut(payload, payload_at, available, count, kept_bits, target, target_at)


@kernel
def round_trip_cut(source: Uint32Array, kept_bits: int, target: Uint32Array) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    mask = np.uint32(0xFFFFFFFF & ~((1 << (32 - kept_bits)) - 1))
    for index in range(source.size):
        target[index] = source[index] & mask


@inline_kernel
def bound_itself(bound_k: int) -> int:
    """Return the bound k itself, as the parameter of kernels that need no other."""
    return bound_k


def cut_kernels(form: Cut) -> Kernels:
    """Return the kernels of a codec that cuts bits off; their parameter is the number of bits that it keeps."""
    kept_bits = form.bits

    @inlined_with
    def bits(bound_k: int) -> int:
        # With a number that Numba knows it would compile every kernel once per number.
        return np.int64(kept_bits)  # type: ignore[return-value]

    return Kernels(encode_cut, decode_cut, decode_cut_halves, round_trip_cut, bits, bits)


def made_kernels(form: Made) -> Kernels:
    """Return kernels made from the arithmetic in a codec's row."""
    bits, to_code, to_word = form.bits, inlined_with(form.to_code), inlined_with(form.to_word)

    @compiled_with
    def encode(
        source: Uint8Array,
        source_at: int,
        count: int,
        bound_k: int,
        target: Uint8Array,
        target_at: int,
        capacity: int,
        classes: Int64Array,
    ) -> tuple[int, int]:
        room = Stretch(target, target_at, capacity)
        return _encode(to_code, bits, bound_k, source, source_at, count, room, classes)

    @compiled_with
    def decode(
        payload: Uint8Array,
        payload_at: int,
        available: int,
        count: int,
        bound_k: int,
        target: Uint8Array,
        target_at: int,
    ) -> int:
        coded = Stretch(payload, payload_at, available)
        return _decode(to_word, bits, bound_k, coded, count, target, target_at)

    @compiled_with
    def decode_halves(
        payload: Uint8Array,
        payload_at: int,
        available: int,
        count: int,
        middle: Middle,
        bound_k: int,
        target: Uint8Array,
        target_at: int,
    ) -> int:
        if middle.octets != middle.floats // LANES * bits:
            return MALFORMED
        coded = Stretch(payload, payload_at, available)
        return _decode(to_word, bits, bound_k, coded, count, target, target_at)

    @compiled_with
    def round_trip(source: Uint32Array, bound_k: int, target: Uint32Array) -> None:
        for index in range(source.size):
            target[index] = np.uint32(to_word(to_code(whole(source[index]), bound_k), bound_k))

    return Kernels(encode, decode, decode_halves, round_trip, bound_itself, bound_itself)
