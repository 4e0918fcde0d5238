"""The codecs without tags: every float takes the same number of bits, whatever its value.

``none``          the 32 bits as they are; the baseline
``truncate16``    the 16 most significant bits, as the paper's comparison drops 16 of the mantissa (INCEPTIONN, Fig. 14)
``truncate22``    the 10 most significant bits: sign, exponent and one bit of the mantissa
``truncate24``    the 8 most significant bits: sign and seven bits of the exponent

A burst is as many octets as a code has bits, lane 0 first; at 10 bits, lane i starts at bit 10 i of an 80-bit
little-endian word. These four share their kernels, whose parameter is the number of bits. A codec that does more than
cut bits off has its own, made of the arithmetic in its row of ``netoffload.codec_specs``.

What is cut off comes back as 0 bits, so a NaN whose remaining mantissa is 0 comes back as an infinity: truncation
promises nothing. The lanes beyond the last float of the last burst are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED
from netoffload.codec_specs import Cut, Made
from netoffload.compiled.jit import compiled_with, inline_kernel, inlined_with, kernel
from netoffload.compiled.octets import copy_octets, load_u16, load_u32, store_u16, store_u32


class Kernels(NamedTuple):
    """The kernels of one codec. What their contract calls ``bound_k`` is a parameter that two functions make of it.

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
    coding: Callable[[Any], Any]
    decoding: Callable[[Any], Any]


@inline_kernel
def _class_of(bits: Any) -> Any:
    return 3 if bits == 32 else 1 if bits <= 8 else 2


@inline_kernel
def _cut(word: Any, bits: Any) -> Any:
    return word >> (32 - bits)


@inline_kernel
def _uncut(code: Any, bits: Any) -> Any:
    return code << (32 - bits)


@inlined_with
def _put_burst(
    to_code: Any, bits: Any, parameter: Any, source: Any, first: Any, lanes: Any, target: Any, at: Any
) -> None:
    if bits == 32:
        copy_octets(source, first, target, at, 4 * lanes)
        for lane in range(lanes, LANES):
            store_u32(target, at + 4 * lane, 0)
        return
    low = 0  # the codes of half a burst, where one is no whole octet
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
def _get_code(bits: Any, payload: Any, at: Any, lane: Any) -> Any:
    if bits == 32:
        return load_u32(payload, at + 4 * lane)
    if bits == 16:
        return load_u16(payload, at + 2 * lane)
    if bits == 8:
        return np.int64(payload[at + lane])
    half = at + bits // 2 * (lane >> 2)
    word = load_u32(payload, half) | (load_u32(payload, half + 4) & 0xFFFFFF) << 32  # four codes of 14 bits at most
    return word >> (bits * (lane & 3)) & ((1 << bits) - 1)


@inlined_with
def _encode(
    to_code: Any,
    bits: Any,
    parameter: Any,
    source: Any,
    source_at: Any,
    count: Any,
    target: Any,
    target_at: Any,
    capacity: Any,
    classes: Any,
) -> Any:
    """``encode_fit`` of codes of ``bits`` bits, each ``to_code(float bits, parameter)``."""
    done = 0
    at = target_at
    end = target_at + capacity
    while done < count and at + bits <= end:
        lanes = min(LANES, count - done)
        _put_burst(to_code, bits, parameter, source, source_at + 4 * done, lanes, target, at)
        at += bits
        done += lanes
    classes[_class_of(bits)] += done
    return done, at - target_at


@inlined_with
def _decode(
    to_word: Any,
    bits: Any,
    parameter: Any,
    payload: Any,
    payload_at: Any,
    available: Any,
    count: Any,
    target: Any,
    target_at: Any,
) -> Any:
    length = (count + LANES - 1) // LANES * bits
    if length > available:
        return MALFORMED
    for index in range(count):
        code = _get_code(bits, payload, payload_at + index // LANES * bits, index % LANES)
        store_u32(target, target_at + 4 * index, to_word(code, parameter))
    return length


@kernel
def encode_cut(
    source: Any, source_at: int, count: int, kept_bits: int, target: Any, target_at: int, capacity: int, classes: Any
) -> Any:
    """``encode_fit`` of the codecs that keep the ``kept_bits`` most significant bits.

    The usual widths are said as constants, so that nothing in the loop asks for them.
    """
    if kept_bits == 32:
        return _encode(_cut, 32, 32, source, source_at, count, target, target_at, capacity, classes)
    if kept_bits == 16:
        return _encode(_cut, 16, 16, source, source_at, count, target, target_at, capacity, classes)
    if kept_bits == 10:
        return _encode(_cut, 10, 10, source, source_at, count, target, target_at, capacity, classes)
    if kept_bits == 8:
        return _encode(_cut, 8, 8, source, source_at, count, target, target_at, capacity, classes)
    return _encode(_cut, kept_bits, kept_bits, source, source_at, count, target, target_at, capacity, classes)


@kernel
def decode_cut(
    payload: Any, payload_at: int, available: int, count: int, kept_bits: int, target: Any, target_at: int
) -> Any:
    """``decode`` of the codecs that keep the ``kept_bits`` most significant bits."""
    if kept_bits == 32:
        return _decode(_uncut, 32, 32, payload, payload_at, available, count, target, target_at)
    if kept_bits == 16:
        return _decode(_uncut, 16, 16, payload, payload_at, available, count, target, target_at)
    if kept_bits == 10:
        return _decode(_uncut, 10, 10, payload, payload_at, available, count, target, target_at)
    if kept_bits == 8:
        return _decode(_uncut, 8, 8, payload, payload_at, available, count, target, target_at)
    return _decode(_uncut, kept_bits, kept_bits, payload, payload_at, available, count, target, target_at)


@kernel
def decode_cut_halves(
    payload: Any,
    payload_at: int,
    available: int,
    count: int,
    half_len: int,
    half_count: int,
    kept_bits: int,
    target: Any,
    target_at: int,
) -> Any:
    """``decode_halves`` of these codecs: each burst's place is known, so the mark is only checked."""
    if half_len != half_count // LANES * kept_bits:
        return MALFORMED
    return decode_cut(payload, payload_at, available, count, kept_bits, target, target_at)


@kernel
def round_trip_cut(source: Any, kept_bits: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    mask = np.uint32(0xFFFFFFFF & ~((1 << (32 - kept_bits)) - 1))
    for index in range(source.size):
        target[index] = source[index] & mask


@inline_kernel
def bound_itself(bound_k: Any) -> Any:
    """Return the bound: the parameter of kernels that take it as it is."""
    return bound_k


def cut_kernels(form: Cut) -> Kernels:
    """Return the kernels of a codec that cuts bits off, and their parameter, the number of those that it keeps."""
    kept_bits = form.bits

    @inlined_with
    def bits(bound_k: Any) -> Any:
        return np.int64(kept_bits)  # a number that Numba knows would have every kernel compiled once for each

    return Kernels(encode_cut, decode_cut, decode_cut_halves, round_trip_cut, bits, bits)


def made_kernels(form: Made) -> Kernels:
    """Return the kernels that are made of a row's own arithmetic."""
    bits, to_code, to_word = form.bits, inlined_with(form.to_code), inlined_with(form.to_word)

    @compiled_with
    def encode(
        source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
    ) -> Any:
        return _encode(to_code, bits, bound_k, source, source_at, count, target, target_at, capacity, classes)

    @compiled_with
    def decode(
        payload: Any, payload_at: int, available: int, count: int, bound_k: int, target: Any, target_at: int
    ) -> Any:
        return _decode(to_word, bits, bound_k, payload, payload_at, available, count, target, target_at)

    @compiled_with
    def decode_halves(
        payload: Any,
        payload_at: int,
        available: int,
        count: int,
        half_len: int,
        half_count: int,
        bound_k: int,
        target: Any,
        target_at: int,
    ) -> Any:
        if half_len != half_count // LANES * bits:
            return MALFORMED
        return _decode(to_word, bits, bound_k, payload, payload_at, available, count, target, target_at)

    @compiled_with
    def round_trip(source: Any, bound_k: int, target: Any) -> None:
        for index in range(source.size):
            target[index] = np.uint32(to_word(to_code(np.int64(source[index]), bound_k), bound_k))

    return Kernels(encode, decode, decode_halves, round_trip, bound_itself, bound_itself)
