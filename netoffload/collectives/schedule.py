"""Which block travels when: the ring's schedule as plain arithmetic.

INCEPTIONN, Algorithm 1, with ranks, blocks and steps counted from 0: in step s rank i sends block (i - s) mod p to
rank i+1 and receives block (i - s - 1) mod p from rank i-1. Steps 0 .. p-2 reduce (phase 1), steps p-1 .. 2p-3 gather
(phase 2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Elements ``start`` to ``stop - 1`` of a vector."""

    start: int
    stop: int

    def __len__(self) -> int:
        """Return the number of elements."""
        return self.stop - self.start


def partition(count: int, size: int) -> tuple[Span, ...]:
    """Cut ``count`` elements into ``size`` consecutive spans whose lengths differ by at most one; some may be empty."""
    base, longer = divmod(count, size)
    cuts = [block * base + min(block, longer) for block in range(size + 1)]
    return tuple(Span(start, stop) for start, stop in itertools.pairwise(cuts))


def step_count(size: int) -> int:
    """Return the number of steps of both phases for ``size`` ranks."""
    return 2 * (size - 1)


def is_reducing(size: int, step: int) -> bool:
    """Return whether what arrives in ``step`` is added (phase 1) rather than stored (phase 2)."""
    return step < size - 1


def sent_block(rank: int, size: int, step: int) -> int:
    """Return the index of the block that ``rank`` sends in ``step``."""
    return (rank - step) % size


def received_block(rank: int, size: int, step: int) -> int:
    """Return the index of the block that ``rank`` receives in ``step``; it sends that one in ``step + 1``."""
    return (rank - step - 1) % size


def owned_block(rank: int, size: int) -> int:
    """Return the index of the block whose sum is complete at ``rank`` after phase 1."""
    return (rank + 1) % size
