"""The command line: one module per group of commands.

A command parses, calls one function of a layer, and prints. A test checks that no command computes anything. Commands
import layers with heavy imports (torch, numba, matplotlib) only where they need them. The program imports a command's
module when a user calls the command (``known``), so ``--help`` and Tab answer at once. ``kernels`` is what ``warmup``
compiles.
"""

from netoffload.cli.app import app, main

__all__ = ["app", "main"]
