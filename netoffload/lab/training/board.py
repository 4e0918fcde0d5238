"""TensorBoard: writes worker 0's scalars of every iteration, and histograms of every layer.

``torch.utils.tensorboard`` writes the files. It needs the package tensorboard, from the extra ``tensorboard``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.training.capture import Layer


def check_tensorboard() -> None:
    """Refuse before anything is built."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError("--tensorboard needs the package tensorboard: pip install 'netoffload[tensorboard]'")


class Board:
    """An event file of one run."""

    def __init__(self, folder: Path, layers: Sequence[Layer]) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._layers = layers
        try:
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UsageError(f"cannot write for TensorBoard to {folder}: {error.strerror}") from error

    def add_scalars(self, done: int, **values: float | None) -> None:
        """Add values by name after ``done`` iterations; those that are None are left out."""
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, done)

    def add_histograms(self, done: int, what: str, vector: Float32Array) -> None:
        """Add a histogram of each layer of ``vector``, float32[n], if all values are finite."""
        for layer in self._layers:
            values = vector[layer.offset : layer.offset + layer.size]
            if values.size and np.isfinite(values).all():
                self._writer.add_histogram(f"{what}/{layer.name}", values, done)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
