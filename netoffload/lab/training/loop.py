"""The iterations of one rank, and where their time goes. It does no I/O; the clock is an argument.

A worker's iteration::

    |- batch, forward -|- backward -|- method: [sum] .........[update].. -|
    |<---------- compute ---------->|<---- communicate ---->|<compute>|< " >|

``communicate`` is the rest of the wall time. It contains waiting for the slowest worker and, at a worker of ``wa``, the
aggregator's adding and updating. The aggregator times its updates too, so the record can count them as computing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch

from netoffload.collectives import Exchange, Quantise, ring_allreduce
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.outcome import Parts
from netoffload.lab.training.overlap import Overlap
from netoffload.lab.training.replica import Replica
from netoffload.methods import GradientReducer, Member, Method, method_for
from netoffload.methods.buckets import cut

Clock = Callable[[], float]
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
AfterIteration = Callable[[int], bool | None]
"""Called with the number of finished iterations, outside the timed part; returns true after the last one."""

WARM_UP_ROUNDS: Final = 3
LARGE_OCTETS: Final = 64_000_000
"""Octets of parameters from which on one warm-up round is enough; smaller models need several."""


@dataclasses.dataclass
class Timeline:
    """Seconds of every iteration of one rank and of its parts, and the loss of a worker's last batch."""

    wall_s: list[float] = dataclasses.field(default_factory=list)
    parts: list[Parts] = dataclasses.field(default_factory=list)
    last_loss: float | None = None


class TimedUpdate:
    """A replica's update of one iteration, with the seconds it took."""

    def __init__(self, replica: Replica, iteration: int, clock: Clock) -> None:
        """Prepare the update; ``iteration`` decides the learning rate."""
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
        settings: settings of the run.
        exchange: the transport between all ranks of the run.
        quantise: rounds as the NICs do (``CompComm.quantiser``).
        layer_sizes: lengths of the model's weights and biases, for compressors.

    Raises:
        UsageError: the number of ranks is wrong, or a tagged ring has no ``quantise``.
    """
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.method} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    buckets = cut(layer_sizes, settings.bucket_mb * 1e6)
    member = Member(exchange, quantise, Layout(layer_sizes), settings.seed, settings.error_feedback, buckets)
    return method_for(settings.spec, member)


def warm_up(replica: Replica, method: Method, batches: Batches | None) -> None:
    """Open connections and touch memory without changing what is trained.

    Every rank calls it, with a method that it drops afterwards, because its counters and its compressor's state have
    advanced. All gradients and the weights that travel are zeros. An update changes nothing, and the model's buffers
    are restored. For a large model one round is enough to open TCP's windows.
    """
    buffers = replica.buffers()
    rounds = WARM_UP_ROUNDS if replica.gradient.nbytes < LARGE_OCTETS else 1
    if batches is not None:
        images, labels = next(batches)
        for _ in range(rounds):
            replica.backward(images, labels)
    replica.set_buffers(buffers)
    for _ in range(rounds):
        replica.gradient.fill(0)
        method.step(replica.gradient, replica.gradient, replica.warm_up_update)
    method.finish(replica.gradient)


def average_buffers(replica: Replica, exchange: Exchange, workers: int) -> None:
    """Replace the model's buffers on every rank by their mean over the workers, the first ranks; collective.

    BatchNorm's statistics do not travel during training: every worker has those of its own batches.
    """
    buffers = replica.buffers()
    if not buffers.size:
        return
    if exchange.rank >= workers:
        buffers.fill(0)
    ring_allreduce(exchange, buffers, tagged=False)
    replica.set_buffers(np.divide(buffers, np.float32(workers), out=buffers))


def make_one_model(replica: Replica, exchange: Exchange, workers: int) -> None:
    """Average the buffers and collect the parts of the model, so that every rank has one model; collective."""
    average_buffers(replica, exchange, workers)
    replica.collect(exchange)


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
        replica: the replica, which is changed in place.
        method: this worker's side of the method.
        batches: the batches of samples.
        iterations: number of iterations; the same on every rank.
        first: number of iterations that are finished already.
        clock: returns seconds, monotonic.
        after_iteration: does evaluation and progress; not timed.
    """
    timeline = Timeline()
    overlap = Overlap(replica, method, clock) if isinstance(method, GradientReducer) and method.buckets else None
    forwarded: list[tuple[float, float]] = []
    for iteration in range(first, iterations):
        update = TimedUpdate(replica, iteration, clock)
        began, added_s, started = replica.travel, method.sum_s, clock()
        timeline.last_loss = replica.backward(
            *next(batches), on_loss=lambda: forwarded.append((clock(), replica.travel.waited_s))
        )
        computed, travel = clock(), replica.travel
        if overlap is None:
            method.step(replica.gradient, replica.parameters, update)
        else:
            overlap.finish()
            update(replica.gradient)
        timeline.wall_s.append(clock() - started)
        loss_at, waited_s = forwarded[-1]
        parts = Parts(
            forward_s=loss_at - started - (waited_s - began.waited_s),
            backward_s=computed - loss_at - (travel.waited_s - waited_s),
            update_s=update.seconds,
            sum_s=method.sum_s - added_s,
            hidden_s=overlap.hidden_s if overlap else travel.hidden_s - began.hidden_s,
        )
        timeline.parts.append(parts)
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
    """Serve the workers' iterations as aggregator or parameter server: add gradients and update.

    The caller finishes the method.
    """
    timeline = Timeline()
    for iteration in range(first, iterations):
        update = TimedUpdate(replica, iteration, clock)
        added_s, started = method.sum_s, clock()
        method.step(replica.gradient, replica.parameters, update)
        timeline.wall_s.append(clock() - started)
        timeline.parts.append(Parts(sum_s=method.sum_s - added_s, update_s=update.seconds))
        if after_iteration(iteration + 1):
            break
    return timeline
