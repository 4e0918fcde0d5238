"""Which exchange pays on a network: arithmetic alone. Its figures come from ``netoffload.lab.bench.advice``.

A step takes its computing and its exchange, whose time is that of ``netoffload.lab.models.exchange``. Rings code
chunk by chunk, so the slower of wire and coding counts. Payloads that are gathered are coded as a whole, so both count.
Of p ranks' gradients of n octets::

    way                      on the wire          coding                              delays
    ring                     2(p-1)/p n           0                                   2(p-1), and the meeting's
    ring, inline             the same / ratio     what travels, encoded and decoded   the same
    ring, through NICs       likewise             likewise, in the NICs               and those of the NICs
    gloo                     2(p-1)/p n           0                                   2(p-1)
    gathered payloads        (p-1) n / ratio      n encoded, p n decoded              1, and the meeting's
    periodic, every k steps  a k-th of a ring     0                                   a k-th of a ring's

Each call of ours begins with a meeting. A ring carries partial sums, whose ratio differs from that of one gradient; see
``lab.bench.advice``.

The prediction leaves out headers, computing that goes on while gradients are on their way, adding, the kernel's own
work, cores that ranks and NICs share, and what an error or a period does to learning.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from netoffload.collectives.schedule import ring_octets
from netoffload.lab.declared import Column, Finding, words
from netoffload.lab.models.exchange import Link, gathered_s, meeting_s, ring_delays_s, ring_s
from netoffload.methods.registry import PERIOD_DEFAULT

WORTH: Final = 1.05  # the least speed-up that is worth a change
ERROR_MAX: Final = 0.1  # relative error of a gradient up to which an exchange is recommended

NIC_DELAY_S: Final = 16e-6
"""Seconds that two NICs add to a delay: half of what they add to a round trip (docs/lab/nic.md, round trips)."""

PLAIN: Final = "ring"
INLINE: Final = ("packed", "bounded", "inceptionn")
"""Codecs of the rings whose ranks compress by themselves."""

GATHERED: Final = ("8bit-dynamic", "terngrad", "qsgd:levels=15")
"""Compressors whose payloads all ranks gather."""


@dataclass(frozen=True)
class Network(Finding):
    """A network that carries ``rate_bps`` out of every rank and into it at the same time."""

    ranks: int
    rate_bps: float
    delay_s: float  # from a rank to another one, one way
    source: str = "given"  # where the figures come from: ``given``, ``measured between ranks``, ...

    def link(self, more_delay_s: float = 0.0) -> Link:
        """Return a link of the network, without adding."""
        return Link.of_rate(self.rate_bps, self.delay_s + more_delay_s)

    @property
    def meeting_s(self) -> float:
        """Time of the meeting before a call of ours."""
        return meeting_s(self.link(), self.ranks)


@dataclass(frozen=True)
class Workload(Finding):
    """What a rank does in a step: forward, backward, update, and a gradient of that many octets of float32."""

    name: str
    gradient_octets: int
    compute_s: float


@dataclass(frozen=True)
class Coding(Finding):
    """What a codec or compressor does to a gradient, on one core of this machine."""

    ratio: float  # octets of float32 for each octet that travels
    encode_Bps: float  # noqa: N815 - the unit as it is written
    decode_Bps: float  # noqa: N815
    relative_error: float  # root mean square of the error over that of the gradient
    worst_over_bound: float | None = None  # the largest error over the codec's bound; None: the codec has no bound
    options: str = ""  # arguments of ``CompressionState`` that select this codec or compressor

    @property
    def hop_Bps(self) -> float:  # noqa: N802
        """Octets of float32 per second that one core encodes, and decodes as well."""
        return 1 / (1 / self.encode_Bps + 1 / self.decode_Bps)


@dataclass(frozen=True)
class Prediction(Finding):
    """The predicted step with one exchange; ``how`` is the code that a torch script needs for it.

    ``relative_error`` is 0 for an exact exchange, None for one that averages weights. ``measured_s``: None, not tried.
    """

    exchange: Annotated[str, words("exchange")]
    how: str
    wire_octets: Annotated[float, Column("MB", ".3g", 1e6)]
    wire_s: Annotated[float, Column("wire", ".1f", 1e-3)]
    codec_s: Annotated[float, Column("codec", ".1f", 1e-3)]
    delays_s: Annotated[float, Column("delays", ".1f", 1e-3)]
    step_s: Annotated[float, Column("step", ".1f", 1e-3)]
    speedup: Annotated[float, Column("x ring", ".2f")] = 1.0
    relative_error: Annotated[float | None, Column("error %", ".1f", 0.01)] = 0.0
    worst_over_bound: Annotated[float | None, Column("/ bound", ".2f")] = None
    measured_s: Annotated[float | None, Column("tried", ".1f", 1e-3)] = None

    @property
    def likely_s(self) -> float:
        """The measured time of the step, or the predicted one if the exchange was not tried."""
        return self.step_s if self.measured_s is None else self.measured_s


def predict(network: Network, work: Workload, codings: Mapping[str, Coding]) -> list[Prediction]:
    """Return the prediction for every exchange whose coding is known, the plain ring first; two ranks at least."""
    plain = ring(network, work)
    rows = [plain]
    rows += [ring(network, work, codec, codings[codec]) for codec in INLINE if codec in codings]
    rows += [ring(network, work, codec, codings[codec], NIC_DELAY_S) for codec in INLINE[:1] if codec in codings]
    gloo = dataclasses.replace(
        plain, exchange="gloo", how='init_process_group("gloo")', delays_s=plain.delays_s - network.meeting_s
    )
    rows.append(dataclasses.replace(gloo, step_s=plain.step_s - network.meeting_s))
    rows += [gathered(network, work, name, codings[name]) for name in GATHERED if name in codings]
    rows.append(periodic(work, plain, PERIOD_DEFAULT))
    return [dataclasses.replace(row, speedup=plain.step_s / row.step_s) for row in rows]


def ring(
    network: Network, work: Workload, codec: str = "", coding: Coding | None = None, nic_delay_s: float = 0.0
) -> Prediction:
    """Return the prediction for a ring: plain, inline, or through NICs, which add ``nic_delay_s`` to every delay."""
    vector_octets, link = work.gradient_octets, network.link(nic_delay_s)
    octets, before_s = ring_octets(vector_octets, network.ranks), work.compute_s + network.meeting_s
    delays_s = network.meeting_s + ring_delays_s(link, network.ranks)
    if coding is None:
        how, step_s = 'CompressionState(offload="off")', before_s + ring_s(link, network.ranks, vector_octets)
        return Prediction(PLAIN, how, octets, link.beta_s * octets, 0.0, delays_s, step_s)
    coded, offload = link.coded(coding.ratio, coding.hop_Bps), "nic" if nic_delay_s else "inline"
    return Prediction(
        f"{codec} in NICs" if nic_delay_s else f"{codec} inline",
        f'CompressionState(offload="{offload}", {coding.options})',
        octets / coding.ratio,
        *(link.coded(coding.ratio).beta_s * octets, octets / coding.hop_Bps, delays_s),
        step_s=before_s + ring_s(coded, network.ranks, vector_octets),
        relative_error=coding.relative_error,
        worst_over_bound=coding.worst_over_bound,
    )


def gathered(network: Network, work: Workload, name: str, coding: Coding) -> Prediction:
    """Return the prediction if every rank sends its payload to every other rank."""
    vector_octets, link = work.gradient_octets, network.link().coded(coding.ratio)
    sent_octets = (network.ranks - 1) * vector_octets
    codec_s = vector_octets / coding.encode_Bps + network.ranks * vector_octets / coding.decode_Bps
    exchange_s = network.meeting_s + gathered_s(link, network.ranks, vector_octets) + codec_s
    return Prediction(
        name,
        f"CompressionState({coding.options})",
        *(sent_octets / coding.ratio, link.beta_s * sent_octets, codec_s, network.meeting_s + link.alpha_s),
        step_s=work.compute_s + exchange_s,
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
