"""Which rank of which attempt a process is, from the environment that ``torchrun``, ``mpiexec`` or Slurm sets."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

LAUNCHERS: Final = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
"""Variables of rank, number of ranks and rank on its host, as MPICH and Open MPI name them."""

PORT_DEFAULT: Final = "29500"

ATTEMPTS: Final = (
    ("TORCHELASTIC_RUN_ID", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"),
)
"""Variables of a job's name, of who counts its restarts, and of the count. Slurm sets no count before the first."""


class Attempt(NamedTuple):
    """One start of a job: its launcher may start it again after an error."""

    run: str = ""  # name of the job
    counter: str = ""  # who counts the restarts; each agent of `torchrun` counts its own
    number: int = 0  # restarts before this one

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Attempt:
        """Return the attempt that the launcher names; the first one of a job without a name if it names none."""
        for run, counter, number in ATTEMPTS:
            if run in environment:
                count = environment.get(number, "0")
                return cls(environment[run], environment.get(counter, ""), int(count) if count.isdecimal() else 0)
        return cls()

    def is_other_than(self, other: Attempt) -> bool:
        """Return whether this surely is another attempt of the same job: the same counter has another number."""
        return self[:2] == other[:2] and self.number != other.number

    def __str__(self) -> str:
        """Return its name in errors."""
        return f"attempt {self.number}"


def set_rank_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set $RANK, $WORLD_SIZE, $LOCAL_RANK, $MASTER_ADDR and $MASTER_PORT from what ``mpiexec`` sets.

    Call it before ``init_process_group``. Variables that are set already stay, so it does nothing under ``torchrun``.
    """
    for rank, size, local in LAUNCHERS:
        if "RANK" not in environment and rank in environment and size in environment:
            environment["RANK"], environment["WORLD_SIZE"] = environment[rank], environment[size]
            environment.setdefault("LOCAL_RANK", environment.get(local, "0"))
    if "RANK" in environment:
        environment.setdefault("MASTER_ADDR", "127.0.0.1")
        environment.setdefault("MASTER_PORT", PORT_DEFAULT)
