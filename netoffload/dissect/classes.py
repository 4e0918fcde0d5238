"""How many floats of a payload took 0, 8, 16 and 32 bits, from its tags or masks; and whether its half is marked right.

Nothing is decoded: tags, masks and codes say where everything lies.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload import codec
from netoffload.codec.bursts import LANES
from netoffload.codec.groups import ESCAPE16, ESCAPE32, GROUP
from netoffload.codec_specs import TAGGED, Masked
from netoffload.config import BOUND_K_MIN
from netoffload.errors import CodecError

Classes = tuple[int, int, int, int]
"""Floats that took 0, 8, 16 and 32 bits."""

_LANE_OCTETS: Final = tuple(sum((0, 1, 2, 4)[half >> shift & 3] for shift in (0, 2, 4, 6)) for half in range(256))
"""Octets of the four lanes whose tags are in one half of a tag word."""

_WRONG_MARK: Final = "the half is not where a burst starts"


def of_payload(codec_id: int, payload: bytes, count: int, mark: tuple[int, int]) -> Classes | None:
    """Return the classes of a payload of ``count`` floats; None for a codec whose floats all take the same.

    Args:
        codec_id: of a block header, whatever it says.
        payload: the codec's octets.
        count: floats in it.
        mark: bursts and octets in the first half.

    Raises:
        CodecError: no encoder makes these octets, or the mark is wrong.
    """
    chosen = codec.by_id(codec_id)
    if codec_id in TAGGED:
        return _of_bursts(payload, count, mark)
    if chosen is None:
        return None
    half_bursts, half_len = mark
    if isinstance(chosen.spec.form, Masked):
        first = _of_groups(payload[:half_len], LANES * half_bursts)
        second = _of_groups(payload[half_len:], count - LANES * half_bursts)
        none, eight, sixteen, whole = (sum(both) for both in zip(first, second, strict=True))
        return none, eight, sixteen, whole
    if chosen.encode(np.zeros(LANES * half_bursts, np.float32), BOUND_K_MIN).size != half_len:
        raise CodecError(_WRONG_MARK)
    return None


def _of_bursts(payload: bytes, count: int, mark: tuple[int, int]) -> Classes:
    half_bursts, half_len = mark
    words, at = [], 0
    for index in range(-(-count // LANES)):
        if index == half_bursts and at != half_len:
            raise CodecError(_WRONG_MARK)
        if at + 2 > len(payload):
            raise CodecError("payload ends before a tag word")
        low, high = payload[at], payload[at + 1]
        words.append(high << 8 | low)
        at += 2 + _LANE_OCTETS[low] + _LANE_OCTETS[high]
    if len(words) == half_bursts and at != half_len:
        raise CodecError(_WRONG_MARK)
    tags = np.array(words, np.uint16)[:, np.newaxis] >> np.arange(0, 2 * LANES, 2, dtype=np.uint16) & 3
    if at != len(payload) or tags.reshape(-1)[count:].any():
        raise CodecError("tags and length contradict each other")
    none, eight, sixteen, whole = np.bincount(tags.reshape(-1)[:count], minlength=4).tolist()
    return none, eight, sixteen, whole


def _of_groups(payload: bytes, count: int) -> Classes:
    """Go through the groups of one half, or of a payload without a mark."""
    at = codes_len = sixteen = whole = 0
    for first in range(0, count, GROUP):
        lanes = min(GROUP, count - first)
        present = payload[at] if at < len(payload) else 0
        masks = payload[at + 1 : at + 1 + present.bit_count()]
        places = [burst for burst in range(LANES) if present >> burst & 1]
        floats = sum(mask << LANES * burst for mask, burst in zip(masks, places, strict=False))
        if 0 in masks or floats >> lanes:
            raise CodecError("masks are not those of an encoder")
        at += 1 + present.bit_count()
        codes = payload[at : at + floats.bit_count()]
        long, longest = codes.count(ESCAPE16), codes.count(ESCAPE32)
        at += floats.bit_count() + 2 * long + 4 * longest
        if at > len(payload):
            raise CodecError("payload ends inside a group")
        codes_len, sixteen, whole = codes_len + len(codes), sixteen + long, whole + longest
    if at != len(payload):
        raise CodecError("masks and length contradict each other")
    return count - codes_len, codes_len - sixteen - whole, sixteen, whole
