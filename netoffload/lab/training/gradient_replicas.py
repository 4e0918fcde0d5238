"""Training with gradient replicas: every worker's gradient is coded once, as if it had travelled.

::

    worker 0   gradient -> encode -> decode ─┐
    worker 1   gradient -> encode -> decode ─┼─ sum -> update -> weights (-> rounded)
    ...                                      ─┘

The workers are threads. Their payloads are gathered, or served where workers share scalers (TernGrad). Exact gradients
take a ring. In a ring of payloads partial sums are coded at every hop, which these runs leave out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import UsageError
from netoffload.lab.training import data
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.inprocess import run_threads
from netoffload.lab.training.loop import AfterIteration, RankRun
from netoffload.lab.training.measure import FLOAT_OCTETS

SeeOutputs = Callable[[list[Float32Array]], None]
"""Called with the outputs of every layer that has weights, in order, each float32[batch, ...]."""

KEPT_LOSSES: Final = 60
"""Number of points of a curve."""


@dataclass(frozen=True)
class Seen:
    """The gradients of one iteration: worker 0's own, the others' if needed, and the sum of all after coding."""

    own: list[Float32Array]
    total: Float32Array
    coder: str | None
    layout: Layout
    seed: int
    step: int

    def coded(self) -> Float32Array:
        """Return worker 0's gradient after coding, by its random numbers."""
        if self.coder is None:
            return self.own[0]
        compressor = registry.parse(self.coder)
        states = [compressor.make_state(self.layout, seed=self.seed, rank=rank) for rank in range(len(self.own))]
        states[0].step = self.step
        if not isinstance(compressor, TernGrad):
            return compressor.decode(compressor.encode(self.own[0], states[0]), self.layout)
        pairs = zip(self.own, states, strict=True)
        shared: Float32Array = np.max([compressor.scalers(*pair) for pair in pairs], axis=0)
        return compressor.decode(compressor.encode_shared(self.own[0], shared, states[0]), self.layout)


Observe = Callable[[int, Seen], None]
"""Called with the number of an iteration, from 1, and its gradients."""


@dataclass
class Learnt:
    """The result of a run.

    Attributes:
        losses: mean losses over the workers, by iteration, of some iterations up to the end or a divergence.
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
        see_outputs: called after the last iteration with the layers' outputs, which model parallelism would send.
    """
    shares_scalers = coder is not None and coder.startswith("terngrad")
    via = "server" if shares_scalers else "gather"
    method = f"{coder}{',' if ':' in coder else ':'}via={via}" if coder else "inc"
    rate = settings.optimizer_spec.learning_rate
    settings = dataclasses.replace(settings, method=method, learning_rate=rate, eval_every=every)
    own: list[dict[int, Float32Array]] = [{} for _ in range(settings.nodes if shares_scalers else 1)]
    runs: dict[int, RankRun] = {}

    def watching(rank: int, run: RankRun) -> AfterIteration:
        replica, layout = run.replica, Layout(run.replica.layer_sizes)
        runs[rank] = run
        rounding = registry.parse(weights) if weights else None
        state = rounding.make_state(layout, seed=settings.seed, rank=0) if rounding else None

        def keep_own(_start: int, values: Float32Array) -> None:
            own[rank][replica.iteration + 1] = values.copy()

        if observe is not None and rank < min(len(own), settings.nodes):
            replica.observe = keep_own

        def after(done: int) -> None:
            if rounding is not None and state is not None:
                replica.parameters[:] = rounding.decode(rounding.encode(replica.parameters, state), layout)
            if observe is not None and rank == 0:
                total = replica.gradient * np.float32(settings.nodes * settings.loss_scale)
                observe(done, Seen([of.pop(done) for of in own], total, coder, layout, settings.seed, done - 1))

        return after

    found = Learnt()
    try:
        run_threads(settings, data.load(settings), watching=watching)
    except UsageError:  # compressors refuse values that are not finite
        found.diverged = True
    workers = [runs[rank] for rank in range(settings.nodes)]
    losses = [float(np.mean(each)) for each in zip(*(run.timeline.losses for run in workers), strict=False)]
    finite = next((at for at, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    found.diverged |= finite < len(losses)
    keep = max(1, settings.iterations // KEPT_LOSSES)
    kept = [at for at in range(finite) if at % keep == 0 or at + 1 == settings.iterations]
    found.losses = {str(at + 1): losses[at] for at in kept}
    first = workers[0]
    found.accuracies, found.accuracy = first.milestones.accuracy_after, first.milestones.measure()
    if coder is not None:
        sent = sum(run.door.sent_so_far().vector_octets for run in workers)
        found.ratio = FLOAT_OCTETS * first.replica.parameter_count * len(losses) * len(workers) / max(1, sent)
    if see_outputs is not None:
        batches = first.new_batches(settings.iterations)
        assert batches is not None
        see_outputs(first.replica.outputs(next(batches)[0]))
    return found
