"""A compressor: parameters that never change, a state that changes with each call, and payloads with one header.

A method defines :meth:`Compressor._encode` and :meth:`Compressor._decode`. This file has all that the methods share:
the layout of a flat gradient, the header, the refusal of values that are not finite, error feedback, the step.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, ClassVar, Final, cast

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint32Array
from netoffload.compiled.jit import kernel
from netoffload.compiled.octets import whole
from netoffload.compressors.rng import stream_key
from netoffload.config import whole_number
from netoffload.errors import CodecError, NotFiniteError, UsageError

MAGIC: Final = 0xC7
VERSION: Final = 1
HEADER: Final = struct.Struct("<BBBBI")  # magic, version, method id, flags, count of floats
HEADER_OCTETS: Final = HEADER.size

INFINITY_WORD: Final = 0x7F800000
"""The bits of +infinity: a float whose bits without the sign reach this is not finite."""

STATE_MAGIC: Final = b"NOCS"
STATE_VERSION: Final = 1
_STATE: Final = struct.Struct("<4sBBxxQIQI")
"""magic, version, has a residual, seed, rank, step, number of layers."""


MAX_COUNT: Final = 2**32 - 1
"""A payload's header counts its floats with 32 bits."""


class MethodId(enum.IntEnum):
    """The method's number in a payload's header."""

    NONE = 0
    NIC = 1
    TERNGRAD = 2
    TERNGRAD_SUM = 3
    QSGD = 4
    WGT = 16
    BGT = 17
    QGT = 18
    CHUNKED_TOPK = 19
    EIGHT_BIT = 32
    HALF = 33
    GENERAL = 48


@dataclass(frozen=True)
class Layout:
    """The lengths of the layers of a flat float32 vector, in order."""

    sizes: tuple[int, ...]  # floats of each layer; a layer may be empty

    def __post_init__(self) -> None:
        """Refuse lengths that a payload's header cannot count."""
        object.__setattr__(self, "sizes", tuple(whole_number("a layer's length", size) for size in self.sizes))
        if any(size < 0 for size in self.sizes) or sum(self.sizes) > MAX_COUNT:
            raise UsageError(f"layers must have 0 to {MAX_COUNT} floats together, not {self.sizes[:8]}")

    @classmethod
    def flat(cls, count: int) -> Layout:
        """Return the layout of a vector that is one layer."""
        return cls((count,))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each layer, then the end of the last one: len(sizes) + 1 numbers."""
        return (0, *accumulate(self.sizes))

    @cached_property
    def count(self) -> int:
        """Floats in all layers."""
        return self.offsets[-1]

    def split(self, values: Float32Array) -> list[Float32Array]:
        """Return views of the layers of a vector."""
        return np.split(values, self.offsets[1:-1])

    def groups(self, bucket: int = 0) -> Int64Array:
        """Return the start of each group, then the end of the last one: int64[g + 1].

        A group is a layer, or with ``bucket`` > 0 at most ``bucket`` consecutive floats of a layer. No group is empty.
        """
        starts = [
            np.arange(first, first + size, bucket or max(size, 1), dtype=np.int64)
            for first, size in zip(self.offsets[:-1], self.sizes, strict=True)
        ]
        return np.concatenate((*starts, np.array([self.count], np.int64)))


@dataclass
class State:
    """The state of one worker's compressor, which changes with every call."""

    layout: Layout  # of all vectors that are encoded with this state
    seed: int = 0  # of the run's randomness
    rank: int = 0  # the worker's
    step: int = 0  # number of calls so far
    residual: Float32Array | None = None  # float32[n], what the compressor left unsent; None: without error feedback

    def key(self) -> tuple[int, int]:
        """Return the key of the next call's random numbers (``rng``)."""
        return stream_key(self.seed, self.rank, self.step)

    def to_bytes(self) -> bytes:
        """Return the state for :meth:`from_bytes`: a header, the layers' sizes, the residual, a CRC-32."""
        sizes = np.array(self.layout.sizes, "<u4").tobytes()
        head = _STATE.pack(
            *(STATE_MAGIC, STATE_VERSION, self.residual is not None),
            *(self.seed, self.rank, self.step, len(self.layout.sizes)),
        )
        residual = b"" if self.residual is None else self.residual.astype("<f4", copy=False).tobytes()
        octets = head + sizes + residual
        return octets + zlib.crc32(octets).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, octets: bytes, layout: Layout) -> State:
        """Read a state that :meth:`to_bytes` wrote; UsageError if it is damaged, or one for another layout."""
        if len(octets) < _STATE.size + 4 or octets[:4] != STATE_MAGIC:
            raise UsageError("these octets are not a compressor's state")
        _, version, has_residual, seed, rank, step, layers = _STATE.unpack_from(octets)
        if version != STATE_VERSION:
            raise UsageError(f"the compressor's state has version {version}; this program reads {STATE_VERSION}")
        if zlib.crc32(octets[:-4]) != int.from_bytes(octets[-4:], "little"):
            raise UsageError("the compressor's state is damaged: its CRC-32 is wrong")
        body = octets[_STATE.size : -4]
        if body[: 4 * layers] != np.array(layout.sizes, "<u4").tobytes():
            raise UsageError("the compressor's state belongs to a model with other layers")
        if len(body) != 4 * layers + (4 * layout.count if has_residual else 0):
            raise UsageError("the compressor's state is damaged: its length is wrong")
        residual = np.frombuffer(body[4 * layers :], "<f4").astype(np.float32) if has_residual else None
        return cls(layout, seed, rank, step, residual)


class Compressor(abc.ABC):
    """One method with its parameters: a frozen dataclass, so that compressors that compress alike are equal."""

    name: ClassVar[str]
    method_id: ClassVar[MethodId]
    always_feeds_back: ClassVar[bool] = False
    """Whether a residual is part of the method."""

    @property
    def flags(self) -> int:
        """The header's flags: parameters that change the body's meaning; a decoder refuses other flags than its own."""
        return 0

    @property
    def is_by_layer(self) -> bool:
        """Whether a parameter is for certain layers of a model, so that a part of the model cannot take it."""
        return False

    @property
    def spec(self) -> str:
        """The text for :func:`~netoffload.compressors.registry.parse`: the name, and parameters other than defaults."""
        given = [field for field in dataclasses.fields(cast(Any, self)) if getattr(self, field.name) != field.default]
        texts = [f"{field.name}={_spelt(getattr(self, field.name))}" for field in given]
        return f"{self.name}:{','.join(texts)}" if texts else self.name

    def make_state(self, layout: Layout, *, seed: int = 0, rank: int = 0, error_feedback: bool = False) -> State:
        """Return the state before the first call; all workers of a run have the same ``seed``, 0..2^64-1.

        With ``error_feedback`` the values that a call leaves unsent are added to the next call's values.
        """
        stream_key(seed, rank, 0)  # refuses a seed or rank out of range, before a call would
        feeds_back = error_feedback or self.always_feeds_back
        return State(layout, seed, rank, 0, np.zeros(layout.count, np.float32) if feeds_back else None)

    def encode(self, values: Float32Array, state: State) -> Uint8Array:
        """Return the payload of ``values``, uint8[m], and advance the state: the step, and a residual.

        The values, float32[n], must be contiguous, finite, and as many as the layout has; they stay unchanged. Others
        are refused by a UsageError, and leave the state as it was.
        """
        source = self._source(values, state)
        return self._sent(self._encode(source, state), source, state)

    def decode(self, payload: Uint8Array, layout: Layout) -> Float32Array:
        """Return the values of a payload, float32[n], made by a compressor equal to this one for this layout.

        CodecError refuses octets that this compressor cannot have made, and values that are not finite.
        """
        values = self._decode(body_of(payload, layout, self.method_id, self.flags), layout)
        if (first := first_not_finite(values)) is not None:
            raise CodecError(f"value {first} of the payload is not finite: no encoder sends one")
        return values

    def wire_size(self, values: Float32Array, state: State) -> int:
        """Return len(encode(values, state)) without changing the state."""
        return self._encode(self._source(values, state), state).size

    @abc.abstractmethod
    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        """Return the payload of finite values, without changing the state; the caller writes the header."""

    @abc.abstractmethod
    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        """Return the values of the body behind a checked header; CodecError if ``_encode`` cannot have made it."""

    def _source(self, values: Float32Array, state: State) -> Float32Array:
        """Return the values to encode: finite, of the right type and length, with the residual added."""
        if not isinstance(values, np.ndarray):
            raise UsageError(f"a compressor takes an array of float32, not {type(values).__name__}")
        if values.dtype != np.float32 or not values.flags.c_contiguous or values.shape != (state.layout.count,):
            raise UsageError(
                f"a compressor takes contiguous float32[{state.layout.count}], not {values.dtype}{list(values.shape)}"
                f" (contiguous: {values.flags.c_contiguous})"
            )
        require_finite(values, "the gradient")
        if state.residual is None:
            return values
        with np.errstate(over="ignore"):
            source = values + state.residual
        require_finite(source, "the gradient with its residual")
        return source

    def _sent(self, payload: Uint8Array, source: Float32Array, state: State) -> Uint8Array:
        """Write the header, and keep in the residual what the payload leaves out of ``source``."""
        write_header(payload, self.method_id, self.flags, source.size)
        if state.residual is not None:
            # In place: with a residual, ``source`` is the sum that :meth:`_source` made.
            state.residual = np.subtract(source, self._decode(payload[HEADER_OCTETS:], state.layout), out=source)
        state.step += 1
        return payload


def empty_payload(body_octets: int) -> Uint8Array:
    """Return room for a header and a body, the body zeroed: uint8[HEADER_OCTETS + body_octets]."""
    return np.zeros(HEADER_OCTETS + body_octets, np.uint8)


def write_header(payload: Uint8Array, method_id: MethodId, flags: int, count: int) -> None:
    """Write the header of a payload of ``count`` floats to its first octets."""
    HEADER.pack_into(payload.data, 0, MAGIC, VERSION, method_id, flags, count)


def body_of(payload: Uint8Array, layout: Layout, method_id: MethodId, flags: int) -> Uint8Array:
    """Check the header of a payload; return the body behind it, uint8[m - HEADER_OCTETS]."""
    if not isinstance(payload, np.ndarray):
        raise UsageError(f"a payload is an array of octets, not {type(payload).__name__}")
    if payload.dtype != np.uint8 or payload.ndim != 1 or not payload.flags.c_contiguous:
        raise UsageError(f"a payload is a contiguous array of octets, not {payload.dtype}{list(payload.shape)}")
    if payload.size < HEADER_OCTETS:
        raise CodecError(f"a payload of {payload.size} octets is shorter than its header")
    magic, version, sent_id, sent_flags, count = HEADER.unpack_from(payload.data)
    if (magic, version) != (MAGIC, VERSION):
        raise CodecError(f"payload starts with {magic:#04x}, version {version}, not {MAGIC:#04x}, {VERSION}")
    if (sent_id, sent_flags) != (method_id, flags):
        raise CodecError(
            f"payload has method {sent_id}, flags {sent_flags:#04x}, not {int(method_id)}, {flags:#04x}:"
            " give both sides the same parameters"
        )
    if count != layout.count:
        raise CodecError(f"payload holds {count} floats, the layout {layout.count}")
    return payload[HEADER_OCTETS:]


def first_not_finite(values: Float32Array) -> int | None:
    """Return the index of the first NaN or infinity."""
    if largest_word(values.view(np.uint32)) < INFINITY_WORD:
        return None
    return int(np.flatnonzero(~np.isfinite(values))[0])


def require_finite(values: Float32Array, what: str) -> None:
    """Refuse NaN and infinities; the error names the first index."""
    if (first := first_not_finite(values)) is not None:
        raise NotFiniteError(f"{what} is not finite: value {first} is {values[first]}; nothing was encoded")


@kernel
def largest_word(words: Uint32Array) -> int:
    """Return the largest of uint32[n] without the signs: the bits of max |v|; 0 for an empty array."""
    largest = np.uint32(0)
    for i in range(words.size):
        largest = max(largest, words[i] & np.uint32(0x7FFFFFFF))
    return whole(largest)


def _spelt(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
