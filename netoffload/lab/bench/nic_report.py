"""The report of ``netoffload bench nic``: medians of checked streams, as JSON values.

::

    kernel_Gbps, bypass_Gbps            goodput over unshaped wires, without NICs and through them untagged
    bypass_kernel_Gbps                  the same untagged where the kernel carries it past the NICs' processes
    tagged_Gbps                         coalesced, coalesced_ipcomp, per_segment, coalesced_keyed: before compression
    shaped[]                            per rate: the same, ratio, frames_per_MB, wire_octets_per_MB, goodput over what
                                        the link allows, what limited it
    rtt_us                              kernel, nic, bypass_kernel ... (medians), 99th percentiles, and what is added
    peers                               per tunnel: version, goodput by rate, or why there is none
    ..._over_...                        medians of the rounds' ratios over unshaped wires
    cpu_s_per_GB                        NICs' and whole machine's, unshaped
    streams[]                           everything about every contender: spread, wire, CPU, limit, and the share of
                                        the cores that a hypervisor gave to others
    missing                             rates that were asked for and not measured, and why
    configuration, versions, cpu        what it was measured with
    load_average                        before and after

``ratio`` is the untagged stream's octets on the wire per payload octet, headers included, over the coalesced stream's.
Untagged goodput times this ratio is what a link would carry if the NICs took no time; ``over_link`` is the goodput as a
share of that. A MB is 10^6 octets of payload, a GB 10^9.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Final

from netoffload.lab.bench import vpn_peers
from netoffload.lab.bench.experiment import Contender
from netoffload.lab.bench.settings import NicBenchSettings
from netoffload.lab.bench.throughput import StreamResult, percentile
from netoffload.lab.declared import Column, Finding, Table, left_out, words
from netoffload.lab.results import Spread
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import Payload
from netoffload.machine.environment import cpu_model, system_versions
from netoffload.nic_options import NicSettings

FULL_SHARE: Final = 0.95
"""Busy share of the time from which on a link or the cores count as full."""

STOLEN_SHARE_TOLD: Final = 0.02
"""Share of the cores' time; if a hypervisor takes less, the report does not mention it."""

TAGGED: Final = ("coalesced", "coalesced_ipcomp", "per_segment", "coalesced_keyed")
"""The contenders of ``nic`` whose streams are compressed."""

Streams = Sequence[StreamResult]
"""The streams of one contender in one stage, at least one."""


@dataclass
class Stage:
    """One rate of the wires (None: unshaped): testbeds by kind, and what takes turns on them.

    Samples of ``contenders`` are streams, those of ``pings`` round-trip times in microseconds.
    """

    rate_bps: int | None
    payload: Payload
    beds: dict[str, Testbed]
    contenders: dict[str, Contender[StreamResult]] = field(default_factory=dict)
    pings: dict[str, Contender[list[float]]] = field(default_factory=dict)


@dataclass
class Measured:
    """The finished stages, and the load before the first one."""

    unshaped: Stage | None = None
    shaped: list[Stage] = field(default_factory=list)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])


@dataclass(frozen=True)
class Cpu(Finding):
    """CPU seconds per 10^9 octets of payload: of the processes that carry the stream, and of the whole machine."""

    carriers: float
    machine: float


@dataclass(frozen=True)
class StreamRow(Finding):
    """Everything about one contender in one stage; ``rate`` None: unshaped."""

    rate: Annotated[str | None, words("link", none="unshaped")]
    contender: Annotated[str, words("stream")]
    Gbps: Annotated[
        Spread,
        Column("Gb/s", ".3g", of=attrgetter("median")),
        Column("min", ".3g", of=attrgetter("minimum")),
        Column("max", ".3g", of=attrgetter("maximum")),
    ]
    octets: int
    seconds: list[float]
    frames_per_MB: Annotated[float, Column("frames", ".0f")]  # noqa: N815
    wire_octets_per_MB: Annotated[float, Column("octets", ".3f", 1e6)]  # noqa: N815
    raw_floats: int
    cpu_s_per_GB: Annotated[  # noqa: N815
        Cpu, Column("own", ".1f", of=attrgetter("carriers")), Column("all", ".1f", of=attrgetter("machine"))
    ]
    link_share: float | None
    machine_share: float
    stolen_share: float
    limit: Annotated[str, words("limit")]


@dataclass(frozen=True)
class ShapedRow(Finding):
    """One rate of the wires: figures by contender; goodput has a key for each contender in the record."""

    rate: str
    goodput_gbps: dict[str, float]
    ratio: float
    frames_per_MB: dict[str, float]  # noqa: N815
    wire_octets_per_MB: dict[str, float]  # noqa: N815
    over_link: dict[str, float]
    limit: dict[str, str]
    cpu_s_per_GB: dict[str, Cpu]  # noqa: N815
    rates_bps_measured: dict[str, float | None]

    def to_record(self) -> dict[str, Any]:
        """Return the record."""
        record = super().to_record()
        return record | {f"{name}_Gbps": gbps for name, gbps in record.pop("goodput_gbps").items()}


@dataclass(frozen=True)
class PeerRow(Finding):
    """Results for one VPN tunnel: goodput by rate, or why there is none. The record has the keys that are not None."""

    missing: str | None = left_out()
    version: str | None = left_out()
    Gbps: dict[str, float] | None = left_out()
    coalesced_over_peer: dict[str, float] | None = left_out()
    failed: dict[str, str] | None = left_out()


@dataclass(frozen=True)
class Findings(Finding):
    """The report; the module's docstring has the keys."""

    kernel_Gbps: float  # noqa: N815
    bypass_Gbps: float  # noqa: N815
    bypass_kernel_Gbps: float  # noqa: N815
    tagged_Gbps: dict[str, float]  # noqa: N815
    shaped: list[ShapedRow]
    rtt_us: dict[str, float]
    peers: dict[str, PeerRow]
    bypass_over_kernel: float
    bypass_kernel_over_kernel: float
    coalesced_over_bypass: float
    cpu_s_per_GB: dict[str, Cpu]  # noqa: N815
    payload_ratio: float
    streams: list[StreamRow]
    missing: dict[str, str | None]
    configuration: dict[str, Any]
    versions: dict[str, str]
    cpu: dict[str, Any]
    load_average: dict[str, float]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        asked = self.configuration
        title = f"Gb/s of payload, medians of {asked['repeat']}, MTU {asked['mtu']}, {asked['gradients']}"
        caption = (
            "frames per 10^6 and octets on the wire per octet of payload; CPU seconds per 10^9: own, of the\n"
            f"NICs or the tunnel; all, of the machine's {self.cpu['cores']} cores, other programs included"
        )
        yield Table.of(StreamRow, self.streams, title, caption=caption)
        yield (
            f"over kernel: bypass {self.bypass_over_kernel:.2f}, bypass in the kernel "
            f"{self.bypass_kernel_over_kernel:.2f}; coalesced over bypass {self.coalesced_over_bypass:.2f}"
        )
        for row in self.shaped:
            shares = ", ".join(f"{name} {share:.3f}" for name, share in row.over_link.items())
            yield f"{row.rate}: ratio on the wire {row.ratio:.2f}; of what the link allows at that ratio: {shares}"
        rtt = self.rtt_us
        yield (
            f"round trip of one octet: kernel {rtt['kernel']:.0f} us (99 %: {rtt['kernel_p99']:.0f}), "
            f"NICs {rtt['nic']:.0f} us (99 %: {rtt['nic_p99']:.0f}), added {rtt['added']:.0f} us; "
            f"busy polling {rtt['nic_busy_poll']:.0f} us, added {rtt['nic_busy_poll_added']:.0f} us; "
            f"bypass in the kernel {rtt['bypass_kernel']:.0f} us (99 %: {rtt['bypass_kernel_p99']:.0f}), "
            f"added {rtt['bypass_kernel_added']:.0f} us"
        )
        for name, peer in self.peers.items():
            if peer.missing:
                yield f"{name}: {peer.missing}"
            for rate, times in (peer.coalesced_over_peer or {}).items():
                yield f"coalesced over {name} {peer.version} at {rate}: {times:.2f}"
            for rate, reason in (peer.failed or {}).items():
                yield f"{name} {peer.version} at {rate}: {reason}"
        for rate, lack in self.missing.items():
            yield f"{rate}: missing: {lack}"
        stolen_share = max(row.stolen_share for row in self.streams)
        if stolen_share >= STOLEN_SHARE_TOLD:
            yield (
                f"a hypervisor gave up to {stolen_share:.0%} of the cores' time to others: trust ratios more than "
                "figures, and measure more rounds (--repeat)"
            )
        load = self.load_average
        yield f"load average before {load['before']:.1f}, after {load['after']:.1f}"


def report(asked: NicBenchSettings, measured: Measured, reason: str | None = None) -> Findings:
    """Return the report of the finished stages, at least the unshaped one; ``reason``: why others are missing."""
    unshaped, shaped = measured.unshaped, measured.shaped
    assert unshaped is not None
    peers, nic = asked.peers_of(tuple(vpn_peers.PEERS)), NicSettings(asked.codec, asked.bound)
    rows = {stage.rate_bps: _rows(stage) for stage in (unshaped, *shaped)}
    goodput = {name: row.Gbps.median for name, row in rows[None].items()}
    return Findings(
        kernel_Gbps=goodput["kernel"],
        bypass_Gbps=goodput["bypass"],
        bypass_kernel_Gbps=goodput["bypass_kernel"],
        tagged_Gbps={name: goodput[name] for name in TAGGED},
        shaped=[_shaped(stage, rows[stage.rate_bps]) for stage in shaped],
        rtt_us=_rtt({name: ping.samples for name, ping in unshaped.pings.items()}),
        peers={
            name: _peer(name, [(stage.contenders[name].failed, rows[stage.rate_bps]) for stage in shaped])
            for name in peers
        },
        bypass_over_kernel=_over(unshaped, "bypass", "kernel"),
        bypass_kernel_over_kernel=_over(unshaped, "bypass_kernel", "kernel"),
        coalesced_over_bypass=_over(unshaped, "coalesced", "bypass"),
        cpu_s_per_GB={name: row.cpu_s_per_GB for name, row in rows[None].items()},
        payload_ratio=unshaped.payload.ratio,
        streams=[row for of_stage in rows.values() for row in of_stage.values()],
        missing={_rate_word(rate_bps): reason for rate_bps in asked.rates_bps[len(shaped) :]},
        configuration={
            "rates_bps": asked.rates_bps,
            "size_octets": asked.size_octets,
            "seconds": asked.seconds,
            "repeat": asked.repeat,
            "peers": peers,
            "mtu": asked.mtu,
            "nic": asdict(nic),
            "round_trips": asked.round_trips,
            "gradients": asked.gradients,
            "seed": asked.seed,
            "block_octets": unshaped.payload.block_octets,
        },
        versions=system_versions(),
        cpu={"model": cpu_model(), "cores": os.cpu_count()},
        load_average={"before": measured.load_before, "after": os.getloadavg()[0]},
    )


def _rows(stage: Stage) -> dict[str, StreamRow]:
    """Return the rows of a stage by contender; those without a sample have none."""
    return {name: _row(stage.rate_bps, name, one.samples) for name, one in stage.contenders.items() if one.samples}


def _shaped(stage: Stage, rows: Mapping[str, StreamRow]) -> ShapedRow:
    # Over a shaped link only streams through NICs are measured: untagged ones fill the wire as the kernel's would.
    rows = {"untagged": rows["bypass"]} | {name: rows[name] for name in TAGGED}
    untagged = rows["untagged"]
    goodput = {name: row.Gbps.median for name, row in rows.items()}
    ratios = {name: untagged.wire_octets_per_MB / rows[name].wire_octets_per_MB for name in TAGGED}
    return ShapedRow(
        rate=untagged.rate or "",
        goodput_gbps=goodput,
        ratio=ratios["coalesced"],
        frames_per_MB={name: row.frames_per_MB for name, row in rows.items()},
        wire_octets_per_MB={name: row.wire_octets_per_MB for name, row in rows.items()},
        over_link={name: goodput[name] / (goodput["untagged"] * ratio) for name, ratio in ratios.items()},
        limit={name: row.limit for name, row in rows.items()},
        cpu_s_per_GB={name: row.cpu_s_per_GB for name, row in rows.items()},
        rates_bps_measured={kind: bed.rate_bps_measured for kind, bed in stage.beds.items()},
    )


def _rtt(rtts_us: dict[str, list[list[float]]]) -> dict[str, float]:
    """Medians over the rounds of each round's median and 99th percentile."""
    medians = {name: statistics.median(percentile(one, 50) for one in rounds) for name, rounds in rtts_us.items()}
    tails = {name: statistics.median(percentile(one, 99) for one in rounds) for name, rounds in rtts_us.items()}
    added = {
        "added" if name == "nic" else f"{name}_added": rtt_us - medians["kernel"]
        for name, rtt_us in medians.items()
        if name != "kernel"
    }
    return {**medians, **{f"{name}_p99": rtt_us for name, rtt_us in tails.items()}, **added}


def _peer(name: str, stages: Iterable[tuple[str | None, Mapping[str, StreamRow]]]) -> PeerRow:
    """Return the results of a tunnel; a stage is why the tunnel failed on it, and its rows."""
    peer = vpn_peers.PEERS[name]
    if missing := vpn_peers.missing(peer):
        return PeerRow(missing=missing)
    goodput, over_peer, failed = dict[str, float](), dict[str, float](), dict[str, str]()
    for why, rows in stages:
        coalesced = rows["coalesced"]
        rate = coalesced.rate or ""
        if why:
            failed[rate] = why
        else:
            goodput[rate] = rows[name].Gbps.median
            over_peer[rate] = coalesced.Gbps.median / goodput[rate]
    return PeerRow(version=peer.version(), Gbps=goodput, coalesced_over_peer=over_peer, failed=failed or None)


def _row(rate_bps: int | None, name: str, streams: Streams) -> StreamRow:
    cores = os.cpu_count() or 1
    machine_share = _median(streams, lambda one: one.machine_cpu_s / one.seconds) / cores
    stolen_share = _median(streams, lambda one: one.stolen_s / one.seconds) / cores
    link_share = rate_bps and _median(streams, lambda one: 8 * one.wire_octets / one.seconds) / rate_bps
    is_full = machine_share + stolen_share >= FULL_SHARE
    return StreamRow(
        rate=None if rate_bps is None else _rate_word(rate_bps),
        contender=name,
        Gbps=Spread.of([one.goodput_bps / 1e9 for one in streams]),
        octets=streams[0].octets,
        seconds=[one.seconds for one in streams],
        wire_octets_per_MB=_median(streams, lambda one: 1e6 * one.wire_octets / one.octets),
        frames_per_MB=_median(streams, lambda one: 1e6 * one.wire_frames / one.octets),
        raw_floats=sum(one.raw_floats for one in streams),
        cpu_s_per_GB=Cpu(
            _median(streams, lambda one: 1e9 * one.carrier_cpu_s / one.octets),
            _median(streams, lambda one: 1e9 * one.machine_cpu_s / one.octets),
        ),
        link_share=link_share,
        machine_share=machine_share,
        stolen_share=stolen_share,
        limit="link" if link_share and link_share >= FULL_SHARE else "cores" if is_full else "neither",
    )


def _over(stage: Stage, name: str, other: str) -> float:
    """Return the median over the rounds of one contender's goodput over another's: a machine's speed may drift."""
    rounds = zip(stage.contenders[name].samples, stage.contenders[other].samples, strict=True)
    return statistics.median(one.goodput_bps / another.goodput_bps for one, another in rounds)


def _median(streams: Streams, quantity: Callable[[StreamResult], float]) -> float:
    return statistics.median(map(quantity, streams))


def _rate_word(rate_bps: int) -> str:
    """Write a rate as tc and our options read it: ``100mbit``, ``1gbit``."""
    for factor, unit in ((10**9, "gbit"), (10**6, "mbit")):
        if rate_bps >= factor:
            return f"{rate_bps / factor:g}{unit}"
    return f"{rate_bps}bit"
