"""Vectors to try the collectives on: random ones like gradients, and ones whose sums are exact."""

import numpy as np

from netoffload.compiled.arrays import Float32Array


def gradient_of(rank: int, count: int, sigma: float, seed: int) -> Float32Array:
    """Return float32[count] drawn from N(0, sigma), the same in every run for one rank and seed."""
    return np.random.default_rng([seed, rank]).standard_normal(count, dtype=np.float32) * np.float32(sigma)


def whole_numbers(rank: int, count: int, seed: int) -> Float32Array:
    """Return float32[count] of integers so small that every order of adding them is exact."""
    return np.random.default_rng([seed, rank]).integers(-1000, 1000, count).astype(np.float32)
