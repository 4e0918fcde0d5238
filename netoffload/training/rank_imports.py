"""The modules that ranks and NICs of training runs need, by name; a fork server imports them once for all.

This module does not import them, so a command can start the fork server before its own imports.
"""

from typing import Final

from netoffload.testbed.forks import NIC_IMPORTS

IMPORTED: Final = (
    *NIC_IMPORTS,
    "mpi4py.run",
    "netoffload.collectives",
    "netoffload.methods",
    "netoffload.transport.driver:prepare",
    "netoffload.training.board",
    "netoffload.training.capture",
    "netoffload.training.checkpoint",
    "netoffload.training.milestones",
    "netoffload.training.parallel",
    "torch._dynamo",  # a rank's first optimizer would import it, for a second
)
"""These import torch and load the kernels, but not MPI, because importing MPI initialises it."""
