"""The environment of a measurement: versions of programs and packages, and the machine.

Records name them, because figures from unknown machines cannot be compared.
"""

import platform
from importlib import metadata, util
from pathlib import Path
from typing import Final

import numpy as np

import netoffload
from netoffload.codec.kernels import KERNEL

COMMIT_DIGITS: Final = 10

UNKNOWN: Final = "unknown"
"""A version, a machine, or a key that older records lack."""


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of netoffload, Python and NumPy, and those of the ``packages`` that are installed."""
    own = {"netoffload": netoffload.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return own | {name: metadata.version(name) for name in packages if util.find_spec(name) is not None}


def system_versions(mpi_library: str | None = None) -> dict[str, str]:
    """Return :func:`versions`, and those of Linux, of ``MPI.Get_library_version()``, and of the codec's kernels."""
    mpi = {} if mpi_library is None else {"mpi": " ".join(mpi_library.split("\n")[0].strip("\0").split())}
    return versions() | mpi | {"kernel": platform.release(), "codec_kernel": KERNEL}


def cpu_model() -> str:
    """Return the CPU's name from Linux, else the name of the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Return the commit of this package's source tree, which may have changes; ``unknown`` outside a source tree."""
    root = Path(__file__).resolve().parents[2]
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
