"""INCEPTIONN's four methods: uncompressed or tagged floats, over a ring or to an aggregator.

======  ===========================================  ==================  =======================
name    gradients                                    tagged              who updates the weights
======  ===========================================  ==================  =======================
wa      to the aggregator; weights come back         nothing             the aggregator
wa+c    the same                                     the gradient leg    the aggregator
inc     ring: reduce-scatter, allgather              nothing             every worker
inc+c   the same, owner's block quantised            everything          every worker
======  ===========================================  ==================  =======================

Weights never travel tagged: an error in a gradient is one step of noise, an error in a weight stays.
"""

from __future__ import annotations

from netoffload.collectives import Exchange, Quantise, aggregate, ring_allreduce, worker_exchange
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods.base import Bucket, GradientReducer, Member, Method, MethodSpec, Update, WeightExchange


class RingReducer(GradientReducer):
    """INC and INC+C: every worker gets the sum and updates for itself."""

    def __init__(self, exchange: Exchange, *, tagged: bool, quantise: Quantise | None) -> None:
        """Reduce over the tagged or the untagged channels; ``quantise`` is for the tagged ones."""
        super().__init__()
        self._exchange, self._tagged, self._quantise = exchange, tagged, quantise

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`."""
        ring_allreduce(self._exchange, gradient, tagged=self._tagged, quantise=self._quantise)
        self.sent.count(ring_octets(gradient.nbytes, self._exchange.size), tagged=self._tagged)
        self.sent.vector_octets += gradient.nbytes
        return gradient


class Worker(WeightExchange):
    """WA and WA+C at a worker: the gradient goes, the weights come."""

    def __init__(self, exchange: Exchange, *, tagged: bool) -> None:
        """Work for the last rank."""
        super().__init__()
        self._exchange, self._tagged = exchange, tagged

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`; ``update`` is not called."""
        aggregator = self._exchange.size - 1
        worker_exchange(self._exchange, gradient, parameters, aggregator=aggregator, tagged=self._tagged)
        self.sent.count(gradient.nbytes, tagged=self._tagged)
        self.sent.vector_octets += gradient.nbytes


class Aggregator(WeightExchange):
    """WA and WA+C at the aggregator: it has the optimizer's state and no data."""

    def __init__(self, exchange: Exchange, *, tagged: bool) -> None:
        """Aggregate for all other ranks."""
        super().__init__()
        self._exchange, self._tagged = exchange, tagged

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`; ``gradient`` is not used."""
        aggregate(self._exchange, parameters, update, tagged=self._tagged)
        self.sent.count(parameters.nbytes * (self._exchange.size - 1), tagged=False)


def ring(spec: MethodSpec, member: Member) -> Method:
    """Return a rank's side of a ring.

    Raises:
        UsageError: a tagged ring has nothing to round by.
    """
    if spec.tagged and member.quantise is None:
        raise UsageError(f"{spec.name} needs a codec to round by: no NIC has one")
    return RingReducer(member.exchange, tagged=spec.tagged, quantise=member.quantise if spec.tagged else None)


def aggregation(spec: MethodSpec, member: Member) -> Method:
    """Return a worker's or the aggregator's side."""
    return (Aggregator if member.is_last else Worker)(member.exchange, tagged=spec.tagged)


def ring_octets(vector_octets: int, size: int) -> int:
    """Return the octets one rank sends, at least, when ``size`` ranks sum a vector in a ring."""
    return 2 * (size - 1) * (vector_octets // size)
