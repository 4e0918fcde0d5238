"""Jobs of ranks: the names, bounds and limits that settings, experiments and rank programs share, and their findings.

Rank 0 leaves a job's findings as JSON for the process that started the ranks. This module imports nothing heavy,
because the command line's help has these names.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from netoffload.config import ENV_OFFLOAD, Offload
from netoffload.errors import UsageError
from netoffload.lab.declared import Column, Finding, words, words_of
from netoffload.lab.units import format_ms

if TYPE_CHECKING:
    from netoffload.lab.testbed import Testbed

R = TypeVar("R", bound=Finding)

_NEED_MPI: Final = "ranks need MPICH and mpi4py: pip install 'netoffload[mpi]'"


def lacks_mpich() -> str | None:
    """Return what this machine lacks to start ranks with MPICH; None: nothing."""
    from netoffload.lab.testbed.launch import find_mpiexec

    return None if find_spec("mpi4py") and find_mpiexec() else _NEED_MPI


@dataclass(frozen=True)
class Job:
    """How a contender's ranks are started; ``missing`` says what this machine lacks for it.

    ``what`` is its name in the rank program. Ranks that are ``is_inline`` compress with the codec that NICs would have.
    """

    what: str
    through_nic: bool = False
    is_inline: bool = False
    env: dict[str, str] = field(default_factory=dict)
    mpi: str = "mpich"
    missing: Callable[[], str | None] = lacks_mpich


def _lacks_openmpi() -> str | None:
    from netoffload.lab.testbed.launch import find_openmpi

    if find_spec("mpi4py") is None:
        return _NEED_MPI
    return None if find_openmpi() else "openmpi needs Open MPI 5: see `netoffload run --mpi openmpi`"


def _lacks_torch() -> str | None:
    return lacks_mpich() if find_spec("torch") else "gloo needs torch: pip install 'netoffload[train]'"


JOBS: Final = {
    "ring": Job("ring"),
    "ring_nic": Job("ring", through_nic=True),
    "ring_comp": Job("ring_comp", through_nic=True),
    "ring_inline": Job("ring_comp", is_inline=True, env={ENV_OFFLOAD: Offload.INLINE}),
    "wa": Job("wa"),
    "wa_comp": Job("wa_comp", through_nic=True),
    "hierarchical_comp": Job("hierarchical_comp", through_nic=True),
    "mpich": Job("mpi", env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"}),
    "mpich_ring": Job("mpi", env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}),
    "openmpi": Job("mpi", env={"OMPI_MCA_coll_tuned_use_dynamic_rules": "0"}, mpi="openmpi", missing=_lacks_openmpi),
    "openmpi_ring": Job("mpi", mpi="openmpi", missing=_lacks_openmpi),
    "gloo": Job("gloo", env={"TORCH_CPP_LOG_LEVEL": "ERROR"}, missing=_lacks_torch),
}
"""Our ring untagged, the same through the NICs, tagged, and coded by the ranks; a worker-aggregator exchange, untagged
and with its gradients tagged; rings of rings; MPICH and Open MPI, each with the algorithm it chooses and with its ring;
torch's gloo."""

DEFAULT: Final = tuple(name for name in JOBS if name not in ("ring_nic", "openmpi_ring"))


def installed() -> tuple[str, ...]:
    """Return the contenders of :data:`DEFAULT` that this machine can start."""
    return tuple(name for name in DEFAULT if JOBS[name].missing() is None)


WHATS: Final = tuple(dict.fromkeys(job.what for job in JOBS.values()))
"""Ways in which the ranks of ``rank_allreduce`` can sum a vector."""

ALLREDUCE_ARGUMENTS: Final = "size repeat gradients seed"
OVERLAP_ARGUMENTS: Final = "compute buckets size compute_ms repeat gradients seed"
"""The settings that rank programs take from the experiments that start them."""

COMPUTE: Final = ("numpy", "python", "sleep")
"""Ways in which the ranks of ``rank_overlap`` compute: NumPy, which releases the interpreter lock; a loop in Python,
which holds it; sleep, which leaves its core to others."""


@dataclass(frozen=True)
class DdpHook:
    """How a contender of ``bench ddp`` lets gradients travel: a hook of ``training.ddp.DdpReplica``, and its options.

    ``nic_codec`` is that of the emulated NICs; None: no NICs. A hook that ``is_bounded`` also gets the bound that the
    user chose. Steps of one that is not ``is_usual`` are timed only by name.
    """

    hook: str
    nic_codec: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    is_bounded: bool = False
    is_usual: bool = True


ALONE: Final = "alone"
"""The contender of ``bench ddp`` whose gradients do not travel; all others are compared with it."""

PACKED_INLINE: Final[dict[str, Any]] = {"offload": Offload.INLINE, "codec": "packed"}
"""Options of ranks that compress by themselves with the default codec."""

DDP_HOOKS: Final = {
    "gloo": DdpHook("none"),
    "fp16": DdpHook("fp16"),
    "powersgd": DdpHook("powersgd"),
    "inline_bounded": DdpHook("compress", None, {"offload": Offload.INLINE, "codec": "bounded"}, is_bounded=True),
    "inline_packed": DdpHook("compress", None, PACKED_INLINE, is_bounded=True),
    "inline_packed_ef": DdpHook("compress", None, PACKED_INLINE | {"error_feedback": True}, is_bounded=True),
    "qsgd": DdpHook("compress", None, {"compressor": "qsgd:levels=15"}),
    "nic_bounded": DdpHook("compress", "bounded", {"offload": Offload.NIC}),
    "nic_packed": DdpHook("compress", "packed", {"offload": Offload.NIC}),
    "nic_inceptionn": DdpHook("compress", "inceptionn", {"offload": Offload.NIC}),
    "powersgd_2": DdpHook("powersgd", options={"rank": 2}, is_usual=False),
    "powersgd_4": DdpHook("powersgd", options={"rank": 4}, is_usual=False),
    "inline_exact": DdpHook("compress", None, {"offload": Offload.INLINE, "codec": "exact"}, is_usual=False),
    "pqasgd": DdpHook("periodic", None, {"method": "pqasgd", "every": 4}, is_usual=False),
    "diloco": DdpHook(
        "periodic",
        None,
        {"method": "changes", "every": 6, "momentum": 0.3, "compressor": "chunked-topk:k=64,decay=1"},
        is_usual=False,
    ),
}
"""torch's own all_reduce and its hooks; ours, coded by the ranks, with payloads of a compressor, and through NICs;
weights that ranks average every few steps."""

RACERS: Final = (
    *("gloo", "fp16", "powersgd", "powersgd_2", "powersgd_4", "inline_packed", "inline_packed_ef"),
    *("inline_exact", "pqasgd", "diloco"),
)
"""The contenders of ``bench ddp --until``."""

TORCHS: Final = frozenset(name for name, hook in DDP_HOOKS.items() if hook.hook in ("none", "fp16", "powersgd"))
"""Those that are torch's own."""

SETUP_S: Final = 60.0
"""Time for starting ranks, drawing gradients and comparing answers."""

SLOWEST_OVER_BOUND: Final = 20.0
"""A call may take this many times its bound before its ranks are ended as hung."""


def check_nodes(nodes: int) -> None:
    """Refuse a number of ranks, each on a node, that exchange nothing."""
    if nodes < 2:
        raise UsageError(f"{nodes} nodes exchange nothing: use at least 2")


def rank_words(asked: Any, names: str) -> list[str]:
    """Return settings as arguments of ranks, which have another working directory: a file's path is absolute."""
    if (path := Path(asked.gradients)).exists():
        asked = replace(asked, gradients=str(path.absolute()))
    return words_of(asked, names)


def record_of_ranks(kind: type[R], bed: Testbed, words: list[str], **how: Any) -> R:
    """Run ``-m MODULE ARGUMENT...`` as a rank on every node, with ``how`` of ``run_ranks``; return the record."""
    from netoffload.lab.results import read_file
    from netoffload.lab.testbed import run_ranks

    out = bed.make_scratch() / "record.json"
    run_ranks(bed, range(len(bed.plan.nodes)), [*words, "--out", str(out)], **how)
    return read_file(kind, out)


@dataclass(frozen=True)
class JobRecord(Finding):
    """The fields of every job's record: number of ranks, the NICs' codec and bound (None: no NIC), versions."""

    ranks: int
    codec: str | None
    bound_k: int | None
    versions: dict[str, str]


@dataclass(frozen=True)
class AllreduceResult(Finding):
    """The ranks' result for one contender and size, per call. None: no known rate, no meter, or no NICs.

    ``times_s`` is the slowest rank's time by round. ``ratio`` is a ring's payload over the octets on all wires,
    ``max_error`` the largest difference from the exact sum.
    """

    what: Annotated[str, words("what")]
    nodes: int
    size_octets: Annotated[int, Column("MB", ".4g", 1e6)]
    times_s: Annotated[
        tuple[float, ...],
        Column("median", format_ms, of=statistics.median),
        Column("min", format_ms, of=min),
        Column("max", format_ms, of=max),
    ]
    median_s: float
    min_s: float
    max_s: float
    bound_s: float | None
    over_bound: Annotated[float | None, Column("x bound", ".3f")]
    wire_octets: Annotated[float | None, Column("wire MB", ".2f", 1e6)]
    ratio: Annotated[float | None, Column("ratio", ".2f")]
    cpu_s: Annotated[float, Column("CPU s", ".2f")]
    rank_cpu_s: float
    nic_cpu_s: float | None
    nic: dict[str, float] | None
    max_error: Annotated[float, Column("error", ".2g")]


@dataclass(frozen=True)
class AllreduceRecord(JobRecord):
    """What ``rank_allreduce`` leaves."""

    results: tuple[AllreduceResult, ...]


@dataclass(frozen=True)
class OverlapResult(Finding):
    """What ``rank_overlap`` found with one kind of computation: times of a step by way and round, and their medians.

    ``overlap`` is the share of the shorter part that disappears behind the longer one.
    """

    compute_kind: Annotated[str, words("with")]
    compute_s_per_bucket: float
    times_s: dict[str, tuple[float, ...]]
    compute_s: Annotated[float, Column("compute", ".1f", 1e-3)]
    communication_s: Annotated[float, Column("communication", ".1f", 1e-3)]
    serial_s: Annotated[float, Column("serial", ".1f", 1e-3)]
    overlapped_s: Annotated[float, Column("overlapped", ".1f", 1e-3)]
    overlap: Annotated[float, Column("overlap", ".2f")]


@dataclass(frozen=True)
class OverlapRecord(JobRecord):
    """What ``rank_overlap`` leaves."""

    buckets: int
    size_octets: int
    results: tuple[OverlapResult, ...]


@dataclass(frozen=True)
class DdpResult(Finding):
    """The result of the ranks of ``rank_ddp`` for one contender, per step; octets are those on all wires.

    ``compute_s`` is the step of its job in which nothing travels, ``times_s`` are the slowest rank's. ``ratio_to_fp16``
    is octets of the fp16 hook over this one's. ``payload_ratio`` is octets of a plain ring over those that our hook
    sent, without headers. None: not measured, or another hook.
    """

    what: Annotated[str, words("what")]
    s_per_iteration: Annotated[float, Column("step", ".1f", 1e-3)]
    compute_s: Annotated[float, Column("compute", ".1f", 1e-3)]
    communicate_s: Annotated[float, Column("communicate", ".1f", 1e-3)]
    wire_bytes_per_iteration: Annotated[float, Column("wire MB", ".3g", 1e6)]
    ratio_to_fp16: Annotated[float | None, Column("fp16 / wire", ".2f")]
    payload_ratio: Annotated[float | None, Column("payload", ".2f")]
    accuracy: Annotated[float, Column("accuracy", ".1f", 0.01)]
    loss: Annotated[float, Column("loss", ".3f")]
    times_s: tuple[float, ...]


@dataclass(frozen=True)
class RacePoint(Finding):
    """The accuracy on the test set after some steps, with the seconds and the octets on all wires so far."""

    steps: int
    time_s: float
    wire_octets: int
    accuracy: float


@dataclass(frozen=True)
class RaceResult(Finding):
    """One contender's training until the accuracy, or to the last step; ``tried`` has the accuracies by learning rate.

    Those of ``tried`` are on samples that are neither trained on nor in the test set.
    """

    what: Annotated[str, words("what")]
    is_reached: Annotated[bool, Column("", lambda reached: "" if reached else "not reached")]
    learning_rate: Annotated[float, Column("learning rate", ".3g")]
    steps: Annotated[int, Column("steps")]
    s_per_iteration: Annotated[float, Column("ms a step", ".1f", 1e-3)]
    time_s: Annotated[float, Column("seconds", ".1f")]
    wire_octets: Annotated[int, Column("wire MB", ".3g", 1e6)]
    accuracy: Annotated[float, Column("accuracy", ".1f", 0.01)]
    tried: dict[str, float]
    curve: tuple[RacePoint, ...]


@dataclass(frozen=True)
class DdpRecord(Finding):
    """What ``rank_ddp`` leaves: the results of timed steps, or of a race."""

    versions: dict[str, str]
    results: tuple[DdpResult, ...] = ()
    raced: tuple[RaceResult, ...] = ()
