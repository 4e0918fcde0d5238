"""The least time of an allreduce, which times are held against, and the time limits that follow from it."""

from __future__ import annotations

from typing import Final

SETUP_S: Final = 60.0
"""Allowance for starting ranks, drawing gradients and comparing answers."""

SLOWEST_OVER_BOUND: Final = 20.0
"""A call may take this many times its bound before its ranks are ended as hung."""


def least_s(ranks: int, size_octets: int, rate_bps: float) -> float:
    """Return the least time of an allreduce over links of that rate: 2(p-1)/p · size / rate."""
    return 2 * (ranks - 1) / ranks * size_octets * 8 / rate_bps
