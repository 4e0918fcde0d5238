"""Makes gradients to try a codec on, without a testbed: one process trains a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.lab.training import data
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.doors import Door
from netoffload.lab.training.inprocess import threads_of_torch
from netoffload.lab.training.loop import iterate
from netoffload.lab.training.replica import Replica

SAMPLE_EVERY: Final = 50
"""Iterations from one gradient of a sample to the next."""


def train_alone(settings: TrainSettings, worker: int = 0) -> Iterator[tuple[Float32Array, float]]:
    """Train in this process, with one of torch's threads; the settings' method is not used.

    Yields after each iteration its gradient, float32[n], which the next one overwrites, and the seconds of
    computing.
    """
    dataset = data.load(settings)
    replica = Replica(settings)
    samples = data.shard(dataset.train_images, dataset.train_labels, 0, 1)
    batches, door = data.batches(*samples, settings.batch, settings.seed, worker), Door(replica.optimizer.step)
    with threads_of_torch(1):
        for done in range(settings.iterations):
            timeline = iterate(replica, door, batches, done + 1, first=done)
            yield replica.gradient, timeline.wall_s[0]


def sample_gradients(vectors: int = 4, seed: int = 1) -> Float32Array:
    """Train HDC on digits in this process and return gradients, float32[vectors, 1149010].

    The gradients are those after 50, 100, ... iterations with batches of 25, learning rate 0.05 as in ``netoffload
    demo``, and no loss scale. The same seed gives the same gradients on one machine.
    """
    settings = TrainSettings("inc", nodes=1, iterations=vectors * SAMPLE_EVERY, seed=seed, learning_rate=0.05)
    steps = enumerate(train_alone(settings), 1)
    return np.stack([gradient.copy() for number, (gradient, _) in steps if number % SAMPLE_EVERY == 0])
