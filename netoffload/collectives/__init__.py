"""Collectives: how ranks turn their gradients into one sum, over any transport.

Two algorithms, written once and run over every transport that offers an
:class:`~netoffload.collectives.exchange.Exchange` (TCP between ranks in ``netoffload_mpi``, threads of one process in
:mod:`~netoffload.collectives.inprocess`)::

    ring (INCEPTIONN, Algorithm 1)                  worker-aggregator

      n0 ──► n1 ──► n2 ──► n3 ─┐                      w0   w1   w2       gradients up   (may be tagged)
      ▲                        │                        ╲  │  ╱
      └────────────────────────┘                       aggregator        parameters down (never tagged)
      every link carries 2(p-1)/p · n                  its link carries (p-1) · n in each direction

**Ring.** The vector is cut into p blocks. Phase 1 (p-1 steps): each rank sends a partial sum to its right neighbour
and adds what comes from the left; afterwards rank i holds the whole sum of block (i+1) mod p, it *owns* that block.
Phase 2 (p-1 steps): the finished blocks travel once round the ring. What a rank receives in one step is what it sends
in the next, so a rank's whole call is one stream in and one stream out, and :func:`ring_allreduce` forwards a chunk
as soon as it is reduced: receiving, adding and sending overlap, within a step and across steps.

**Worker-aggregator.** Workers send gradients to one rank, which sums them in rank order, updates its parameters and
sends those back. The parameters are never tagged: a lossy NIC may touch gradients, whose errors average out, but not
weights.

**Exact and approximate.** Untagged, both give the float32 sum in one fixed order of additions per element (for the
ring the order is that of the ring, so it differs between blocks, but never between runs or ranks). Tagged, every hop
of phase 1 rounds the partial sum by what the NICs' codec does, so the sum is approximate, and rank i's own terms of
its block are exact while its neighbours' are not. In phase 2 the owner would keep its exact sum where all others get
the decoded one: replicas would drift apart. **The owner therefore quantises its block**, replacing it by
decode(encode(block)) before the second phase. Codecs are idempotent and work float by float, so later hops change
nothing and all ranks end bit-identical, whether or not a NIC compressed on the way.

**Alignment.** A tagged channel carries float32 values from its first octet and nothing else. Control words (the
announcement of length and algorithm with which each call starts, barriers) go over the untagged channel of the same
pair.

Files, in the order in which data meets them: ``schedule`` (which block goes where, pure), ``exchange`` (what a
transport must offer), ``transfer`` (whole messages, announcements, the barrier), ``ring``, ``worker_aggregator``,
``payloads`` (the same for vectors that a host-side compressor has packed), ``inprocess``.
"""

from netoffload.collectives.exchange import Channel, Exchange, Float32Array
from netoffload.collectives.payloads import Payload, allgather_payloads, push_pull, ring_payloads, serve_payloads
from netoffload.collectives.ring import CHUNK_FLOATS, Quantise, ring_allreduce
from netoffload.collectives.transfer import barrier
from netoffload.collectives.worker_aggregator import aggregate, worker_exchange

__all__ = [
    "CHUNK_FLOATS",
    "Channel",
    "Exchange",
    "Float32Array",
    "Payload",
    "Quantise",
    "aggregate",
    "allgather_payloads",
    "barrier",
    "push_pull",
    "ring_allreduce",
    "ring_payloads",
    "serve_payloads",
    "worker_exchange",
]
