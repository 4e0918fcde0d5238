"""How long a sum over p nodes takes: alpha, beta and gamma (INCEPTIONN, VIII-D, after Thakur et al., 2005).

Of a vector of n octets, with alpha a link's latency, beta the time of an octet on a link and gamma that of adding one::

    way               alpha                    beta · n                     gamma · n
    aggregator        1 + log2 p               p + log2 p                   p - 1
    star              2                        2 p                          p - 1
    tree of fan-out f 2 d                      2 d f                        d (f - 1)           d = log_f p levels
    ring              2 (p - 1)                2 (p - 1) / p                (p - 1) / p
    halving           2 log2 p                 2 (p - 1) / p                (p - 1) / p
    rings of rings    2 (m - 1) + 2 (g - 1)    2 (m-1)/m + 2 (g-1)/(g m)    (m-1)/m + (g-1)/(g m)
    rings below wa    2 (m - 1) + 2            2 (m-1)/m + 2 (g-1)/m        (m-1)/m + (g-1)/m

``aggregator`` and ``ring`` are printed. The printed aggregator sends its weights down a binomial tree; that of a star
sends them to each worker by itself, as ours does. ``halving`` is Thakur et al.'s recursive halving and doubling. The
last two have g groups of m nodes: INCEPTIONN, Fig. 1 (c) and (b), as ``netoffload.collectives.hierarchy`` does them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final


@dataclasses.dataclass(frozen=True)
class Link:
    """What carries octets between two nodes.

    Attributes:
        alpha_s: latency, one way.
        beta_s: of one octet of float32 on the link.
        gamma_s: of adding one octet of float32.
    """

    alpha_s: float
    beta_s: float
    gamma_s: float = 0.0

    @classmethod
    def of_rate(cls, rate_bps: float, alpha_s: float = 0.0, gamma_s: float = 0.0) -> Link:
        """Return a link of that many bits per second."""
        return cls(alpha_s, 8 / rate_bps, gamma_s)

    def coded(self, ratio: float, octets_per_s: float = math.inf) -> Link:
        """Return the link behind coders that let ``ratio`` octets of float32 through for one on the wire.

        Args:
            ratio: above 0.
            octets_per_s: float32 that a coder takes in a second; coding and sending overlap.
        """
        return dataclasses.replace(self, beta_s=max(self.beta_s / ratio, 1 / octets_per_s))


def aggregator_s(link: Link, nodes: int, octets: float) -> float:
    """Return the exchange of the worker-aggregator cluster (INCEPTIONN, VIII-D, first formula)."""
    depth = math.log2(nodes)
    return (1 + depth) * link.alpha_s + ((nodes + depth) * link.beta_s + (nodes - 1) * link.gamma_s) * octets


def ring_s(link: Link, nodes: int, octets: float) -> float:
    """Return the exchange of the ring (INCEPTIONN, VIII-D, second formula)."""
    share = (nodes - 1) / nodes
    return 2 * (nodes - 1) * link.alpha_s + (2 * link.beta_s + link.gamma_s) * share * octets


def star_s(link: Link, nodes: int, octets: float, *, gradients: Link | None = None) -> float:
    """Return an aggregator's exchange with ``nodes`` workers on other nodes, one after the other both ways.

    Args:
        link: of the weights, and of the gradients unless told otherwise.
        nodes: workers that have a wire between them and the aggregator.
        octets: of the vector.
        gradients: the link as gradients see it, where they alone are compressed (WA+C).
    """
    up = gradients or link
    return link.alpha_s + up.alpha_s + (nodes * (link.beta_s + up.beta_s) + (nodes - 1) * link.gamma_s) * octets


def tree_s(link: Link, nodes: int, octets: float, fan_out: int = 4) -> float:
    """Return a tree of aggregators, each with ``fan_out`` nodes below it, up with gradients and down with weights."""
    levels = max(1, math.ceil(math.log(nodes, fan_out) - 1e-9))
    return levels * (2 * link.alpha_s + (2 * fan_out * link.beta_s + (fan_out - 1) * link.gamma_s) * octets)


def halving_s(link: Link, nodes: int, octets: float) -> float:
    """Return recursive halving and doubling (Thakur et al., 2005, 4.5: Rabenseifner's algorithm)."""
    share = (nodes - 1) / nodes
    return 2 * math.log2(nodes) * link.alpha_s + (2 * link.beta_s + link.gamma_s) * share * octets


def rings_of_rings_s(inner: Link, outer: Link, groups: int, members: int, octets: float) -> float:
    """Return rings in groups, and rings of the groups' members of one rank (INCEPTIONN, Fig. 1 c)."""
    return ring_s(inner, members, octets) + ring_s(outer, groups, octets / members)


def rings_below_aggregators_s(inner: Link, outer: Link, groups: int, members: int, octets: float) -> float:
    """Return rings in groups whose members of one rank meet at one of them (INCEPTIONN, Fig. 1 b)."""
    return ring_s(inner, members, octets) + star_s(outer, groups - 1, octets / members)


def best_members(inner: Link, outer: Link, nodes: int, octets: float) -> int:
    """Return the size of groups with which rings of rings are fastest; a divisor of ``nodes``, 1 for one flat ring."""
    sizes = [size for size in range(1, math.isqrt(nodes) + 1) if nodes % size == 0]
    divisors = {*sizes, *(nodes // size for size in sizes)}
    return min(sorted(divisors), key=lambda size: rings_of_rings_s(inner, outer, nodes // size, size, octets))


def latency_bound_nodes(link: Link, octets: float) -> float:
    """Return the nodes from which on a ring's latency costs more than its octets: n · beta / alpha."""
    return octets * link.beta_s / link.alpha_s if link.alpha_s else math.inf


Way = Callable[[Link, int, float], float]


def _best_rings_s(link: Link, nodes: int, octets: float) -> float:
    members = best_members(link, link, nodes, octets)
    return rings_of_rings_s(link, link, nodes // members, members, octets)


WAYS: Final[Mapping[str, Way]] = {
    "aggregator": aggregator_s,
    "tree of aggregators": tree_s,
    "ring": ring_s,
    "rings of rings": _best_rings_s,
    "halving": halving_s,
}
"""Every way that one kind of link decides, by its name in tables: link, nodes and octets in, seconds out."""
