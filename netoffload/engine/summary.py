"""Numbers derived from a NIC's counters: ratios, shares, rates, and the name of a flow's state.

Plain Python over the control socket's answers to ``counters`` and ``flows``. Every display of a NIC takes its numbers
from here. Counters are found by their prefix (``drop_``, ``bypass_``, ``tx_class_``), so a new counter of the engine
appears everywhere without a change here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

Counters = Mapping[str, int]
"""Every counter by its lower-case name, as the control socket's ``counters`` gives them."""

CLASS_PREFIX: Final = "tx_class_"

KERNEL_COUNTERS: Final = ("tx_frames", "tx_octets", "rx_frames", "rx_octets")
"""Counters of the frames that the kernel carried past the NIC's process, without their prefix ``kernel_``."""


@dataclass(frozen=True)
class Direction:
    """One direction since the NIC was started; ``tx`` is host to wire.

    Attributes:
        host_octets: for ``tx``, octets of the host's frames; for ``rx``, octets of the wire's frames with every payload
            uncompressed.
        ratio: raw_octets / payload_octets; None where nothing was compressed.
        codec_s: seconds spent on the codec and the blocks around it.
    """

    frames: int
    wire_octets: int
    host_octets: int
    raw_octets: int
    payload_octets: int
    ratio: float | None
    codec_s: float


@dataclass(frozen=True)
class Rates:
    """Rates in an interval, with the frames that the kernel carried past the process; ratios of the interval alone."""

    interval_s: float
    tx_host_bps: float
    tx_wire_bps: float
    tx_ratio: float | None
    rx_host_bps: float
    rx_wire_bps: float
    rx_ratio: float | None
    frames_per_s: float
    drops_per_s: float
    bypasses_per_s: float
    fallbacks: int


def summarise(counters: Counters, flows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a NIC did since its start, as JSON values: ``summary``, ``counters`` and ``flows``."""
    return {
        "summary": {
            "tx": asdict(direction(counters, "tx")),
            "rx": asdict(direction(counters, "rx")),
            "kernel": {name: counters.get(f"kernel_{name}", 0) for name in KERNEL_COUNTERS},
            "class_shares": class_shares(counters),
            "fallbacks": counters["tx_fallbacks"],
            "bypasses": by_reason(counters, "bypass"),
            "drops": by_reason(counters, "drop"),
        },
        "counters": dict(counters),
        "flows": [describe_flow(flow) for flow in flows],
    }


def direction(counters: Counters, name: str) -> Direction:
    """Return what crossed in the direction ``name``, ``tx`` or ``rx``."""
    wire, raw, payload = (counters[f"{name}_{what}_octets"] for what in ("wire", "raw", "payload"))
    return Direction(
        frames=counters[f"{name}_wire_frames"],
        wire_octets=wire,
        host_octets=counters.get(f"{name}_host_octets", wire - payload + raw),
        raw_octets=raw,
        payload_octets=payload,
        ratio=ratio(raw, payload),
        codec_s=counters[f"{name}_codec_ns"] / 1e9,
    )


def ratio(raw_octets: int, payload_octets: int) -> float | None:
    """Return raw over payload octets; None where nothing was compressed.

    No compressed payload has 0 octets: zeros take octets as well.
    """
    return raw_octets / payload_octets if payload_octets else None


def class_shares(counters: Counters) -> dict[str, float] | None:
    """Return the share of encoded floats in each class by its bits ("0", "8", "16", "32"); None without floats."""
    counts = {name.removeprefix(CLASS_PREFIX): n for name, n in counters.items() if name.startswith(CLASS_PREFIX)}
    total = sum(counts.values())
    return {bits: count / total for bits, count in counts.items()} if total else None


def by_reason(counters: Counters, prefix: str) -> dict[str, int]:
    """Return the counters ``<prefix>_<reason>`` under their reasons; ``prefix`` is ``drop`` or ``bypass``."""
    start = f"{prefix}_"
    return {name.removeprefix(start): count for name, count in counters.items() if name.startswith(start)}


def flow_state(flow: Mapping[str, Any]) -> str:
    """Return a short name for what a NIC does with a flow; ``flow`` is one of the control socket's ``flows``."""
    if flow["direction"] == "tx" and not flow["peer_decodes"]:
        return "peer cannot"
    if flow.get("promised_by") in ("nobody", "no socket"):
        return "not promised"
    if flow.get("verdict") == "not floats":
        return "not floats"
    if flow.get("on_probation"):
        return "probation"
    return "compressed" if flow["raw_octets"] else "raw"


def describe_flow(flow: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flow with its name (``address:port -> address:port``), ratio and state added."""
    name = f"{endpoint(flow['src'], flow['sport'])} -> {endpoint(flow['dst'], flow['dport'])}"
    return {
        "flow": name,
        **flow,
        "ratio": ratio(flow["raw_octets"], flow["payload_octets"]),
        "state": flow_state(flow),
    }


def endpoint(address: str, port: int) -> str:
    """Return ``address:port``, an IPv6 address in brackets (RFC 5952, 6)."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def rates(before: Counters, after: Counters, interval_s: float) -> Rates:
    """Return what happened between two readings of a NIC's counters.

    A NIC that was started again in between counts from 0; then ``after`` alone is taken.
    """
    restarted = any(after[name] < before.get(name, 0) for name in after)
    grown = {name: count - (0 if restarted else before.get(name, 0)) for name, count in after.items()}
    tx, rx = direction(grown, "tx"), direction(grown, "rx")
    past = {name: grown.get(f"kernel_{name}", 0) for name in KERNEL_COUNTERS}
    return Rates(
        interval_s=interval_s,
        tx_host_bps=(tx.host_octets + past["tx_octets"]) * 8 / interval_s,
        tx_wire_bps=(tx.wire_octets + past["tx_octets"]) * 8 / interval_s,
        tx_ratio=tx.ratio,
        rx_host_bps=(rx.host_octets + past["rx_octets"]) * 8 / interval_s,
        rx_wire_bps=(rx.wire_octets + past["rx_octets"]) * 8 / interval_s,
        rx_ratio=rx.ratio,
        frames_per_s=(tx.frames + rx.frames + past["tx_frames"] + past["rx_frames"]) / interval_s,
        drops_per_s=sum(by_reason(grown, "drop").values()) / interval_s,
        bypasses_per_s=sum(by_reason(grown, "bypass").values()) / interval_s,
        fallbacks=grown["tx_fallbacks"],
    )
