"""The machine of a measurement, and the commit: figures from unknown machines cannot be compared."""

import platform
from pathlib import Path
from typing import Final

import netoffload

COMMIT_DIGITS: Final = 10

UNKNOWN: Final = "unknown"
"""A version, a machine, or a key that older records lack."""


def cpu_model() -> str:
    """Return the CPU's name from Linux, else the name of the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Return the commit of this package's source tree, which may have changes; ``unknown`` outside a source tree."""
    root = Path(netoffload.__file__).resolve().parents[1]
    git = root / ".git"
    try:
        if git.is_file():  # a second work tree
            git = (root / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head[:COMMIT_DIGITS]
        common = git / "commondir"
        folder = (git / common.read_text(encoding="utf-8").strip()).resolve() if common.exists() else git
        if (folder / name).exists():
            return (folder / name).read_text(encoding="utf-8")[:COMMIT_DIGITS]
        packed = (folder / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line[:COMMIT_DIGITS] for line in packed if line.endswith(f" {name}")), UNKNOWN)
    except OSError:
        return UNKNOWN
