"""Data sets: images as float32[n, features], channel by channel, labels as int64[n].

``digits`` is scikit-learn's bundled set (1,797 handwritten digits of 8×8, from the UCI repository), scaled up
bilinearly and split 80/20 by the seed. ``mnist`` is read from its four IDX files, gzip or not, in a folder the user
names. ``cifar10`` is CIFAR-10 or a part of it as one .npz file with ``x_train``, ``y_train``, ``x_test``, ``y_test``
(images uint8[n, 32, 32, 3]). Grey images are in [0, 1]; colours have each channel's mean over the training set taken
off and are divided by its standard deviation. The parent process loads a set once and saves it as plain ``.npy`` files;
ranks map those, so that neither scikit-learn nor a decompression is paid for once per rank.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.errors import UsageError
from netoffload.training.config import DATASETS, TrainSettings
from netoffload.training.model_spec import CLASSES, GREY_28

SIDE: Final = GREY_28.side
FEATURES: Final = GREY_28.features

CIFAR_SIDE: Final = DATASETS["cifar10"].shape.side
CIFAR_KEYS: Final = ("x_train", "y_train", "x_test", "y_test")


MNIST_FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

IDX_UINT8: Final = 0x08
"""Type code of unsigned bytes in the third octet of an IDX file; the fourth is the number of dimensions."""

Images = Float32Array
Labels = Int64Array


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and test images, float32[n, features], with their labels, int64[n] in 0..9."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def load(settings: TrainSettings) -> Dataset:
    """Load the data set a run asks for, and refuse one too small for its workers.

    Raises:
        UsageError: files missing or damaged, or a worker's share is smaller than a batch.
    """
    dataset = LOADERS[settings.data](Path(settings.data_dir or "."), settings.seed)
    share = len(dataset.train_labels) // settings.nodes
    if share < settings.batch:
        raise UsageError(
            f"{settings.nodes} workers get {share} samples each of {settings.data}: a batch is {settings.batch}"
        )
    return dataset


def load_digits(seed: int) -> Dataset:
    """Return scikit-learn's digits at 28×28; which fifth is the test set depends on the seed.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # slow to import, and only the parent process needs it
    except ImportError as error:
        raise UsageError("the digits need scikit-learn: pip install 'netoffload[train]'") from error
    bunch = datasets.load_digits()
    small = torch.from_numpy(np.asarray(bunch.images, dtype=np.float32) / np.float32(16))
    images = torch.nn.functional.interpolate(small[:, None], size=(SIDE, SIDE), mode="bilinear")
    flat = images.reshape(-1, FEATURES).numpy()
    labels = np.asarray(bunch.target, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = len(labels) * 4 // 5
    train, test = order[:cut], order[cut:]
    return Dataset(flat[train], labels[train], flat[test], labels[test])


def load_mnist(folder: Path) -> Dataset:
    """Read the four IDX files of MNIST, each plain or with ``.gz``.

    Raises:
        UsageError: a file is missing or damaged, or images and labels do not belong together.
    """
    arrays = [read_idx(_find_idx(folder, name)) for name in MNIST_FILES]
    for images, labels in (arrays[:2], arrays[2:]):
        if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
            raise UsageError(f"{folder}: {images.shape} images and {labels.shape} labels are not MNIST's")
        if labels.size == 0 or labels.max() >= CLASSES:
            raise UsageError(f"{folder}: labels are empty or outside 0..{CLASSES - 1}")
    scaled = [images.reshape(-1, FEATURES).astype(np.float32) / np.float32(255) for images in arrays[::2]]
    return Dataset(scaled[0], arrays[1].astype(np.int64), scaled[1], arrays[3].astype(np.int64))


def _find_idx(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UsageError(f"{folder} has no {name}[.gz]: MNIST is the four files {', '.join(MNIST_FILES)} (gzip or not)")


def read_idx(path: Path) -> Uint8Array:
    """Read an IDX file of unsigned bytes, gzip by its suffix.

    Raises:
        UsageError: unreadable, another type, or shorter or longer than its header says.
    """
    try:
        octets = path.read_bytes()
        if path.suffix == ".gz":
            octets = gzip.decompress(octets)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged or unreadable: {error}") from error
    if len(octets) < 4 or octets[:3] != bytes((0, 0, IDX_UINT8)) or len(octets) < 4 + 4 * octets[3]:
        raise UsageError(f"{path} is damaged: it is no IDX file of unsigned bytes")
    header_octets = 4 + 4 * octets[3]
    shape = tuple(int(size) for size in np.frombuffer(octets[4:header_octets], dtype=">u4"))
    if len(octets) - header_octets != math.prod(shape):
        raise UsageError(
            f"{path} is damaged: {len(octets) - header_octets} octets of data, {math.prod(shape)} expected"
        )
    return np.frombuffer(octets, dtype=np.uint8, offset=header_octets).reshape(shape)


def load_cifar10(path: Path) -> Dataset:
    """Read CIFAR-10, or a part of it, from an .npz file, or from the only one in a folder.

    Raises:
        UsageError: no such file, or its arrays are not CIFAR-10's.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if len(files) != 1:
        raise UsageError(f"{path} has {len(files)} .npz files: --data-dir must name the one with CIFAR-10")
    try:
        with np.load(files[0], allow_pickle=False) as stored:
            arrays = {key: np.asarray(stored[key]) for key in CIFAR_KEYS}
    except OSError as error:
        raise UsageError(f"cannot read {files[0]}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy's own words are about pickles, whatever is wrong; an .npy file is no context manager: TypeError.
        raise UsageError(f"{files[0]} is no .npz file of {', '.join(CIFAR_KEYS)}") from error
    for images, labels in ((arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])):
        if images.dtype != np.uint8 or images.shape[1:] != (CIFAR_SIDE, CIFAR_SIDE, 3) or not labels.size:
            raise UsageError(
                f"{files[0]}: images of {images.dtype}{images.shape} are not CIFAR-10's uint8[n, 32, 32, 3]"
            )
        if labels.shape != images.shape[:1] or labels.max() >= CLASSES:
            raise UsageError(f"{files[0]}: {labels.shape} labels do not belong to {images.shape} images")
    train = arrays["x_train"].astype(np.float32) / np.float32(255)
    mean, deviation = train.mean((0, 1, 2)), train.std((0, 1, 2))
    flat = [
        ((images - mean) / deviation).astype(np.float32).transpose(0, 3, 1, 2).reshape(len(images), -1)
        for images in (train, arrays["x_test"].astype(np.float32) / np.float32(255))
    ]
    return Dataset(
        np.ascontiguousarray(flat[0]),
        arrays["y_train"].astype(np.int64),
        np.ascontiguousarray(flat[1]),
        arrays["y_test"].astype(np.int64),
    )


LOADERS: Final[Mapping[str, Callable[[Path, int], Dataset]]] = {
    "digits": lambda _folder, seed: load_digits(seed),
    "mnist": lambda folder, _seed: load_mnist(folder),
    "cifar10": lambda path, _seed: load_cifar10(path),
}
"""By the name of :data:`~netoffload.training.config.DATASETS`: folder and seed in, the data set out."""
assert LOADERS.keys() == DATASETS.keys()


def save(dataset: Dataset, folder: Path) -> None:
    """Write a data set as ``.npy`` files for :func:`open_saved`."""
    for field in dataclasses.fields(dataset):
        np.save(folder / f"{field.name}.npy", getattr(dataset, field.name))


def open_saved(folder: Path) -> Dataset:
    """Map what :func:`save` wrote; ranks on one machine share the pages.

    Raises:
        UsageError: a file is missing or damaged.
    """
    try:
        return Dataset(*(np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in dataclasses.fields(Dataset)))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot open the data set saved in {folder}: {error}") from error


def shard(images: Images, labels: Labels, worker: int, workers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a worker's samples: ``worker``, ``worker + workers``, ... as float32[n, features] and int64[n].

    All workers get the same number, so that an epoch has as many iterations on each.
    """
    count = len(labels) // workers
    mine = slice(worker, worker + count * workers, workers)
    return torch.from_numpy(np.array(images[mine])), torch.from_numpy(np.array(labels[mine]))


def batches(
    images: torch.Tensor, labels: torch.Tensor, batch: int, seed: int, worker: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, in a new order every epoch that only seed, worker and epoch decide.

    What is left of an epoch after its last whole batch is dropped.
    """
    epoch = 0
    while True:
        order = torch.from_numpy(np.random.default_rng((seed, worker, epoch)).permutation(len(labels)))
        for start in range(0, len(labels) - batch + 1, batch):
            chosen = order[start : start + batch]
            yield images[chosen], labels[chosen]
        epoch += 1
