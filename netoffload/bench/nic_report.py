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

``ratio`` is what compression does to the wire: octets on it per payload octet, headers and all, of the untagged stream
over those of the coalesced one. Untagged goodput times this ratio is what a link would carry if the NICs took no time;
``over_link`` is the goodput as a share of that. A MB is 10^6 octets of payload, a GB 10^9.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from netoffload.bench import vpn_peers
from netoffload.bench.throughput import StreamResult, percentile
from netoffload.environment import cpu_model, system_versions
from netoffload.results import Spread

if TYPE_CHECKING:
    from netoffload.bench.nic import Asked, Findings, Samples, Stage

FULL_SHARE: Final = 0.95
"""A link or the cores count as full from here on."""

TAGGED: Final = ("coalesced", "coalesced_ipcomp", "per_segment", "coalesced_keyed")
"""The contenders of ``nic_bench`` whose streams are compressed."""


def report(asked: Asked, found: Findings, reason: str | None = None) -> dict[str, Any]:
    """Return the report.

    Args:
        asked: what was to be measured.
        found: what was, at least the stage without shaping.
        reason: why it is not everything.
    """
    unshaped, shaped = found.unshaped, found.shaped
    assert unshaped is not None
    goodput = {name: _median_gbps(samples) for name, samples in unshaped.samples.items()}
    return {
        "kernel_Gbps": goodput["kernel"],
        "bypass_Gbps": goodput["bypass"],
        "bypass_kernel_Gbps": goodput["bypass_kernel"],
        "tagged_Gbps": {name: goodput[name] for name in TAGGED},
        "shaped": [_shaped(stage) for stage in shaped],
        "rtt_us": _rtt(found.rtts_us),
        "peers": {name: _peer(name, shaped) for name in asked.peers},
        "bypass_over_kernel": _over(unshaped, "bypass", "kernel"),
        "bypass_kernel_over_kernel": _over(unshaped, "bypass_kernel", "kernel"),
        "coalesced_over_bypass": _over(unshaped, "coalesced", "bypass"),
        "cpu_s_per_GB": {name: _cpu(samples) for name, samples in unshaped.samples.items()},
        "payload_ratio": unshaped.payload.ratio,
        "streams": [
            _row(stage, name, samples)
            for stage in (unshaped, *shaped)
            for name, samples in stage.samples.items()
            if samples.streams
        ],
        "missing": {_rate_word(rate_bps): reason for rate_bps in asked.rates_bps[len(shaped) :]},
        "configuration": asdict(asked) | {"block_octets": unshaped.payload.block_octets},
        "versions": system_versions(),
        "cpu": {"model": cpu_model(), "cores": os.cpu_count()},
        "load_average": {"before": found.load_before, "after": os.getloadavg()[0]},
    }


def _shaped(stage: Stage) -> dict[str, Any]:
    named = {"untagged": stage.samples["bypass"]} | {name: stage.samples[name] for name in TAGGED}
    per_mb = {name: _median(samples, lambda one: one.wire_octets / one.octets) for name, samples in named.items()}
    goodput = {name: _median_gbps(samples) for name, samples in named.items()}
    ratios = {name: per_mb["untagged"] / per_mb[name] for name in TAGGED}
    assert stage.rate_bps is not None
    return {
        "rate": _rate_word(stage.rate_bps),
        **{f"{name}_Gbps": gbps for name, gbps in goodput.items()},
        "ratio": ratios["coalesced"],
        "frames_per_MB": {
            name: _median(samples, lambda one: 1e6 * one.wire_frames / one.octets) for name, samples in named.items()
        },
        "wire_octets_per_MB": {name: 1e6 * octets for name, octets in per_mb.items()},
        "over_link": {name: goodput[name] / (goodput["untagged"] * ratio) for name, ratio in ratios.items()},
        "limit": {name: _limit(stage, samples) for name, samples in named.items()},
        "cpu_s_per_GB": {name: _cpu(samples) for name, samples in named.items()},
        "rates_bps_measured": {kind: bed.rate_bps_measured for kind, bed in stage.beds.items()},
    }


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


def _peer(name: str, shaped: Sequence[Stage]) -> dict[str, Any]:
    peer = vpn_peers.PEERS[name]
    if missing := vpn_peers.missing(peer):
        return {"missing": missing}
    entry: dict[str, Any] = {"version": peer.version(), "Gbps": {}, "coalesced_over_peer": {}}
    for stage in shaped:
        assert stage.rate_bps is not None
        word, samples = _rate_word(stage.rate_bps), stage.samples[name]
        if samples.failed:
            entry.setdefault("failed", {})[word] = samples.failed
        else:
            entry["Gbps"][word] = _median_gbps(samples)
            entry["coalesced_over_peer"][word] = _median_gbps(stage.samples["coalesced"]) / entry["Gbps"][word]
    return entry


def _row(stage: Stage, name: str, samples: Samples) -> dict[str, Any]:
    return {
        "rate": None if stage.rate_bps is None else _rate_word(stage.rate_bps),
        "contender": name,
        "Gbps": asdict(Spread.of([one.goodput_bps / 1e9 for one in samples.streams])),
        "octets": samples.streams[0].octets,
        "seconds": [one.seconds for one in samples.streams],
        "wire_octets_per_MB": _median(samples, lambda one: 1e6 * one.wire_octets / one.octets),
        "frames_per_MB": _median(samples, lambda one: 1e6 * one.wire_frames / one.octets),
        "raw_floats": sum(one.raw_floats for one in samples.streams),
        "cpu_s_per_GB": _cpu(samples),
        "link_share": None if stage.rate_bps is None else _link_share(stage.rate_bps, samples),
        "machine_share": _machine_share(samples),
        "stolen_share": _stolen_share(samples),
        "limit": _limit(stage, samples),
    }


def _cpu(samples: Samples) -> dict[str, float]:
    """CPU seconds per 10^9 octets of payload: of the processes that carry the stream, and of the whole machine."""
    return {
        "carriers": _median(samples, lambda one: 1e9 * one.carrier_cpu_s / one.octets),
        "machine": _median(samples, lambda one: 1e9 * one.machine_cpu_s / one.octets),
    }


def _limit(stage: Stage, samples: Samples) -> str:
    if stage.rate_bps is not None and _link_share(stage.rate_bps, samples) >= FULL_SHARE:
        return "link"
    return "cores" if _machine_share(samples) + _stolen_share(samples) >= FULL_SHARE else "neither"


def _link_share(rate_bps: int, samples: Samples) -> float:
    return _median(samples, lambda one: 8 * one.wire_octets / one.seconds) / rate_bps


def _machine_share(samples: Samples) -> float:
    return _median(samples, lambda one: one.machine_cpu_s / one.seconds) / (os.cpu_count() or 1)


def _stolen_share(samples: Samples) -> float:
    return _median(samples, lambda one: one.stolen_s / one.seconds) / (os.cpu_count() or 1)


def _over(stage: Stage, name: str, other: str) -> float:
    """Return the median over the rounds of one contender's goodput over another's: a machine's speed may drift."""
    rounds = zip(stage.samples[name].streams, stage.samples[other].streams, strict=True)
    return statistics.median(one.goodput_bps / another.goodput_bps for one, another in rounds)


def _median_gbps(samples: Samples) -> float:
    return _median(samples, lambda one: one.goodput_bps / 1e9)


def _median(samples: Samples, quantity: Callable[[StreamResult], float]) -> float:
    return statistics.median(map(quantity, samples.streams))


def _rate_word(rate_bps: int) -> str:
    """Write a rate as tc and our options read it: ``100mbit``, ``1gbit``."""
    for factor, unit in ((10**9, "gbit"), (10**6, "mbit")):
        if rate_bps >= factor:
            return f"{rate_bps / factor:g}{unit}"
    return f"{rate_bps}bit"
