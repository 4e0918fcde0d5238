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

ceil(log2 p) is the number of rounds of the meeting with which each call of ours begins. A ring carries partial sums,
whose ratio differs from that of one gradient; see ``advice_codecs``.

The prediction leaves out headers, computing that goes on while gradients are on their way, adding, the kernel's own
work, cores that ranks and NICs share, and what an error or a period does to learning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from netoffload.lab.bench.experiment import Finding
from netoffload.methods.floats import ring_octets
from netoffload.methods.registry import PERIOD_DEFAULT

WORTH: Final = 1.05
"""The least speed-up that is worth a change."""

ERROR_MAX: Final = 0.1
"""Relative error of a gradient up to which an exchange is recommended."""

NIC_DELAY_S: Final = 16e-6
"""Seconds that two NICs add to a delay: half of what they add to a round trip (docs/lab/nic.md, round trips)."""

PLAIN: Final = "ring"
INLINE: Final = ("packed", "bounded", "inceptionn")
"""Codecs of the rings whose ranks compress by themselves."""

GATHERED: Final = ("8bit-dynamic", "terngrad", "qsgd:levels=15")
"""Compressors whose payloads all ranks gather."""


@dataclass(frozen=True)
class Network(Finding):
    """A network that carries ``rate_bps`` out of every rank and into it at the same time.

    Attributes:
        ranks: number of ranks.
        rate_bps: rate of a link.
        delay_s: from a rank to another one, one way.
        source: where the figures come from: ``given``, ``measured between ranks``, ...
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
        """Time of the meeting before a call of ours."""
        return math.ceil(math.log2(self.ranks)) * self.delay_s

    @property
    def ring_s(self) -> float:
        """Time that the delays of a ring's steps add, its meeting included."""
        return 2 * (self.ranks - 1) * self.delay_s


@dataclass(frozen=True)
class Workload(Finding):
    """What a rank does in a step.

    Attributes:
        name: name of the model or file.
        gradient_octets: length of the gradient as float32.
        compute_s: time of forward, backward and update.
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
        decode_Bps: octets of float32 per second.
        relative_error: root mean square of the error over that of the gradient.
        worst_over_bound: the largest error over the codec's bound; None: the codec has no bound.
        options: arguments of ``CompressionState`` that select this codec or compressor.
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
    """The predicted step with one exchange.

    Attributes:
        exchange: name of the exchange in the table.
        how: code that a torch script needs for this exchange.
        wire_octets: octets that a rank sends in a step.
        wire_s: time that its link needs for them.
        codec_s: time that a core needs to encode and decode.
        delays_s: time that the delays of the links add.
        step_s: predicted time of the step.
        speedup: the plain ring's step over this one.
        relative_error: as in :class:`Coding`; 0: exact; None: the exchange averages weights and has no such error.
        worst_over_bound: as in :class:`Coding`.
        measured_s: measured time of the step; None: not tried.
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
        """The measured time of the step, or the predicted one if the exchange was not tried."""
        return self.step_s if self.measured_s is None else self.measured_s


def predict(network: Network, work: Workload, codings: Mapping[str, Coding]) -> list[Prediction]:
    """Return the prediction for every exchange, the plain ring first.

    Args:
        network: the network between the ranks, at least two.
        work: what a rank does in a step.
        codings: findings by codec or compressor; exchanges with others are left out.
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
    """Return the prediction for a ring: plain, inline, or through NICs, which add ``nic_delay_s`` to every delay."""
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
    """Return the prediction if every rank sends its payload to every other rank."""
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
    """Return the prediction for averaging weights every ``period`` steps by the plain ring: a period's mean step."""
    return Prediction(
        f"Periodic, every {period}",
        f"Periodic(model, optimizer, every={period})",
        *(plain.wire_octets / period, plain.wire_s / period, 0.0, plain.delays_s / period),
        step_s=work.compute_s + (plain.step_s - work.compute_s) / period,
        relative_error=None,
    )


def recommended(rows: Sequence[Prediction], error_max: float = ERROR_MAX) -> Prediction:
    """Return the fastest exchange with a small error, or the plain ring if that is not :data:`WORTH` times as fast.

    Args:
        rows: predictions of :func:`predict`. If some were tried, only these are compared, by their measured times.
        error_max: largest relative error of a gradient. Exchanges of weights have no such error and are never taken.
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
