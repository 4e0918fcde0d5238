"""What compiled kernels must agree with to the bit: the same in plain Python and NumPy, written from the definitions.

And gradients to compress, and octets to decode.

Random words, streams of codes, stochastic rounding, scalers, the index of sent values, thresholds, 8 and 16 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from netoffload.compiled.arrays import Float32Array, Float64Array, Uint8Array, Uint16Array, Uint32Array
from netoffload.compressors import Compressor, Layout
from netoffload.compressors.base import MethodId
from netoffload.compressors.packing import TRITS, Codes, stream_octets
from netoffload.compressors.rng import mix_exact
from netoffload.compressors.scalers import LANES, Bounds, Scale
from netoffload.compressors.sparse import BITMAP, GAPS, INDEX_HEADER
from netoffload.compressors.tables import Table
from netoffload.compressors.thresholds import MOST_MULTIPLES


def gradient(count: int, seed: int = 1) -> Float32Array:
    return np.random.default_rng([seed, count]).standard_normal(count, np.float32) * np.float32(0.01)


def encoded(compressor: Compressor, values: Float32Array, layout: Layout | None = None) -> Uint8Array:
    """The first payload of a run; without a layout, of one layer."""
    return compressor.encode(values, compressor.make_state(layout or Layout.flat(values.size)))


def changed(payload: Uint8Array, at: int, octets: bytes) -> Uint8Array:
    """A payload with other octets from a place on, which may count from the end."""
    made, at = payload.copy(), at % payload.size
    made[at : at + len(octets)] = np.frombuffer(octets, np.uint8)
    return made


def damaged(payload: Uint8Array, first: int, data: st.DataObject) -> Uint8Array:
    """A payload with up to four other octets behind the ``first`` ones, perhaps cut there, perhaps lengthened."""
    octets = bytearray(payload.tobytes())
    for _ in range(data.draw(st.integers(0, 4)) if len(octets) > first else 0):
        octets[data.draw(st.integers(first, len(octets) - 1))] = data.draw(st.integers(0, 255))
    octets = octets[: data.draw(st.integers(first, len(octets)))] if data.draw(st.booleans()) else octets
    return np.frombuffer(bytes(octets) + data.draw(st.binary(max_size=3)), np.uint8)


def words_exact(key: tuple[int, int], first: int, count: int) -> Uint32Array:
    """The random words of ``count`` indices from ``first`` on."""
    words = [mix_exact(mix_exact(index ^ key[0]) ^ key[1]) for index in range(first, first + count)]
    return np.array(words, np.uint32)


def pack_exact(codes: Codes, width: int) -> bytes:
    number = sum(int(code) << i * width for i, code in enumerate(codes))
    return number.to_bytes(stream_octets(codes.size, width), "little")


def pack_trits_exact(digits: npt.NDArray[np.integer[Any]]) -> bytes:
    """The ternary stream of digits 0..2."""
    fives = (digits[first : first + TRITS] for first in range(0, digits.size, TRITS))
    return bytes(sum(int(digit) * 3**i for i, digit in enumerate(five)) for five in fives)


def elias_exact(codes: Codes, form: str) -> bytes:
    """The Elias stream of codes, made from strings of bits."""
    bits, last = [], -1
    for index, code in enumerate(codes):
        level, sign = int(code) >> 1, str(int(code) & 1)
        if form == "gaps":
            if level:
                bits.append(_omega_exact(index - last) + sign + _omega_exact(level))
                last = index
        else:
            number = _gamma_exact(level + 1) if form == "gamma" else _omega_exact(level + 1)
            bits.append(number + (sign if level else ""))
    if form == "gaps":
        bits.append(_omega_exact(codes.size - last))
    text = "".join(bits)
    return int(text[::-1] or "0", 2).to_bytes(-(-len(text) // 8), "little")


def _gamma_exact(number: int) -> str:
    below = format(number, "b")[1:]
    return "0" * len(below) + "1" + below[::-1]


def _omega_exact(number: int) -> str:
    text = "0"
    while number > 1:
        below = format(number, "b")[1:]
        text = "1" + below[::-1] + text
        number = len(below)
    return text


def round_exact(
    values: Float32Array, bounds: Bounds, scalers: Float32Array, levels: Float32Array, key: tuple[int, int]
) -> Codes:
    """The codes of ``rounding.round_to_levels``."""
    codes = np.zeros(values.size, np.uint16)
    scale24 = np.float32(2.0**24)
    for group, (first, last) in enumerate(pairwise(bounds)):
        divisor = scalers[group] if scalers[group] > 0 else np.float32(1)
        with np.errstate(over="ignore"):  # a shared scaler may be so small that the quotient is infinite
            x = np.abs(values[first:last]) / divisor * levels[group]
        x = np.where(x < levels[group], x, levels[group])
        below = np.floor(x)
        drawn = (words_exact(key, int(first), int(last - first)) >> 8).astype(np.float32)
        level = below.astype(np.uint16) + (drawn < (x - below) * scale24)
        if scalers[group] == 0:
            level[:] = 0
        codes[first:last] = np.where(level > 0, level << 1 | (values[first:last] < 0), 0)
    return codes


def levels_exact(codes: Codes, bounds: Bounds, scalers: Float32Array, levels: Float32Array) -> Float32Array:
    """The values of ``rounding.values_of_levels``."""
    values = np.zeros(codes.size, np.float32)
    for group, (first, last) in enumerate(pairwise(bounds)):
        chosen = codes[first:last]
        magnitude = (chosen >> 1).astype(np.float32) / levels[group] * scalers[group]
        values[first:last] = np.where(chosen & 1, -magnitude, magnitude)
    return values


def group_scalers_exact(values: Float32Array, bounds: Bounds, scale: Scale, clip_factor: float = 0.0) -> Float32Array:
    """The scalers of ``scalers.group_scalers``."""
    scalers = []
    for first, last in pairwise(bounds):
        group = values[first:last].astype(np.float64)
        if scale is Scale.LENGTH:
            scalers.append(np.float32(np.sqrt(_lane_sum(group * group))))
            continue
        largest = np.float32(np.abs(group).max(initial=0.0))
        if clip_factor > 0:
            mean = _lane_sum(group) / group.size
            deviation = np.sqrt(max(_lane_sum(group * group) / group.size - mean * mean, 0.0))
            limit = np.float32(min(clip_factor * deviation, float(largest)))
            largest = limit if limit > 0 else largest
        scalers.append(largest)
    return np.array(scalers, np.float32)


def _lane_sum(terms: Float64Array) -> float:
    padded = np.zeros(-(-max(terms.size, 1) // LANES) * LANES)
    padded[: terms.size] = terms
    lanes = [0.0] * LANES
    for row in padded.reshape(-1, LANES):
        lanes = [lane + float(term) for lane, term in zip(lanes, row, strict=True)]
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])


def index_exact(sent: Sequence[bool]) -> bytes:
    """The index of the true elements, with its header."""
    places = [place for place, is_sent in enumerate(sent) if is_sent]
    gaps = bytearray()
    for place, last in zip(places, [-1, *places], strict=False):
        gap = place - last - 1
        while gap >= 128:
            gaps.append(gap % 128 + 128)
            gap //= 128
        gaps.append(gap)
    bitmap = sum(1 << place for place in places).to_bytes(-(-len(sent) // 8), "little")
    takes_gaps = len(gaps) <= len(bitmap)
    return INDEX_HEADER.pack(GAPS if takes_gaps else BITMAP, len(places)) + (bytes(gaps) if takes_gaps else bitmap)


def sent_exact(method: MethodId, value: float, threshold: float) -> Fraction:
    """The number that a method sends for one value, 0 if it sends none."""
    exact, unit = Fraction(value), Fraction(threshold)
    if abs(exact) < unit:
        return Fraction(0)
    if method is MethodId.WGT:
        return exact
    multiples = 1 if method is MethodId.BGT else min(abs(exact) // unit, MOST_MULTIPLES)
    return multiples * unit if exact > 0 else -multiples * unit


def sent_octets_exact(method: MethodId, sent: Sequence[Fraction], thresholds: Sequence[float]) -> bytes:
    """The octets behind the index; a value of 0 is not sent."""
    pairs = [(number, Fraction(threshold)) for number, threshold in zip(sent, thresholds, strict=True) if number]
    if method is MethodId.WGT:
        return b"".join(np.float32(float(number)).tobytes() for number, _ in pairs)
    if method is MethodId.QGT:
        return bytes((128 if number < 0 else 0) + int(abs(number) / unit) for number, unit in pairs)
    signs = sum((number < 0) << place for place, (number, _) in enumerate(pairs))
    return signs.to_bytes(-(-len(pairs) // 8), "little")


def topk_exact(values: Float32Array, bounds: Sequence[int], k: int, chunk: int) -> tuple[bytes, Float32Array]:
    """The body of ``chunked-topk``, and what it stands for."""
    levels, streams, decoded = b"", b"", np.zeros(values.size, np.float32)
    for first, last in pairwise(bounds):
        group = [float(value) for value in values[first:last]]
        sent = -(-k * len(group) // chunk)
        places = sorted(sorted(range(len(group)), key=lambda place: (-abs(group[place]), place))[:sent])
        mean = np.float32(sum(abs(group[place]) for place in places) / sent)
        is_high = [bool(abs(group[place]) >= mean) for place in places]
        pair = []
        for wanted in (False, True):
            chosen = [abs(group[at]) for at, high in zip(places, is_high, strict=True) if high == wanted]
            chosen = chosen or [abs(group[at]) for at in places]
            average = np.minimum(np.float32(sum(chosen) / len(chosen)), np.float32(3.3895314e38))
            pair.append(halves_exact(np.array([average], np.float32), "bf16"))
        width = (len(group) // sent).bit_length() - 1
        bits = "".join(f"{int(high)}{int(group[place] < 0)}"[::-1] for place, high in zip(places, is_high, strict=True))
        bits += "".join(f"{place % (1 << width):0{width}b}"[::-1] if width else "" for place in places)
        steps = ["0"] * (sent + (len(group) - 1 >> width))
        for at, place in enumerate(places):
            steps[at + (place >> width)] = "1"
            level = (pair[is_high[at]].astype(np.uint32) << 16).view(np.float32)[0]
            decoded[first + place] = -level if group[place] < 0 else level
        bits += "".join(steps)
        levels += b"".join(one.tobytes() for one in pair)
        streams += int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
    return struct.pack("<II", k, chunk) + levels + streams, decoded


def octets_exact(quotients: Float32Array, table: Table) -> Uint8Array:
    """The octet of each float32 in an 8-bit type: a search among the middles in float64."""
    middles = (table.ranked[1:].astype(np.float64) + table.ranked[:-1]) / 2
    ranks = np.searchsorted(middles, np.abs(quotients.astype(np.float64)), side="left")
    octets: Uint8Array = table.octets[ranks + 128 * np.signbit(quotients)]
    return octets


def halves_exact(values: Float32Array, which: str) -> Uint16Array:
    """The bits of every float in a 16-bit format: by NumPy's conversion, and for bf16 by a comparison."""
    if which == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    lower = (values.view(np.uint32) >> 16).astype(np.uint32)
    down, up = ((word << 16).astype(np.uint32).view(np.float32).astype(np.float64) for word in (lower, lower + 1))
    to_lower, to_upper = np.abs(values - down), np.abs(up - values)
    upward = (to_upper < to_lower) | ((to_upper == to_lower) & (lower % 2 == 1))
    halves: Uint16Array = (lower + upward).astype(np.uint16)
    return halves
