"""The floats that experiments compress: drawn, read from a file, or gradients of HDC."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from netoffload.collectives.samples import gradient_of, parse_sigma, read_gradients
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

HDC: Final = "hdc"
"""Name of the vector of gradients that this process gets by training HDC."""


def gaussian(text: str, floats: int, seed: int) -> Float32Array:
    """Return float32[floats] of ``gaussian:SIGMA``."""
    return gradient_of(0, floats, parse_sigma(text), seed)


def of_file(path: Path, floats: int) -> Float32Array:
    """Return float32[floats] of a .npy file, repeated if it holds fewer."""
    return np.resize(read_gradients(path), floats)


def of_hdc(seed: int, vectors: int = 4) -> Float32Array:
    """Train HDC and return some of its gradients, float32[vectors, n]."""
    try:
        from netoffload.lab.training.inprocess import sample_gradients
    except ImportError as error:
        raise UsageError(f"gradients of hdc need torch: pip install 'netoffload[train]' ({error})") from error
    return sample_gradients(vectors=vectors, seed=seed)


def gradients_argument(text: str) -> str:
    """Return the option ``--gradients`` for ranks, which have another working directory: a file's path is absolute."""
    return str(Path(text).absolute()) if Path(text).exists() else text
