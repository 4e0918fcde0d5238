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

docs/design/compressors.md says where algorithm (c) differs from what is printed. An octet with |m| = 0 is refused.

**gradient + old residual == sent + new residual**, as real numbers and so also in float32 arithmetic, for every
|x| < 4096 T (``wgt``: for every x). The left side is one float32 addition per value; its result is x. T has at most 12
significant bits: a threshold is rounded to this. So every multiple up to 127 T is a float32, and so is the residual.
From 4096 T on, the residual is the float32 nearest to x minus the sent value. 0 and -0 count as equal.

docs/design/compressors.md has the octets. A decoder refuses a payload with other thresholds than its own.
"""

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, ClassVar, Final, cast

import numpy as np

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compressors import sparse
from netoffload.compressors.base import HEADER_OCTETS, Compressor, Layout, MethodId, State, empty_payload
from netoffload.errors import CodecError, UsageError

THRESHOLD_BITS: Final = 12
"""Significant bits of a threshold: 127 T then has 19, and x - m T stays within float32's 24."""

MOST_MULTIPLES: Final = 127
SMALLEST: Final = 1e-30
LARGEST: Final = 1e30


def rounded_threshold(threshold: float) -> np.float32:
    """Return the nearest number of 12 significant bits, for 1e-30 to 1e30."""
    if not SMALLEST <= threshold <= LARGEST:
        raise UsageError(f"threshold {threshold} must be between {SMALLEST} and {LARGEST}")
    fraction, exponent = np.frexp(threshold)
    return np.float32(np.ldexp(np.rint(fraction * 2.0**THRESHOLD_BITS), exponent - THRESHOLD_BITS))


@dataclass(frozen=True)
class Threshold(Compressor):
    """The base of the three methods. A code, uint8, is 0 for a value that is not sent."""

    threshold: float = 1e-3  # T, for all layers; rounded to 12 significant bits
    layers: str = ""  # one T per layer instead, separated by ``/``: ``0.001/0.0005``

    always_feeds_back: ClassVar[bool] = True
    choose: ClassVar[Any]  # kernel (values, T, codes): writes the codes
    leave: ClassVar[Any]  # kernel (values, codes, T, residual): writes what stays

    def __post_init__(self) -> None:
        """Refuse impossible thresholds."""
        self._all()

    @property
    def is_by_layer(self) -> bool:
        """See :attr:`~netoffload.compressors.base.Compressor.is_by_layer`."""
        return bool(self.layers)

    def make_state(self, layout: Layout, *, seed: int = 0, rank: int = 0, error_feedback: bool = True) -> State:
        """Return the state before the first call; UsageError if there are more or fewer thresholds than layers."""
        self.thresholds(layout)
        return super().make_state(layout, seed=seed, rank=rank, error_feedback=error_feedback)

    def thresholds(self, layout: Layout) -> Float32Array:
        """Return the rounded T: float32[1], or float32[layers]."""
        thresholds = self._all()
        if self.layers and thresholds.size != len(layout.sizes):
            raise UsageError(f"{self.name}: {thresholds.size} thresholds for {len(layout.sizes)} layers")
        return thresholds

    def _all(self) -> Float32Array:
        try:
            given = [float(text) for text in self.layers.split("/")] if self.layers else [self.threshold]
        except ValueError as error:
            raise UsageError(f"{self.name}: layers={self.layers!r} is not NUMBER/NUMBER/...") from error
        return np.array([rounded_threshold(threshold) for threshold in given], np.float32)

    def _groups(self, layout: Layout) -> Iterator[tuple[slice, np.float32]]:
        """Give the values that have a threshold in common, and this threshold."""
        bounds = layout.offsets if self.layers else (0, layout.count)
        return zip(starmap(slice, pairwise(bounds)), self.thresholds(layout), strict=True)

    def _codes(self, values: Float32Array, layout: Layout) -> Uint8Array:
        codes = np.empty(values.size, np.uint8)
        for group, threshold in self._groups(layout):
            self.choose(values[group], threshold, codes[group])
        return codes

    def _multiplied(self, packed: Uint8Array, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        """Return the values of sent codes that are multiples of T."""
        codes, values = np.empty(layout.count, np.uint8), np.empty(layout.count, np.float32)
        sparse.scatter(index, form, np.append(packed, np.uint8(0)), codes)
        for group, threshold in self._groups(layout):
            multiply(codes[group], threshold, values[group])
        return values

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
            for group, threshold in self._groups(state.layout):
                self.leave(source[group], codes[group], threshold, residual[group])
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
        values_at = body.size - self._values_octets(sent)
        if values_at < sparse.INDEX_HEADER.size:
            raise CodecError(f"payload ends before its {sent} values")
        return self._unpack(body[values_at:], sent, body[sparse.INDEX_HEADER.size : values_at], form, layout)


@kernel
def reach(values: Float32Array, threshold: np.float32, codes: Uint8Array) -> None:
    """Write 1 where a magnitude reaches the threshold, else 0."""
    for i in range(values.size):
        codes[i] = abs(values[i]) >= threshold


@kernel
def binarize(values: Float32Array, threshold: np.float32, codes: Uint8Array) -> None:
    """Write 1 where a magnitude reaches the threshold, and the sign in bit 7; else 0."""
    for i in range(values.size):
        codes[i] = np.uint8(abs(values[i]) >= threshold) | np.uint8(values[i] <= -threshold) << np.uint8(7)


@kernel
def count_multiples(values: Float32Array, threshold: np.float32, codes: Uint8Array) -> None:
    """Write how many thresholds fit each magnitude, up to 127, and the sign in bit 7; 0 if none fits."""
    for i in range(values.size):
        magnitude = abs(values[i])
        multiples = np.int32(min(magnitude / threshold, np.float32(MOST_MULTIPLES)))
        # Rounding may lift a quotient to an integer that it does not reach.
        multiples -= np.int32(np.float32(multiples) * threshold > magnitude)
        negative = np.int32(values[i] < np.float32(0.0)) & np.int32(multiples > 0)
        codes[i] = multiples | negative << 7


@inline_kernel
def _multiple(code: np.uint8) -> np.float32:
    magnitude = np.int32(code & 127)
    return np.float32(-magnitude if code > 127 else magnitude)


@kernel
def multiply(codes: Uint8Array, threshold: np.float32, values: Float32Array) -> None:
    """Write the values of the codes of :func:`binarize` or :func:`count_multiples`."""
    for i in range(codes.size):
        values[i] = _multiple(codes[i]) * threshold


@kernel
def subtract(values: Float32Array, codes: Uint8Array, threshold: np.float32, residual: Float32Array) -> None:
    """Write what :func:`multiply` leaves of the values."""
    for i in range(values.size):
        residual[i] = values[i] - _multiple(codes[i]) * threshold


@kernel
def clear(values: Float32Array, codes: Uint8Array, _threshold: np.float32, residual: Float32Array) -> None:
    """Write the values that are not sent, and 0 for the others."""
    for i in range(values.size):
        residual[i] = np.float32(0.0) if codes[i] else values[i]


@dataclass(frozen=True)
class Wgt(Threshold):
    """Whole gradient transfer, algorithm (a)."""

    name: ClassVar[str] = "wgt"
    method_id: ClassVar[MethodId] = MethodId.WGT
    choose, leave = staticmethod(reach), staticmethod(clear)

    def _values_octets(self, sent: int) -> int:
        return 4 * sent

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return cast(Uint8Array, index.gather(codes, values).view(np.uint8))

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        packed, words = np.zeros(sent + 1, np.uint32), np.empty(layout.count, np.uint32)
        packed[:sent].view(np.uint8)[:] = octets
        sparse.scatter(index, form, packed, words)
        values = words.view(np.float32)
        if np.count_nonzero(self._codes(values, layout).view(np.bool_)) != sent:
            raise CodecError("payload has a value below its threshold")
        return values


@dataclass(frozen=True)
class Bgt(Threshold):
    """Binarized gradient transfer, algorithm (b): a code is that of ``qgt`` for T or -T."""

    name: ClassVar[str] = "bgt"
    method_id: ClassVar[MethodId] = MethodId.BGT
    choose, leave = staticmethod(binarize), staticmethod(subtract)

    def _values_octets(self, sent: int) -> int:
        return -(-sent // 8)

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return np.packbits(index.gather(codes, codes) >> np.uint8(7), bitorder="little")

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        bits = np.unpackbits(octets, bitorder="little")
        if bits[sent:].any():
            raise CodecError("payload has a sign behind its last value")
        return self._multiplied(bits[:sent] << np.uint8(7) | np.uint8(1), index, form, layout)


@dataclass(frozen=True)
class Qgt(Threshold):
    """Quantized gradient transfer, algorithm (c): a code is the octet on the wire."""

    name: ClassVar[str] = "qgt"
    method_id: ClassVar[MethodId] = MethodId.QGT
    choose, leave = staticmethod(count_multiples), staticmethod(subtract)

    def _values_octets(self, sent: int) -> int:
        return sent

    def _pack(self, index: sparse.Index, codes: Uint8Array, values: Float32Array) -> Uint8Array:
        return index.gather(codes, codes)

    def _unpack(self, octets: Uint8Array, sent: int, index: Uint8Array, form: int, layout: Layout) -> Float32Array:
        if np.any(octets & np.uint8(MOST_MULTIPLES) == 0):
            raise CodecError("payload has an octet with multiple 0")
        return self._multiplied(octets, index, form, layout)
