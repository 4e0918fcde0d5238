"""The traffic of a run: readings of the testbed's meter and of the NICs' counters, and the difference of two readings.

The meter counts at the queueing discipline that shapes a wire. It counts every header of every frame, and a large frame
as the frames into which the kernel cuts it. NIC counters come from each NIC's control socket, which the meter names.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Final

from netoffload import control
from netoffload.config import ENV_METER
from netoffload.errors import RunError
from netoffload.lab.results import ClassCounts, NodeTraffic, Traffic
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.outcome import RankOutcome

FLOAT_OCTETS: Final = 4

COMPRESSED_SHARE_MIN: Final = 0.98
"""Least share of a rank's tagged octets that its NIC must compress, without segments that would not shrink.

Segments that would not shrink may be half of the octets. If more crossed raw, the run was not compressed.
"""

SEGMENT_OCTETS_MAX: Final = 65_535
"""Largest segment that a NIC gets from its host."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """The counters of all nodes at one moment: octets and frames sent, and the NIC's counters (empty without a NIC)."""

    wires: Mapping[str, tuple[int, int]]
    nics: Mapping[str, Mapping[str, int]]


def read_meter() -> Reading:
    """Read every wire and every NIC of the testbed this rank runs in."""
    meter = os.environ.get(ENV_METER)
    if meter is None:
        raise RunError(f"${ENV_METER} is not set: a rank is started by 'netoffload train'")
    nodes = control.request(meter, "wires")["nodes"]
    wires = {node["name"]: (int(node["tx_octets"]), int(node["tx_frames"])) for node in nodes}
    nics = {
        node["name"]: control.request(node["nic_control"], "counters")["counters"]
        for node in nodes
        if node["nic_control"]
    }
    return Reading(wires, nics)


def traffic_between(before: Reading, after: Reading) -> Traffic:
    """Return the traffic from one reading to a later one of the same nodes."""
    nodes = tuple(
        NodeTraffic(name, octets - before.wires[name][0], frames - before.wires[name][1])
        for name, (octets, frames) in after.wires.items()
    )
    per_nic = [
        {key: value - before.nics[name].get(key, 0) for key, value in counters.items()}
        for name, counters in after.nics.items()
    ]

    def total(key: str) -> int:
        return sum(nic.get(key, 0) for nic in per_nic)

    reasons = sorted({key for nic in per_nic for key in nic if key.startswith("drop_")})
    codec_ns = (nic.get("tx_codec_ns", 0) + nic.get("rx_codec_ns", 0) for nic in per_nic)
    return Traffic(
        nodes=nodes,
        raw_octets=total("tx_raw_octets"),
        payload_octets=total("tx_payload_octets"),
        blocks=total("tx_blocks"),
        classes=ClassCounts(*(total(f"tx_class_{bits}") for bits in (0, 8, 16, 32))),
        codec_s=max(codec_ns, default=0) / 1e9,
        drops={reason: total(reason) for reason in reasons if total(reason)},
    )


def with_coded(traffic: Traffic, outcomes: Sequence[RankOutcome]) -> Traffic:
    """Return the traffic with the figures of ranks that compressed by themselves, if they did."""
    coded = [outcome.coded for outcome in outcomes]
    classes = [dataclasses.astuple(one) for one in (traffic.classes, *(each.classes for each in coded))]
    return dataclasses.replace(
        traffic,
        raw_octets=traffic.raw_octets + sum(each.raw_octets for each in coded),
        payload_octets=traffic.payload_octets + sum(each.payload_octets for each in coded),
        classes=ClassCounts(*map(sum, zip(*classes, strict=True))),
        codec_s=max(traffic.codec_s, *(each.codec_s for each in coded)),
    )


def check_traffic(settings: TrainSettings, traffic: Traffic, outcomes: Sequence[RankOutcome]) -> None:
    """Compare the octets of wire i, and those that NIC i compressed, with the octets that rank i sent."""
    for outcome, node in zip(outcomes, traffic.nodes[: len(outcomes)], strict=True):
        rank, sent = outcome.rank, outcome.sent
        if node.tx_octets < sent.octets:
            raise RunError(
                f"{node.tx_octets} octets crossed the wire of {node.name}, rank {rank} sent "
                f"{sent.octets}: the ranks did not talk over the shaped links"
            )
        compressed = outcome.compressed_octets
        excused = min(outcome.no_gain_segments * SEGMENT_OCTETS_MAX, compressed)
        if compressed + excused < COMPRESSED_SHARE_MIN * sent.tagged_octets:
            raise RunError(
                f"the NIC of {node.name} compressed {compressed} of {sent.tagged_octets} tagged octets of rank {rank}: "
                f"the others crossed raw (frames that NICs dropped: {dict(traffic.drops) or 'none'})"
            )
    if settings.compressed and not any(outcome.sent.tagged_octets for outcome in outcomes):
        raise RunError("compression was asked for, and no rank sent anything tagged")
    if not settings.compressed and traffic.blocks:
        raise RunError(f"NICs compressed {traffic.blocks} frames of a run that is not tagged")
