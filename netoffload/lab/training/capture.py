"""Keeps a worker's gradients of some iterations, as they are before the method gets them.

Copying one of HDC's gradients takes about a millisecond of a timed iteration, so do not quote the times of a run that
captures. Beside the vectors a second file says where each layer lies in them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.results import decode_dataclass

CAPTURE_FILE: Final = "gradients.npy"
"""File of the vectors, in the result folder."""

LAYERS_FILE: Final = "gradients.layers.json"
"""File of the layers, in the result folder; a user's ``NAME.npy`` gets ``NAME.layers.json`` beside it."""

MAX_VECTORS: Final = 32
"""Most vectors that are kept: 32 of HDC's gradients are 147 MB."""


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

    @classmethod
    def read(cls, vectors: Path) -> Captured:
        """Read the description beside a file of vectors."""
        path = vectors.with_suffix(".layers.json")
        try:
            return decode_dataclass(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the layers of {vectors}: {error}") from error


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
        said = Captured(tuple(self._kept), tuple(layers))
        (folder / LAYERS_FILE).write_text(json.dumps(dataclasses.asdict(said), indent=1), encoding="utf-8")
