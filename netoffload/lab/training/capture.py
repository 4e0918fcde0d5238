"""What is kept of a worker's gradients, as they are before the method gets them: vectors in a file, and TensorBoard.

Copying one of HDC's gradients takes about a millisecond of a timed iteration, so do not quote the times of a run that
captures. Beside the vectors a second file says where each layer lies in them. ``torch.utils.tensorboard`` writes event
files with worker 0's scalars of every iteration, and histograms of every layer; it needs the extra ``tensorboard``.
"""

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.results import write_file

CAPTURE_FILE: Final = "gradients.npy"  # file of the vectors, in the result folder

LAYERS_FILE: Final = "gradients.layers.json"
"""File of the layers, in the result folder; a user's ``NAME.npy`` gets ``NAME.layers.json`` beside it."""

MAX_VECTORS: Final = 32  # most vectors that are kept: 32 of HDC's gradients are 147 MB


@dataclasses.dataclass(frozen=True)
class Layer:
    """A weight or a bias: its name in the model, its shape, and where it begins in a vector of all."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclasses.dataclass(frozen=True)
class Captured:
    """The description of a capture's vectors: their iterations and their layers."""

    iterations: tuple[int, ...]
    layers: tuple[Layer, ...]


class Kept:
    """The gradients that a capture keeps, :data:`MAX_VECTORS` at most."""

    def __init__(self) -> None:
        self._kept: dict[int, Float32Array] = {}

    def keep(self, iteration: int, gradient: Float32Array) -> None:
        """Keep a gradient, which nobody changes."""
        if len(self._kept) < MAX_VECTORS:
            self._kept[iteration] = gradient

    def write(self, folder: Path, layers: Sequence[Layer] = ()) -> None:
        """Write float32[vectors, n] and their description into the result folder."""
        np.save(folder / CAPTURE_FILE, np.array(list(self._kept.values()), np.float32))
        write_file(folder / LAYERS_FILE, Captured(tuple(self._kept), tuple(layers)))


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
