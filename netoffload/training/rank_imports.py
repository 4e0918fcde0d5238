"""What the ranks of training runs have in common, by name: it is imported once, in the process that they are forks of.

This module imports none of it, so that a command can have the imports begin before it does its own.
"""

from typing import Final

IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.collectives",
    "netoffload.methods",
    "netoffload.transport",
    "netoffload.training.board",
    "netoffload.training.capture",
    "netoffload.training.checkpoint",
    "netoffload.training.milestones",
    "netoffload.training.parallel",
    "torch.optim",
)
"""Torch and the kernels among it. MPI is not: importing it starts it."""
