"""The iterations of one rank, and where their time goes; no input, no output, the clock is an argument.

A worker's iteration::

    |- batch, forward, backward -|- method ............[update].. -|
    |<-------- compute --------->|<- communicate ->|<compute>|< " >|

``communicate`` is what is left of the wall time: it contains waiting for the slowest worker, and at a worker of
``wa`` the aggregator's adding and updating. The aggregator times its updates too, so that the record can put them on
the right side.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from netoffload.collectives import Exchange, Quantise, ring_allreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.methods import Member, Method, method_for
from netoffload.training.config import TrainSettings
from netoffload.training.replica import Replica

Clock = Callable[[], float]
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
AfterIteration = Callable[[int], bool | None]
"""Called with the number of iterations done, outside the timed part; true: that was the last one."""


@dataclasses.dataclass
class Timeline:
    """Seconds of every iteration of one rank, and the loss of a worker's last batch."""

    wall_s: list[float] = dataclasses.field(default_factory=list)
    compute_s: list[float] = dataclasses.field(default_factory=list)
    last_loss: float | None = None


class TimedUpdate:
    """A replica's update of one iteration, with the seconds it took."""

    def __init__(self, replica: Replica, iteration: int, clock: Clock) -> None:
        """Not done yet; ``iteration`` decides the learning rate."""
        self._replica, self._iteration, self._clock = replica, iteration, clock
        self.seconds = 0.0

    def __call__(self, gradient_sum: Float32Array) -> None:
        """Update the replica's parameters."""
        started = self._clock()
        self._replica.update(gradient_sum, self._iteration)
        self.seconds += self._clock() - started


def _ignore(_done: int) -> None:
    pass


def method_of(
    settings: TrainSettings, exchange: Exchange, quantise: Quantise | None, layer_sizes: tuple[int, ...] = ()
) -> Method:
    """Return this rank's side of a run's method; the last rank is the aggregator or server, if there is one.

    Args:
        settings: the run.
        exchange: the transport between all ranks of the run.
        quantise: what the NICs round by (``CompComm.quantiser``).
        layer_sizes: lengths of the model's weights and biases, for compressors.

    Raises:
        UsageError: the number of ranks is not the run's, or a tagged ring has nothing to round by.
    """
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.method} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    member = Member(exchange, quantise, Layout(layer_sizes), settings.seed, settings.error_feedback)
    return method_for(settings.spec, member)


def warm_up(replica: Replica, method: Method, batches: Batches | None, rounds: int = 3) -> None:
    """Open connections and touch memory without changing what is trained.

    Every rank calls it, with a method that it throws away afterwards: that has counted, and its compressor's state has
    advanced. All gradients are zeros, nobody updates, the weights are a copy, and the model's buffers are put back.
    """
    buffers = replica.buffers()
    if batches is not None:
        images, labels = next(batches)
        for _ in range(rounds):
            replica.backward(images, labels)
    replica.set_buffers(buffers)
    parameters = replica.parameters.copy()
    for _ in range(rounds):
        replica.gradient.fill(0)
        method.step(replica.gradient, parameters, lambda _sum: None)
    method.finish(parameters)


def average_buffers(replica: Replica, exchange: Exchange, workers: int) -> None:
    """Replace the model's buffers on every rank by their mean over the workers, the first ranks; collective.

    What BatchNorm gathers does not travel while training: every worker has the statistics of its own batches.
    """
    buffers = replica.buffers()
    if not buffers.size:
        return
    if exchange.rank >= workers:
        buffers.fill(0)
    ring_allreduce(exchange, buffers, tagged=False)
    replica.set_buffers(np.divide(buffers, np.float32(workers), out=buffers))


def run_worker(
    replica: Replica,
    method: Method,
    batches: Batches,
    iterations: int,
    *,
    first: int = 0,
    clock: Clock = time.perf_counter,
    after_iteration: AfterIteration = _ignore,
) -> Timeline:
    """Train for a number of iterations; the caller finishes the method.

    Args:
        replica: changed in place.
        method: this worker's side.
        batches: where the samples come from.
        iterations: how many; the same on every rank.
        first: how many of them are done already.
        clock: seconds, monotonic.
        after_iteration: evaluation, progress; not timed.
    """
    timeline = Timeline()
    for iteration in range(first, iterations):
        update = TimedUpdate(replica, iteration, clock)
        started = clock()
        timeline.last_loss = replica.backward(*next(batches))
        computed = clock()
        method.step(replica.gradient, replica.parameters, update)
        ended = clock()
        timeline.wall_s.append(ended - started)
        timeline.compute_s.append(computed - started + update.seconds)
        if after_iteration(iteration + 1):
            break
    return timeline


def run_server(
    replica: Replica,
    method: Method,
    iterations: int,
    *,
    first: int = 0,
    clock: Clock = time.perf_counter,
    after_iteration: AfterIteration = _ignore,
) -> Timeline:
    """Serve the workers' iterations as aggregator or parameter server; ``compute_s`` is the updates.

    The caller finishes the method.
    """
    timeline = Timeline()
    nothing = np.empty(0, dtype=np.float32)
    for iteration in range(first, iterations):
        update = TimedUpdate(replica, iteration, clock)
        started = clock()
        method.step(nothing, replica.parameters, update)
        timeline.wall_s.append(clock() - started)
        timeline.compute_s.append(update.seconds)
        if after_iteration(iteration + 1):
            break
    return timeline
