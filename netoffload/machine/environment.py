"""Versions of programs and packages, which records name."""

import platform
from importlib import metadata, util

import numpy as np

import netoffload
from netoffload.codec.kernels import KERNEL


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of netoffload, Python and NumPy, and those of the ``packages`` that are installed."""
    own = {"netoffload": netoffload.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return own | {name: metadata.version(name) for name in packages if util.find_spec(name) is not None}


def system_versions(mpi_library: str | None = None) -> dict[str, str]:
    """Return :func:`versions`, and those of Linux, of ``MPI.Get_library_version()``, and of the codec's kernels."""
    mpi = {} if mpi_library is None else {"mpi": " ".join(mpi_library.split("\n")[0].strip("\0").split())}
    return versions() | mpi | {"kernel": platform.release(), "codec_kernel": KERNEL}
