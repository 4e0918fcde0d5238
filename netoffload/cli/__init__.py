"""What a person types: one module per group of commands, each a thin wrapper around one layer.

Commands parse, call one function of a layer, and print; they compute nothing, and a test says so. Layers with heavy
imports (torch, numba, matplotlib) are imported inside the commands that need them. A command's own module is imported
when the command is asked for (``known``), so that ``--help`` and Tab answer at once.
"""

from netoffload.cli.app import app, main

__all__ = ["app", "main"]
