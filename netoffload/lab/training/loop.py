"""The loop of every run: one rank's iterations, where their time goes, and the work between them.

A worker's iteration::

    |- batch, forward -|- backward, sums of buckets -|- door: [sum] .........[update].. -|
    |<--------- compute ---------->|<------- communicate ------->|<---- compute ---->|<" >|

``communicate`` is the rest of the wall time. It contains waiting for the slowest worker and, at a worker of ``wa``, the
aggregator's adding and updating. The aggregator times its updates too, so the record can count them as computing. Ranks
that share two cores compute slower than ranks with their own cores, so the split holds for one machine only.

Between two iterations, outside the timed part, all ranks measure accuracies and keep checkpoints together. Before every
accuracy, BatchNorm's statistics and other buffers are replaced by their mean over the workers. So the accuracy is that
of one model, and the octets of this exchange count with the rest.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from statistics import fmean
from typing import Final, Protocol

import numpy as np
import torch

from netoffload.collectives import Exchange, ring_allreduce
from netoffload.lab.training.capture import Board
from netoffload.lab.training.checkpoint import Checkpoints
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.doors import AnyCalls, Door, door_for, warm_up_exchange
from netoffload.lab.training.outcome import Parts, Step
from netoffload.lab.training.parallel import batch_source, replica_of
from netoffload.lab.training.replica import Batches, Replica, Travel, Watch, accuracy_of
from netoffload.methods import Sent

Clock = Callable[[], float]
AfterIteration = Callable[[int], bool | None]
"""Called with the number of finished iterations, outside the timed part; returns true after the last one."""

PROGRESS_INTERVAL_S: Final = 0.2
WARM_UP_ROUNDS: Final = 3
LARGE_OCTETS: Final = 64_000_000
"""Octets of parameters from which on one warm-up round is enough; smaller models need several."""


@dataclasses.dataclass
class Timeline:
    """Seconds of every iteration of one rank, of its parts and of drawing its batch, and a worker's losses."""

    wall_s: list[float] = dataclasses.field(default_factory=list)
    parts: list[Parts] = dataclasses.field(default_factory=list)
    draw_s: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)


class _Trainee(Protocol):
    """What the loop trains: a :class:`Replica`, or a model under torch's DDP."""

    iteration: int

    @property
    def travel(self) -> Travel: ...
    @property
    def update_s(self) -> float: ...
    def backward(self, images: torch.Tensor, labels: torch.Tensor, on_loss: Callable[[], None]) -> float: ...


def iterate(
    replica: _Trainee,
    door: Door,
    batches: Batches | None,
    iterations: int,
    *,
    first: int = 0,
    clock: Clock = time.perf_counter,
    after_iteration: AfterIteration = lambda _done: None,
    timeline: Timeline | None = None,
) -> Timeline:
    """Train for a number of iterations: draw a batch, compute its gradient, exchange, update.

    Args:
        door: exchanges gradients or weights; the caller finishes it.
        batches: the batches of samples; None: this rank is an aggregator or a server.
        first: number of iterations that are finished already.
        after_iteration: does evaluation and progress; not timed.
    """
    timeline = timeline or Timeline()
    for iteration in range(first, iterations):
        replica.iteration = iteration
        began, (waited_s, hidden_s, added_s), updated_s = replica.travel, door.times, replica.update_s
        started = drawn = loss_at = computed = clock()
        passed = began
        if batches is not None:
            batch = next(batches)
            drawn = clock()

            def on_loss() -> None:
                nonlocal loss_at, passed
                loss_at, passed = clock(), replica.travel

            timeline.losses.append(replica.backward(*batch, on_loss=on_loss))
            computed = clock()
        waited_s = door.times[0] - waited_s
        ended = replica.travel
        door.step()
        timeline.wall_s.append(clock() - started)
        timeline.draw_s.append(drawn - started)
        parts = Parts(
            forward_s=loss_at - started - (passed.waited_s - began.waited_s),
            backward_s=computed - loss_at - waited_s - (ended.waited_s - passed.waited_s),
            update_s=replica.update_s - updated_s,
            sum_s=door.times[2] - added_s,
            hidden_s=door.times[1] - hidden_s + ended.hidden_s - began.hidden_s,
        )
        timeline.parts.append(parts)
        if after_iteration(iteration + 1):
            break
    return timeline


def warm_up(settings: TrainSettings, replica: Replica, calls: AnyCalls, batches: Batches | None) -> None:
    """Open connections and touch memory without changing what is trained; every rank calls it, before its door.

    All gradients and the weights that travel are zeros. An update changes nothing, and the model's buffers are
    restored. For a large model one round is enough to open TCP's windows.
    """
    buffers = replica.buffers()
    rounds = WARM_UP_ROUNDS if replica.gradient.nbytes < LARGE_OCTETS else 1
    if batches is not None:
        batch = next(batches)
        for _ in range(rounds):
            replica.backward(*batch)
    replica.set_buffers(buffers)  # forward has changed BatchNorm's statistics
    warm_up_exchange(settings, replica, calls, rounds)
    replica.warm_up_update()


def average_buffers(replica: Replica, exchange: Exchange, workers: int) -> None:
    """Replace the model's buffers on every rank by their mean over the workers, the first ranks; collective.

    BatchNorm's statistics do not travel during training: every worker has those of its own batches.
    """
    buffers = replica.buffers()
    if not buffers.size:
        return
    if exchange.rank >= workers:
        buffers.fill(0)  # an aggregator has seen no sample
    ring_allreduce(exchange, buffers, tagged=False)
    replica.set_buffers(np.divide(buffers, np.float32(workers), out=buffers))


class RankRun:
    """One rank of a run, in a process of its own or in a thread, and its work between iterations."""

    door: Door

    def __init__(
        self, settings: TrainSettings, dataset: Dataset, calls: AnyCalls, checkpointing: Checkpointing | None = None
    ) -> None:
        self._settings, self._dataset, self._calls = settings, dataset, calls
        self._exchange = calls.plane.exchange
        rank = self._exchange.rank
        self.replica = replica_of(settings, self._exchange)
        self.is_worker = rank < settings.nodes
        self._source = batch_source(settings, dataset, rank) if self.is_worker else None
        self._checkpoints = Checkpoints(checkpointing, self._exchange) if checkpointing else None
        self.board: Board | None = None  # gets this rank's scalars
        self.watches: list[Watch] = []
        self.on_step: Callable[[Step], None] | None = None  # called with the latest step a few times per second
        self._stepped_s = -math.inf
        self.sent, self.timeline = Sent(), Timeline()  # both without :meth:`finish`
        self.first = 0  # number of iterations that earlier commands did
        self.accuracy_after: dict[str, float] = {}  # rank 0's, 0..1, by the number of iterations
        self.loss_after: dict[str, float] = {}  # rank 0's mean since the previous accuracy, if finite
        self._losses: list[float] = []

    def new_batches(self, first: int = 0) -> Batches | None:
        """Return a worker's batches after the ``first``."""
        return self._source(first) if self._source else None

    def begin(self) -> None:
        """Make the door, and load the run's checkpoint if it resumes from one; all ranks call it together."""
        self.door = door_for(self._settings, self.replica, self._calls)
        state = self._checkpoints.load() if self._checkpoints else None
        if state is not None:
            self.first, self.accuracy_after = state["iteration"], state["accuracy_after"]
            self.loss_after, self._losses = state["loss_after"], state["losses"]
            self.replica.load_state(state["replica"])
            self.door.remember(state["door"])
        self.replica.rank = self._exchange.rank

    def iterate(self, after_iteration: AfterIteration | None = None) -> None:
        """Do all iterations, each followed by ``after_iteration`` and what is due."""

        def after(done: int) -> bool:
            is_over = after_iteration is not None and after_iteration(done)
            return self._after_iteration(done) or bool(is_over)

        iterate(
            self.replica,
            self.door,
            self.new_batches(self.first),
            self._settings.iterations,
            first=self.first,
            after_iteration=after,
            timeline=self.timeline,
        )
        self.sent = dataclasses.replace(self.door.sent_so_far())

    def finish(self) -> None:
        """Make one model of all replicas; all ranks call it together.

        It comes after the last reading of counters: the papers count a method's iterations, not this.
        """
        self.door.finish()
        self._make_one_model()

    def measure(self) -> float:
        """Return the accuracy on the test set, 0..1."""
        return accuracy_of(self.replica.whole, self._dataset)

    @property
    def loss(self) -> float | None:
        """This worker's latest loss; None: none yet, or not finite."""
        loss = self.replica.loss
        return loss if loss is not None and math.isfinite(loss) else None

    @property
    def latest_accuracy(self) -> float | None:
        """The latest accuracy, 0..1; None: none measured yet, or not on this rank."""
        return next(reversed(self.accuracy_after.values()), None)

    def _make_one_model(self) -> None:
        """Average the buffers and collect the parts of the model, so that every rank has one model; collective."""
        average_buffers(self.replica, self._exchange, self._settings.nodes)
        self.replica.collect(self._exchange)

    def _after_iteration(self, done: int) -> bool:
        """Do what is due after ``done`` iterations; return whether the run ends here."""
        settings = self._settings
        for watch in self.watches:
            watch.after_iteration(done)
        self._losses.append(math.nan if self.loss is None else self.loss)
        is_measured = settings.eval_every > 0 and done % settings.eval_every == 0
        is_over = is_measured and self._measure_together(done)
        is_last = is_over or done == settings.iterations
        if self._checkpoints is not None and (is_last or done % self._checkpoints.every == 0):
            state = {
                "iteration": done,
                "accuracy_after": self.accuracy_after,
                "loss_after": self.loss_after,
                "losses": self._losses,
                "replica": self.replica.state(),
                "door": self.door.memory(),
            }
            self._checkpoints.save(state, done, self.latest_accuracy)
        if self.on_step and (is_last or time.monotonic() >= self._stepped_s + PROGRESS_INTERVAL_S):
            self._stepped_s = time.monotonic()
            self.on_step(Step(done, self.loss, self.latest_accuracy))
        if self.board is not None:
            rate = settings.learning_rate_at(done - 1)
            accuracy = self.latest_accuracy if is_measured else None
            self.board.add_scalars(done, loss=self.loss, learning_rate=rate, accuracy=accuracy)
        return is_over

    def _measure_together(self, done: int) -> bool:
        """Measure on rank 0; return on all ranks, which wait for it, whether the accuracy suffices."""
        self._make_one_model()
        is_enough = np.zeros(1, np.float32)
        if self._exchange.rank == 0:
            accuracy = self.accuracy_after[str(done)] = self.measure()
            is_enough[0] = accuracy >= (self._settings.stop_at_accuracy or math.inf)
            if math.isfinite(loss := fmean(self._losses)):
                self.loss_after[str(done)] = loss
        self._losses.clear()
        # Only rank 0 has measured: the sum gives all ranks its answer, so that they end together.
        ring_allreduce(self._exchange, is_enough, tagged=False)
        return bool(is_enough[0])
