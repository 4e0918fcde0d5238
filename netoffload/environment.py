"""What a figure was made with: versions of programs and packages, and the machine.

Records name them, because a figure without its machine cannot be compared with another one.
"""

from __future__ import annotations

import platform
from importlib import metadata, util
from pathlib import Path

import numpy as np

import netoffload
from netoffload.codec.kernels import KERNEL


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of netoffload, Python and NumPy, and those of the ``packages`` that are installed."""
    own = {"netoffload": netoffload.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return own | {name: metadata.version(name) for name in packages if util.find_spec(name) is not None}


def system_versions(mpi_library: str | None = None) -> dict[str, str]:
    """Return :func:`versions`, that of the Linux kernel, the codec's kernel in use, and MPI's.

    Args:
        mpi_library: what MPI says of itself (``MPI.Get_library_version()``); its first line is taken. None: no MPI.
    """
    mpi = {} if mpi_library is None else {"mpi": " ".join(mpi_library.split("\n")[0].strip("\0").split())}
    return versions() | mpi | {"kernel": platform.release(), "codec_kernel": KERNEL}


def cpu_model() -> str:
    """Return the CPU's name as Linux gives it, else the name of the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
