"""``wgt``, ``bgt``, ``qgt``: only values that reach a threshold T are sent; the rest is added to the next gradient.

A. Anoosheh et al., "Thresholded gradient synchronization in distributed ConvNets", section 2.1, algorithms (a), (b) and
(c), after N. Strom (Interspeech 2015). ``x`` is a value of the gradient plus its residual:

=======  =========================  ===========================  ==========================================
method   sent where |x| >= T        stays                        on the wire, per value that is sent
=======  =========================  ===========================  ==========================================
``wgt``  x                          0                            4 octets, the float
``bgt``  T or -T                    x - T or x + T               1 bit: set for -T
``qgt``  m T, m = trunc(x / T)      x - m T                      1 octet: sign in bit 7, |m| in bits 0-6
=======  =========================  ===========================  ==========================================

Values below the threshold stay whole. The paper's text says "greater than T", its algorithms "at least"; this module
follows the algorithms.

Algorithm (c) as printed takes min(m, 255), where m is already a *multiple* of T and not the number of multiples. It
also rounds down, which for a negative gradient is away from 0. The text shows the intention: the number of multiples is
sent, it fits an octet, and a gradient's magnitude counts. So m is rounded towards 0. Because an octet must carry the
sign too, |m| is at most 127, not 255; the rest stays. An octet with |m| = 0 is never sent, and refused.

**gradient + old residual == sent + new residual.** The left side is one float32 addition per value, rounded to nearest
like all additions of a gradient; its result is x. Then sent + residual is exactly x, as real numbers and so also in
float32 arithmetic, for every |x| < 4096 T (``wgt``: for every x). The reason is that T has at most 12 significant bits:
a threshold is rounded to this, by at most 0.025 %. So every multiple up to 127 T is a float32, and so is the residual.
From 4096 T on, the residual is the float32 nearest to x minus the sent value, and at most 2^-24 of |x| is lost. 0 and
-0 count as equal.

Body: thresholds, float32 | index (``sparse``) | values, in order: floats, octets, or bits from bit 0 on, ceil(k / 8)
octets. There is one threshold, or one per layer; a decoder refuses a payload with other thresholds than its own.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, cast

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.compiled.jit import kernel
from netoffload.compressors import sparse
from netoffload.compressors.base import (
    HEADER_OCTETS,
    INFINITY_WORD,
    Compressor,
    MethodId,
    State,
    empty_payload,
    largest_word,
)
from netoffload.compressors.layout import Layout
from netoffload.errors import CodecError, UsageError

THRESHOLD_BITS: Final = 12
"""Significant bits of a threshold: 127 T then has 19, and x - m T stays within float32's 24."""

MOST_MULTIPLES: Final = 127
SMALLEST: Final = 1e-30
LARGEST: Final = 1e30
_WGT: Final = int(MethodId.WGT)
_BGT: Final = int(MethodId.BGT)


def rounded_threshold(threshold: float) -> np.float32:
    """Return the nearest number of 12 significant bits.

    Raises:
        UsageError: not between 1e-30 and 1e30.
    """
    if not SMALLEST <= threshold <= LARGEST:
        raise UsageError(f"threshold {threshold} must be between {SMALLEST} and {LARGEST}")
    fraction, exponent = np.frexp(threshold)
    return np.float32(np.ldexp(np.rint(fraction * 2.0**THRESHOLD_BITS), exponent - THRESHOLD_BITS))


@dataclass(frozen=True)
class Threshold(Compressor):
    """The base of the three methods.

    Attributes:
        threshold: T, for all layers; rounded to 12 significant bits.
        layers: one T per layer instead, separated by ``/``: ``0.001/0.0005``.

    Raises:
        UsageError: a threshold that is not a number, or out of range.
    """

    threshold: float = 1e-3
    layers: str = ""

    unbiased: ClassVar[bool] = False
    variants: ClassVar[tuple[str, ...]] = ("threshold=0.005",)

    def __post_init__(self) -> None:
        """Refuse impossible thresholds."""
        self._all()

    def make_state(self, layout: Layout, *, seed: int = 0, rank: int = 0, error_feedback: bool = True) -> State:
        """Return the state before the first call; it always has a residual, which is part of the method."""
        self.thresholds(layout)
        return super().make_state(layout, seed=seed, rank=rank, error_feedback=True)

    def thresholds(self, layout: Layout) -> Float32Array:
        """Return the rounded T: float32[1], or float32[layers].

        Raises:
            UsageError: ``layers`` has not as many thresholds as the layout has layers.
        """
        thresholds = self._all()
        if self.layers and thresholds.size != len(layout.sizes):
            raise UsageError(f"{self.name}: {thresholds.size} thresholds for {len(layout.sizes)} layers")
        return thresholds

    def _all(self) -> Float32Array:
        try:
            asked = [float(text) for text in self.layers.split("/")] if self.layers else [self.threshold]
        except ValueError as error:
            raise UsageError(f"{self.name}: layers={self.layers!r} is not NUMBER/NUMBER/...") from error
        return np.array([rounded_threshold(threshold) for threshold in asked], np.float32)

    def _groups(self, layout: Layout) -> Int64Array:
        return np.array(layout.offsets if self.layers else (0, layout.count), np.int64)

    @abc.abstractmethod
    def _codes(self, values: Float32Array, layout: Layout) -> Uint8Array:
        """Return the codes, uint8[n]: 0 for values that are not sent."""

    @abc.abstractmethod
    def _values_octets(self, sent: int) -> int:
        """Return the octets of ``sent`` values on the wire."""

    @abc.abstractmethod
    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        """Return uint8[values_octets(index.sent)]."""

    @abc.abstractmethod
    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        """Return float32[n]."""

    def encode(self, values: Float32Array, state: State) -> Uint8Array:
        """Return the payload, and keep the residual; unlike the base class, without decoding the payload."""
        source = self._source(values, state)
        codes = self._codes(source, state.layout)
        payload = self._payload(codes, source, state.layout)
        residual, state.residual = state.residual, None
        self._sent(payload, source, state)
        if residual is not None:  # written here, not into ``source``: LLVM makes no vector code for overlapping arrays
            groups, thresholds = self._groups(state.layout), self.thresholds(state.layout)
            keep(source, codes, groups, thresholds, int(self.method_id), residual)
            state.residual = residual
        return payload

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        return self._payload(self._codes(values, state.layout), values, state.layout)

    def _payload(self, codes: Uint8Array, values: Float32Array, layout: Layout) -> Uint8Array:
        thresholds, index = self.thresholds(layout), sparse.Index.of(codes)
        ahead = thresholds.nbytes + index.octets
        payload = empty_payload(ahead + self._values_octets(index.sent))
        body = payload[HEADER_OCTETS:]
        body[: thresholds.nbytes] = thresholds.view(np.uint8)
        index.write(body[thresholds.nbytes : ahead])
        body[ahead:] = self._pack(index, codes, values)
        return payload

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        thresholds = self.thresholds(layout)
        if body[: thresholds.nbytes].tobytes() != thresholds.tobytes():
            raise CodecError(f"payload has other thresholds than {self.spec}")
        body = body[thresholds.nbytes :]
        form, sent = sparse.read_header(body, layout.count)
        index_octets = body.size - sparse.INDEX_HEADER.size - self._values_octets(sent)
        if index_octets < 0:
            raise CodecError(f"payload ends before its {sent} values")
        index = body[sparse.INDEX_HEADER.size : sparse.INDEX_HEADER.size + index_octets]
        return self._unpack(body[sparse.INDEX_HEADER.size + index_octets :], sent, index, form, layout)

    def _size(self, values: Float32Array, state: State) -> int:
        index = sparse.Index.of(self._codes(values, state.layout))
        return self.thresholds(state.layout).nbytes + index.octets + self._values_octets(index.sent)


@dataclass(frozen=True)
class Wgt(Threshold):
    """Whole gradient transfer, algorithm (a)."""

    name: ClassVar[str] = "wgt"
    method_id: ClassVar[MethodId] = MethodId.WGT

    def _codes(self, values: Float32Array, layout: Layout) -> Uint8Array:
        codes = np.empty(values.size, np.uint8)
        choose(values, self._groups(layout), self.thresholds(layout), codes)
        return codes

    def _values_octets(self, sent: int) -> int:
        return 4 * sent

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return cast(Uint8Array, index.gather(codes, values).view(np.uint8))

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        packed, words = np.zeros(sent + 1, np.uint32), np.empty(layout.count, np.uint32)
        packed[:sent].view(np.uint8)[:] = octets
        sparse.scatter(index, form, packed, words)
        values = words.view(np.float32)
        reaching = count_reaching(values, self._groups(layout), self.thresholds(layout))
        if reaching != sent or largest_word(packed) >= INFINITY_WORD:
            raise CodecError("payload has a value below its threshold, or not finite")
        return values


@dataclass(frozen=True)
class Bgt(Threshold):
    """Binarized gradient transfer, algorithm (b): code 1 is T, 2 is -T."""

    name: ClassVar[str] = "bgt"
    method_id: ClassVar[MethodId] = MethodId.BGT

    def _codes(self, values: Float32Array, layout: Layout) -> Uint8Array:
        codes = np.empty(values.size, np.uint8)
        binarize(values, self._groups(layout), self.thresholds(layout), codes)
        return codes

    def _values_octets(self, sent: int) -> int:
        return -(-sent // 8)

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return np.packbits(index.gather(codes, codes) >> np.uint8(1), bitorder="little")

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        bits = np.unpackbits(octets, bitorder="little")
        if bits[sent:].any():
            raise CodecError("payload has a sign behind its last value")
        packed, codes = np.zeros(sent + 1, np.uint8), np.empty(layout.count, np.uint8)
        packed[:sent] = bits[:sent] + np.uint8(1)
        sparse.scatter(index, form, packed, codes)
        values = np.empty(layout.count, np.float32)
        unbinarize(codes, self._groups(layout), self.thresholds(layout), values)
        return values


@dataclass(frozen=True)
class Qgt(Threshold):
    """Quantized gradient transfer, algorithm (c): a code is the octet on the wire."""

    name: ClassVar[str] = "qgt"
    method_id: ClassVar[MethodId] = MethodId.QGT

    def _codes(self, values: Float32Array, layout: Layout) -> Uint8Array:
        codes = np.empty(values.size, np.uint8)
        count_multiples(values, self._groups(layout), self.thresholds(layout), codes)
        return codes

    def _values_octets(self, sent: int) -> int:
        return sent

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return index.gather(codes, codes)

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        if np.any(octets & np.uint8(MOST_MULTIPLES) == 0):
            raise CodecError("payload has an octet with multiple 0")
        packed, codes = np.zeros(sent + 1, np.uint8), np.empty(layout.count, np.uint8)
        packed[:sent] = octets
        sparse.scatter(index, form, packed, codes)
        values = np.empty(layout.count, np.float32)
        multiply(codes, self._groups(layout), self.thresholds(layout), values)
        return values


def sent_exact(method: MethodId, value: float, threshold: float) -> Fraction:
    """Return the number that a method sends for one value, 0 if it sends none: the oracle."""
    exact, unit = Fraction(value), Fraction(threshold)
    if abs(exact) < unit:
        return Fraction(0)
    if method is MethodId.WGT:
        return exact
    multiples = 1 if method is MethodId.BGT else min(abs(exact) // unit, MOST_MULTIPLES)
    return multiples * unit if exact > 0 else -multiples * unit


def values_exact(method: MethodId, sent: Sequence[Fraction], thresholds: Sequence[float]) -> bytes:
    """Return the octets behind the index: the oracle; a value of 0 is not sent."""
    pairs = [(number, Fraction(threshold)) for number, threshold in zip(sent, thresholds, strict=True) if number]
    if method is MethodId.WGT:
        return b"".join(np.float32(float(number)).tobytes() for number, _ in pairs)
    if method is MethodId.QGT:
        return bytes((128 if number < 0 else 0) + int(abs(number) / unit) for number, unit in pairs)
    signs = sum((number < 0) << place for place, (number, _) in enumerate(pairs))
    return signs.to_bytes(-(-len(pairs) // 8), "little")


@kernel
def choose(values: Float32Array, groups: Int64Array, thresholds: Float32Array, codes: Uint8Array) -> None:
    """Write 1 where a magnitude reaches its group's threshold, else 0."""
    for group in range(groups.size - 1):
        part, out = values[groups[group] : groups[group + 1]], codes[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            out[i] = abs(part[i]) >= threshold


@kernel
def count_reaching(values: Float32Array, groups: Int64Array, thresholds: Float32Array) -> int:
    """Return how many codes of :func:`choose` are 1."""
    reaching = 0
    for group in range(groups.size - 1):
        part = values[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            reaching += abs(part[i]) >= threshold
    return reaching


@kernel
def binarize(values: Float32Array, groups: Int64Array, thresholds: Float32Array, codes: Uint8Array) -> None:
    """Write 1 where a value reaches its group's threshold, 2 where its negative does, else 0."""
    for group in range(groups.size - 1):
        part, out = values[groups[group] : groups[group + 1]], codes[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            out[i] = np.uint8(part[i] >= threshold) | np.uint8(part[i] <= -threshold) << np.uint8(1)


@kernel
def unbinarize(codes: Uint8Array, groups: Int64Array, thresholds: Float32Array, values: Float32Array) -> None:
    """Write the values of the codes of :func:`binarize`."""
    for group in range(groups.size - 1):
        part, out = codes[groups[group] : groups[group + 1]], values[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            out[i] = np.float32(np.int32(part[i] & 1) - np.int32(part[i] >> 1)) * threshold


@kernel
def count_multiples(values: Float32Array, groups: Int64Array, thresholds: Float32Array, codes: Uint8Array) -> None:
    """Write how many thresholds fit each magnitude, up to 127, and the sign in bit 7; 0 if none fits.

    Rounding may lift a quotient to an integer that it does not reach; then the residual is negative, and still exact.
    """
    for group in range(groups.size - 1):
        part, out = values[groups[group] : groups[group + 1]], codes[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            magnitude = abs(part[i])
            multiples = np.int32(min(magnitude / threshold, np.float32(MOST_MULTIPLES)))
            multiples -= np.int32(np.float32(multiples) * threshold > magnitude)
            negative = np.int32(part[i] < np.float32(0.0)) & np.int32(multiples > 0)
            out[i] = multiples | negative << 7


@kernel
def multiply(codes: Uint8Array, groups: Int64Array, thresholds: Float32Array, values: Float32Array) -> None:
    """Write the values of the codes of :func:`count_multiples`."""
    for group in range(groups.size - 1):
        part, out = codes[groups[group] : groups[group + 1]], values[groups[group] : groups[group + 1]]
        threshold = thresholds[group]
        for i in range(part.size):
            magnitude = np.int32(part[i] & 127)
            out[i] = np.float32(-magnitude if part[i] > 127 else magnitude) * threshold


@kernel
def keep(
    values: Float32Array,
    codes: Uint8Array,
    groups: Int64Array,
    thresholds: Float32Array,
    method: int,
    residual: Float32Array,
) -> None:
    """Write the residual of ``values`` after ``codes`` of a method (its number) are sent."""
    for group in range(groups.size - 1):
        first, end = groups[group], groups[group + 1]
        part, code, out = values[first:end], codes[first:end], residual[first:end]
        threshold = thresholds[group]
        if method == _WGT:
            for i in range(part.size):
                out[i] = np.float32(0.0) if code[i] else part[i]
        elif method == _BGT:
            for i in range(part.size):
                out[i] = part[i] - np.float32(np.int32(code[i] & 1) - np.int32(code[i] >> 1)) * threshold
        else:
            for i in range(part.size):
                magnitude = np.int32(code[i] & 127)
                out[i] = part[i] - np.float32(-magnitude if code[i] > 127 else magnitude) * threshold
