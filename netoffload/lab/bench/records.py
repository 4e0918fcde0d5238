"""Records of jobs of ranks: findings that rank 0 leaves as JSON for the process that started the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netoffload.lab.bench.experiment import Finding


@dataclass(frozen=True)
class JobRecord(Finding):
    """The fields of every job's record: number of ranks, the NICs' codec and bound (None: no NIC), versions."""

    ranks: int
    codec: str | None
    bound_k: int | None
    versions: dict[str, str]


@dataclass(frozen=True)
class AllreduceResult(Finding):
    """The ranks' result for one contender and size; figures are per call.

    Attributes:
        what: the contender's name in the rank program.
        size_octets: length of the vector.
        times_s: time of the slowest rank, by round.
        wire_octets: octets on all wires; None without a meter.
        rank_cpu_s: CPU time of all ranks together.
        nic_cpu_s: CPU time of all NICs together; None without NICs.
        nic: counters of all NICs, added up; None without NICs.
        max_error: largest difference from the exact sum.
        bound_s: the least time; None: the rate is not known, and the record has no such key.
    """

    what: str
    size_octets: int
    times_s: tuple[float, ...]
    wire_octets: float | None
    rank_cpu_s: float
    nic_cpu_s: float | None
    nic: dict[str, float] | None
    max_error: float
    bound_s: float | None

    def to_record(self) -> dict[str, Any]:
        """Return the record."""
        record = super().to_record()
        return {key: value for key, value in record.items() if key != "bound_s" or value is not None}


@dataclass(frozen=True)
class AllreduceRecord(JobRecord):
    """What ``rank_allreduce`` leaves."""

    results: tuple[AllreduceResult, ...]


@dataclass(frozen=True)
class OverlapResult(Finding):
    """What ``rank_overlap`` found with one kind of computation.

    Attributes:
        compute_kind: kind of computation, of ``jobs.COMPUTE``.
        compute_s_per_bucket: time that computing one bucket should take.
        times_s: time of a step, by way and round.
        compute_s: median of a step that only computes.
        communication_s: median of a step that only communicates.
        serial_s: median of a step that computes all, then communicates all.
        overlapped_s: median of a step that does both at the same time.
        overlap: share of the shorter part that disappears behind the longer one; 1: the whole shorter part.
    """

    compute_kind: str
    compute_s_per_bucket: float
    times_s: dict[str, tuple[float, ...]]
    compute_s: float
    communication_s: float
    serial_s: float
    overlapped_s: float
    overlap: float


@dataclass(frozen=True)
class OverlapRecord(JobRecord):
    """What ``rank_overlap`` leaves."""

    buckets: int
    size_octets: int
    results: tuple[OverlapResult, ...]


@dataclass(frozen=True)
class DdpResult(Finding):
    """The result of the ranks of ``rank_ddp`` for one contender.

    Attributes:
        what: name of the contender.
        times_s: time of the slowest rank, by step.
        wire_octets: octets on all wires, per step.
        payload_ratio: octets of a plain ring over those that our hook sent, headers excluded; None: another hook.
        accuracy: accuracy on the test set, after the last step; None: each rank trains alone.
        loss: loss of rank 0's last batch.
    """

    what: str
    times_s: tuple[float, ...]
    wire_octets: float
    payload_ratio: float | None
    accuracy: float | None
    loss: float


@dataclass(frozen=True)
class DdpRecord(Finding):
    """What ``rank_ddp`` leaves; the first result is that of ``jobs.ALONE``."""

    versions: dict[str, str]
    results: tuple[DdpResult, ...]
