"""Vectors to try the collectives on: gradient-like ones, and ones whose sums are exact."""

from __future__ import annotations

import numpy as np

from netoffload.collectives.exchange import Float32Array
from netoffload.errors import UsageError


def parse_sigma(text: str) -> float:
    """Return the standard deviation of ``gaussian:SIGMA``.

    Raises:
        UsageError: anything else.
    """
    kind, _, number = text.partition(":")
    try:
        sigma = float(number)
    except ValueError:
        sigma = -1.0
    if kind != "gaussian" or not 0 < sigma < 1:
        raise UsageError(f"gradients {text!r} are unknown: write gaussian:0.002 (a standard deviation between 0 and 1)")
    return sigma


def gradient_of(rank: int, count: int, sigma: float, seed: int) -> Float32Array:
    """Return float32[count] drawn from N(0, sigma), the same in every run for one rank and seed."""
    return np.random.default_rng([seed, rank]).standard_normal(count, dtype=np.float32) * np.float32(sigma)


def whole_numbers(rank: int, count: int, seed: int) -> Float32Array:
    """Return float32[count] of integers so small that every order of adding them is exact."""
    return np.random.default_rng([seed, rank]).integers(-1000, 1000, count).astype(np.float32)
