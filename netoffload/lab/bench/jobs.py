"""Jobs of ranks: the names, bounds and limits that command line, experiments and rank programs share.

This module imports nothing heavy, because the command line's help has these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final

from netoffload.config import ENV_OFFLOAD, Offload

_NEED_MPI: Final = "ranks need MPICH and mpi4py: pip install 'netoffload[mpi]'"


def lacks_mpich() -> str | None:
    """Return what this machine lacks to start ranks with MPICH; None: nothing."""
    from netoffload.lab.testbed.launch import find_mpiexec

    return None if find_spec("mpi4py") and find_mpiexec() else _NEED_MPI


@dataclass(frozen=True)
class Job:
    """How a contender's ranks are started.

    Attributes:
        what: the contender's name in the rank program.
        through_nic: the ranks send through emulated NICs.
        is_inline: the ranks compress by themselves, with the codec that NICs would have.
        env: environment of the ranks.
        mpi: the MPI that starts the ranks.
        missing: returns what this machine lacks for the job, None if nothing.
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

COMPUTE: Final = ("numpy", "python", "sleep")
"""Ways in which the ranks of ``rank_overlap`` compute: NumPy, which releases the interpreter lock; a loop in Python,
which holds it; sleep, which leaves its core to others."""


@dataclass(frozen=True)
class DdpHook:
    """How a contender of ``bench ddp`` lets gradients travel.

    Attributes:
        hook: name of a hook of :class:`netoffload.lab.training.ddp.DdpReplica`.
        nic_codec: codec of the emulated NICs; None: no NICs.
        options: options of our hook.
        is_bounded: our hook also gets the error bound that the user chose.
    """

    hook: str
    nic_codec: str | None = None
    options: dict[str, str | bool] = field(default_factory=dict)
    is_bounded: bool = False


ALONE: Final = "alone"
"""The contender of ``bench ddp`` whose gradients do not travel; all others are compared with it."""

PACKED_INLINE: Final[dict[str, str | bool]] = {"offload": Offload.INLINE, "codec": "packed"}
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
}
"""torch's own all_reduce and its hooks; ours, coded by the ranks, with payloads of a compressor, and through NICs."""

SETUP_S: Final = 60.0
"""Time for starting ranks, drawing gradients and comparing answers."""

SLOWEST_OVER_BOUND: Final = 20.0
"""A call may take this many times its bound before its ranks are ended as hung."""


def least_s(ranks: int, size_octets: int, rate_bps: float) -> float:
    """Return the least time of an allreduce over links of that rate: 2(p-1)/p · size / rate."""
    return 2 * (ranks - 1) / ranks * size_octets * 8 / rate_bps
