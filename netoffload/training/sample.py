"""Gradients to try a codec on, without a testbed: HDC trained by one process, or a file that a run captured."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch

from netoffload.errors import UsageError
from netoffload.training import data
from netoffload.training.config import TrainSettings
from netoffload.training.model import Float32Array, Replica

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


def read_gradients(path: Path) -> Float32Array:
    """Read what ``netoffload train hdc --capture`` wrote: float32[vectors, n], or any other float32 array.

    Raises:
        UsageError: unreadable, no float32, or empty.
    """
    try:
        gradients = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot read gradients from {path}: {error}") from error
    if not isinstance(gradients, np.ndarray) or gradients.dtype != np.float32 or not gradients.size:
        raise UsageError(f"{path} holds no float32 array: 'netoffload train hdc --capture FILE.npy' writes one")
    return np.ascontiguousarray(gradients)
