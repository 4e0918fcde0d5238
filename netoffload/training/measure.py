"""What crossed the wires and what the NICs did: readings of the testbed's meter, and the difference of two.

The meter counts at the queueing discipline that shapes a wire, where every header of every frame is counted, and a
large frame that the kernel will cut counts as what it becomes. NIC counters come from each NIC's own control socket;
the meter names them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from netoffload import control
from netoffload.config import ENV_METER
from netoffload.errors import RunError
from netoffload.results import ClassCounts, NodeTraffic, Traffic
from netoffload.training.config import TrainSettings
from netoffload.training.exchanges import Sent

FLOAT_OCTETS = 4


@dataclasses.dataclass(frozen=True)
class Reading:
    """The counters of all nodes at one moment: octets and frames sent, and the NIC's counters (empty without a NIC)."""

    wires: Mapping[str, tuple[int, int]]
    nics: Mapping[str, Mapping[str, int]]


def read_meter() -> Reading:
    """Read every wire and every NIC of the testbed this rank runs in.

    Raises:
        RunError: this rank runs in no testbed.
        ControlError: the meter or a NIC does not answer.
    """
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
    """Return what happened from one reading to a later one of the same nodes."""
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


def check_traffic(settings: TrainSettings, traffic: Traffic, sent: Sent) -> None:
    """Hold what crossed the wires against what must have: a run that took another way is no measurement.

    Args:
        settings: the run.
        traffic: of the timed iterations.
        sent: by rank 0, which runs on the first node.

    Raises:
        RunError: less crossed the first node's wire than rank 0 sent, or a compressed run was not compressed, or the
            reverse.
    """
    crossed = traffic.nodes[0].tx_octets
    if crossed < sent.octets:
        raise RunError(
            f"{settings.exchange}: {crossed} octets crossed the wire of {traffic.nodes[0].name}, rank 0 sent "
            f"{sent.octets}: the ranks did not talk over the shaped links"
        )
    tagged = sent.tagged_octets * settings.nodes
    if settings.compressed and traffic.raw_octets < tagged / 2:
        raise RunError(
            f"{settings.exchange}: NICs compressed {traffic.raw_octets} octets of {tagged} tagged ones: "
            "compression was asked for and did not happen (see the NICs' drop and bypass counters)"
        )
    if not settings.compressed and traffic.blocks:
        raise RunError(f"{settings.exchange}: NICs compressed {traffic.blocks} frames of a run that is not tagged")
