"""Groups of ranks: rings of rings, and rings under aggregators (INCEPTIONN, Fig. 1 c and b).

g groups of equal size m take three rounds. A ring in each group leaves the sum of block j with member j
(reduce-scatter). The j-th members of all groups sum block j, by a ring among them (Fig. 1 c) or by an aggregator
(Fig. 1 b). A ring in each group spreads the blocks (allgather). Every link inside a group carries 2(m-1)/m · n, every
link between groups only 2(g-1)/g · n/m, which helps if the links between groups are slow.

Groups of different sizes go through their first members: reduction to them, a ring or aggregator between them,
broadcast. One group may be faster than another, so the ranks of the second and of the third round meet before it.
Until then a rank is late, and a transport may wait for it; after that a call in which no data moves is stuck.
"""

import math
import operator
from collections.abc import Sequence

from netoffload.collectives.announcement import Announcement, Call, meet, met
from netoffload.collectives.exchange import Channel, Exchange, Gathering, Quantise, quantise_own
from netoffload.collectives.operations import Operation
from netoffload.collectives.ring import CHUNK_FLOATS, ring_allgather, ring_allreduce, ring_reduce_scatter
from netoffload.collectives.schedule import partition
from netoffload.collectives.transfer import octets_of
from netoffload.collectives.tree import broadcast, reduce
from netoffload.collectives.worker_aggregator import aggregator_allreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice
from netoffload.errors import UsageError

TOPS = ("ring", "wa")  # how the groups' sums are added: by a ring, or by an aggregator

Groups = Sequence[Sequence[int]]  # ranks by group; every rank in exactly one


class SubExchange:
    """Some ranks of an exchange as a smaller one, in which rank i is ``members[i]``. The calling rank is a member."""

    # It uses the same channels, so ranks must enter calls on overlapping sub-exchanges in the same order.

    def __init__(self, whole: Exchange, members: Sequence[int]) -> None:
        self._whole, self._members = whole, tuple(members)
        self.rank, self.size = self._members.index(whole.rank), len(self._members)
        self.calling, self.stopwatch = whole.calling, whole.stopwatch
        self.meeting: Gathering | None = None
        self.wait, self.drive, self.scratch, self.abort = whole.wait, whole.drive, whole.scratch, whole.abort

    def channel(self, peer: int, *, tagged: bool) -> Channel:
        """Return the channel to member ``peer``."""
        return self._whole.channel(self._members[peer], tagged=tagged)


def default_groups(size: int) -> list[list[int]]:
    """Return groups of consecutive ranks; their size is the largest divisor of ``size`` up to its square root."""
    length = next(length for length in range(math.isqrt(size), 0, -1) if size % length == 0)
    return [list(range(start, start + length)) for start in range(0, size, length)]


def groups_by_network(addresses: Sequence[str]) -> list[list[int]]:
    """Return the ranks grouped by the first three octets of their IPv4 addresses, in order of first appearance."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, address in enumerate(addresses):
        groups.setdefault(tuple(address.split(".")[:3]), []).append(rank)
    return list(groups.values())


def check_groups(groups: Groups, size: int) -> list[list[int]]:
    """Return groups as lists; raises UsageError unless every rank below ``size`` is in exactly one, and none is empty.

    Arrays of NumPy are groups too.
    """
    try:
        lists = [[operator.index(rank) for rank in group] for group in groups]
    except TypeError:
        raise UsageError(f"groups {groups} are no lists of ranks, such as [[0, 1], [2, 3]]") from None
    if sorted(rank for group in lists for rank in group) != list(range(size)) or not all(lists):
        raise UsageError(f"groups {lists} do not hold each of the {size} ranks exactly once")
    return lists


def hierarchical_allreduce(
    exchange: Exchange,
    values: Float32Array,
    groups: Groups,
    *,
    tagged: bool,
    top: str = "ring",
    operation: Operation = Operation.SUM,
    quantise: Quantise | None = None,
    chunk_floats: int = CHUNK_FLOATS,
) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, group by group; float32 only.

    Arguments are as for :func:`~netoffload.collectives.ring.ring_allreduce`. ``top`` is how the groups' sums are added.
    What an aggregator sends down is untagged.
    """
    octets_of(values)
    groups = check_groups(groups, exchange.size)
    check_choice("top", top, TOPS)
    details = f"top {top}, groups {' | '.join(','.join(map(str, group)) for group in groups)}"
    announced = Announcement(Call.HIERARCHICAL_ALLREDUCE, values.size, tagged, operation, details=details)
    with met(exchange, announced):
        inner = SubExchange(exchange, next(group for group in groups if exchange.rank in group))

        def exchange_between(members: Sequence[int], block: Float32Array) -> None:
            across = SubExchange(exchange, members)
            meet(across, Announcement(Call.CONFIRM))
            if top == "wa":
                aggregator_allreduce(across, block, tagged=tagged, operation=operation, have_met=True)
            else:
                ring_allreduce(
                    across,
                    block,
                    tagged=tagged,
                    operation=operation,
                    quantise=quantise,
                    chunk_floats=chunk_floats,
                    have_met=True,
                )

        if len({len(group) for group in groups}) == 1:
            spans = partition(values.size, inner.size)
            ring_reduce_scatter(
                inner, values, spans, tagged=tagged, operation=operation, chunk_floats=chunk_floats, have_met=True
            )
            span = spans[inner.rank]
            exchange_between([group[inner.rank] for group in groups], values[span.start : span.stop])
            meet(inner, Announcement(Call.CONFIRM))
            ring_allgather(inner, values, spans, tagged=tagged, quantise=quantise, have_met=True)
            return
        reduce(inner, values, root=0, tagged=tagged, operation=operation, chunk_floats=chunk_floats, have_met=True)
        if inner.rank == 0:
            exchange_between([group[0] for group in groups], values)
            quantise_own(exchange, quantise, values)  # also in a group of one, or it would differ from the others
        meet(inner, Announcement(Call.CONFIRM))
        broadcast(inner, values, root=0, tagged=tagged, have_met=True)
