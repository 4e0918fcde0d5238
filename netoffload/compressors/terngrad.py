"""TernGrad (Wen et al., NIPS 2017): every gradient value becomes -1, 0 or +1 times a scaler.

Eq. 1, 2: value v of a group with scaler s becomes s * sign(v) with probability |v| / s, else 0; its mean is v. This is
rounding to one level (``rounding``). The scaler is the group's largest magnitude, or c standard deviations if that is
less (Eq. 9). Larger values are clipped, which is the only bias. The last layer may travel as float32 (section 4.2):
``exempt`` counts entries of the layout, so a layer with weights and biases counts as two.
docs/design/compressors.md has the octets of both ways.

**Scaler sharing** (section 3.1): each worker computes :meth:`TernGrad.scalers`. The largest of each scaler over all
workers goes to :meth:`TernGrad.encode_shared`. Then a sum of N ternary vectors has 2 N + 1 levels, and the server can
send it back in few bits instead of parameters (**parameter localisation**): :class:`TernarySum`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Float64Array, Uint8Array
from netoffload.compressors import Compressor, Layout, State, packing
from netoffload.compressors.base import HEADER_OCTETS, MethodId, body_of, empty_payload, require_finite, write_header
from netoffload.compressors.packing import Codes
from netoffload.compressors.rounding import round_to_levels, values_of_levels
from netoffload.compressors.scalers import Bounds, Scale, clip_groups, group_scalers, scalers_of
from netoffload.config import check_choice
from netoffload.errors import CodecError, UsageError

PACKINGS: Final = ("base3", "bits")

CLIP_FACTOR: Final = 2.5
"""The paper's c, found by cross validation and used in all its experiments (section 3.3)."""

_WIDTH: Final = 2

MAX_WORKERS: Final = 2**15 - 1
"""The largest N whose 2 N + 1 levels fit 16 bits."""


@dataclass(frozen=True)
class _Body:
    """The parts of a body: scalers | a stream of codes | values of the exempt layers."""

    bounds: Bounds  # of the groups of ternary values
    count: int  # number of ternary values
    stream_octets: int
    exempt: int  # number of values of the exempt layers

    @property
    def octets(self) -> int:
        """Length of the body."""
        return self._stream_end + 4 * self.exempt

    @property
    def _stream_at(self) -> int:
        return 4 * (self.bounds.size - 1)

    @property
    def _stream_end(self) -> int:
        return self._stream_at + self.stream_octets

    def payload(
        self, scalers: Float32Array, pack: Callable[[Uint8Array, int], object], exempt: Float32Array
    ) -> Uint8Array:
        """Return a payload whose header is not written; ``pack`` writes the stream at an octet of it."""
        # Packing writes whole words beyond the stream's end, where the exempt values come after it.
        payload = empty_payload(max(self.octets, self._stream_end + packing.SLACK))
        body = payload[HEADER_OCTETS:]
        body[: self._stream_at] = scalers.view(np.uint8)
        pack(body, self._stream_at)
        body[self._stream_end : self.octets] = exempt.view(np.uint8)
        return payload[: HEADER_OCTETS + self.octets]

    def split(self, body: Uint8Array) -> tuple[Float32Array, Uint8Array, Float32Array]:
        """Return scalers, the stream with the slack that unpacking needs, and the values of the exempt layers."""
        if body.size != self.octets:
            raise CodecError(f"ternary payload of {body.size} octets does not hold {self.count + self.exempt} floats")
        stream = packing.padded(body[self._stream_at : self._stream_end])
        return scalers_of(body[: self._stream_at]), stream, np.frombuffer(body[self._stream_end :], np.float32).copy()


@dataclass(frozen=True)
class TernGrad(Compressor):
    """Ternary gradients."""

    clip_factor: float = CLIP_FACTOR  # c of Eq. 9; 0 does not clip
    bucket: int = 0  # values per scaler; 0: one scaler per layer
    packing: str = "base3"  # 1.6 bits per value, or bits: 2
    exempt: int = 0  # how many of the layout's last entries travel as float32, 0..127

    name: ClassVar[str] = "terngrad"
    method_id: ClassVar[MethodId] = MethodId.TERNGRAD

    def __post_init__(self) -> None:
        """Refuse parameters out of range."""
        if not 0 <= self.clip_factor < float("inf"):
            raise UsageError(f"clip_factor must be 0 (no clipping) or positive, not {self.clip_factor}")
        if self.bucket < 0:
            raise UsageError(f"bucket must be 0 (a scaler per layer) or positive, not {self.bucket}")
        check_choice("packing", self.packing, PACKINGS)
        if not 0 <= self.exempt <= 127:
            raise UsageError(f"exempt must be 0 to 127 layers, not {self.exempt}")

    @property
    def is_by_layer(self) -> bool:
        """See :attr:`~netoffload.compressors.base.Compressor.is_by_layer`."""
        return self.exempt > 0

    @property
    def flags(self) -> int:
        """Bit 0: codes have two bits; the bits above: number of exempt layers."""
        return self.exempt << 1 | (self.packing == "bits")

    def scalers(self, values: Float32Array, state: State) -> Float32Array:
        """Return this worker's scalers, float32[groups], from which workers find the largest ones."""
        return self._scalers(self._source(values, state), state.layout)

    def encode_shared(self, values: Float32Array, scalers: Float32Array, state: State) -> Uint8Array:
        """Do :meth:`encode` with given scalers, float32[groups], not negative; values above them are clipped too.

        Each worker clips at c standard deviations of its own gradient, however large the shared scaler is (3.3).
        """
        bounds = self.body(state.layout).bounds
        groups = bounds.size - 1
        if scalers.dtype != np.float32 or scalers.shape != (groups,) or not (scalers >= 0).all():
            raise UsageError(f"scalers must be float32[{groups}], none negative, not {scalers.dtype}{scalers.shape}")
        require_finite(scalers, "the scalers' vector")
        source = self._source(values, state)
        clipped = clip_groups(source, bounds, self._scalers(source, state.layout)) if self.clip_factor else source
        return self._sent(self._payload(clipped, np.abs(scalers), state), source, state)  # abs: -0 has a sign bit

    def split(self, body: Uint8Array, layout: Layout) -> tuple[Float32Array, Codes, Float32Array]:
        """Return (scalers, codes of the ternary values, values of the exempt layers) of a body."""
        parts = self.body(layout)
        scalers, stream, rest = parts.split(body)
        codes = np.empty(parts.count, np.uint16)
        if self.packing == "bits":
            valid = packing.unpack(stream, 0, codes.view(np.uint8), 0, codes.size, _WIDTH) >= 0
        else:
            valid = packing.unpack_trits(stream, 0, codes, codes.size)
        if not valid:
            raise CodecError("ternary payload has an octet above 242, or digits behind its end")
        return scalers, codes, rest

    def values_of(self, scalers: Float32Array, codes: Codes, rest: Float32Array, layout: Layout) -> Float32Array:
        """Return the values of a body that :meth:`split` has split, float32[n]."""
        values = np.empty(layout.count, np.float32)
        bounds = self.body(layout).bounds
        if values_of_levels(codes, bounds, scalers, np.ones_like(scalers), values[: codes.size]):
            raise CodecError("ternary payload has a sign without a level, or a level where the scaler is 0")
        values[codes.size :] = rest
        return values

    def body(self, layout: Layout, width: int = 0) -> _Body:
        """Return the parts of a body; ``width``: bits per code, 0 for those of this packing."""
        ternary = Layout(layout.sizes[: max(len(layout.sizes) - self.exempt, 0)])
        width = width or (_WIDTH if self.packing == "bits" else 0)
        stream = packing.stream_octets(ternary.count, width) if width else packing.trit_octets(ternary.count)
        return _Body(ternary.groups(self.bucket), ternary.count, stream, layout.count - ternary.count)

    def _encode(self, values: Float32Array, state: State) -> Uint8Array:
        return self._payload(values, self._scalers(values, state.layout), state)

    def _decode(self, body: Uint8Array, layout: Layout) -> Float32Array:
        return self.values_of(*self.split(body, layout), layout)

    def _payload(self, values: Float32Array, scalers: Float32Array, state: State) -> Uint8Array:
        parts = self.body(state.layout)
        codes = np.empty(parts.count, np.uint16)
        round_to_levels(values, parts.bounds, scalers, np.ones_like(scalers), *state.key(), codes)

        def pack(target: Uint8Array, at: int) -> None:
            if self.packing == "bits":
                packing.pack(codes.view(np.uint8), 0, codes.size, _WIDTH, target, at)
            else:
                packing.pack_trits(codes, codes.size, target, at)

        return parts.payload(scalers, pack, values[codes.size :])

    def _scalers(self, values: Float32Array, layout: Layout) -> Float32Array:
        return group_scalers(values, self.body(layout).bounds, Scale.LARGEST, self.clip_factor)


@dataclass(frozen=True)
class TernarySum:
    """The server's answer (section 3.1): the mean of N ternary gradients with shared scalers, in 2 N + 1 levels."""

    uplink: TernGrad  # the workers' compressor
    workers: int  # N, 1..32767

    method_id: ClassVar[MethodId] = MethodId.TERNGRAD_SUM

    def __post_init__(self) -> None:
        """Refuse a number of workers out of range."""
        if not 1 <= self.workers <= MAX_WORKERS:
            raise UsageError(f"workers must be 1 to {MAX_WORKERS}, not {self.workers}")

    @property
    def width(self) -> int:
        """Bits per value, for 0..2 N."""
        return (2 * self.workers).bit_length()

    @property
    def flags(self) -> int:
        """The uplink's exempt layers."""
        return self.uplink.exempt << 1

    def encode(self, payloads: Sequence[Uint8Array], layout: Layout) -> Uint8Array:
        """Return the payload of the mean of N workers' payloads, which have the same scalers."""
        if len(payloads) != self.workers:
            raise UsageError(f"the sum of {self.workers} workers cannot be made of {len(payloads)} payloads")
        shared, sums, rest = self._added(payloads, layout)
        payload = self._body(layout).payload(
            shared,
            lambda target, at: packing.pack(sums.view(np.uint8), 0, sums.size, self.width, target, at),
            (rest / self.workers).astype(np.float32),
        )
        write_header(payload, self.method_id, self.flags, layout.count)
        return payload

    def decode(self, payload: Uint8Array, layout: Layout) -> Float32Array:
        """Return the mean gradient, float32[n]; CodecError if :meth:`encode` cannot have made these octets."""
        parts = self._body(layout)
        scalers, stream, rest = parts.split(body_of(payload, layout, self.method_id, self.flags))
        sums = np.empty(parts.count, np.uint16)
        end = packing.unpack(stream, 0, sums.view(np.uint8), 0, sums.size, self.width)
        if end < 0 or sums.max(initial=0) > 2 * self.workers:
            raise CodecError(f"payload has a sum that {self.workers} ternary digits cannot make")
        if not np.isfinite(rest).all():
            raise CodecError("payload has an exempt layer that is not finite")
        mean = (sums.astype(np.int32) - self.workers).astype(np.float32) / np.float32(self.workers)
        return np.concatenate((mean * np.repeat(scalers, np.diff(parts.bounds)), rest))

    def _body(self, layout: Layout) -> _Body:
        return self.uplink.body(layout, self.width)

    def _added(self, payloads: Sequence[Uint8Array], layout: Layout) -> tuple[Float32Array, Codes, Float64Array]:
        """Return (shared scalers, sums of digits plus N, sums of the exempt values in float64)."""
        for worker, payload in enumerate(payloads):
            body = body_of(payload, layout, self.uplink.method_id, self.uplink.flags)
            scalers, codes, rest = self.uplink.split(body, layout)
            if not np.isfinite(self.uplink.values_of(scalers, codes, rest, layout)).all():
                raise CodecError(f"the payload of worker {worker} has a value that is not finite")
            if worker == 0:
                shared, sums, total = scalers, np.full(codes.size, self.workers, np.uint16), rest.astype(np.float64)
            elif scalers.tobytes() != shared.tobytes():
                raise CodecError(f"the scalers of worker {worker} are not those of worker 0: share them first")
            else:
                total += rest
            sums += (codes >> 1) - ((codes & 1) << 1)  # codes 0, 2, 3 are the digits 0, +1, -1
        return shared, sums, total
