"""The burst engine as compiled loops, for any CPU; one code path per burst, no branch on the data but one.

Every kernel works in octet arrays it is given, allocates nothing, raises nothing and returns counts or a status.
Nothing here checks that the arrays are long enough: the caller has left the slack that the contract asks for.

======================  ==============================================================================
kernel                  contract
======================  ==============================================================================
``encode_fit``          ``target`` has ``capacity + ENCODE_SLACK`` octets from ``target_at`` on
``payload_len``         reads only inside ``payload_at .. payload_at + available``
``decode``              the payload was measured by ``payload_len``; ``DECODE_SLACK`` octets behind it may be
                        read; ``target`` has ``4 * count`` octets, rounded up to a whole burst
``round_trip``          float32 arrays of equal length
======================  ==============================================================================

A float with unbiased exponent -n (n = 127 - e) is in one of four classes, and the tag is how many of three thresholds n
does not exceed: ``(n <= k) + (n <= k // 2) + (n <= 0)``. That is Algorithm 2's comparison with e, turned around.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.octets import float32_bits, load_u16, load_u32, popcount_u16, store_u16, store_u32

LANES: Final = 8
"""Floats in a burst: 256 bits (INCEPTIONN, VI-A)."""

BURST_LEN: Final = 4 * LANES
TAGS_LEN: Final = 2
MAX_BURST_PAYLOAD: Final = TAGS_LEN + BURST_LEN

ENCODE_SLACK: Final = MAX_BURST_PAYLOAD + 32
"""A burst is written before it is known to fit, and vector kernels store 32 octets at a time."""

DECODE_SLACK: Final = 64
"""The last lane is read as a whole word, and vector kernels read 64 octets at a time."""

MALFORMED: Final = -1
"""Status of :func:`payload_len`: the tags announce more octets than there are."""

_EVEN: Final = 0x5555

_UNIT16: Final = np.float32(2.0**-15)
"""What the last of 15 magnitude bits weighs."""


@inline_kernel
def tags_len(tags: Any) -> Any:
    """Return the octets that follow a tag word: tag 0, 1, 2, 3 -> 0, 1, 2, 4.

    The weights of the two bit planes give tag 3 only 3; its fourth octet is counted where both bits are set.
    """
    low = tags & _EVEN
    high = (tags >> 1) & _EVEN
    return popcount_u16(low) + 2 * popcount_u16(high) + popcount_u16(low & high)


@inline_kernel
def count_classes(tags: Any, classes: Any) -> None:
    """Add the floats per class of one whole burst to ``classes`` (int64[4])."""
    low = tags & _EVEN
    high = (tags >> 1) & _EVEN
    both = popcount_u16(low & high)
    ones = popcount_u16(low) - both
    twos = popcount_u16(high) - both
    classes[0] += LANES - both - ones - twos
    classes[1] += ones
    classes[2] += twos
    classes[3] += both


@inline_kernel
def _encode_lane(word: Any, bound_k: Any) -> Any:
    """Return ``code << 2 | tag`` of one float32's bits (Algorithm 2).

    The three candidate codes are masked together: a branch on the class would be mispredicted on mixed data.
    """
    n_shift = 127 - ((word >> 23) & 0xFF)
    in8 = int(n_shift <= bound_k)
    in16 = int(n_shift <= bound_k >> 1)
    in32 = int(n_shift <= 0)
    shifted = ((word & 0x7FFFFF) | 0x800000) >> (n_shift & 31)  # wrong from 32 on, where nothing is kept
    sign = word >> 31
    code = (sign << 7 | shifted >> 16) & -(in8 - in16)
    code |= (sign << 15 | shifted >> 8) & -(in16 - in32)
    code |= word & -in32
    return code << 2 | (in8 + in16 + in32)


@inline_kernel
def _decode_lane(code: Any, tag: Any) -> Any:
    """Return the float32 bits of one code (Algorithm 3); ``code`` may have octets of the next lane above it.

    The 8-bit form is the 16-bit form without its low octet, and its magnitude is a fixed-point fraction: finding the
    leading one and moving it to the hidden bit is what converting an integer to a float does. The integer carries the
    sign, so a magnitude of 0, which the paper leaves open, becomes +0 for either sign.
    """
    in8 = int(tag == 1)
    in16 = int(tag == 2)
    in32 = int(tag == 3)
    fraction = (code << 8) & (-in8 & 0xFF00) | code & (-in16 & 0xFFFF)
    sign = fraction >> 15
    signed = ((fraction & 0x7FFF) ^ -sign) + sign
    small = float32_bits(np.float32(signed) * _UNIT16)
    return (code & (-in32 & 0xFFFFFFFF)) | (small & ~-in32)


@kernel
def encode_fit(
    source: Any, source_at: int, count: int, bound_k: int, target: Any, target_at: int, capacity: int, classes: Any
) -> tuple[int, int]:
    """Encode as many of ``count`` floats as fit into ``capacity`` octets, whole bursts only except at the end.

    Args:
        source: uint8 array; the floats start at ``source_at`` and need no alignment.
        source_at: first octet of the first float.
        count: floats to encode.
        bound_k: the error bound is 2**-bound_k.
        target: uint8 array for the payload; see the contract for its slack.
        target_at: where the payload starts.
        capacity: octets the payload may have.
        classes: int64[4], floats per class (0, 8, 16, 32 bits) are added to it.

    Returns:
        Floats encoded, octets written.
    """
    done = 0
    at = target_at
    end = target_at + capacity
    while done < count:
        lanes = min(LANES, count - done)
        first = source_at + 4 * done
        tags = 0
        cursor = at + TAGS_LEN
        for lane in range(lanes):
            coded = _encode_lane(load_u32(source, first + 4 * lane), bound_k)
            tag = coded & 3
            store_u32(target, cursor, coded >> 2)
            cursor += tag + (tag & (tag >> 1))
            tags |= tag << (2 * lane)
        if cursor > end:
            break
        store_u16(target, at, tags)
        count_classes(tags, classes)
        classes[0] -= LANES - lanes
        at = cursor
        done += lanes
    return done, at - target_at


@kernel
def payload_len(payload: Any, payload_at: int, available: int, count: int) -> int:
    """Return how many octets the bursts of ``count`` floats take, from their tags alone, or ``MALFORMED``.

    A lane beyond ``count`` in the last burst must have tag 0: no encoder makes another.
    """
    at = payload_at
    end = payload_at + available
    bursts = (count + LANES - 1) // LANES
    for _ in range(bursts - 1):
        if at + TAGS_LEN > end:
            return MALFORMED
        at += TAGS_LEN + tags_len(load_u16(payload, at))
    if bursts > 0:
        if at + TAGS_LEN > end:
            return MALFORMED
        tags = load_u16(payload, at)
        lanes = count - LANES * (bursts - 1)
        if tags >> (2 * lanes):
            return MALFORMED
        at += TAGS_LEN + tags_len(tags)
    return at - payload_at if at <= end else MALFORMED


@kernel
def decode(payload: Any, payload_at: int, count: int, target: Any, target_at: int) -> int:
    """Decode ``count`` floats into ``target`` (uint8) and return the octets read; the payload has been measured."""
    at = payload_at
    done = 0
    while done < count:
        lanes = min(LANES, count - done)
        tags = load_u16(payload, at)
        cursor = at + TAGS_LEN
        first = target_at + 4 * done
        if tags == 0:
            for lane in range(lanes):
                store_u32(target, first + 4 * lane, 0)
        else:
            for lane in range(lanes):
                tag = (tags >> (2 * lane)) & 3
                store_u32(target, first + 4 * lane, _decode_lane(load_u32(payload, cursor), tag))
                cursor += tag + (tag & (tag >> 1))
        at = cursor
        done += lanes
    return at - payload_at


@kernel
def round_trip(source: Any, bound_k: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    for index in range(source.size):
        coded = _encode_lane(np.int64(source[index]), bound_k)
        target[index] = np.uint32(_decode_lane(coded >> 2, coded & 3))
