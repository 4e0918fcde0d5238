"""Broadcast and reduction along a tree whose root the caller names: data streams down to the leaves, or up to the root.

Every rank forwards data as soon as it arrives: a broadcast octet by octet, a reduction chunk by chunk. A reduction adds
the children in a fixed order, so that the result is the same in every run. ``schedule`` says why long vectors take a
chain and short ones a binomial tree.
"""

from netoffload.collectives.announcement import Announcement, Call, check_root, met
from netoffload.collectives.exchange import Exchange, Quantise, combine, quantise_own
from netoffload.collectives.operations import Operation
from netoffload.collectives.ring import CHUNK_FLOATS
from netoffload.collectives.schedule import Branch, binomial, chain
from netoffload.collectives.transfer import Piece, move_all, octets_of
from netoffload.compiled.arrays import Float32Array

BINOMIAL_FLOATS = 8 * 1024
"""Most floats for which a tree is binomial (32 KiB). At 1 Gb/s they take 0.26 ms on a link, about as long as a few hops
between processes. With longer vectors the links are the limit."""


def broadcast(
    exchange: Exchange,
    values: Float32Array,
    *,
    root: int,
    tagged: bool,
    quantise: Quantise | None = None,
    have_met: bool = False,
) -> None:
    """Replace ``values`` on every rank by those of ``root``, which rounds its own by ``quantise``."""
    octets = octets_of(values)
    root = check_root(root, exchange.size)
    with met(exchange, Announcement(Call.BROADCAST, values.size, tagged, root=root), already=have_met):
        branch = branch_of(exchange, values.size, root)
        if branch.parent is None and exchange.size > 1:
            quantise_own(exchange, quantise, values)
        pass_down(exchange, octets, branch, tagged=tagged)


def reduce(
    exchange: Exchange,
    values: Float32Array,
    *,
    root: int,
    tagged: bool,
    operation: Operation = Operation.SUM,
    chunk_floats: int = CHUNK_FLOATS,
    have_met: bool = False,
) -> None:
    """Replace ``values`` on ``root`` by the reduction over all ranks, on other ranks by partial sums."""
    octets_of(values)
    root = check_root(root, exchange.size)
    with met(exchange, Announcement(Call.REDUCE, values.size, tagged, operation, root=root), already=have_met):
        branch, staged = branch_of(exchange, values.size, root), exchange.scratch(chunk_floats)
        inward = [exchange.channel(child, tagged=tagged) for child in branch.children]
        outward = None if branch.parent is None else exchange.channel(branch.parent, tagged=tagged)
        finished: list[Piece] = []  # the chunk before, which leaves while the next one comes
        for start in range(0, values.size, chunk_floats):
            chunk = values[start : start + chunk_floats]
            coming = staged[: chunk.size]
            for channel in inward:
                move_all(exchange, finished, [(channel, octets_of(coming))])
                combine(exchange, operation, chunk, coming)
                finished = []
            move_all(exchange, finished, [])
            finished = [] if outward is None else [(outward, octets_of(chunk))]
        move_all(exchange, finished, [])


def branch_of(exchange: Exchange, count: int, root: int) -> Branch:
    """Return the ranks above and below this one for a vector of ``count`` floats."""
    size = exchange.size
    tree = binomial if count <= BINOMIAL_FLOATS else chain
    branch = tree((exchange.rank - root) % size, size)
    parent = None if branch.parent is None else (branch.parent + root) % size
    return Branch(parent, tuple((child + root) % size for child in branch.children))


def pass_down(
    exchange: Exchange, octets: memoryview, branch: Branch, *, tagged: bool, may_be_late: bool = False
) -> None:
    """Fill ``octets`` from the rank above, if there is one, and send them to those below as they come."""
    total = len(octets)
    outward = [exchange.channel(child, tagged=tagged) for child in branch.children]
    sent = [0] * len(outward)
    inward = None if branch.parent is None else exchange.channel(branch.parent, tagged=tagged)
    received = total if inward is None else 0
    while received < total or min(sent, default=total) < total:
        moved = 0
        if inward is not None and received < total:
            moved = inward.receive_some(octets[received:])
            received += moved
        for index, channel in enumerate(outward):
            if sent[index] < received:
                moved += (count := channel.send_some(octets[sent[index] : received]))
                sent[index] += count
        if not moved:
            readable = [inward] if inward is not None and received < total else []
            writable = [one for one, done in zip(outward, sent, strict=True) if done < received]
            exchange.wait(readable, writable, may_be_late=may_be_late)
