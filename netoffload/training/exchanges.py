"""The four ways in which an iteration's gradients become the next weights, on top of :mod:`netoffload.collectives`.

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

import dataclasses
from collections.abc import Callable
from typing import Protocol

from netoffload.collectives import Exchange, Quantise, aggregate, ring_allreduce, worker_exchange
from netoffload.errors import UsageError
from netoffload.training.config import TrainSettings
from netoffload.training.model import Float32Array

Update = Callable[[Float32Array], None]
"""Takes the sum of all workers' gradients and changes the parameters it was made for."""


class GradientExchange(Protocol):
    """What a rank does between its gradient and its next weights."""

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """Exchange one iteration; all ranks call it together.

        Args:
            gradient: float32[n], this worker's; its content afterwards is undefined.
            parameters: float32[n], the next weights afterwards.
            update: called with the sum of the gradients where this rank updates its own ``parameters``.
        """
        ...


@dataclasses.dataclass(frozen=True)
class RingExchange:
    """INC and INC+C: every worker gets the sum and updates for itself."""

    exchange: Exchange
    tagged: bool
    quantise: Quantise | None

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        ring_allreduce(self.exchange, gradient, tagged=self.tagged, quantise=self.quantise)
        update(gradient)


@dataclasses.dataclass(frozen=True)
class WorkerExchange:
    """WA and WA+C at a worker: the gradient goes, the weights come."""

    exchange: Exchange
    tagged: bool
    aggregator: int

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``update`` is not called."""
        worker_exchange(self.exchange, gradient, parameters, aggregator=self.aggregator, tagged=self.tagged)


@dataclasses.dataclass(frozen=True)
class AggregatorExchange:
    """WA and WA+C at the aggregator: it has the optimizer's state and no data."""

    exchange: Exchange
    tagged: bool

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``gradient`` is not used."""
        aggregate(self.exchange, parameters, update, tagged=self.tagged)


def exchange_for(settings: TrainSettings, exchange: Exchange, quantise: Quantise | None) -> GradientExchange:
    """Return this rank's side of the exchange that a run asks for; the last rank of ``wa`` is the aggregator.

    Args:
        settings: the run.
        exchange: all ranks of the run.
        quantise: what the NICs round by (``CompComm.quantiser``); only the compressed ring uses it.

    Raises:
        UsageError: the number of ranks is not the run's, or a compressed ring has nothing to round by.
    """
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.exchange} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    if settings.has_aggregator:
        aggregator = settings.ranks - 1
        if exchange.rank == aggregator:
            return AggregatorExchange(exchange, settings.compressed)
        return WorkerExchange(exchange, settings.compressed, aggregator)
    if not settings.compressed:
        return RingExchange(exchange, tagged=False, quantise=None)
    if quantise is None:
        raise UsageError(f"{settings.exchange} needs a codec to round by: no NIC has one")
    return RingExchange(exchange, tagged=True, quantise=quantise)
