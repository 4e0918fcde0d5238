"""The floats that experiments compress: drawn, read from a file, or gradients of HDC."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from netoffload.collectives.samples import gradient_of, parse_sigma, read_gradients
from netoffload.compiled.arrays import Float32Array
from netoffload.config import parse_size_octets
from netoffload.errors import UsageError

HDC: Final = "hdc"
"""Name of the vector of gradients that this process gets by training HDC."""


def parse_vector_octets(text: str) -> int:
    """Return the octets of whole float32 in a size: ``16MB``, ``4096``.

    Raises:
        UsageError: not a size, or less than one float32.
    """
    if (octets := parse_size_octets(text) // 4 * 4) == 0:
        raise UsageError("size is less than one float32, 4 octets")
    return octets


def gaussian(text: str, floats: int, seed: int) -> Float32Array:
    """Return float32[floats] of ``gaussian:SIGMA``.

    Raises:
        UsageError: another text.
    """
    return gradient_of(0, floats, parse_sigma(text), seed)


def of_file(path: Path, floats: int) -> Float32Array:
    """Return float32[floats] of a .npy file, repeated if it holds fewer.

    Raises:
        UsageError: it cannot be read.
    """
    return np.resize(read_gradients(path), floats)


def of_hdc(seed: int, vectors: int = 4) -> Float32Array:
    """Train HDC and return some of its gradients, float32[vectors, n].

    Raises:
        UsageError: torch is not installed.
    """
    try:
        from netoffload.lab.training.sample import sample_gradients
    except ImportError as error:
        raise UsageError(f"gradients of hdc need torch: pip install 'netoffload[train]' ({error})") from error
    return sample_gradients(vectors=vectors, seed=seed)


def gradients_argument(text: str) -> str:
    """Return the option ``--gradients`` for ranks, which have another working directory: a file's path is absolute."""
    return str(Path(text).absolute()) if Path(text).exists() else text
