"""The work between two iterations, outside the timed part: accuracy, checkpoint, progress, TensorBoard, the end.

All ranks have a :class:`Milestones`, so that all wait for the same things. Before every accuracy, BatchNorm's
statistics and other buffers are replaced by their mean over the workers. So the accuracy is that of one model, and the
octets of this exchange count with the rest.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from netoffload.collectives import Exchange, ring_allreduce
from netoffload.lab.training.board import Board
from netoffload.lab.training.checkpoint import Checkpoints
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.loop import Batches, Timeline, make_one_model, run_server, run_worker
from netoffload.lab.training.outcome import PROGRESS_FILE, Step
from netoffload.lab.training.replica import Replica
from netoffload.methods import Method


class Milestones:
    """One rank's view between iterations.

    Attributes:
        first: number of iterations that earlier commands did.
        accuracy_after: rank 0's accuracies, 0..1, by the number of iterations.
        loss_after: rank 0's mean loss since the previous accuracy, if finite, by the number of iterations.
    """

    def __init__(
        self,
        settings: TrainSettings,
        replica: Replica,
        dataset: Dataset,
        exchange: Exchange,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Prepare; nothing is shown or measured yet."""
        self.first = 0
        self.accuracy_after: dict[str, float] = {}
        self.loss_after: dict[str, float] = {}
        self._losses: list[float] = []
        self.board: Board | None = None
        self._settings, self._replica, self._dataset, self._exchange = settings, replica, dataset, exchange
        self._checkpoints = checkpoints
        self._progress: int | None = None
        self._method: Method | None = None

    def show_progress_in(self, folder: Path) -> None:
        """Keep the latest :class:`~netoffload.lab.training.outcome.Step` in a file of ``folder`` from this call on."""
        self._progress = os.open(folder / PROGRESS_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def begin(self, method: Method) -> None:
        """Load the run's checkpoint, if the run resumes from one; all ranks call it together.

        Raises:
            UsageError: the checkpoint cannot be read, or belongs to another run.
        """
        self._method = method
        state = self._checkpoints.load() if self._checkpoints else None
        if state is not None:
            self.first, self.accuracy_after = state["iteration"], state["accuracy_after"]
            self.loss_after, self._losses = state["loss_after"], state["losses"]
            self._replica.load_state(state["replica"])
            method.remember(state["method"])
        self._replica.seed_layers(self._exchange.rank, self.first)

    def after_iteration(self, done: int) -> bool:
        """Do what is due after ``done`` iterations; return whether the run ends here."""
        settings = self._settings
        self._losses.append(math.nan if self.loss is None else self.loss)
        is_measured, is_over = settings.eval_every > 0 and done % settings.eval_every == 0, False
        if is_measured:
            is_over = self._measure_together(done)
        is_last = is_over or done == settings.iterations
        if self._checkpoints is not None and (is_last or self._checkpoints.is_due(done)):
            self._checkpoints.save(self._state(done), done, self.latest_accuracy)
        if self._progress is not None:
            os.pwrite(self._progress, Step(done, self.loss, self.latest_accuracy).to_octets(), 0)
        if self.board is not None:
            rate = settings.learning_rate_at(done - 1)
            accuracy = self.latest_accuracy if is_measured else None
            self.board.add_scalars(done, loss=self.loss, learning_rate=rate, accuracy=accuracy)
        return is_over

    @property
    def loss(self) -> float | None:
        """This worker's latest loss; None: none yet, or not finite."""
        loss = self._replica.loss
        return loss if loss is not None and math.isfinite(loss) else None

    @property
    def latest_accuracy(self) -> float | None:
        """The latest accuracy, 0..1; None: none measured yet, or not on this rank."""
        return next(reversed(self.accuracy_after.values()), None)

    def measure(self) -> float:
        """Return the accuracy on the test set, 0..1."""
        images = torch.from_numpy(np.array(self._dataset.test_images))
        labels = torch.from_numpy(np.array(self._dataset.test_labels))
        return self._replica.accuracy(images, labels)

    def _measure_together(self, done: int) -> bool:
        """Measure on rank 0; return on all ranks, which wait for it, whether the accuracy suffices."""
        make_one_model(self._replica, self._exchange, self._settings.nodes)
        is_enough = np.zeros(1, np.float32)
        if self._exchange.rank == 0:
            accuracy = self.accuracy_after[str(done)] = self.measure()
            is_enough[0] = accuracy >= (self._settings.stop_at_accuracy or math.inf)
            if math.isfinite(loss := fmean(self._losses)):
                self.loss_after[str(done)] = loss
        self._losses.clear()
        ring_allreduce(self._exchange, is_enough, tagged=False)
        return bool(is_enough[0])

    def _state(self, done: int) -> dict[str, object]:
        assert self._method is not None, "begin() says which method"
        return {
            "iteration": done,
            "accuracy_after": self.accuracy_after,
            "loss_after": self.loss_after,
            "losses": self._losses,
            "replica": self._replica.state(),
            "method": self._method.memory(),
        }


def iterate(
    settings: TrainSettings, replica: Replica, method: Method, batches: Batches | None, milestones: Milestones
) -> Timeline:
    """Train as a worker, or without ``batches`` serve, from the milestones' first iteration to the last."""
    first, iterations, after = milestones.first, settings.iterations, milestones.after_iteration
    if batches is None:
        return run_server(replica, method, iterations, first=first, after_iteration=after)
    return run_worker(replica, method, batches, iterations, first=first, after_iteration=after)
