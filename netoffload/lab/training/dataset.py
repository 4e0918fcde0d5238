"""A data set's arrays, and the files by which ranks share them.

The parent process loads a set once and saves it as plain ``.npy`` files. Ranks map these files, so that not every rank
has to import scikit-learn or decompress.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from netoffload.compiled.arrays import Float32Array, Int64Array
from netoffload.errors import UsageError

Images = Float32Array | Int64Array
Labels = Int64Array


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels.

    Images are float32[n, features], channel by channel, their labels int64[n], the classes. Sequences are
    int64[n, length], their labels int64[n, length], the next token of each.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def save(dataset: Dataset, folder: Path) -> None:
    """Write a data set as ``.npy`` files for :func:`open_saved`."""
    for field in dataclasses.fields(dataset):
        np.save(folder / f"{field.name}.npy", getattr(dataset, field.name))


def open_saved(folder: Path) -> Dataset:
    """Map what :func:`save` wrote; ranks on one machine share the pages."""
    try:
        return Dataset(*(np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in dataclasses.fields(Dataset)))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot open the data set saved in {folder}: {error}") from error
