"""Which exchange pays on a network: arithmetic alone. Its figures come from ``advice_measure``.

Of a gradient of n octets, summed by p ranks over links of R octets per second with a one-way delay d::

    step = computing + exchange
    exchange = max(wire / R, coding) + delays      coded chunk by chunk: rings, inline and through NICs
    exchange = wire / R + coding + delays          coded as a whole: payloads that are gathered

    way                      wire                 coding                              delays
    ring                     2(p-1)/p n           0                                   (2(p-1) + ceil(log2 p)) d
    ring, inline             2(p-1)/p n / ratio   every hop: wire n, encoded, decoded    the same
    ring, through NICs       likewise             likewise, in the NICs               and those of the NICs
    gloo                     2(p-1)/p n           0                                   2(p-1) d
    gathered payloads        (p-1) n / ratio      n encoded, p n decoded              (1 + ceil(log2 p)) d
    periodic, every k steps  a k-th of a ring     0                                   a k-th of a ring's

ceil(log2 p) are the rounds of the meeting with which each call of ours begins. A ring carries partial sums, which have
another ratio than one gradient has; see ``advice_codecs``.

Left out: headers; computing that goes on while gradients are on their way; adding; the kernel's own work; that ranks
and NICs share cores; what an error or a period does to learning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from netoffload.bench.experiment import Finding
from netoffload.methods.floats import ring_octets
from netoffload.methods.registry import PERIOD_DEFAULT

WORTH: Final = 1.05
"""A speed-up below this is not worth a change."""

ERROR_MAX: Final = 0.1
"""Relative error of a gradient up to which an exchange is recommended."""

NIC_DELAY_S: Final = 16e-6
"""What two NICs add to a delay: half of what they add to a round trip (docs/lab/nic.md, round trips)."""

PLAIN: Final = "ring"
INLINE: Final = ("packed", "bounded", "inceptionn")
"""Codecs of the rings that are coded inline."""

GATHERED: Final = ("8bit-dynamic", "terngrad", "qsgd:levels=15")
"""Compressors of the rows whose payloads are gathered."""


@dataclass(frozen=True)
class Network(Finding):
    """A network that carries ``rate_bps`` out of every rank and into it at the same time.

    Attributes:
        ranks: number of them.
        rate_bps: of a link.
        delay_s: from a rank to another one, one way.
        source: ``given``, ``measured between ranks``, ...
    """

    ranks: int
    rate_bps: float
    delay_s: float
    source: str = "given"

    def wire_s(self, octets: float) -> float:
        """Return how long a link carries that many octets."""
        return octets * 8 / self.rate_bps

    @property
    def meeting_s(self) -> float:
        """What the meeting before a call of ours takes."""
        return math.ceil(math.log2(self.ranks)) * self.delay_s

    @property
    def ring_s(self) -> float:
        """What the steps of a ring take beside its octets."""
        return 2 * (self.ranks - 1) * self.delay_s


@dataclass(frozen=True)
class Workload(Finding):
    """What a rank does in a step.

    Attributes:
        name: of the model or file.
        gradient_octets: as float32.
        compute_s: forward, backward and update.
    """

    name: str
    gradient_octets: int
    compute_s: float


@dataclass(frozen=True)
class Coding(Finding):
    """What a codec or compressor does to a gradient, on one core of this machine.

    Attributes:
        ratio: octets of float32 for each octet that travels.
        encode_Bps: octets of float32 per second.
        decode_Bps: likewise.
        relative_error: root mean square of the error over that of the gradient.
        worst_over_bound: the largest error over the codec's bound; None: it has no bound.
        options: of ``CompressionState``, to have it.
    """

    ratio: float
    encode_Bps: float  # noqa: N815 - the unit as it is written
    decode_Bps: float  # noqa: N815
    relative_error: float
    worst_over_bound: float | None = None
    options: str = ""

    def coding_s(self, encoded_octets: float, decoded_octets: float) -> float:
        """Return how long one core encodes and decodes that many octets of float32."""
        return encoded_octets / self.encode_Bps + decoded_octets / self.decode_Bps


@dataclass(frozen=True)
class Prediction(Finding):
    """What an exchange makes of a step.

    Attributes:
        exchange: its name in the table.
        how: what a torch script says to have it.
        wire_octets: that a rank sends in a step.
        wire_s: how long its link carries them.
        codec_s: how long a core codes.
        delays_s: what the delay of the links adds.
        step_s: the step.
        speedup: the plain ring's step over this one.
        relative_error: as of :class:`Coding`; 0: exact; None: another kind of difference, that of the weights.
        worst_over_bound: as of :class:`Coding`.
        measured_s: the step, tried; None: it was not.
    """

    exchange: str
    how: str
    wire_octets: float
    wire_s: float
    codec_s: float
    delays_s: float
    step_s: float
    speedup: float = 1.0
    relative_error: float | None = 0.0
    worst_over_bound: float | None = None
    measured_s: float | None = None

    @property
    def likely_s(self) -> float:
        """The step as it was measured, else as it is predicted."""
        return self.step_s if self.measured_s is None else self.measured_s


def predict(network: Network, work: Workload, codings: Mapping[str, Coding]) -> list[Prediction]:
    """Return what to expect of every exchange, the plain ring first.

    Args:
        network: between the ranks; two at least.
        work: of a step.
        codings: by codec or compressor; exchanges of others are left out.
    """
    plain = ring(network, work)
    rows = [plain]
    rows += [ring(network, work, codec, codings[codec]) for codec in INLINE if codec in codings]
    rows += [ring(network, work, codec, codings[codec], NIC_DELAY_S) for codec in INLINE[:1] if codec in codings]
    gloo = dataclasses.replace(plain, exchange="gloo", how='init_process_group("gloo")', delays_s=network.ring_s)
    rows.append(dataclasses.replace(gloo, step_s=plain.step_s - network.meeting_s))
    rows += [gathered(network, work, name, codings[name]) for name in GATHERED if name in codings]
    rows.append(periodic(work, plain, PERIOD_DEFAULT))
    return [dataclasses.replace(row, speedup=plain.step_s / row.step_s) for row in rows]


def ring(
    network: Network, work: Workload, codec: str = "", coding: Coding | None = None, nic_delay_s: float = 0.0
) -> Prediction:
    """Return a ring: plain, or by a codec of the ranks, or of NICs that add that much to every delay."""
    octets = ring_octets(work.gradient_octets, network.ranks)
    through = dataclasses.replace(network, delay_s=network.delay_s + nic_delay_s)
    delays_s = network.meeting_s + through.ring_s
    if coding is None:
        wire_s, how = network.wire_s(octets), 'CompressionState(offload="off")'
        return Prediction(PLAIN, how, octets, wire_s, 0.0, delays_s, work.compute_s + wire_s + delays_s)
    wire_s, codec_s = network.wire_s(octets / coding.ratio), coding.coding_s(octets, octets)
    offload = "nic" if nic_delay_s else "inline"
    return Prediction(
        f"{codec} in NICs" if nic_delay_s else f"{codec} inline",
        f'CompressionState(offload="{offload}", {coding.options})',
        octets / coding.ratio,
        *(wire_s, codec_s, delays_s),
        step_s=work.compute_s + max(wire_s, codec_s) + delays_s,
        relative_error=coding.relative_error,
        worst_over_bound=coding.worst_over_bound,
    )


def gathered(network: Network, work: Workload, name: str, coding: Coding) -> Prediction:
    """Return everybody's payload to everybody."""
    octets = (network.ranks - 1) * work.gradient_octets / coding.ratio
    wire_s = network.wire_s(octets)
    codec_s = coding.coding_s(work.gradient_octets, network.ranks * work.gradient_octets)
    delays_s = network.meeting_s + network.delay_s
    return Prediction(
        name,
        f"CompressionState({coding.options})",
        *(octets, wire_s, codec_s, delays_s),
        step_s=work.compute_s + wire_s + codec_s + delays_s,
        relative_error=coding.relative_error,
    )


def periodic(work: Workload, plain: Prediction, period: int) -> Prediction:
    """Return the mean of the weights every ``period`` steps, by the plain ring; a step is the mean of a period's."""
    return Prediction(
        f"Periodic, every {period}",
        f"Periodic(model, optimizer, every={period})",
        *(plain.wire_octets / period, plain.wire_s / period, 0.0, plain.delays_s / period),
        step_s=work.compute_s + (plain.step_s - work.compute_s) / period,
        relative_error=None,
    )


def recommended(rows: Sequence[Prediction], error_max: float = ERROR_MAX) -> Prediction:
    """Return the exchange to take: the fastest one whose error is small enough, if it is worth it; else the plain ring.

    Args:
        rows: of :func:`predict`. If some were tried, they alone are compared, by what was measured.
        error_max: relative error of a gradient. Exchanges of weights are not compared by it, so none is recommended.
    """
    compared = [row for row in rows if row.measured_s is not None] or rows
    allowed = [row for row in compared if row.relative_error is not None and row.relative_error <= error_max]
    best = min(allowed, key=lambda row: row.likely_s, default=rows[0])
    return best if rows[0].likely_s >= WORTH * best.likely_s else rows[0]


def in_words(rows: Sequence[Prediction], error_max: float = ERROR_MAX) -> str:
    """Return the recommendation as one line."""
    best, plain = recommended(rows, error_max), rows[0]
    source = "predicted" if plain.measured_s is None else "measured"
    if best is plain:
        return (
            f"Stay with the plain ring, {plain.likely_s * 1e3:.3g} ms per step ({source}): nothing with an error of at "
            f"most {error_max:.0%} makes a step {WORTH:g} times as fast."
        )
    assert best.relative_error is not None
    return (
        f"Take {best.exchange}: {best.likely_s * 1e3:.3g} instead of {plain.likely_s * 1e3:.3g} ms per step "
        f"({source}), {plain.likely_s / best.likely_s:.1f} times as fast, with an error of {best.relative_error:.1%}. "
        f"In torch: {best.how}"
    )
