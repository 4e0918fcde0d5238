"""Gradients that an experiment names: random ones (``gaussian:0.002``), or those of a file."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from netoffload.collectives.samples import gradient_of
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError


def parse_sigma(text: str) -> float:
    """Return the standard deviation of ``gaussian:SIGMA``."""
    kind, _, number = text.partition(":")
    try:
        sigma = float(number)
    except ValueError:
        sigma = -1.0
    if kind != "gaussian" or not 0 < sigma < 1:
        raise UsageError(f"gradients {text!r} are unknown: write gaussian:0.002 (a standard deviation between 0 and 1)")
    return sigma


Draw = Callable[[int, int], Float32Array]
"""Takes a rank and a number of floats, returns that rank's vector; the same in every run."""


def gradients_from(text: str, seed: int) -> Draw:
    """Return a function that makes every rank's vector: from ``gaussian:SIGMA``, or from a file.

    Rank i's vector begins with vector i of the file. The file's next vectors follow, and after the last one the first.
    """
    if text.startswith("gaussian:"):
        sigma = parse_sigma(text)
        return lambda rank, count: gradient_of(rank, count, sigma, seed)
    if not Path(text).is_file():
        raise UsageError(f"gradients {text!r} are not a file: name one with float32 (.npy), or write gaussian:0.002")
    held = np.atleast_2d(read_gradients(Path(text)))
    vectors = held.reshape(held.shape[0], -1)
    return lambda rank, count: np.resize(np.roll(vectors, -rank, axis=0), count)


def read_gradients(path: Path) -> Float32Array:
    """Read what ``netoffload train hdc --capture`` wrote: float32[vectors, n], or any other float32 array."""
    try:
        gradients = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot read gradients from {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile):
        gradients = None  # NumPy's message is about pickles, whatever is wrong
    if not isinstance(gradients, np.ndarray) or gradients.dtype != np.float32:
        raise UsageError(f"{path} is not a .npy file of float32: 'netoffload train hdc --capture FILE.npy' writes one")
    if not gradients.size:
        raise UsageError(f"{path} has no value")
    return np.ascontiguousarray(gradients)
