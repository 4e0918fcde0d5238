"""The time of a sum over p nodes, by alpha, beta and gamma (INCEPTIONN, VIII-D, after Thakur et al., 2005).

This is the only model of an exchange's time. The papers' figures, ``netoffload advise`` and ``netoffload model
scaling`` use it, benchmarks take their bound from it, and ``netoffload.lab.models.simulation`` checks it by events.

The vector has n octets. Alpha is a link's latency, beta the time of an octet on it, gamma the time to add an octet::

    way               alpha                    beta · n                     gamma · n
    aggregator        1 + log2 p               p + log2 p                   p - 1
    star              2                        2 p                          p - 1
    tree of fan-out f 2 d                      2 d f                        d (f - 1)           d = log_f p levels
    ring              2 (p - 1)                2 (p - 1) / p                (p - 1) / p
    halving           2 log2 p                 2 (p - 1) / p                (p - 1) / p
    gathered          1                        p - 1                        0
    rings of rings    2 (m - 1) + 2 (g - 1)    2 (m-1)/m + 2 (g-1)/(g m)    (m-1)/m + (g-1)/(g m)

The paper prints ``aggregator`` and ``ring``. Its aggregator sends the weights down a binomial tree. The aggregator of a
``star`` sends them to one worker after the other, as ours does. ``halving`` is Thakur et al.'s recursive halving and
doubling. In ``gathered`` every node sends its payload to all others. ``rings of rings`` have g groups of m nodes:
INCEPTIONN, Fig. 1 (c), as in ``netoffload.collectives.hierarchy``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final

from netoffload.collectives.schedule import ring_octets


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two nodes."""

    alpha_s: float  # latency, one way
    beta_s: float  # time of one octet of float32 on the link
    gamma_s: float = 0.0  # time to add one octet of float32

    @classmethod
    def of_rate(cls, rate_bps: float, alpha_s: float = 0.0, gamma_s: float = 0.0) -> Link:
        """Return a link of ``rate_bps`` bits per second."""
        return cls(alpha_s, 8 / rate_bps, gamma_s)

    def coded(self, ratio: float, octets_per_s: float = math.inf) -> Link:
        """Return the link between codecs that carry ``ratio`` octets of float32 per octet on the wire.

        ``octets_per_s`` is the float32 that a codec takes; coding and sending overlap.
        """
        return dataclasses.replace(self, beta_s=max(self.beta_s / ratio, 1 / octets_per_s))


def aggregator_s(link: Link, nodes: int, octets: float) -> float:
    """Return the time of the worker-aggregator cluster (INCEPTIONN, VIII-D, first formula)."""
    depth = math.log2(nodes)
    return (1 + depth) * link.alpha_s + ((nodes + depth) * link.beta_s + (nodes - 1) * link.gamma_s) * octets


def ring_s(link: Link, nodes: int, octets: float) -> float:
    """Return the time of the ring (INCEPTIONN, VIII-D, second formula)."""
    return ring_delays_s(link, nodes) + (link.beta_s + link.gamma_s / 2) * ring_octets(octets, nodes)


def ring_delays_s(link: Link, nodes: int) -> float:
    """Return the time that the latency of a ring's steps adds."""
    return 2 * (nodes - 1) * link.alpha_s


def meeting_s(link: Link, nodes: int) -> float:
    """Return the time of the meeting with which each of our calls begins."""
    return math.ceil(math.log2(nodes)) * link.alpha_s


def least_s(nodes: int, octets: float, rate_bps: float) -> float:
    """Return the least time of a sum over links of that rate: a ring whose links carry payload only."""
    return ring_s(Link.of_rate(rate_bps), nodes, octets)


def gathered_s(link: Link, nodes: int, octets: float) -> float:
    """Return the time in which every node sends its vector to every other one."""
    return link.alpha_s + link.beta_s * (nodes - 1) * octets


def star_s(link: Link, nodes: int, octets: float) -> float:
    """Return the time of an aggregator with ``nodes`` workers on other nodes, one after the other both ways."""
    return 2 * link.alpha_s + (2 * nodes * link.beta_s + (nodes - 1) * link.gamma_s) * octets


def tree_s(link: Link, nodes: int, octets: float, fan_out: int = 4) -> float:
    """Return the time of a tree of aggregators, each with ``fan_out`` nodes below it: gradients up, weights down."""
    levels = max(1, math.ceil(math.log(nodes, fan_out) - 1e-9))
    return levels * (2 * link.alpha_s + (2 * fan_out * link.beta_s + (fan_out - 1) * link.gamma_s) * octets)


def halving_s(link: Link, nodes: int, octets: float) -> float:
    """Return the time of recursive halving and doubling (Thakur et al., 2005, 4.5: Rabenseifner's algorithm)."""
    return 2 * math.log2(nodes) * link.alpha_s + (link.beta_s + link.gamma_s / 2) * ring_octets(octets, nodes)


def rings_of_rings_s(inner: Link, outer: Link, groups: int, members: int, octets: float) -> float:
    """Return the time of rings in groups, and rings across the groups (INCEPTIONN, Fig. 1 c)."""
    return ring_s(inner, members, octets) + ring_s(outer, groups, octets / members)


def best_members(inner: Link, outer: Link, nodes: int, octets: float) -> int:
    """Return the group size with which rings of rings are fastest: a divisor of ``nodes``; 1: one flat ring."""
    sizes = [size for size in range(1, math.isqrt(nodes) + 1) if nodes % size == 0]
    divisors = {*sizes, *(nodes // size for size in sizes)}
    return min(sorted(divisors), key=lambda size: rings_of_rings_s(inner, outer, nodes // size, size, octets))


def latency_bound_nodes(link: Link, octets: float) -> float:
    """Return the number of nodes from which on a ring's latency takes longer than its octets: n · beta / alpha."""
    return octets * link.beta_s / link.alpha_s if link.alpha_s else math.inf


TimeFormula = Callable[[Link, int, float], float]


def _best_rings_s(link: Link, nodes: int, octets: float) -> float:
    members = best_members(link, link, nodes, octets)
    return rings_of_rings_s(link, link, nodes // members, members, octets)


WAYS: Final[Mapping[str, TimeFormula]] = {
    "aggregator": aggregator_s,
    "tree of aggregators": tree_s,
    "ring": ring_s,
    "rings of rings": _best_rings_s,
    "halving": halving_s,
}
"""The ways that use one kind of link, by name in tables: functions of link, nodes and octets that return seconds."""
