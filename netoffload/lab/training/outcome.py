"""The result of one rank, as a file for the parent process, and the traffic of all: what the counters say of a run.

The meter counts at the queueing discipline that shapes a wire. It counts every header of every frame, and a large frame
as the frames into which the kernel cuts it. NIC counters come from each NIC's control socket, which the meter names.

Nothing here imports MPI, because the parent has none.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from netoffload import control
from netoffload.config import ENV_METER
from netoffload.errors import RunError
from netoffload.lab.results import ClassCounts, Learning, NodeTraffic, Traffic, Versions
from netoffload.lab.training.config import TrainSettings
from netoffload.methods import Sent


@dataclasses.dataclass(frozen=True)
class Step:
    """The progress of a run: finished iterations, worker 0's loss, the latest accuracy (0..1); None: no finite one."""

    done: int
    loss: float | None = None
    accuracy: float | None = None

    @property
    def learnt(self) -> str:
        """The known ones of loss and accuracy, in words."""
        words = {"loss": self.loss, "accuracy": None if self.accuracy is None else 100 * self.accuracy}
        texts = [f"{name} {value:.3g}" for name, value in words.items() if value is not None]
        return ", ".join(texts) + (" %" if self.accuracy is not None else "")


@dataclasses.dataclass(frozen=True)
class Coded:
    """What was compressed of a rank's octets."""

    nic_octets: int  # of its tagged connections, that its NIC compressed
    raw_segments: dict[str, int]  # that its NIC sent as they were, by reason
    raw_octets: int  # what the rank compressed by itself, before, with its classes and seconds
    payload_octets: int
    classes: ClassCounts
    codec_s: float

    @property
    def compressed_octets(self) -> int:
        """Octets that the rank or its NIC compressed."""
        return self.nic_octets + self.raw_octets

    def __sub__(self, other: Coded) -> Coded:
        """Return the increase since ``other``."""
        now, then = dataclasses.astuple(self.classes), dataclasses.astuple(other.classes)
        return Coded(
            self.nic_octets - other.nic_octets,
            {reason: count - other.raw_segments.get(reason, 0) for reason, count in self.raw_segments.items()},
            self.raw_octets - other.raw_octets,
            self.payload_octets - other.payload_octets,
            ClassCounts(*(after - before for after, before in zip(now, then, strict=True))),
            self.codec_s - other.codec_s,
        )


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds of one iteration of one rank."""

    forward_s: float = 0.0  # getting the batch, and forward up to the loss
    backward_s: float = 0.0
    update_s: float = 0.0  # of the weights, if this rank does it
    sum_s: float = 0.0  # adding gradients: a part of communicating or, with buckets, of ``backward_s``
    hidden_s: float = 0.0  # in which buckets travelled during backward, or activations during multiplications

    @property
    def compute_s(self) -> float:
        """Seconds of computing: forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


@dataclasses.dataclass(frozen=True)
class RankOutcome:
    """The result of one rank; only rank 0 has ``learning``, ``traffic`` and ``versions``."""

    rank: int
    is_worker: bool
    wall_s: tuple[float, ...]
    parts: tuple[Parts, ...]
    sha256: str
    learning: Learning | None
    traffic: Traffic | None
    versions: Versions | None
    parameters: int
    sent: Sent  # what the rank handed to its sockets in the timed iterations
    coded: Coded  # in the timed iterations
    peak_memory_octets: int  # resident, libraries included
    first_iteration: int = 0  # number of iterations that earlier commands did

    @staticmethod
    def path(folder: Path, rank: int) -> Path:
        """Return the file of a rank's result in the result folder."""
        return folder / f"rank{rank}.json"


COMPRESSED_SHARE_MIN: Final = 0.98
"""Least share of a rank's tagged octets that its NIC must compress, without segments that it sent exact.

Those may be half of the octets. If more crossed raw, the run was not compressed.
"""

SENT_EXACT: Final = ("bypass_no_gain", "bypass_exact")
"""Counters of segments that would not shrink, or did not look like floats: a saturated network has tiny gradients."""

NOT_TAGGED: Final = ("bypass_not_tcp", "bypass_untagged", "bypass_syn", "bypass_no_payload")
"""Counters of segments that nobody wants compressed."""

SEGMENT_OCTETS_MAX: Final = 65_535  # largest segment that a NIC gets from its host


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


def _counts(by_reason: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in by_reason.items() if count) or "none"


def check_traffic(settings: TrainSettings, traffic: Traffic, outcomes: Sequence[RankOutcome]) -> None:
    """Compare the octets of wire i, and those that NIC i compressed, with the octets that rank i sent."""
    for outcome, node in zip(outcomes, traffic.nodes[: len(outcomes)], strict=True):
        rank, sent = outcome.rank, outcome.sent
        if node.tx_octets < sent.octets:
            raise RunError(
                f"{node.tx_octets} octets crossed the wire of {node.name}, rank {rank} sent "
                f"{sent.octets}: the ranks did not talk over the shaped links"
            )
        compressed = outcome.coded.compressed_octets
        raw_segments = outcome.coded.raw_segments
        excused = min(sum(raw_segments.get(reason, 0) for reason in SENT_EXACT) * SEGMENT_OCTETS_MAX, compressed)
        if compressed + excused < COMPRESSED_SHARE_MIN * sent.tagged_octets:
            raise RunError(
                f"the NIC of {node.name} compressed {compressed} of {sent.tagged_octets} tagged octets of rank {rank}: "
                f"the others crossed raw (segments: {_counts(raw_segments)}; frames that NICs dropped: "
                f"{_counts(traffic.drops)})"
            )
    if settings.compressed and not any(outcome.sent.tagged_octets for outcome in outcomes):
        raise RunError("compression was asked for, and no rank sent anything tagged")
    if not settings.compressed and traffic.blocks:
        raise RunError(f"NICs compressed {traffic.blocks} frames of a run that is not tagged")
