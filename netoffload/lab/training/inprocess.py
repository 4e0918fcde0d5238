"""Runs without a testbed: the ranks are threads, and their octets go through memory.

The doors are those of a real run, so a run learns the same as over links, and each rank counts what it sends. There are
no NICs; if a codec is given, it rounds tagged floats as NICs would.

:func:`learnt` codes every worker's gradient once, as if it had travelled::

    worker 0   gradient -> encode -> decode ─┐
    worker 1   gradient -> encode -> decode ─┼─ sum -> update -> weights (-> rounded)
    ...                                      ─┘

Payloads are gathered, or served where workers share scalers (TernGrad). Exact gradients take a ring. In a ring of
payloads partial sums are coded at every hop, which these runs leave out.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.compressors.terngrad import TernGrad
from netoffload.config import BOUND_K_DEFAULT
from netoffload.errors import NotFiniteError, UsageError
from netoffload.lab.training import data
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.doors import Door, ThreadCalls
from netoffload.lab.training.loop import AfterIteration, RankRun, iterate
from netoffload.lab.training.replica import Replica

CAPACITY_OCTETS: Final = 8 << 20  # octets of HDC's gradient fit, so threads take fewer turns
TIMEOUT_S: Final = 120.0  # time that a rank waits for another one's computing


@dataclasses.dataclass(frozen=True)
class Learned:
    """The result of a run; ``efficiency``: octets of worker 0's vectors over one float32 gradient per iteration."""

    accuracy: float
    final_loss: float | None
    efficiency: float
    sha256: str
    accuracy_after: dict[str, float]


def train(settings: TrainSettings, dataset: Dataset, **options: Any) -> Learned:
    """Train and return the result; options and errors are those of :func:`run_threads`."""
    run, *_ = run_threads(settings, dataset, **options)
    octets = run.sent.vector_octets + run.sent.activation_octets
    whole = FLOAT_OCTETS * run.replica.parameter_count * max(1, len(run.timeline.wall_s))
    return Learned(run.measure(), run.loss, octets / whole, run.replica.digest(), run.accuracy_after)


def run_threads(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    codec_name: str | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    checkpointing: Checkpointing | None = None,
    watching: Callable[[int, RankRun], AfterIteration | None] = lambda _rank, _run: None,
    say: Callable[[str], None] | None = None,
) -> list[RankRun]:
    """Train with threads as ranks and return all of them; torch's threads are set to one.

    Args:
        codec_name: codec that rounds tagged floats; None: there are no NICs.
        watching: called on every rank before its first iteration; returns what to call after each.
        say: called a few times per second, from another thread, with what is done.
    """
    if settings.compressed and codec_name is None:
        raise UsageError(f"{settings.method} needs NICs: it cannot be trained in one process")
    torch.set_num_threads(1)
    chosen = codec.get(codec_name) if codec_name else None

    def quantise(block: Float32Array) -> None:
        assert chosen is not None
        chosen.round_trip(block, bound_k, out=block)

    def one_rank(exchange: Exchange) -> RankRun:
        torch.set_num_threads(1)
        run = RankRun(settings, dataset, ThreadCalls(exchange, quantise if chosen else None), checkpointing)
        if say is not None and exchange.rank == 0:
            run.on_step = lambda step: say(f"{step.done:,} of {settings.iterations:,} iterations")
        run.begin()
        run.iterate(watching(exchange.rank, run))
        run.finish()
        return run

    return run_ranks(
        settings.ranks, one_rank, codec=chosen, bound_k=bound_k, capacity_octets=CAPACITY_OCTETS, timeout_s=TIMEOUT_S
    )


SAMPLE_EVERY: Final = 50  # iterations from one gradient of a sample to the next


def train_alone(settings: TrainSettings, worker: int = 0) -> Iterator[tuple[Float32Array, float]]:
    """Train in this process, with one of torch's threads; the settings' method is not used.

    Yields each iteration's gradient, float32[n], which the next one overwrites, and its seconds of computing.
    """
    dataset = data.load(settings)
    replica = Replica(settings)
    own = data.share(settings, dataset, 0)
    batches, door = data.batches(*own, settings.batch, settings.seed, worker), Door(replica.optimizer.step)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for done in range(settings.iterations):
            timeline = iterate(replica, door, batches, done + 1, first=done)
            yield replica.gradient, timeline.wall_s[0]
    finally:
        torch.set_num_threads(threads)


def sample_gradients(vectors: int = 4, seed: int = 1) -> Float32Array:
    """Train HDC on digits in this process and return gradients, float32[vectors, 1149010].

    The gradients are those after 50, 100, ... iterations with batches of 25, learning rate 0.05 as in ``netoffload
    demo``, and no loss scale. The same seed gives the same gradients on one machine.
    """
    settings = TrainSettings("inc", nodes=1, iterations=vectors * SAMPLE_EVERY, seed=seed, learning_rate=0.05)
    steps = enumerate(train_alone(settings), 1)
    return np.stack([gradient.copy() for number, (gradient, _) in steps if number % SAMPLE_EVERY == 0])


KEPT_LOSSES: Final = 60  # number of points of a curve


@dataclasses.dataclass(frozen=True)
class Seen:
    """The gradients of one iteration: worker 0's own, the others' if needed, and the sum of all after coding."""

    own: list[Float32Array]
    total: Float32Array
    coder: str | None
    layout: Layout
    seed: int
    step: int
    outputs: Callable[[], list[Float32Array]]
    """Returns those of every layer with weights, in order, each float32[batch, ...], for the next batch."""

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


Observe = Callable[[int, Seen], None]  # called with the number of an iteration, from 1, and its gradients


def learnt(
    settings: TrainSettings,
    coder: str | None = None,
    *,
    weights: str | None = None,
    every: int = 0,
    observe: Observe | None = None,
    say: Callable[[str], None] | None = None,
    via: str | None = None,
    average: float = 0.0,
) -> dict[str, Any]:
    """Train with gradient replicas and return the result in JSON's types.

    Losses are means over the workers, of :data:`KEPT_LOSSES` iterations up to the end or a divergence. The run has
    ``diverged`` if a loss was not finite, which ended it.

    Args:
        settings: settings of the run; their method is not used.
        coder: text form of the compressor of gradients; None: gradients stay exact.
        weights: text form of the compressor that rounds the weights after every update; None: weights stay exact.
        say: see :func:`run_threads`.
        via: way of the payloads; None: server for TernGrad, else gather.
        average: decay of the moving average of the weights whose accuracy is returned; 0: that of the weights. After t
            updates it is at most (1 + t) / (10 + t), as in TensorFlow, so that the first weights fade.
    """
    shares_scalers = coder is not None and coder.startswith("terngrad")
    via = via or ("server" if shares_scalers else "gather")
    method = f"{coder}{',' if ':' in coder else ':'}via={via}" if coder else "inc"
    rate = settings.optimizer_spec.learning_rate
    settings = dataclasses.replace(settings, method=method, learning_rate=rate, eval_every=every)
    own: list[dict[int, Float32Array]] = [{} for _ in range(settings.nodes if shares_scalers else 1)]
    runs: dict[int, RankRun] = {}
    averages: list[Float32Array] = []

    def watching(rank: int, run: RankRun) -> AfterIteration:
        replica, layout = run.replica, Layout(run.replica.layer_sizes)
        runs[rank] = run
        if average and rank == 0:  # all ranks have the same weights
            averages.append(replica.parameters.copy())
        rounding = registry.parse(weights) if weights else None
        state = rounding.make_state(layout, seed=settings.seed, rank=0) if rounding else None

        def keep_own(_start: int, values: Float32Array) -> None:
            own[rank][replica.iteration + 1] = values.copy()

        def outputs(done: int) -> list[Float32Array]:
            batches = run.new_batches(done)
            assert batches is not None
            return replica.outputs(next(batches)[0])

        if observe is not None and rank < min(len(own), settings.nodes):
            replica.observe = keep_own

        def after(done: int) -> bool:
            if coder is None and not np.isfinite(replica.gradient.sum()):
                return True  # on all ranks, which have the same sum; compressors raise
            if average and rank == 0:
                share = np.float32(min(average, (1 + done) / (10 + done)))
                averages[0][:] = share * averages[0] + (1 - share) * replica.parameters
            if rounding is not None and state is not None:
                replica.parameters[:] = rounding.decode(rounding.encode(replica.parameters, state), layout)
            if observe is not None and rank == 0:
                total = replica.gradient * np.float32(settings.nodes * settings.loss_scale)
                own_now = [of.pop(done) for of in own]
                observe(done, Seen(own_now, total, coder, layout, settings.seed, done - 1, partial(outputs, done)))
            return False

        return after

    diverged, ratio, samples = False, 1.0, data.load(settings)
    try:
        run_threads(settings, samples, watching=watching, say=say)
    except NotFiniteError:
        diverged = True
    workers = [runs[rank] for rank in range(settings.nodes)]
    losses = [float(np.mean(each)) for each in zip(*(run.timeline.losses for run in workers), strict=False)]
    finite = next((at for at, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    keep = max(1, settings.iterations // KEPT_LOSSES)
    kept = [at for at in range(finite) if at % keep == 0 or at + 1 == settings.iterations]
    first = workers[0]
    if average:
        first.replica.parameters[:] = averages[0]
    accuracy = first.measure()
    if coder is not None:
        sent = sum(run.door.sent_so_far().vector_octets for run in workers)
        ratio = FLOAT_OCTETS * first.replica.parameter_count * len(losses) * len(workers) / max(1, sent)
    return {
        "accuracy": accuracy,
        "accuracies": first.accuracy_after,
        "losses": {str(at + 1): losses[at] for at in kept},
        "ratio": ratio,
        "diverged": diverged or finite < len(losses),
    }
