"""Training with gradient replicas: one model, and a gradient for each worker, coded as if it had travelled.

The training of N workers depends on their gradients alone, and one process can compute these one after the other::

    worker 0   gradient -> encode -> decode ─┐
    worker 1   gradient -> encode -> decode ─┼─ sum -> update -> weights (-> rounded)
    ...                                      ─┘

Every worker's gradient is coded once. In a ring partial sums are coded at every hop, which these runs leave out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.compressors.terngrad import TernGrad
from netoffload.lab.training import data
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.replica import Replica

Observe = Callable[[int, Float32Array, Float32Array, Float32Array], None]
"""Called with an iteration, counted from 1, worker 0's gradient before and after coding, and the sum of all workers."""

SeeOutputs = Callable[[list[Float32Array]], None]
"""Called with the outputs of every layer that has weights, in order, each float32[batch, ...]."""

KEPT_LOSSES: Final = 60
"""Number of points of a curve."""

THREADS: Final = 1
"""Threads of torch: batches are small, and several threads would spin while they wait for each other."""


@dataclass
class Learnt:
    """The result of a run.

    Attributes:
        accuracy: accuracy on the test set at the end, 0..1.
        accuracies: accuracies on the way, by iteration.
        losses: mean losses over the workers, by iteration, of some iterations up to the end or a divergence.
        ratio: octets of float32 over those of the payloads.
        diverged: whether a loss was not finite, which ended the run.
    """

    accuracy: float = 0.0
    accuracies: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    ratio: float = 1.0
    diverged: bool = False


def learn(
    settings: TrainSettings,
    *,
    coder: str | None = None,
    weights: str | None = None,
    every: int = 0,
    observe: Observe | None = None,
    see_outputs: SeeOutputs | None = None,
) -> Learnt:
    """Train with gradient replicas.

    Args:
        settings: settings of the run; their method is not used.
        coder: text form of the compressor of gradients; None: gradients stay exact.
        weights: text form of the compressor that rounds the weights after every update; None: weights stay exact.
        every: iterations from one accuracy to the next; 0: at the end only.
        observe: called with gradients.
        see_outputs: called after the last iteration with the layers' outputs, which model parallelism would send.
    """
    dataset = data.load(settings)
    tests = torch.from_numpy(dataset.test_images), torch.from_numpy(dataset.test_labels)
    batches = [
        data.batches(*data.share(settings, dataset, worker), settings.batch, settings.seed, worker)
        for worker in range(settings.nodes)
    ]
    with threads_of_torch(THREADS):
        replica = Replica(settings)
        replica.seed_layers(0)
        layout = Layout(replica.layer_sizes)
        coding = Coding(coder, layout, settings.nodes, settings.seed)
        rounding = Coding(weights, layout, 1, settings.seed)
        found, keep = Learnt(), max(1, settings.iterations // KEPT_LOSSES)
        for iteration in range(settings.iterations):
            loss, gradients = _gradients(replica, batches)
            if not math.isfinite(loss):
                found.diverged = True
                break
            coded = coding.of_all(gradients)
            total: Float32Array = np.sum(coded, axis=0, dtype=np.float32)
            if observe is not None:
                observe(iteration + 1, gradients[0], coded[0], total)
            replica.update(total, iteration)
            if weights is not None:
                replica.parameters[:] = rounding.of_all([replica.parameters])[0]
            if iteration % keep == 0 or iteration + 1 == settings.iterations:
                found.losses[str(iteration + 1)] = loss
            if every and (iteration + 1) % every == 0:
                found.accuracies[str(iteration + 1)] = replica.accuracy(*tests)
        if see_outputs is not None:
            see_outputs(replica.outputs(next(batches[0])[0]))
        found.accuracy, found.ratio = replica.accuracy(*tests), coding.ratio
    return found


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads while the context lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _gradients(
    replica: Replica, batches: list[Iterator[tuple[torch.Tensor, torch.Tensor]]]
) -> tuple[float, list[Float32Array]]:
    """Return the mean loss of the workers' next batches, and the gradient of each."""
    losses, gradients = [], []
    for own in batches:
        losses.append(replica.backward(*next(own)))
        gradients.append(replica.gradient.copy())
    return float(np.mean(losses)), gradients


class Coding:
    """A compressor with a state for each worker, or no compressor."""

    def __init__(self, text: str | None, layout: Layout, workers: int, seed: int) -> None:
        """Prepare the states; ``text`` is a compressor's text form, or None: vectors stay as they are."""
        self._compressor = registry.parse(text) if text else None
        self._layout = layout
        ranks = range(workers if self._compressor else 0)
        self._states = [self._compressor.make_state(layout, seed=seed, rank=rank) for rank in ranks if self._compressor]
        self._before = self._after = 0

    @property
    def ratio(self) -> float:
        """Octets before over octets after."""
        return self._before / self._after if self._after else 1.0

    def of_all(self, vectors: list[Float32Array]) -> list[Float32Array]:
        """Return every worker's vector, encoded and decoded; TernGrad's workers share their scalers."""
        compressor = self._compressor
        if compressor is None or not all(np.isfinite(vector).all() for vector in vectors):
            return vectors  # a value that is not finite ends the run with its next loss
        pairs = list(zip(vectors, self._states, strict=True))
        if isinstance(compressor, TernGrad):
            shared: Float32Array = np.max([compressor.scalers(*pair) for pair in pairs], axis=0)
            payloads = [compressor.encode_shared(vector, shared, state) for vector, state in pairs]
        else:
            payloads = [compressor.encode(vector, state) for vector, state in pairs]
        self._before += sum(vector.nbytes for vector in vectors)
        self._after += sum(payload.size for payload in payloads)
        return [compressor.decode(payload, self._layout) for payload in payloads]
