"""Which rank a process is, from the environment that ``torchrun`` or ``mpiexec`` sets."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

LAUNCHERS: Final = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
"""Variables of rank, number of ranks and rank on its host, as MPICH and Open MPI name them."""

PORT_DEFAULT: Final = "29500"


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
