"""How many floats of a payload took 0, 8, 16 and 32 bits, from its tags or masks; and whether its middle is right.

No float is decoded: tags, masks, widths, runs and codes say where everything is.
"""

import functools
import operator
from typing import Final

import numpy as np

from netoffload import codec
from netoffload.codec.bursts import LANES
from netoffload.codec.escapes import ESCAPE16, ESCAPE32
from netoffload.codec.exact import BF16, FLOAT32
from netoffload.codec.exact import WIDTH_MAX as EXACT_WIDTH_MAX
from netoffload.codec.packed import GROUP, WIDTH_BITS, WIDTH_MAX
from netoffload.codec_specs import TAGGED, Exact, Packed
from netoffload.config import BOUND_K_MIN
from netoffload.errors import CodecError

Classes = tuple[int, int, int, int]
"""Floats that took 0, 8, 16 and 32 bits."""

_LANE_OCTETS: Final = tuple(sum((0, 1, 2, 4)[half >> shift & 3] for shift in (0, 2, 4, 6)) for half in range(256))
"""Octets of the four lanes whose tags are in one half of a tag word."""

_WRONG_MARK: Final = "the half is not where a burst starts"


def of_payload(codec_id: int, payload: bytes, count: int, mark: tuple[int, int]) -> Classes | None:
    """Return the classes of a payload of ``count`` floats; None for an unknown codec, and for one of equal lengths.

    ``mark`` are the bursts and octets in the first half. What no encoder makes, also a wrong mark, is a
    :class:`~netoffload.errors.CodecError`.
    """
    chosen = codec.by_id(codec_id)
    if codec_id in TAGGED:
        return _of_bursts(payload, count, mark)
    if chosen is None:
        return None
    half_bursts, half_len = mark
    if isinstance(chosen.spec.form, Packed | Exact):
        of_half = _of_groups if isinstance(chosen.spec.form, Packed) else _of_exact
        first = of_half(payload[:half_len], LANES * half_bursts)
        second = of_half(payload[half_len:], count - LANES * half_bursts)
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
    """Return the classes of the groups and runs of one half, or of a payload without a mark."""
    at = done = floats = sixteen = whole = 0
    may_run = True
    while done < count:
        if payload.startswith(b"\0", at):
            groups = int.from_bytes(payload[at + 1 : at + 2], "little") + 1
            if not may_run or GROUP * (groups - 1) >= count - done:
                raise CodecError("runs are not those of an encoder")
            may_run = False  # the longest run, 256 groups, leaves no room for another group in a block
            at, done = at + 2, done + GROUP * groups
        else:
            there, at = _floats_there(payload, at, min(GROUP, count - done))
            codes, at = _codes_of_fields(payload, at, there)
            long, longest = codes.count(ESCAPE16), codes.count(ESCAPE32)
            at += 2 * long + 4 * longest
            floats, sixteen, whole = floats + there, sixteen + long, whole + longest
            may_run, done = True, done + GROUP
        if at > len(payload):
            raise CodecError("payload ends inside a group")
    if at != len(payload):
        raise CodecError("masks and length contradict each other")
    return count - floats, floats - sixteen - whole, sixteen, whole


def _floats_there(payload: bytes, at: int, lanes: int) -> tuple[int, int]:
    """Return how many floats of the group at ``at`` are not 0, and where its masks end."""
    present = payload[at] if at < len(payload) else 0
    masks = payload[at + 1 : at + 1 + present.bit_count()]
    places = [burst for burst in range(LANES) if present >> burst & 1]
    floats = sum(mask << LANES * burst for mask, burst in zip(masks, places, strict=False))
    if 0 in masks or floats >> lanes:
        raise CodecError("masks are not those of an encoder")
    return floats.bit_count(), at + 1 + present.bit_count()


def _codes_of_fields(payload: bytes, at: int, count: int) -> tuple[bytes, int]:
    """Return the 8-bit codes of ``count`` fields behind their width, and where they end."""
    width = int.from_bytes(payload[at : at + 1], "little") % WIDTH_MAX + 1
    first = 8 if width == WIDTH_MAX else WIDTH_BITS
    end = at + (first + width * count + 7) // 8
    if end > len(payload):
        raise CodecError("payload ends inside a group")
    bits = int.from_bytes(payload[at:end], "little")
    fields = [bits >> first + width * index & (1 << width) - 1 for index in range(count)]
    if bits >> first + width * count or (width == WIDTH_MAX and payload[at] >= WIDTH_MAX):
        raise CodecError("bits behind the fields are not 0")
    if max(fields).bit_length() != width and width > 1:
        raise CodecError("fields fit into fewer bits")
    return bytes((field // 2 + 1) % 128 | (field & 1) << 7 for field in fields), end


def _of_exact(payload: bytes, count: int) -> Classes:
    """Return the classes of the groups of ``exact`` in one half: words of 0, pairs of bf16, other words."""
    at = done = zeros = pairs = 0
    while done < count:
        head = payload[at] if at < len(payload) else 0xC0
        kind, form, width = head >> 6, head >> 4 & 3, head & 7
        lanes = min(count - done, GROUP // 2 if form == BF16 else GROUP)
        values = lanes << (form == BF16)
        there = values if kind else 0
        if kind == 3 or form > BF16 or width > EXACT_WIDTH_MAX or (kind < 2 and head & 0x1F):
            raise CodecError("no group begins like this")
        at += 1
        if kind == 1:
            at += 4 * lanes
        elif kind == 2:
            at += 1
            if head & 8:
                mask = int.from_bytes(payload[at : at + (values + 7) // 8], "little")
                there, at = (mask & (1 << values) - 1).bit_count(), at + (values + 7) // 8
            plane_len = (there + 7) // 8
            planes = [int.from_bytes(payload[at + bit * plane_len :][:plane_len], "little") for bit in range(width)]
            escapes = functools.reduce(operator.and_, planes, (1 << there) - 1 if planes else 0).bit_count()
            at += width * plane_len + escapes + there * (3 if form == FLOAT32 else 1)
        if at > len(payload) or (kind == 2 and there == 0):
            raise CodecError("payload ends inside a group")
        pairs += lanes if form == BF16 else 0
        zeros += 0 if form == BF16 else values - there
        done += lanes
    if at != len(payload):
        raise CodecError("masks and length contradict each other")
    return zeros, 0, pairs, count - zeros - pairs
