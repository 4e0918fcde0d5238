"""The codecs without tags: every float takes the same number of bits, whatever its value.

``none``          the 32 bits as they are; the baseline
``truncate16``    the 16 most significant bits, as the paper's comparison drops 16 of the mantissa (INCEPTIONN, Fig. 14)
``truncate22``    the 10 most significant bits: sign, exponent and one bit of the mantissa
``truncate24``    the 8 most significant bits: sign and seven bits of the exponent

A burst has as many octets as a code has bits, lane 0 first; at 10 bits, lane i starts at bit 10 i of an 80-bit
little-endian word. One body serves all codecs: it takes the functions between a float's bits and its code, which for
these four are shifts, and for others the arithmetic in their rows of ``netoffload.codec_specs``.

Bits that are cut off come back as 0, so a NaN whose remaining mantissa is 0 comes back as an infinity: truncation has
no error bound. The lanes beyond the last float of the last burst are 0.
"""

from collections.abc import Callable

import numpy as np

from netoffload.codec.bursts import LANES, MALFORMED
from netoffload.codec_specs import Cut, Made
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint32Array
from netoffload.compiled.jit import inline_kernel, inlined_with
from netoffload.compiled.octets import copy_octets, load_u16, load_u32, store_u16, store_u32, u8, whole

Mapping = Callable[[int, int], int]
"""From a float's bits or its code, and the bound k, to the other one."""


def mappings_of(form: Cut) -> tuple[Mapping, Mapping]:
    """Return the compiled functions (to a code, to a float's bits) of a codec."""
    if isinstance(form, Made):
        return inlined_with(form.to_code), inlined_with(form.to_word)
    dropped = 32 - form.bits
    return inlined_with(lambda word, _bound_k: word >> dropped), inlined_with(lambda code, _bound_k: code << dropped)


@inlined_with
def _put_burst(
    to_code: Mapping, bits: int, bound_k: int, source: Uint8Array, first: int, lanes: int, target: Uint8Array, at: int
) -> None:
    if bits == 32:
        copy_octets(source, first, target, at, 4 * lanes)
        for lane in range(lanes, LANES):
            store_u32(target, at + 4 * lane, 0)
        return
    low = 0  # the codes of half a burst, if a code is not whole octets
    for lane in range(LANES):
        code = to_code(load_u32(source, first + 4 * lane), bound_k) if lane < lanes else 0
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
def encode(
    to_code: Mapping,
    bits: int,
    bound_k: int,
    source: Uint8Array,
    source_at: int,
    count: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int]:
    """``encode_fit``."""
    done = 0
    target, at = room.octets, room.at
    end = at + room.length
    while done < count and at + bits <= end:
        lanes = min(LANES, count - done)
        _put_burst(to_code, bits, bound_k, source, source_at + 4 * done, lanes, target, at)
        at += bits
        done += lanes
    classes[3 if bits == 32 else 1 if bits <= 8 else 2] += done
    return done, at - room.at


@inlined_with
def decode(
    to_word: Mapping, bits: int, bound_k: int, coded: Stretch, count: int, target: Uint8Array, target_at: int
) -> int:
    """``decode``."""
    length = (count + LANES - 1) // LANES * bits
    if length > coded.length:
        return MALFORMED
    for index in range(count):
        code = _get_code(bits, coded.octets, coded.at + index // LANES * bits, index % LANES)
        store_u32(target, target_at + 4 * index, to_word(code, bound_k))
    for index in range(count, (count + LANES - 1) // LANES * LANES):
        if _get_code(bits, coded.octets, coded.at + index // LANES * bits, index % LANES) != 0:
            return MALFORMED
    return length


@inlined_with
def round_trip(to_code: Mapping, to_word: Mapping, bound_k: int, source: Uint32Array, target: Uint32Array) -> None:
    """``round_trip``."""
    for index in range(source.size):
        target[index] = np.uint32(to_word(to_code(whole(source[index]), bound_k), bound_k))
