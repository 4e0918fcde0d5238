"""``chunked-topk``: the k largest values of every chunk travel, with 2 bits each; the rest is added to the next call.

It is the compressor of SparseLoCo (Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025), for
changes of weights that travel every some dozen steps. Its residual is part of the method, and fades::

    x = values + residual      sent = Q(top-k(x))      residual = decay (x - sent)

A group is a chunk, or the rest of a layer behind its last whole chunk. Of m values it sends k m / chunk, rounded up.
Equal magnitudes travel from the first on. A value that is sent becomes one of two levels, with its sign: the mean of
the magnitudes that are at least as large as the mean of all that are sent, or the mean of the others.

docs/design/compressors.md has the octets. Places are in the form of Elias and Fano: with 64 of 4,096 values they take 8
bits each, where a number takes 12 and the gaps between places 9.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint16Array, Uint32Array
from netoffload.compiled.halves import narrow_bf16, widen_bf16
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u32, whole
from netoffload.compressors.base import HEADER_OCTETS, Compressor, Layout, MethodId, State, empty_payload
from netoffload.compressors.packing import SLACK, padded, put_bits
from netoffload.errors import CodecError, UsageError

CHUNK_MAX: Final = 1 << 16
"""The lower bits of a place, shifted into an octet, fit a word of 32 bits."""

LARGEST_BF16: Final = np.float32(3.3895314e38)

_PARAMETERS: Final = struct.Struct("<II")


class Groups(NamedTuple):
    """The groups of a layout."""

    bounds: Int64Array  # the start of each, then the end of the last one
    sent: Int64Array  # how many values of each travel
    widths: Int64Array  # of the lower bits of a place
    streams: Int64Array  # the octet at which each stream starts, then the end of the last one


@dataclass(frozen=True)
class ChunkedTopK(Compressor):
    """The largest values of every chunk."""

    k: int = 64  # values of a chunk that are sent
    chunk: int = 4096  # values
    decay: float = 0.95  # of the residual, from call to call

    name: ClassVar[str] = "chunked-topk"
    method_id: ClassVar[MethodId] = MethodId.CHUNKED_TOPK
    always_feeds_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        if not 1 <= self.k <= self.chunk <= CHUNK_MAX:
            raise UsageError(f"k must be 1 to chunk, and chunk at most {CHUNK_MAX}, not {self.k} and {self.chunk}")
        if not 0 <= self.decay <= 1:
            raise UsageError(f"decay must be 0 to 1, not {self.decay}")

    def _sent(self, payload: Uint8Array, source: Float32Array, state: State) -> Uint8Array:
        payload = super()._sent(payload, source, state)
        assert state.residual is not None
        state.residual *= np.float32(self.decay)
        return payload

    def _groups(self, layout: Layout) -> Groups:
        bounds = layout.groups(self.chunk)
        lengths = np.diff(bounds)
        sent = -(-self.k * lengths // self.chunk)
        widths = np.frexp(lengths // sent)[1].astype(np.int64) - 1
        bits = (2 + widths) * sent + ((lengths - 1) >> widths) + sent
        return Groups(bounds, sent, widths, np.concatenate(([0], np.cumsum((bits + 7) >> 3))))

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        groups = self._groups(state.layout)
        ahead = HEADER_OCTETS + _PARAMETERS.size
        streams_at = ahead + 4 * groups.sent.size
        size = streams_at + int(groups.streams[-1])
        payload = empty_payload(size - HEADER_OCTETS + SLACK)
        _PARAMETERS.pack_into(payload.data, HEADER_OCTETS, self.k, self.chunk)
        levels = np.empty(2 * groups.sent.size, np.float32)
        places = np.empty(int(groups.sent.max(initial=0)), np.uint32)
        encode_groups(values, values.view(np.uint32), groups, places, levels, payload[streams_at:])
        halves = np.empty(levels.size, np.uint16)
        narrow_bf16(np.minimum(levels, LARGEST_BF16).view(np.uint32), halves)
        payload[ahead:streams_at] = halves.view(np.uint8)
        return payload[:size]

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        groups = self._groups(layout)
        streams_at = _PARAMETERS.size + 4 * groups.sent.size
        if body.size != streams_at + int(groups.streams[-1]):
            raise CodecError(f"a chunked-topk payload of {body.size} octets does not hold {layout.count} floats")
        if _PARAMETERS.unpack_from(body.data) != (self.k, self.chunk):
            raise CodecError(f"payload has other parameters than {self.spec}")
        halves: Uint16Array = np.frombuffer(body[_PARAMETERS.size : streams_at].tobytes(), "<u2")
        if (halves > 0x7F7F).any() or (halves[::2] > halves[1::2]).any():
            raise CodecError("payload has a level that is negative or not finite, or that is above the higher one")
        levels, values = np.empty(halves.size, np.float32), np.zeros(layout.count, np.float32)
        widen_bf16(halves, levels.view(np.uint32))
        if not decode_groups(padded(body[streams_at:]), groups, levels, values):
            raise CodecError("payload has places that do not ascend or lie outside their chunk, or bits behind its end")
        return values


@inline_kernel
def _least(words: Uint32Array, sent: int) -> np.uint32:
    """Return the magnitude of the value in place ``sent`` if sorted from the largest one down, as its bits."""
    least = np.uint32(0)
    for bit in range(31):
        higher = least | np.uint32(1) << np.uint32(30 - bit)
        count = 0
        for i in range(words.size):
            count += (words[i] & np.uint32(0x7FFFFFFF)) >= higher
        if count >= sent:
            least = higher
    return least


@inline_kernel
def _choose(words: Uint32Array, sent: int, places: Uint32Array) -> None:
    """Write the places of the ``sent`` values of largest magnitude, ascending."""
    least = _least(words, sent)
    equal = sent
    for i in range(words.size):
        equal -= (words[i] & np.uint32(0x7FFFFFFF)) > least
    found = 0
    for i in range(words.size):
        magnitude = words[i] & np.uint32(0x7FFFFFFF)
        if magnitude > least or (magnitude == least and equal > 0):
            equal -= magnitude == least
            places[found] = i
            found += 1


@kernel
def encode_groups(
    values: Float32Array,
    words: Uint32Array,
    groups: Groups,
    places: Uint32Array,
    levels: Float32Array,
    target: Uint8Array,
) -> None:
    """Write two levels of each group, and its stream to ``target``, which is 0 and has SLACK octets more.

    ``words`` are the bits of the values. ``places``, as many as the most that a group sends, is scratch.
    """
    for group in range(groups.sent.size):
        first, count, width = groups.bounds[group], groups.sent[group], groups.widths[group]
        _choose(words[first : groups.bounds[group + 1]], count, places)
        total = 0.0  # in float64, as float() says to plain Python too
        for i in range(count):
            total += float(abs(values[first + places[i]]))
        mean = np.float32(total / count)
        low, high, highs = 0.0, 0.0, 0
        code_at = 8 * groups.streams[group]
        place_at = code_at + 2 * count
        step_at = place_at + width * count
        for i in range(count):
            place = whole(places[i])
            value = values[first + place]
            is_high = abs(value) >= mean
            if is_high:
                high += float(abs(value))
                highs += 1
            else:
                low += float(abs(value))
            put_bits(target, code_at + 2 * i, int(value < 0) | int(is_high) << 1, 2)
            put_bits(target, place_at + width * i, place & ((1 << width) - 1), width)
            put_bits(target, step_at + (place >> width) + i, 1, 1)
        # Rounding may lift the mean above all values, or leave none below it.
        levels[2 * group] = low / (count - highs) if highs < count else high / count
        levels[2 * group + 1] = high / highs if highs > 0 else low / count


@kernel
def decode_groups(stream: Uint8Array, groups: Groups, levels: Float32Array, values: Float32Array) -> bool:
    """Write the values that are sent, and return whether an encoder can have made the streams; SLACK follows them."""
    for group in range(groups.sent.size):
        first, count, width = groups.bounds[group], groups.sent[group], groups.widths[group]
        code_at = 8 * groups.streams[group]
        place_at = code_at + 2 * count
        step_at = place_at + width * count
        found, last = 0, -1
        for at in range(8 * groups.streams[group + 1] - step_at):
            if (whole(stream[(step_at + at) >> 3]) >> ((step_at + at) & 7)) & 1:
                if found == count:
                    return False
                low_at, bits_at = place_at + width * found, code_at + 2 * found
                low = (load_u32(stream, low_at >> 3) >> (low_at & 7)) & ((1 << width) - 1)
                place = (at - found) << width | low
                if place <= last or place >= groups.bounds[group + 1] - first:
                    return False
                code = (whole(stream[bits_at >> 3]) >> (bits_at & 7)) & 3
                level = levels[2 * group + (code >> 1)]
                values[first + place] = -level if code & 1 else level
                found += 1
                last = place
        if found < count:
            return False
    return True
