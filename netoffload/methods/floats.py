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

With error feedback a worker of inc+c rounds its own gradient first, and adds what that took away to its next one. What
the hops round of partial sums is lost: little with ``bounded``, whose sums of rounded values are mostly exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netoffload.collectives import aggregate, ring_allreduce, worker_exchange
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods.base import Bucket, GradientReducer, Member, Memory, MethodSpec, Update, WeightExchange
from netoffload.methods.buckets import Unsent, layout_of


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
        self._unsent = Unsent()

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`."""
        tagged = self._spec.tagged
        if tagged and self._member.error_feedback:
            self._feed_back(gradient, bucket)
        ring_allreduce(self._exchange, gradient, tagged=tagged, quantise=self._quantise)
        self.sent.count(ring_octets(gradient.nbytes, self._exchange.size), tagged=tagged)
        self.sent.vector_octets += gradient.nbytes
        return gradient

    def memory(self) -> Memory:
        """See :meth:`GradientReducer.memory`."""
        return {"unsent": self._unsent.memory()}

    def remember(self, memory: Memory) -> None:
        """See :meth:`GradientReducer.remember`."""
        self._unsent.remember(memory["unsent"])

    def rescale(self, factors: Mapping[int, float]) -> None:
        """See :meth:`GradientReducer.rescale`."""
        self._unsent.rescale(factors)

    def _feed_back(self, gradient: Float32Array, bucket: Bucket | None) -> None:
        """Add what was left unsent, round the sum in place, and keep what that takes away."""
        assert self._quantise is not None
        layout = layout_of(self._member.layout, bucket)
        layers = tuple(range(len(layout.sizes))) if bucket is None else bucket
        for layer, part in zip(layers, np.split(gradient, layout.offsets[1:-1]), strict=True):
            if layer in self._unsent:
                np.add(part, self._unsent[layer], out=part)
        left = gradient.copy()
        self._quantise(gradient)
        np.subtract(left, gradient, out=left, where=np.isfinite(gradient))
        left[~np.isfinite(gradient)] = 0
        self._unsent.keep(left, layers, layout)


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
