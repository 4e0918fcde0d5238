"""The four ways in which an iteration's gradients become the next weights, on top of :mod:`netoffload.collectives`.

======  ===========================================  ==================  =======================
name    gradients                                    tagged              who updates the weights
======  ===========================================  ==================  =======================
wa      to the aggregator; weights come back         nothing             the aggregator
wa+c    the same                                     the gradient leg    the aggregator
inc     ring: reduce-scatter, allgather              nothing             every worker
inc+c   the same, owner's block quantised            everything          every worker
======  ===========================================  ==================  =======================

Weights never travel tagged: an error in a gradient is one step of noise, an error in a weight stays. The exchanges of
host-side compressors are in ``payload_exchanges``, those that average weights in ``periodic``; ``wiring`` makes the
one that a run asks for.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

from netoffload.collectives import Exchange, Quantise, aggregate, ring_allreduce, worker_exchange
from netoffload.compiled.arrays import Float32Array

Update = Callable[[Float32Array], None]
"""Takes the sum of all workers' gradients and changes the parameters it was made for."""


@dataclasses.dataclass
class Sent:
    """What a rank has sent so far, counted at the host, to be held against what crossed the wire.

    Attributes:
        octets: what was handed to sockets that no NIC compresses: the wire must have carried it.
        tagged_octets: what was handed to tagged sockets.
        vector_octets: this worker's vectors as they went into the exchange, once each however often they travel:
            float32 or what a host-side compressor has made of them.
    """

    octets: int = 0
    tagged_octets: int = 0
    vector_octets: int = 0

    def count(self, octets: int, *, tagged: bool) -> None:
        """Add what was handed to a socket."""
        if tagged:
            self.tagged_octets += octets
        else:
            self.octets += octets


class GradientExchange(abc.ABC):
    """What a rank does between its gradient and its next weights.

    Attributes:
        sent: what this rank has sent.
    """

    def __init__(self) -> None:
        """Nothing is sent yet."""
        self.sent = Sent()

    @abc.abstractmethod
    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """Exchange one iteration; all ranks call it together.

        Args:
            gradient: float32[n], this worker's; its content afterwards is undefined.
            parameters: float32[n], the next weights afterwards.
            update: called with the sum of the gradients where this rank updates its own ``parameters``.
        """

    def finish(self, parameters: Float32Array) -> None:  # noqa: B027 - most exchanges leave nothing to do
        """Do what is left after the last iteration, so that all replicas are equal; all ranks call it together."""


class RingExchange(GradientExchange):
    """INC and INC+C: every worker gets the sum and updates for itself."""

    def __init__(self, exchange: Exchange, *, tagged: bool, quantise: Quantise | None) -> None:
        """Exchange over the tagged or the untagged channels; ``quantise`` is for the tagged ones."""
        super().__init__()
        self._exchange, self._tagged, self._quantise = exchange, tagged, quantise

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        ring_allreduce(self._exchange, gradient, tagged=self._tagged, quantise=self._quantise)
        self.sent.count(ring_octets(gradient.nbytes, self._exchange.size), tagged=self._tagged)
        self.sent.vector_octets += gradient.nbytes
        update(gradient)


class WorkerExchange(GradientExchange):
    """WA and WA+C at a worker: the gradient goes, the weights come."""

    def __init__(self, exchange: Exchange, *, tagged: bool, aggregator: int) -> None:
        """Exchange with rank ``aggregator``."""
        super().__init__()
        self._exchange, self._tagged, self._aggregator = exchange, tagged, aggregator

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``update`` is not called."""
        worker_exchange(self._exchange, gradient, parameters, aggregator=self._aggregator, tagged=self._tagged)
        self.sent.count(gradient.nbytes, tagged=self._tagged)
        self.sent.vector_octets += gradient.nbytes


class AggregatorExchange(GradientExchange):
    """WA and WA+C at the aggregator: it has the optimizer's state and no data."""

    def __init__(self, exchange: Exchange, *, tagged: bool) -> None:
        """Aggregate for all other ranks."""
        super().__init__()
        self._exchange, self._tagged = exchange, tagged

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``gradient`` is not used."""
        aggregate(self._exchange, parameters, update, tagged=self._tagged)
        self.sent.count(parameters.nbytes * (self._exchange.size - 1), tagged=False)


def ring_octets(vector_octets: int, size: int) -> int:
    """Return the octets one rank sends, at least, when ``size`` ranks sum a vector in a ring."""
    return 2 * (size - 1) * (vector_octets // size)
