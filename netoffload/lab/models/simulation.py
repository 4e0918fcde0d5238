"""The schedules of the collectives in simulated time: events, no sockets, no ranks.

A node's wire carries one message after the other. An octet takes beta on it, a message arrives alpha later, and adding
takes gamma for each octet. A rank sends a block of the ring as soon as it has the block and its wire is free. Two NICs
in memory (``netoffload.engine.pair``) give the octets of a compressed block, headers included. The simulation uses no
formula of ``netoffload.lab.models.exchange``, so it checks them.
"""

import heapq
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.collectives.schedule import allgather_walk, allreduce_walk, partition, reduce_scatter_walk
from netoffload.engine.pair import Stream, pair
from netoffload.lab.declared import Column, Finding, Progress, words
from netoffload.lab.models import exchange
from netoffload.lab.models.exchange import Link
from netoffload.lab.models.gradients import gradients_from
from netoffload.wire import vnet

GRADIENTS: Final = "gaussian:0.002"
JUDGED_FLOATS: Final = 16_384  # a NIC looks at a flow's first kilobyte before it compresses
LONGEST_FLOATS: Final = 65_536
RATIO_OCTETS: Final = FLOAT_OCTETS * LONGEST_FLOATS  # length of the vector whose ratio the formula takes

CHECKED: Final = (4, 8, 16, 64, 256, 1024)
"""Numbers of nodes that are simulated: a ring of 1024 takes two million events."""


def ring_round(link: Link, walks: Sequence[Sequence[int]], sizes: Sequence[int], adding: int, begin_s: float) -> float:
    """Return when the last rank of a ring has its last block.

    Args:
        walks: for every rank, the blocks that it sends, by step, and then the block that it holds at the end.
        sizes: octets of the blocks.
        adding: number of steps in which the receiver adds the block.
    """
    ranks, steps = len(walks), len(walks[0]) - 1
    free_s, last_s = [begin_s] * ranks, begin_s
    events = [(begin_s, rank, 0) for rank in range(ranks if steps else 0)]
    while events:
        now_s, rank, step = heapq.heappop(events)
        octets = sizes[walks[rank][step]]
        free_s[rank] = max(now_s, free_s[rank]) + octets * link.beta_s
        ready_s = free_s[rank] + link.alpha_s + (octets * link.gamma_s if step < adding else 0.0)
        last_s = max(last_s, ready_s)
        if step + 1 < steps:
            heapq.heappush(events, (ready_s, (rank + 1) % ranks, step + 1))
    return last_s


def ring(link: Link, nodes: int, octets: int, on_wire: Callable[[int], int] = int) -> float:
    """Return the seconds of an allreduce by a ring.

    ``on_wire`` gives the octets of a block on the wire (:func:`nic_octets`); adding takes gamma for its float32.
    """
    walks = [allreduce_walk(rank, nodes) for rank in range(nodes)]
    sizes = _sizes(octets, nodes)
    sent = {size: on_wire(size) for size in set(sizes)}
    ratio = sum(sizes) / sum(sent[size] for size in sizes)
    narrow = replace(link, gamma_s=link.gamma_s * ratio)
    return ring_round(narrow, walks, [sent[size] for size in sizes], nodes - 1, 0.0)


def nic_octets(octets: int) -> int:
    """Return the octets of the frames that a NIC makes of a block of gradients, once its flow is judged.

    Of a long block only a part is sent, and its octets are scaled.
    """
    stream = Stream(*pair())
    stream.send(gradients_from(GRADIENTS, 1)(0, JUDGED_FLOATS))
    floats = min(octets // FLOAT_OCTETS, LONGEST_FLOATS)
    frames = stream.send(gradients_from(GRADIENTS, 2)(0, floats))
    return round(sum(map(_on_wire, frames)) * octets / (FLOAT_OCTETS * floats))


def _on_wire(frame: bytes) -> int:
    """Return the octets of a frame on the wire; each segment of a bundle has its own headers."""
    hdr_len, gso_size = struct.unpack_from("=HH", frame, vnet.HDR_LEN)
    inner_len = len(frame) - vnet.VNET_LEN
    if not gso_size:
        return inner_len
    segments = -(-(inner_len - hdr_len) // gso_size)
    return int(inner_len + (segments - 1) * hdr_len)


def rings_of_rings(link: Link, groups: int, members: int, octets: int) -> float:
    """Return the seconds of rings in groups and between them; all groups are alike, so only one of each is run."""
    blocks = _sizes(octets, members)
    walks = [reduce_scatter_walk(rank, members) for rank in range(members)]
    reduced_s = ring_round(link, walks, blocks, members - 1, 0.0)
    between = [allreduce_walk(rank, groups) for rank in range(groups)]
    summed_s = ring_round(link, between, _sizes(max(blocks), groups), groups - 1, reduced_s)
    walks = [allgather_walk(rank, members) for rank in range(members)]
    return ring_round(link, walks, blocks, 0, summed_s)


def aggregator(link: Link, nodes: int, octets: int) -> float:
    """Return the seconds of gradients to an aggregator, their sum, and weights down a binomial tree.

    The aggregator receives one gradient after the other, and adds them when all are there.
    """
    arrived_s = 0.0
    for _worker in range(nodes):
        arrived_s = max(arrived_s, link.alpha_s) + octets * link.beta_s
    has_s = [arrived_s + (nodes - 1) * octets * link.gamma_s]
    while len(has_s) < nodes:
        begin_s = sorted(has_s)[: nodes - len(has_s)]
        has_s = [
            *(when + octets * link.beta_s for when in has_s),
            *(when + octets * link.beta_s + link.alpha_s for when in begin_s),
        ]
    return max(has_s)


def _sizes(octets: int, blocks: int) -> list[int]:
    return [FLOAT_OCTETS * len(span) for span in partition(octets // FLOAT_OCTETS, blocks)]


@dataclass(frozen=True)
class Checked(Finding):
    """One way and number of nodes: seconds by formula and by simulation, and the formula's error as a share."""

    way: Annotated[str, words("way")]
    nodes: Annotated[int, Column("nodes")]
    formula_s: Annotated[float, Column("formula s", ".4g")]
    simulated_s: Annotated[float, Column("simulated s", ".4g")]
    off: Annotated[float, Column("off %", "+.2f", 0.01)]


def checked(link: Link, octets: int, progress: Progress, counts: Sequence[int] = CHECKED) -> list[Checked]:
    """Return the formulas beside the events, for numbers of nodes that are 2 or more."""
    rows: list[Checked] = []
    for done, nodes in enumerate(counts):
        progress(f"simulating {nodes} nodes", done / len(counts))
        rows += [Checked(way, nodes, *both, both[0] / both[1] - 1) for way, both in _both_s(link, nodes, octets)]
    return rows


def _both_s(link: Link, nodes: int, octets: int) -> Iterator[tuple[str, tuple[float, float]]]:
    members = exchange.best_members(link, link, nodes, octets)
    groups = nodes // members
    narrow = link.coded(RATIO_OCTETS / nic_octets(RATIO_OCTETS))
    yield "ring", (exchange.ring_s(link, nodes, octets), ring(link, nodes, octets))
    yield "ring, NICs", (exchange.ring_s(narrow, nodes, octets), ring(link, nodes, octets, nic_octets))
    rings_s = exchange.rings_of_rings_s(link, link, groups, members, octets)
    yield "rings of rings", (rings_s, rings_of_rings(link, groups, members, octets))
    yield "aggregator", (exchange.aggregator_s(link, nodes, octets), aggregator(link, nodes, octets))
