"""QSGD (Alistarh et al., NIPS 2017): every value becomes a sign and one of s levels of the vector's length.

A value v of a group becomes sign(v) * (l / s) * c. The level l is drawn so that the mean is v (``rounding``; QSGD 3.1,
Jiang and Agrawal, Eq. 18). c is the group's Euclidean length (``norm=l2``, for which the bounds on the variance are
proved) or its largest magnitude (``norm=max``, as in QSGD's experiments).

The rules for s are those of Jiang and Agrawal (NeurIPS 2018, 3.3 and 4): the variance ratio of Eq. 13 is at most
min(N / (4 s^2), sqrt(N) / s). docs/design/compressors.md has rules and octets.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array, Uint32Array
from netoffload.compiled.jit import kernel
from netoffload.compiled.octets import whole
from netoffload.compressors import Compressor, Layout, State, elias, packing
from netoffload.compressors.base import HEADER_OCTETS, MethodId, empty_payload, require_finite
from netoffload.compressors.packing import Codes
from netoffload.compressors.rounding import MAX_LEVEL, round_to_levels, values_of_levels
from netoffload.compressors.scalers import Bounds, Scale, group_scalers, scalers_of
from netoffload.config import check_choice
from netoffload.errors import CodecError, UsageError

RULES: Final = ("given", "n", "mn", "mpn")
NORMS: Final = {"l2": Scale.LENGTH, "max": Scale.LARGEST}
CODINGS: Final = ("fixed", *elias.FORMS)

_S_OCTETS: Final = 4

_TOP: Final = np.float32(MAX_LEVEL)

_S_MAX: Final = 2**30
"""Largest s: one rounded up fits into 32 bits."""

Widths = Uint8Array


@dataclass(frozen=True)
class Qsgd(Compressor):
    """Quantised gradients."""

    levels: float = 7.0  # s, 1..32767, for the rule ``given``
    rule: str = "given"  # given, n, mn or mpn
    batch: int = 1  # m, samples in a worker's batch, for the rules with m
    period: int = 1  # p, iterations between exchanges, for the rule mpn
    norm: str = "max"  # l2 or max
    bucket: int = 512  # values per group; 0: a group is a layer
    coding: str = "fixed"  # fixed (packed at fixed width), or Elias gamma, omega or gaps

    name: ClassVar[str] = "qsgd"
    method_id: ClassVar[MethodId] = MethodId.QSGD

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        if not 1 <= self.levels <= MAX_LEVEL:
            raise UsageError(f"levels must be 1 to {MAX_LEVEL}, not {self.levels}")
        check_choice("rule", self.rule, RULES)
        check_choice("norm", self.norm, tuple(NORMS))
        check_choice("coding", self.coding, CODINGS)
        if self.batch < 1 or self.period < 1 or self.bucket < 0:
            raise UsageError(
                f"batch and period must be at least 1 and bucket 0 (layers) or more, not {self.batch}, {self.period},"
                f" {self.bucket}"
            )

    @property
    def flags(self) -> int:
        """Coding in bits 0 and 1, norm in bit 2."""
        return CODINGS.index(self.coding) | (self.norm == "max") << 2

    def make_state(self, layout: Layout, *, seed: int = 0, rank: int = 0, error_feedback: bool = False) -> State:
        """Return the state before the first call; UsageError if the layout needs more levels than a code can hold."""
        self.levels_of(layout.groups(self.bucket))
        return super().make_state(layout, seed=seed, rank=rank, error_feedback=error_feedback)

    def levels_of(self, bounds: Bounds) -> Float32Array:
        """Return s of every group, float32[g]; UsageError if a code cannot hold so many levels."""
        if self.rule == "given":
            return np.full(bounds.size - 1, self.levels, np.float32)
        factor = {"n": 1, "mn": self.batch, "mpn": self.batch * self.period}[self.rule]
        factor = min(factor, _S_MAX**3)  # as a float it is finite
        levels = np.maximum(np.sqrt(np.diff(bounds) * float(factor)) / 2, 1).astype(np.float32)
        if (levels > _S_MAX).any():
            raise UsageError(
                f"qsgd: rule={self.rule} asks for {levels.max():.3g} levels, at most {_S_MAX} can be: give a smaller "
                "batch or period"
            )
        if self.norm == "max" and (levels > MAX_LEVEL).any():
            raise UsageError(
                f"qsgd: rule={self.rule} asks for {levels.max():.0f} levels, norm=max can have {MAX_LEVEL}: "
                "use norm=l2, for which the rules are made, or smaller buckets"
            )
        return levels

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        bounds = state.layout.groups(self.bucket)
        scalers, levels = group_scalers(values, bounds, NORMS[self.norm]), self.levels_of(bounds)
        with np.errstate(over="ignore"):  # s need not be an integer: the highest level may mean more than c
            require_finite((np.ceil(levels) / levels * scalers).astype(np.float32), "the highest level of a group")
        values, large = _without_large(values, bounds, scalers, levels)
        codes, widths = np.empty(values.size, np.uint16), np.empty(0, np.uint8)
        round_to_levels(values, bounds, scalers, levels, *state.key(), codes)
        if self.coding == "fixed":
            widths = self._widths(values, bounds, scalers, levels)
            stream = _streams_octets(bounds, widths)
        else:
            stream = -(-elias.stream_bits(codes, self.coding) // 8)
        sent_widths = widths if self.norm == "l2" else widths[:0]
        head = np.concatenate([part.view(np.uint8) for part in (_first(levels), scalers, large, sent_widths)])
        stream_at = HEADER_OCTETS + head.size
        payload = empty_payload(head.size + stream + packing.SLACK)
        payload[HEADER_OCTETS:stream_at] = head
        if self.coding == "fixed":
            _pack_groups(codes.view(np.uint8), bounds, widths, payload, stream_at)
        else:
            elias.write_stream(codes, self.coding, payload, stream_at)
        return payload[: stream_at + stream]

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        bounds = layout.groups(self.bucket)
        groups = bounds.size - 1
        levels = self.levels_of(bounds)
        head = _S_OCTETS + 4 * groups
        if body.size < head:
            raise CodecError(f"QSGD payload of {body.size} octets is shorter than its {groups} scalers")
        if body[:_S_OCTETS].tobytes() != _first(levels).tobytes():
            raise CodecError("QSGD payload was made with another number of levels")
        scalers = scalers_of(body[_S_OCTETS:head])
        indices, large, body = _large_of(body[head:], layout.count, levels)
        if self.coding == "fixed":
            codes = self._unpacked(body, bounds, scalers, levels)
        else:
            codes = elias.read_stream(body, layout.count, self.coding)
        if codes[indices].any():
            raise CodecError("QSGD payload has a level for a value that travels as float32")
        values = np.empty(layout.count, np.float32)
        if values_of_levels(codes, bounds, scalers, levels, values):
            raise CodecError("QSGD payload has a sign without a level, or a level that its s does not have")
        values[indices] = large
        return values

    def _widths(self, values: Float32Array, bounds: Bounds, scalers: Float32Array, levels: Float32Array) -> Widths:
        """Return the bits of the codes of every group, enough for the highest level that rounding can reach."""
        if self.norm == "max":
            return _widths_of(scalers, levels)
        largest = group_scalers(values, bounds, Scale.LARGEST)
        divisor = np.where(scalers > 0, scalers, np.float32(1))
        # The same operations as in ``rounding`` keep the order of values, so no level is higher than the largest's.
        # A group with only large values has the width of level 1.
        return _widths_of(scalers, np.maximum(np.minimum(largest / divisor * levels, levels), np.float32(1)))

    def _unpacked(self, body: Uint8Array, bounds: Bounds, scalers: Float32Array, levels: Float32Array) -> Codes:
        """Return the codes behind the scalers, at fixed widths."""
        widths = _widths_of(scalers, levels)
        if self.norm == "l2":
            limits, widths = np.minimum(widths, packing.MAX_WIDTH), body[: scalers.size].copy()
            if (
                widths.size < scalers.size
                or ((widths > limits) | (widths == 1) | ((widths == 0) != (scalers == 0))).any()
            ):
                raise CodecError("QSGD payload has a width that its levels do not have")
            body = body[scalers.size :]
        if body.size != _streams_octets(bounds, widths):
            raise CodecError(f"QSGD streams of {body.size} octets do not hold {bounds[-1]} codes")
        codes = np.zeros(int(bounds[-1]), np.uint16)
        if not _unpack_groups(packing.padded(body), bounds, widths, codes.view(np.uint8)):
            raise CodecError("QSGD payload has bits behind a stream's end")
        return codes


def _first(levels: Float32Array) -> Float32Array:
    """Return s of the first group, float32[1]; 0 without groups."""
    return levels[:1] if levels.size else np.zeros(1, np.float32)


def _without_large(
    values: Float32Array, bounds: Bounds, scalers: Float32Array, levels: Float32Array
) -> tuple[Float32Array, Uint8Array]:
    """Return (values with those above MAX_LEVEL set to 0, the octets of ``large``, which may be none)."""
    if not (levels > MAX_LEVEL).any():
        return values, np.zeros(0, np.uint8)
    above = [
        # The same operations as in ``rounding``: a value that stays has at most MAX_LEVEL.
        bounds[group] + np.flatnonzero(np.abs(values[bounds[group] : bounds[group + 1]]) / scalers[group] * s > _TOP)
        for group, s in enumerate(levels)
        if s > MAX_LEVEL and scalers[group] > 0
    ]
    indices = np.concatenate([np.zeros(0, np.int64), *above]).astype("<u4")
    rest = values.copy()
    rest[indices] = 0
    parts = (np.array([indices.size], "<u4"), indices, values[indices])
    return rest, np.concatenate([part.view(np.uint8) for part in parts])


def _large_of(body: Uint8Array, count: int, levels: Float32Array) -> tuple[Uint32Array, Float32Array, Uint8Array]:
    """Return (indices, values, the octets behind) of ``large``, which is missing if no s is above MAX_LEVEL."""
    if not (levels > MAX_LEVEL).any():
        return np.zeros(0, np.uint32), np.zeros(0, np.float32), body
    number = int.from_bytes(body[:4].tobytes(), "little")
    end = 4 + 8 * number
    if body.size < end:
        raise CodecError(f"QSGD payload is too short for {number} values above level {MAX_LEVEL}")
    indices = np.frombuffer(body[4 : 4 + 4 * number], "<u4").astype(np.uint32)
    if number and (indices[-1] >= count or (indices[1:] <= indices[:-1]).any()):
        raise CodecError("QSGD payload has indices of large values that do not ascend, or end outside the gradient")
    return indices, np.frombuffer(body[4 + 4 * number : end], "<f4"), body[end:]


def _widths_of(scalers: Float32Array, tops: Float32Array) -> Widths:
    # A float below 2^16 is exact in float64, where frexp's exponent is the bit length.
    lengths = np.frexp(np.ceil(tops).astype(np.float64))[1] + 1
    return np.where((scalers > 0) & (tops > 0), lengths, 0).astype(np.uint8)


def _streams_octets(bounds: Bounds, widths: Widths) -> int:
    return int(((np.diff(bounds) * widths + 7) >> 3).sum())


@kernel
def _pack_groups(codes: Uint8Array, bounds: Int64Array, widths: Uint8Array, target: Uint8Array, at: int) -> None:
    for group in range(widths.size):
        if widths[group]:
            first, width = int(bounds[group]), int(whole(widths[group]))
            at = packing.pack(codes, first, int(bounds[group + 1]) - first, width, target, at)


@kernel
def _unpack_groups(stream: Uint8Array, bounds: Int64Array, widths: Uint8Array, codes: Uint8Array) -> bool:
    """Write the codes; return whether the unused bits of every stream's last octet are 0."""
    at = 0
    for group in range(widths.size):
        if widths[group]:
            first, width = int(bounds[group]), int(whole(widths[group]))
            at = packing.unpack(stream, at, codes, first, int(bounds[group + 1]) - first, width)
            if at < 0:
                return False
    return True
