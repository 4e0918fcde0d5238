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

from netoffload.collectives import aggregate, ring_allreduce, worker_exchange
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods.base import Bucket, GradientReducer, Member, MethodSpec, Update, WeightExchange


class RingReducer(GradientReducer):
    """INC and INC+C: every worker gets the sum and updates for itself."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        """Reduce over the tagged or the untagged channels.

        Raises:
            UsageError: a tagged ring has nothing to round by.
        """
        super().__init__(spec, member)
        if spec.tagged and member.quantise is None:
            raise UsageError(f"{spec.name} needs a codec to round by: no NIC has one")
        self._quantise = member.quantise if spec.tagged else None

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`."""
        tagged = self._spec.tagged
        ring_allreduce(self._exchange, gradient, tagged=tagged, quantise=self._quantise)
        self.sent.count(ring_octets(gradient.nbytes, self._exchange.size), tagged=tagged)
        self.sent.vector_octets += gradient.nbytes
        return gradient


class Worker(WeightExchange):
    """WA and WA+C at a worker: the gradient goes, the weights come."""

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`~netoffload.methods.base.Method.step`; ``update`` is not called."""
        aggregator, tagged = self._exchange.size - 1, self._spec.tagged
        worker_exchange(self._exchange, gradient, parameters, aggregator=aggregator, tagged=tagged)
        self.sent.count(gradient.nbytes, tagged=tagged)
        self.sent.vector_octets += gradient.nbytes


class Aggregator(WeightExchange):
    """WA and WA+C at the aggregator: it has the optimizer's state and no data."""

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`~netoffload.methods.base.Method.step`; ``gradient`` is not used."""
        aggregate(self._exchange, parameters, update, tagged=self._spec.tagged)
        self.sent.count(parameters.nbytes * (self._exchange.size - 1), tagged=False)


def ring_octets(vector_octets: int, size: int) -> int:
    """Return the octets one rank sends, at least, when ``size`` ranks sum a vector in a ring."""
    return 2 * (size - 1) * (vector_octets // size)
