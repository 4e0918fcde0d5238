"""Measures a pair of NICs beside plain wires and beside tunnels of other programs.

A *stage* is one rate of the wires (or none). All its testbeds are up together, and its contenders take turns
(``experiment``); the tunnels and NICs of the others are idle. The first round is smaller and not timed. Medians are
reported, with their spread.

The *limit* of a stream is the link if the sender's wire was busy for 95 % of the time. Else it is the cores if they
were busy for 95 % of the time, other programs included. Else it is neither: processes waited for each other.
"""

import contextlib
import functools
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from netoffload.codec import get
from netoffload.codec_specs import LOSSLESS
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice, format_rate
from netoffload.errors import NetOffloadError, RunError, UsageError
from netoffload.lab.bench import vpn_peers
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.settings import PEERS_ALL, PEERS_NONE, NicBenchSettings, listed, parse_vector_octets
from netoffload.lab.declared import Column, Finding, Progress, Table, words
from netoffload.lab.machine import cpu_model
from netoffload.lab.models.gradients import gradients_from
from netoffload.lab.results import Spread
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, nics, prepared_ranks
from netoffload.lab.testbed.build import check_root
from netoffload.lab.testbed.stream import Payload, StreamResult, round_trips_us, run_stream, write_payload
from netoffload.lab.units import parse_rate_bps
from netoffload.machine.environment import system_versions

BLOCK_OCTETS: Final = 4 * 1024 * 1024
"""Length of the block that streams repeat: too long for a compressor of frames to notice, short for the cache."""
WARM_UP_S: Final = 0.3
WARM_UP_OCTETS: Final = 64 * 10**6
RAW_SHARE_MAX: Final = 0.01
"""Largest share of floats of a tagged stream that may arrive uncompressed; with more, the stream is an error."""
FULL_SHARE: Final = 0.95
"""Busy share of the time from which on a link or the cores count as full."""
STOLEN_SHARE_TOLD: Final = 0.02
"""Share of the cores' time; if a hypervisor takes less, the report does not mention it."""
PLAIN: Final = "plain"
"""The kind of testbed without NICs."""

NIC_KINDS: Final[dict[str, dict[str, Any]]] = {
    "coalesced": {"packing": "coalesced"},
    "ipcomp": {"encapsulation": "ipcomp"},
    "per-segment": {"packing": "per-segment"},
    "keyed": {"keyed": True},
    "busy-poll": {"busy_poll_us": 1000},
    "bypass-kernel": {"bypass": "kernel"},
}
"""The kinds of testbed with NICs, and the settings in which their NICs differ from the default."""

ROUND_TRIP_KINDS: Final = {
    "kernel": PLAIN,
    "nic": "coalesced",
    "nic_busy_poll": "busy-poll",
    "bypass_kernel": "bypass-kernel",
}
"""Kinds of testbed whose round-trip times are measured, by their names in the report."""


@dataclass(frozen=True)
class StreamKind:
    """The kind of testbed that a stream crosses, and whether the stream is tagged."""

    kind: str
    tagged: bool = False


WAYS: Final = {
    "kernel": StreamKind(PLAIN),
    "bypass": StreamKind("coalesced"),
    "bypass_kernel": StreamKind("bypass-kernel"),
    "coalesced": StreamKind("coalesced", tagged=True),
    "coalesced_ipcomp": StreamKind("ipcomp", tagged=True),
    "per_segment": StreamKind("per-segment", tagged=True),
    "coalesced_keyed": StreamKind("keyed", tagged=True),
}
"""All ways, in the order in which they take turns."""
UNSHAPED_ONLY: Final = ("kernel", "bypass_kernel")
"""Ways that are measured unshaped only: over a shaped link they would fill the wire as ``bypass`` does."""
TAGGED: Final = tuple(name for name, way in WAYS.items() if way.tagged)


OctetsOf = Callable[[int, bool], int]
"""Takes the number of a round, and whether a stream is tagged; returns the stream's octets."""


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
class Findings(Finding):
    """The report: goodput before compression; a MB is 10^6 octets of payload, a GB 10^9.

    ``..._over_...`` are medians of the rounds' ratios over unshaped wires. ``streams`` has everything about every
    contender. ``missing`` says why rates that were asked for were not measured.
    """

    kernel_Gbps: float  # noqa: N815
    bypass_Gbps: float  # noqa: N815
    bypass_kernel_Gbps: float  # noqa: N815
    tagged_Gbps: dict[str, float]  # noqa: N815
    shaped: list[dict[str, Any]]
    rtt_us: dict[str, float]
    peers: dict[str, dict[str, Any]]
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
            shares = ", ".join(f"{name} {share:.3f}" for name, share in row["over_link"].items())
            ratio = f"ratio on the wire {row['ratio']:.2f}"
            yield f"{row['rate']}: {ratio}; of what the link allows at that ratio: {shares}"
        rtt = self.rtt_us
        yield (
            f"round trip of one octet: kernel {rtt['kernel']:.0f} us (99 %: {rtt['kernel_p99']:.0f}), "
            f"NICs {rtt['nic']:.0f} us (99 %: {rtt['nic_p99']:.0f}), added {rtt['added']:.0f} us; "
            f"busy polling {rtt['nic_busy_poll']:.0f} us, added {rtt['nic_busy_poll_added']:.0f} us; "
            f"bypass in the kernel {rtt['bypass_kernel']:.0f} us (99 %: {rtt['bypass_kernel_p99']:.0f}), "
            f"added {rtt['bypass_kernel_added']:.0f} us"
        )
        for name, peer in self.peers.items():
            if "missing" in peer:
                yield f"{name}: {peer['missing']}"
            for rate, times in peer.get("coalesced_over_peer", {}).items():
                yield f"coalesced over {name} {peer['version']} at {rate}: {times:.2f}"
            for rate, reason in peer.get("failed", {}).items():
                yield f"{name} {peer['version']} at {rate}: {reason}"
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


class NicBench:
    """Every stage; finished stages are reported even if a later one fails."""

    def __init__(self, asked: NicBenchSettings) -> None:
        self._asked, self._load_before = asked, os.getloadavg()[0]
        self._peers = {PEERS_ALL: tuple(vpn_peers.PEERS), PEERS_NONE: ()}.get(asked.peers, listed(asked.peers))
        for name in self._peers:
            check_choice("peer", name, tuple(vpn_peers.PEERS))
        self._nic = NicSettings(asked.codec, asked.bound)
        self._rates_bps = tuple(map(parse_rate_bps, listed(asked.rates)))
        if not self._rates_bps:
            raise UsageError("--rates names no rate: give one or more with commas, for example 100mbit,1gbit")
        self._size_octets, floats = parse_vector_octets(asked.size), BLOCK_OCTETS // 4
        self._values = (
            _octets_of(asked, floats) if asked.file else gradients_from(asked.gradients, asked.seed)(0, floats)
        )
        self.stages: list[Stage] = []
        """The finished stages; the first one is unshaped."""

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        check_root()
        for name in self._peers:
            if reason := vpn_peers.missing(vpn_peers.PEERS[name]):
                progress(f"without {name}: {reason}")
        with prepared_ranks(nics.NIC_IMPORTS):  # there are a dozen testbeds
            for rate_bps in (None, *self._rates_bps):
                self.stages.append(self._run(rate_bps, progress))

    def findings(self, reason: str | None) -> Findings | None:
        """Return the findings; None: not even the unshaped stage is finished."""
        if not self.stages:
            return None
        asked, (unshaped, *shaped) = self._asked, self.stages
        rows = {stage.rate_bps: _rows(stage) for stage in self.stages}
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
                for name in self._peers
            },
            bypass_over_kernel=_over(unshaped, "bypass", "kernel"),
            bypass_kernel_over_kernel=_over(unshaped, "bypass_kernel", "kernel"),
            coalesced_over_bypass=_over(unshaped, "coalesced", "bypass"),
            cpu_s_per_GB={name: row.cpu_s_per_GB for name, row in rows[None].items()},
            payload_ratio=unshaped.payload.ratio,
            streams=[row for of_stage in rows.values() for row in of_stage.values()],
            missing={_rate_word(rate_bps): reason for rate_bps in self._rates_bps[len(shaped) :]},
            configuration={
                "rates_bps": self._rates_bps,
                "size_octets": self._size_octets,
                "seconds": asked.seconds,
                "repeat": asked.repeat,
                "peers": self._peers,
                "mtu": asked.mtu,
                "nic": asdict(self._nic),
                "round_trips": asked.round_trips,
                "gradients": asked.gradients,
                "file": asked.file,
                "seed": asked.seed,
                "block_octets": unshaped.payload.block_octets,
            },
            versions=system_versions(),
            cpu={"model": cpu_model(), "cores": os.cpu_count()},
            load_average={"before": self._load_before, "after": os.getloadavg()[0]},
        )

    def _run(self, rate_bps: int | None, progress: Progress) -> Stage:
        """Build the testbeds that a stage needs, one per kind, let its contenders take turns, and take them down."""
        asked, text = self._asked, _rate_text(rate_bps)
        names = [name for name in WAYS if rate_bps is None or name not in UNSHAPED_ONLY]
        others = [PLAIN] if self._peers else []
        kinds = [*(ROUND_TRIP_KINDS.values() if rate_bps is None else others), *(WAYS[name].kind for name in names)]
        with contextlib.ExitStack() as stack:
            beds = {}
            for kind in dict.fromkeys(kinds):
                nic = None if kind == PLAIN else replace(self._nic, **NIC_KINDS[kind])
                plan = make_plan(TestbedSettings(2, rate_bps, asked.mtu, nic), new_run_id())
                bed = Testbed(plan, check_rate=rate_bps is not None, progress=lambda said: progress(f"{text}: {said}"))
                beds[kind] = stack.enter_context(bed)
            # In a testbed's own folder, which goes with the testbed even if this process is killed.
            folder = next(iter(beds.values())).make_scratch()
            payload = write_payload(self._values, get(self._nic.codec), self._nic.bound_k, folder)
            stage = Stage(rate_bps, payload, beds)

            def octets_of(number: int, tagged: bool) -> int:
                if rate_bps is None:
                    return min(WARM_UP_OCTETS, self._size_octets) if number < 1 else self._size_octets
                seconds = asked.seconds if number > 0 else min(WARM_UP_S, asked.seconds)
                raw_octets = max(4, int(rate_bps / 8 * seconds) // 4 * 4)
                return int(raw_octets * (payload.ratio if tagged else 1.0)) // 4 * 4

            stage.contenders = {name: _through(stage, name, octets_of) for name in names}
            if rate_bps is None:
                for name, kind in ROUND_TRIP_KINDS.items():
                    ping = functools.partial(_round_trips_us, beds[kind], asked.round_trips)
                    stage.pings[name] = Contender(f"round-trip times, {name}", ping)
            else:
                for name in self._peers:
                    progress(f"{text}: starting {name}")
                    stage.contenders[name] = _through_peer(stage, name, octets_of, stack)

            def on_turn(name: str, number: int) -> None:
                progress(f"{text}, round {number} of {asked.repeat}: {name}")

            contenders: list[Contender[Any]] = [*stage.contenders.values(), *stage.pings.values()]
            take_turns(contenders, asked.repeat, warm_ups=1, on_turn=on_turn)
        return stage


def _octets_of(asked: NicBenchSettings, words: int) -> Float32Array:
    """Return ``words`` words of 32 bits of a file, from its first octet on, over and over."""
    if asked.codec not in LOSSLESS:
        raise UsageError(f"codec {asked.codec} rounds, which no file survives: give --codec exact with --file")
    try:
        octets = Path(asked.file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {asked.file}: {error.strerror or error}") from error
    if not octets:
        raise UsageError(f"{asked.file} is empty: name a file with octets")
    return np.resize(np.frombuffer(octets, np.uint8), 4 * words).view(np.float32)


def _rate_text(rate_bps: int | None) -> str:
    return "unshaped" if rate_bps is None else format_rate(rate_bps)


def _through(stage: Stage, name: str, octets_of: OctetsOf) -> Contender[StreamResult]:
    """Return a contender whose streams go one of :data:`WAYS`."""
    way = WAYS[name]
    bed = stage.beds[way.kind]

    def turn(number: int) -> StreamResult:
        carriers = nics.pids(bed.plan)
        octets = octets_of(number, way.tagged)
        return checked(run_stream(bed, stage.payload, octets, tagged=way.tagged, carriers=carriers))

    return Contender(name, turn)


def checked(found: StreamResult) -> StreamResult:
    """Refuse a stream with wrong values, or of which too little was compressed."""
    if found.wrong:
        raise RunError(f"{found.wrong} float32 arrived wrong")
    if found.raw > RAW_SHARE_MAX * found.values:
        raise RunError(f"{found.raw} of {found.values} float32 of a tagged stream were not compressed")
    return found


def _round_trips_us(bed: Testbed, count: int, _number: int) -> list[float]:
    return round_trips_us(bed, count)


def _through_peer(
    stage: Stage, name: str, octets_of: OctetsOf, tunnels: contextlib.ExitStack
) -> Contender[StreamResult]:
    """Start a tunnel and return the contender whose streams go through it; the contender may fail."""
    peer, bed = vpn_peers.PEERS[name], stage.beds[PLAIN]
    failed, tunnel = vpn_peers.missing(peer), None
    if failed is None:
        try:
            tunnel = tunnels.enter_context(vpn_peers.tunnel(bed, peer))
        except NetOffloadError as error:
            failed = str(error)

    def turn(number: int) -> StreamResult:
        assert tunnel is not None  # else it has failed, and takes no turn
        octets, address, pids = octets_of(number, False), peer.address(1), tunnel.pids
        try:
            return checked(run_stream(bed, stage.payload, octets, tagged=False, address=address, carriers=pids))
        except RunError as error:
            raise RunError(f"{error} ({tunnel.state()})") from error

    return Contender(name, turn, may_fail=True, failed=failed)


def _rows(stage: Stage) -> dict[str, StreamRow]:
    """Return the rows of a stage by contender; those without a sample have none."""
    return {name: _row(stage.rate_bps, name, one.samples) for name, one in stage.contenders.items() if one.samples}


def _shaped(stage: Stage, rows: Mapping[str, StreamRow]) -> dict[str, Any]:
    """Return the figures of one rate of the wires, by contender.

    ``ratio`` is the untagged stream's octets on the wire per payload octet, headers included, over the coalesced
    stream's. Untagged goodput times this ratio is what a link would carry if the NICs took no time; ``over_link`` is
    the goodput as a share of that.
    """
    # Over a shaped link only streams through NICs are measured: untagged ones fill the wire as the kernel's would.
    rows = {"untagged": rows["bypass"]} | {name: rows[name] for name in TAGGED}
    untagged = rows["untagged"]
    goodput = {name: row.Gbps.median for name, row in rows.items()}
    ratios = {name: untagged.wire_octets_per_MB / rows[name].wire_octets_per_MB for name in TAGGED}
    return {
        "rate": untagged.rate,
        **{f"{name}_Gbps": gbps for name, gbps in goodput.items()},
        "ratio": ratios["coalesced"],
        "frames_per_MB": {name: row.frames_per_MB for name, row in rows.items()},
        "wire_octets_per_MB": {name: row.wire_octets_per_MB for name, row in rows.items()},
        "over_link": {name: goodput[name] / (goodput["untagged"] * ratio) for name, ratio in ratios.items()},
        "limit": {name: row.limit for name, row in rows.items()},
        "cpu_s_per_GB": {name: row.cpu_s_per_GB for name, row in rows.items()},
        "rates_bps_measured": {kind: bed.rate_bps_measured for kind, bed in stage.beds.items()},
    }


def _rtt(rtts_us: dict[str, list[list[float]]]) -> dict[str, float]:
    """Medians over the rounds of each round's median and 99th percentile."""
    medians, tails = (
        {name: float(np.median(np.percentile(rounds, share, axis=1))) for name, rounds in rtts_us.items()}
        for share in (50, 99)
    )
    added = {
        "added" if name == "nic" else f"{name}_added": rtt_us - medians["kernel"]
        for name, rtt_us in medians.items()
        if name != "kernel"
    }
    return {**medians, **{f"{name}_p99": rtt_us for name, rtt_us in tails.items()}, **added}


def _peer(name: str, stages: Iterable[tuple[str | None, Mapping[str, StreamRow]]]) -> dict[str, Any]:
    """Return a tunnel's goodput by rate, or why there is none; a stage is why the tunnel failed on it, and its rows."""
    peer = vpn_peers.PEERS[name]
    if missing := vpn_peers.missing(peer):
        return {"missing": missing}
    goodput, over_peer, failed = dict[str, float](), dict[str, float](), dict[str, str]()
    for why, rows in stages:
        coalesced = rows["coalesced"]
        rate = str(coalesced.rate)
        if why:
            failed[rate] = why
        else:
            goodput[rate] = rows[name].Gbps.median
            over_peer[rate] = coalesced.Gbps.median / goodput[rate]
    found: dict[str, Any] = {"version": peer.version(), "Gbps": goodput, "coalesced_over_peer": over_peer}
    return found | ({"failed": failed} if failed else {})


def _row(rate_bps: int | None, name: str, streams: Sequence[StreamResult]) -> StreamRow:
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
        raw_floats=sum(one.raw for one in streams),
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


def _median(streams: Sequence[StreamResult], quantity: Callable[[StreamResult], float]) -> float:
    return statistics.median(map(quantity, streams))


def _rate_word(rate_bps: int) -> str:
    """Write a rate as tc and our options read it: ``100mbit``, ``1gbit``."""
    for factor, unit in ((10**9, "gbit"), (10**6, "mbit")):
        if rate_bps >= factor:
            return f"{rate_bps / factor:g}{unit}"
    return f"{rate_bps}bit"
