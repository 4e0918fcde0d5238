"""What a person types: one module per group of commands, each a thin wrapper around one layer.

Commands parse, call one function of a layer, and print; they compute nothing, and a test says so. Layers with heavy
imports (torch, numba, matplotlib) are imported inside the commands that need them, so that ``--help`` answers at once.
"""

from netoffload.cli import (
    advise,
    bench,
    demo,
    dissect,
    doctor,
    example,
    model,
    nic,
    report,
    reproduce,
    run,
    stats,
    testbed,
    top,
    train,
    verify,
    verify_methods,
    verify_mpi,
    verify_soak,
    verify_torch,
)
from netoffload.cli.app import app, main

__all__ = [
    "advise",
    "app",
    "bench",
    "demo",
    "dissect",
    "doctor",
    "example",
    "main",
    "model",
    "nic",
    "report",
    "reproduce",
    "run",
    "stats",
    "testbed",
    "top",
    "train",
    "verify",
    "verify_methods",
    "verify_mpi",
    "verify_soak",
    "verify_torch",
]
