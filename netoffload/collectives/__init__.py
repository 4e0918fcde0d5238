"""Collectives: how ranks turn their gradients into one sum, over any transport.

The algorithms are written once, and run over every transport that offers an
:class:`~netoffload.collectives.exchange.Exchange`: TCP between ranks in ``netoffload.transport``, threads of one
process in :mod:`~netoffload.collectives.inprocess`::

    ring (INCEPTIONN, Algorithm 1)                  worker-aggregator

      n0 ──► n1 ──► n2 ──► n3 ─┐                      w0   w1   w2       gradients up   (may be tagged)
      ▲                        │                        ╲  │  ╱
      └────────────────────────┘                       aggregator        parameters down (never tagged)
      every link carries 2(p-1)/p · n                  its link carries (p-1) · n in each direction

**Ring.** The vector is cut into p blocks. Phase 1 (p-1 steps): each rank sends a partial sum to its right neighbour
and adds the one that comes from the left. Then rank i holds the whole sum of block (i+1) mod p: it *owns* that block.
Phase 2 (p-1 steps): the finished blocks travel once round the ring. A rank sends in each step what it received in the
step before, so its whole call is one stream in and one stream out. :func:`ring_allreduce` forwards a chunk as soon as
it is reduced, so receiving, adding and sending overlap, within a step and across steps.

**Worker-aggregator.** Workers send gradients to one rank, which sums them in rank order, updates its parameters and
sends those back. Between them there may be aggregators of groups, which send partial sums on (``tree_exchange``).
The parameters are never tagged: a lossy NIC may round gradients, whose errors average out, but not weights.

**Exact and approximate.** Untagged, both give the float32 sum in one fixed order of additions per element. (A ring adds
in the order of its ranks, which differs between blocks, but never between runs or ranks.) Tagged, the NICs' codec
rounds the partial sum on every hop of phase 1, so the sum is approximate. In phase 2 the owner would keep its own sum,
and all others would get the decoded one: replicas would drift apart. **The owner therefore quantises its block**: it
replaces the block by decode(encode(block)) before phase 2. Codecs are idempotent and work float by float, so later hops
change nothing. All ranks end bit-identical, whether or not a NIC compressed on the way.

The same holds for a broadcast's root and for every rank of an allgather. In gather, scatter, all-to-all and
reduce-scatter a block that stays with its owner alone is exact.

**Alignment.** A tagged channel carries float32 values from its first octet and nothing else. Untagged rings carry
other numbers as well (``transfer.EXACT_TYPES``). Control words (the meeting with which each call starts, counts,
barriers) go over the untagged channel of the same pair.

**A call** is a public function: it checks its arguments, lets all ranks meet (``announcement``), and runs a *round*,
the movement of data among ranks that have met. A call may have several rounds, as those in ``hierarchy``. A transport
may carry out meetings and rings by its own, faster means (``Exchange.drive``). The algorithms here are its oracle.

================  ==========================================================  =====================================
call              algorithm                                                   octets on the busiest link
================  ==========================================================  =====================================
allreduce         ring; rings of rings; aggregator                            2(p-1)/p n; see ``hierarchy``; (p-1) n
short allreduce   all vectors to all ranks (``gathering``)                    (p-1) n
reduce-scatter    ring, phase 1                                               (p-1)/p n
of 16-bit floats  all-to-all, then for an allreduce a ring                    the same: (p-1)/p n, 2(p-1)/p n
allgather(v)      ring, phase 2                                               (p-1)/p n
broadcast         chain, or binomial tree up to 32 KiB                        n
reduce            chain or binomial tree, towards the root                    n
gather, scatter   direct                                                      (p-1)/p n, at the root
all-to-all        p-1 pairwise steps                                          (p-1)/p n
================  ==========================================================  =====================================

Files, in the order in which data meets them: ``schedule`` (who sends what to whom, pure), ``exchange`` (what a
transport must offer), ``operations`` (arithmetic), ``transfer`` (whole messages), ``announcement`` (the meeting, the
barrier), ``gathering`` (short vectors), ``ring``, ``halves`` (16-bit floats), ``tree``, ``direct``,
``worker_aggregator``, ``hierarchy``; ``inprocess`` (a transport); ``payloads`` (payloads of host-side compressors);
``reference`` (the oracle), ``samples``.
"""

from netoffload.collectives.announcement import barrier
from netoffload.collectives.direct import alltoall, gather, scatter
from netoffload.collectives.exchange import Exchange, Quantise
from netoffload.collectives.gathering import ShortAllreduce, is_short
from netoffload.collectives.halves import Half, allreduce_halves, reduce_scatter_halves
from netoffload.collectives.hierarchy import Groups, hierarchical_allreduce
from netoffload.collectives.operations import Operation
from netoffload.collectives.payloads import (
    Payload,
    allgather_payloads,
    alltoall_payloads,
    push_pull,
    ring_payloads,
    serve_payloads,
)
from netoffload.collectives.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from netoffload.collectives.tree import broadcast, reduce
from netoffload.collectives.worker_aggregator import aggregate, aggregator_allreduce, tree_exchange, worker_exchange

__all__ = [
    "Exchange",
    "Groups",
    "Half",
    "Operation",
    "Payload",
    "Quantise",
    "ShortAllreduce",
    "aggregate",
    "aggregator_allreduce",
    "allgather_payloads",
    "allreduce_halves",
    "alltoall",
    "alltoall_payloads",
    "barrier",
    "broadcast",
    "gather",
    "hierarchical_allreduce",
    "is_short",
    "push_pull",
    "reduce",
    "reduce_scatter_halves",
    "ring_allgather",
    "ring_allreduce",
    "ring_payloads",
    "ring_reduce_scatter",
    "scatter",
    "serve_payloads",
    "tree_exchange",
    "worker_exchange",
]
