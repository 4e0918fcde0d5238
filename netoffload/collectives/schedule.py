"""Which rank sends which block to which other rank, and when, as plain arithmetic.

**Rings.** A walk is the list of blocks that a rank handles: in step s it sends block walk[s] to its right neighbour
and receives block walk[s + 1] from its left one. INCEPTIONN, Algorithm 1, with ranks, blocks and steps counted from 0:
in step s rank i sends block (i - s) mod p. Steps 0 .. p-2 reduce (phase 1), steps p-1 .. 2p-3 gather (phase 2).

**Trees.** Ranks are counted from the root: position 0 is the root. A chain is best for long vectors (every link carries
the vector once, and chunks follow one another), a binomial tree for short ones (ceil(log2 p) hops instead of p-1).
"""

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


def consecutive(counts: tuple[int, ...] | list[int]) -> tuple[Span, ...]:
    """Return spans of the given lengths, one after the other."""
    return tuple(Span(stop - count, stop) for count, stop in zip(counts, itertools.accumulate(counts), strict=True))


def allreduce_walk(rank: int, size: int) -> list[int]:
    """Return the blocks of both phases; ``rank`` owns block (rank + 1) mod ``size`` after phase 1."""
    return [(rank - step) % size for step in range(2 * size - 1)]


def reduce_scatter_walk(rank: int, size: int) -> list[int]:
    """Return the blocks of phase 1 begun one earlier, so that ``rank`` ends with block ``rank``."""
    return [(rank - 1 - step) % size for step in range(size)]


def allgather_walk(rank: int, size: int) -> list[int]:
    """Return the blocks of phase 2 for a rank that owns block ``rank``."""
    return [(rank - step) % size for step in range(size)]


def ring_octets(octets: float, size: int) -> float:
    """Return the octets that a rank of a ring sends to sum a vector: 2(p-1)/p of it, if all blocks are equal."""
    return 2 * (size - 1) * octets / size


@dataclass(frozen=True)
class Branch:
    """A position's place in a tree: its parent (None: it is the root), and its children in order."""

    parent: int | None
    children: tuple[int, ...]


def chain(position: int, size: int) -> Branch:
    """Return the place of ``position`` in 0 - 1 - 2 - ..."""
    return Branch(position - 1 if position else None, (position + 1,) if position + 1 < size else ())


def binomial(position: int, size: int) -> Branch:
    """Return the place of ``position`` in a binomial tree: its parent is ``position`` without its lowest set bit."""
    reach = position & -position if position else 1 << max(size - 1, 0).bit_length()
    # The child with the largest subtree comes first: a broadcast has to serve it first.
    steps = [1 << bit for bit in reversed(range(max(reach.bit_length() - 1, 0)))]
    children = tuple(position + step for step in steps if position + step < size)
    return Branch(position - (position & -position) if position else None, children)


def aggregator_tree(workers: int, groups: int) -> tuple[Branch, ...]:
    """Return the place of every rank in a tree of aggregators (INCEPTIONN, Fig. 1 a)."""
    # Workers come first, in consecutive groups whose sizes differ by at most one. Behind them come the aggregators of
    # the groups, and the topmost one is the last rank. One group has the topmost aggregator alone.
    members = [tuple(range(span.start, span.stop)) for span in partition(workers, groups)]
    if groups == 1:
        return (*(Branch(workers, ()) for _ in members[0]), Branch(None, members[0]))
    top = workers + groups
    leaves = [Branch(workers + group, ()) for group, mine in enumerate(members) for _ in mine]
    return (*leaves, *(Branch(top, mine) for mine in members), Branch(None, tuple(range(workers, top))))
