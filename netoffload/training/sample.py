"""Gradients to try a codec on, without a testbed: HDC trained by one process."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from netoffload.compiled.arrays import Float32Array
from netoffload.training import data
from netoffload.training.config import TrainSettings
from netoffload.training.replica import Replica

SAMPLE_EVERY: Final = 50
"""Iterations from one gradient of a sample to the next."""


def sample_gradients(vectors: int = 4, seed: int = 1) -> Float32Array:
    """Train HDC on digits in this process and return gradients, float32[vectors, 1149010].

    They are those after 50, 100, ... iterations, batches of 25, learning rate 0.05 as in ``netoffload demo``, no loss
    scale. The same seed gives the same gradients on one machine.
    """
    settings = TrainSettings("inc", nodes=1, iterations=vectors * SAMPLE_EVERY, seed=seed, learning_rate=0.05)
    dataset = data.load(settings)
    replica = Replica(settings)
    samples = data.shard(dataset.train_images, dataset.train_labels, 0, 1)
    batches = data.batches(*samples, settings.batch, seed, 0)
    gradients = np.empty((vectors, replica.gradient.size), np.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for iteration in range(settings.iterations):
            replica.backward(*next(batches))
            if (iteration + 1) % SAMPLE_EVERY == 0:
                gradients[iteration // SAMPLE_EVERY] = replica.gradient
            replica.update(replica.gradient, iteration)
    finally:
        torch.set_num_threads(threads)
    return gradients
