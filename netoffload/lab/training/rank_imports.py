"""The modules that all ranks of training runs need, by name; a fork server imports them once for all ranks.

This module does not import them, so a command can start the fork server before its own imports.
"""

from typing import Final

IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.collectives",
    "netoffload.methods",
    "netoffload.transport.rounds.driver:prepare",
    "netoffload.lab.training.capture",
    "netoffload.lab.training.loop",
    "torch._dynamo",  # a rank's first optimizer would import it, for a second
)
"""These import torch and load the kernels, but not MPI, because importing MPI initialises it."""
