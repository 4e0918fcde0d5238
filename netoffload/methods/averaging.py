"""Methods that average weights instead of gradients (Jiang and Agrawal, sections 3.2 and 4).

Every worker updates its own weights with its own gradient. Between two averagings the replicas differ;
``finish`` averages them a last time, so a run ends with one model::

    iteration        0     1     2     3     4     5     6     7
    PSGD, p = 4                        all                     all      average of the weights
    RSGD, p = 4      1/4   2/4   3/4   4/4   1/4   2/4   3/4   4/4      a quarter of the weights in turn
    PQASGD, p = 4                      Q                       Q        quantised changes since the last time

An optimizer's momentum stays with its worker.
"""

from __future__ import annotations

import numpy as np

from netoffload.collectives import Exchange, ring_allreduce
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.methods.base import Member, Method, MethodSpec, Update, WeightExchange
from netoffload.methods.floats import ring_octets
from netoffload.methods.payloads import GatherReducer


class Averaging(WeightExchange):
    """PSGD and RSGD: Algorithm 1 with "every p-th iteration all" or "in iteration j the (j mod p)-th part"."""

    def __init__(self, exchange: Exchange, *, period: int, rotates: bool) -> None:
        """Average every ``period`` iterations, or a ``period``-th of the weights in each if it ``rotates``."""
        super().__init__()
        self._exchange, self._period, self._rotates = exchange, period, rotates
        self._iteration = 0

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`."""
        _update_alone(gradient, update, self._exchange.size)
        turn = self._iteration % self._period
        self._iteration += 1
        if self._rotates:
            part = partition(parameters.size, self._period)[turn]
            self._average(parameters[part.start : part.stop])
        elif turn == self._period - 1:
            self._average(parameters)

    def finish(self, parameters: Float32Array) -> None:
        """Average all weights, unless the last iteration has done so."""
        if self._rotates or self._iteration % self._period:
            self._average(parameters)

    def _average(self, part: Float32Array) -> None:
        ring_allreduce(self._exchange, part, tagged=False)
        np.divide(part, np.float32(self._exchange.size), out=part)
        self.sent.octets += ring_octets(part.nbytes, self._exchange.size)
        self.sent.vector_octets += part.nbytes


class QuantisedAveraging(WeightExchange):
    """PQASGD: Algorithm 2."""

    def __init__(self, exchange: Exchange, gather: GatherReducer, *, period: int) -> None:
        """Let ``gather`` sum the changes of the weights, every ``period`` iterations."""
        super().__init__()
        self._exchange, self._gather, self._period = exchange, gather, period
        self._iteration = 0
        self._synchronised: Float32Array | None = None
        self.sent = gather.sent

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`."""
        if self._synchronised is None:
            self._synchronised = parameters.copy()
        _update_alone(gradient, update, self._exchange.size)
        self._iteration += 1
        if self._iteration % self._period == 0:
            self._synchronise(parameters, self._synchronised)

    def finish(self, parameters: Float32Array) -> None:
        """Sum the changes of an unfinished period."""
        if self._synchronised is not None and self._iteration % self._period:
            self._synchronise(parameters, self._synchronised)

    def _synchronise(self, parameters: Float32Array, synchronised: Float32Array) -> None:
        mean = self._gather.reduce(parameters - synchronised)
        np.divide(mean, np.float32(self._exchange.size), out=mean)
        np.add(synchronised, mean, out=synchronised)
        parameters[:] = synchronised


def averaging(spec: MethodSpec, member: Member) -> Method:
    """Return a worker's side of PSGD."""
    return Averaging(member.exchange, period=spec.period, rotates=False)


def rotation(spec: MethodSpec, member: Member) -> Method:
    """Return a worker's side of RSGD."""
    return Averaging(member.exchange, period=spec.period, rotates=True)


def quantised_averaging(spec: MethodSpec, member: Member) -> Method:
    """Return a worker's side of PQASGD."""
    return QuantisedAveraging(member.exchange, GatherReducer(spec.compressor_of(), member), period=spec.period)


def _update_alone(gradient: Float32Array, update: Update, workers: int) -> None:
    """Update with this worker's gradient alone: ``update`` divides what it gets by the number of workers."""
    np.multiply(gradient, np.float32(workers), out=gradient)
    update(gradient)
