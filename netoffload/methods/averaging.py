"""Methods that average weights instead of gradients (Jiang and Agrawal, sections 3.2 and 4).

Every worker updates its own weights with its own gradient. Between two averagings the replicas differ;
``finish`` averages them a last time, so a run ends with one model::

    iteration        0     1     2     3     4     5     6     7
    PSGD, p = 4                        all                     all      average of the weights
    RSGD, p = 4      1/4   2/4   3/4   4/4   1/4   2/4   3/4   4/4      a quarter of the weights in turn
    PQASGD, p = 4                      Q                       Q        quantised changes since the last time

An optimizer's momentum stays with its worker.
"""

import dataclasses
import math

import numpy as np

from netoffload.collectives import ring_allreduce
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods.base import GradientReducer, Member, Memory, MethodSpec, Update, WeightExchange
from netoffload.methods.floats import ring_octets
from netoffload.methods.payloads import GatherReducer


class Averaging(WeightExchange):
    """PSGD: Algorithm 1, "every p-th iteration all"."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        self._iteration = 0

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`~netoffload.methods.base.Method.step`."""
        update(gradient)
        part = self._part(parameters, self._iteration % self._spec.period)
        self._iteration += 1
        if part is not None:
            self._average(part)

    def finish(self, parameters: Float32Array) -> None:
        """Average all weights, unless the last iteration has done so."""
        if self._iteration % self._spec.period:
            self._average(parameters)

    def memory(self) -> Memory:
        """See :meth:`~netoffload.methods.base.Method.memory`."""
        return {"iteration": self._iteration}

    def remember(self, memory: Memory) -> None:
        """See :meth:`~netoffload.methods.base.Method.remember`."""
        self._iteration = memory["iteration"]

    def _part(self, parameters: Float32Array, turn: int) -> Float32Array | None:
        """Return a view of the weights to average in this iteration; None: none. All, in the last one of a period."""
        return parameters if turn == self._spec.period - 1 else None

    def _average(self, part: Float32Array) -> None:
        self._member.move(part.nbytes, lambda tagged: ring_allreduce(self._exchange, part, tagged=tagged))
        np.divide(part, np.float32(self._exchange.size), out=part)
        self.sent.octets += ring_octets(part.nbytes, self._exchange.size)
        self.sent.vector_octets += part.nbytes


class Rotation(Averaging):
    """RSGD: Algorithm 1, "in iteration j the (j mod p)-th part"."""

    def finish(self, parameters: Float32Array) -> None:
        """Average all weights: every iteration has changed all of them."""
        self._average(parameters)

    def _part(self, parameters: Float32Array, turn: int) -> Float32Array | None:
        part = partition(parameters.size, self._spec.period)[turn]
        return parameters[part.start : part.stop]


@dataclasses.dataclass(frozen=True)
class Outer:
    """SGD with Nesterov momentum on the mean change of a period; without it, the mean change is added as it is.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, Algorithm 1;
    the defaults are section 3's.
    """

    learning_rate: float = 0.7
    momentum: float = 0.9  # factor of the velocity, the sum of earlier changes

    def __post_init__(self) -> None:
        """Refuse what cannot converge."""
        if not 0 < self.learning_rate < math.inf or not 0 <= self.momentum < 1:
            raise UsageError(
                f"Outer(learning_rate={self.learning_rate}, momentum={self.momentum}): give a rate above 0, and a "
                "momentum from 0 to below 1"
            )

    def moved(self, change: Float32Array, velocity: Float32Array) -> Float32Array:
        """Return the step of the weights; updates ``velocity``, float32[n]."""
        momentum = np.float32(self.momentum)
        np.add(np.multiply(velocity, momentum, out=velocity), change, out=velocity)
        return (change + momentum * velocity) * np.float32(self.learning_rate)


class ChangeAveraging(Averaging):
    """PQASGD, Algorithm 2: the changes of the weights since the last time are averaged.

    ``reducer`` sums the changes; without one they are gathered as payloads. ``outer`` makes the step of their mean;
    without one the mean is the step.
    """

    def __init__(
        self, spec: MethodSpec, member: Member, reducer: GradientReducer | None = None, outer: Outer | None = None
    ) -> None:
        super().__init__(spec, member)
        self._reducer = reducer or GatherReducer(spec, member)
        self._outer = outer
        self._synchronised: Float32Array | None = None
        self._velocity: Float32Array | None = None
        self.sent = self._reducer.sent

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`~netoffload.methods.base.Method.step`."""
        if self._synchronised is None:
            self._synchronised = parameters.copy()
        super().step(gradient, parameters, update)

    def memory(self) -> Memory:
        """See :meth:`~netoffload.methods.base.Method.memory`."""
        vectors = {"synchronised": self._synchronised, "velocity": self._velocity}
        octets = {name: None if vector is None else vector.tobytes() for name, vector in vectors.items()}
        return {**super().memory(), "reducer": self._reducer.memory(), **octets}

    def remember(self, memory: Memory) -> None:
        """See :meth:`~netoffload.methods.base.Method.remember`."""
        super().remember(memory)
        self._reducer.remember(memory["reducer"])
        self._synchronised, self._velocity = (
            None if memory[name] is None else np.frombuffer(memory[name], np.float32).copy()
            for name in ("synchronised", "velocity")
        )

    def _average(self, part: Float32Array) -> None:
        synchronised = self._synchronised
        assert synchronised is not None
        mean = self._reducer.reduce(part - synchronised)
        np.divide(mean, np.float32(self._exchange.size), out=mean)
        if self._outer is not None:
            if self._velocity is None:
                self._velocity = np.zeros_like(mean)
            mean = self._outer.moved(mean, self._velocity)
        # Not this worker's weights plus a correction: rounding would differ, and with it the replicas.
        np.add(synchronised, mean, out=synchronised)
        part[:] = synchronised
