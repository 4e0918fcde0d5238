"""The samples that a worker trains on: loads a run's data set, shares it out, makes batches.

Order, split and noise depend on seeds alone, so every rank computes the same. The parent process loads a set once and
saves it as plain ``.npy`` files. Ranks map these files, so that not every rank has to import scikit-learn or
decompress.

Nothing is downloaded. ``digits`` is scikit-learn's bundled set (1,797 handwritten digits of 8×8, from the UCI
repository), scaled up bilinearly and split 80/20 by the seed. MNIST and Fashion-MNIST are four IDX files, gzip or not,
in a folder. CIFAR-10 or a part of it is one .npz file with ``x_train``, ``y_train``, ``x_test``, ``y_test`` (images
uint8[n, 32, 32, 3]), or the folder of its python batches. Grey images are in [0, 1]. From each colour channel its mean
over the training set is subtracted, and the rest is divided by its standard deviation.
"""

import dataclasses
import gzip
import importlib
import io
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import (
    CLASSES,
    COLOUR_32,
    DATASETS,
    GREY_28,
    SYNTHETIC,
    TEXT,
    SampleShape,
    Tokens,
)

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


SYNTHETIC_TESTS: Final = 16  # test samples of synthetic data: enough to run the model in evaluation mode

LOADERS: Final[Mapping[str, Callable[[TrainSettings], Dataset]]] = {
    "digits": lambda run: load_digits(run.seed),
    "mnist": lambda run: load_mnist(Path(run.data_dir or ".")),
    "fashion-mnist": lambda run: load_mnist(Path(run.data_dir or ".")),
    "cifar10": lambda run: load_cifar10(Path(run.data_dir or ".")),
    "text": lambda run: load_text(run.sample_shape.features),
    SYNTHETIC: lambda run: make_noise(run.sample_shape, run.data_spec.samples or run.nodes * run.batch, run.seed),
}
"""Functions that load a run's data set, by the first word of the set's name."""
assert LOADERS.keys() == {*DATASETS, SYNTHETIC}


def load(settings: TrainSettings) -> Dataset:
    """Load a run's data set, and refuse one that is too small for its workers."""
    name = settings.data_spec.name
    try:
        dataset = LOADERS[name.partition(":")[0]](settings)
    except MemoryError as error:
        raise UsageError(f"{name} does not fit into memory: {error}") from error
    shares = [len(samples_of(settings, dataset.train_labels, worker)) for worker in range(settings.nodes)]
    if (least := min(shares)) < settings.batch:
        whose = f"{settings.nodes} workers get {least} samples each of {name}"
        if len(set(shares)) > 1:
            whose = f"worker {shares.index(least)} gets {least} of {sum(shares)} samples by {settings.sharing}"
        raise UsageError(f"{whose}: a batch is {settings.batch}")
    return dataset


def make_noise(shape: SampleShape, samples: int, seed: int) -> Dataset:
    """Return synthetic data: values from a normal distribution, or tokens from a uniform one, and uniform labels."""
    random = np.random.default_rng(seed)

    def part(count: int) -> tuple[Images, Labels]:
        if isinstance(shape, Tokens):
            tokens = random.integers(0, shape.classes, (count, shape.length + 1))
            return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
        return random.standard_normal((count, shape.features), np.float32), random.integers(0, shape.classes, count)

    return Dataset(*part(samples), *part(SYNTHETIC_TESTS))


def samples_of(settings: TrainSettings, labels: Labels, worker: int) -> Int64Array:
    """Return the numbers of the training samples from which a worker draws its batches."""
    if settings.dirichlet_alpha is not None:
        return dirichlet_split(labels, settings.nodes, settings.dirichlet_alpha, settings.seed)[worker]
    workers = 1 if settings.sharing == "shared" else settings.nodes
    # The same number for each worker, so that an epoch has as many iterations on all of them.
    return np.arange(len(labels) // workers) * workers + worker % workers


def dirichlet_split(labels: Labels, workers: int, alpha: float, seed: int) -> list[Int64Array]:
    """Share out the samples of every class in proportions drawn from Dirichlet's distribution (Yurochkin et al., 2019).

    Every sample goes to one worker. Large alphas give all workers the same classes, small ones few classes to each,
    and their numbers of samples differ.
    """
    if labels.ndim != 1:
        raise UsageError("sequences have no classes to split by: choose the sharing partitioned or shared")
    random = np.random.default_rng((seed, workers))
    parts: list[list[Int64Array]] = [[] for _ in range(workers)]
    for number in range(int(labels.max()) + 1):
        mine = random.permutation(np.flatnonzero(labels == number))
        proportions = random.dirichlet(np.full(workers, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(mine)).astype(int)
        for part, piece in zip(parts, np.split(mine, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def share(settings: TrainSettings, dataset: Dataset, worker: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy the samples of a worker, and their labels."""
    chosen = samples_of(settings, dataset.train_labels, worker)
    return torch.from_numpy(dataset.train_images[chosen]), torch.from_numpy(dataset.train_labels[chosen])


def batches(
    images: torch.Tensor, labels: torch.Tensor, batch: int, seed: int, worker: int, first: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, in a new order every epoch that only seed, worker and epoch decide.

    The rest of an epoch after its last whole batch is dropped, and so are the ``first`` batches.
    """
    if len(labels) < batch:
        raise UsageError(f"{len(labels)} samples are no batch of {batch}")
    # A run that goes on draws as if it had drawn the first batches: an epoch's order needs only its number.
    epoch, skipped = divmod(first, len(labels) // batch)
    while True:
        order = torch.from_numpy(np.random.default_rng((seed, worker, epoch)).permutation(len(labels)))
        for start in range(skipped * batch, len(labels) - batch + 1, batch):
            chosen = order[start : start + batch]
            yield images[chosen], labels[chosen]
        epoch, skipped = epoch + 1, 0


SIDE: Final = GREY_28.side
FEATURES: Final = GREY_28.features

CIFAR_SIDE: Final = COLOUR_32.side
CIFAR_KEYS: Final = ("x_train", "y_train", "x_test", "y_test")
CIFAR_BATCHES: Final = "data_batch_[1-5]"
CIFAR_TESTS: Final = "test_batch"
UNPICKLED: Final = {
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
    *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
}
"""Names that a real batch needs. Unpickling another name could run a program."""

MNIST_FILES: Final = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

IDX_UINT8: Final = 0x08
"""Type code of unsigned bytes in the third octet of an IDX file; the fourth is the number of dimensions."""


def load_digits(seed: int) -> Dataset:
    """Return scikit-learn's digits at 28×28; which fifth is the test set depends on the seed."""
    pixels, labels = _digits()
    small = torch.from_numpy(pixels.reshape(-1, 8, 8) / np.float32(16))
    images = torch.nn.functional.interpolate(small[:, None], size=(SIDE, SIDE), mode="bilinear")
    flat = images.reshape(-1, FEATURES).numpy()
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = len(labels) * 4 // 5
    train, test = order[:cut], order[cut:]
    return Dataset(flat[train], labels[train], flat[test], labels[test])


def _digits() -> tuple[Float32Array, Int64Array]:
    """Return the pixels of scikit-learn's digits, 0..16, and their labels.

    The file is read where the package keeps it: importing the package takes a second of a core.
    """
    package = find_spec("sklearn")
    if package is None:
        raise UsageError("the digits need scikit-learn: pip install 'netoffload[train]'")
    path = Path(*(package.submodule_search_locations or [])[:1], "datasets", "data", "digits.csv.gz")
    if path.is_file():
        table = np.loadtxt(path, np.float32, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    return pixels.astype(np.float32), labels.astype(np.int64)


def load_mnist(folder: Path) -> Dataset:
    """Read the four IDX files of MNIST, each plain or with ``.gz``."""
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
    raise UsageError(
        f"{folder} has no {name}[.gz]: the data set is the four files {', '.join(MNIST_FILES)} (gzip or not)"
    )


def read_idx(path: Path) -> Uint8Array:
    """Read an IDX file of unsigned bytes, gzip by its suffix."""
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
    found, expected = len(octets) - header_octets, math.prod(shape)
    if found != expected:
        raise UsageError(f"{path} is damaged: {found} octets of data, {expected} expected")
    return np.frombuffer(octets, dtype=np.uint8, offset=header_octets).reshape(shape)


def load_cifar10(path: Path) -> Dataset:
    """Read CIFAR-10, or a part, from an .npz file, the only one of a folder, or the python batches in a folder."""
    if path.is_dir() and (path / CIFAR_TESTS).exists():
        named, arrays = path, _read_batches(path)
    else:
        named, arrays = _read_npz(path)
    for images, labels in ((arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])):
        if images.dtype != np.uint8 or images.shape[1:] != (CIFAR_SIDE, CIFAR_SIDE, 3) or not labels.size:
            raise UsageError(f"{named}: images of {images.dtype}{images.shape} are not CIFAR-10's uint8[n, 32, 32, 3]")
        if labels.shape != images.shape[:1]:
            raise UsageError(f"{named}: {labels.shape} labels do not belong to {images.shape} images")
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= CLASSES:
            raise UsageError(f"{named}: labels are no integers 0..{CLASSES - 1}")
    train = arrays["x_train"].astype(np.float32) / np.float32(255)
    mean, deviation = train.mean((0, 1, 2)), train.std((0, 1, 2))

    def planes(images: Float32Array) -> Float32Array:
        normal = ((images - mean) / deviation).astype(np.float32)
        return np.ascontiguousarray(normal.transpose(0, 3, 1, 2).reshape(len(images), -1))

    test = planes(arrays["x_test"].astype(np.float32) / np.float32(255))
    return Dataset(planes(train), arrays["y_train"].astype(np.int64), test, arrays["y_test"].astype(np.int64))


def _read_npz(path: Path) -> tuple[Path, dict[str, npt.NDArray[Any]]]:
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if len(files) != 1:
        raise UsageError(
            f"{path} has {len(files)} .npz files and no {CIFAR_TESTS}: --data-dir must name the .npz file with "
            "CIFAR-10, or the folder of its python batches"
        )
    try:
        with np.load(files[0], allow_pickle=False) as stored:
            return files[0], {key: np.asarray(stored[key]) for key in CIFAR_KEYS}
    except OSError as error:
        raise UsageError(f"cannot read {files[0]}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy's own words are about pickles, whatever is wrong; an .npy file is no context manager: TypeError.
        raise UsageError(f"{files[0]} is damaged, or no .npz file of {', '.join(CIFAR_KEYS)}") from error


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only arrays, numbers, texts and containers of them."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the object that a pickle names, if it is harmless."""
        if (module, name) not in UNPICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _read_batches(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an .npz file from ``data_batch_1`` to ``data_batch_5``, or some of them, and the tests."""
    parts = {"train": sorted(folder.glob(CIFAR_BATCHES)), "test": [folder / CIFAR_TESTS]}
    if not parts["train"]:
        raise UsageError(f"{folder} has no data_batch_1 to data_batch_5 beside its {CIFAR_TESTS}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, paths in parts.items():
        read = [_read_batch(path) for path in paths]
        planes = np.concatenate([images for images, _ in read])
        planes = planes.reshape(-1, COLOUR_32.channels, CIFAR_SIDE, CIFAR_SIDE)
        arrays[f"x_{part}"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        arrays[f"y_{part}"] = np.concatenate([labels for _, labels in read])
    return arrays


def _read_batch(path: Path) -> tuple[Uint8Array, npt.NDArray[Any]]:
    try:
        batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return np.asarray(batch[b"data"], np.uint8).reshape(-1, COLOUR_32.features), np.asarray(batch[b"labels"])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # a file that is no pickle raises any error
        raise UsageError(f"{path} is no python batch of CIFAR-10: {error}") from error


TEXT_MODULE: Final = "pydoc_data.topics"
TEXT_TEST_EVERY: Final = 10


def read_text() -> str:
    """Return all topics, in the order of their names."""
    try:
        topics: dict[str, str] = importlib.import_module(TEXT_MODULE).topics
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"this Python lacks {TEXT_MODULE}, the text corpus: install its whole standard library"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def encode_text(text: str) -> Int64Array:
    """Return the number of every character: 0 for a line's end, 1 to 95 for printable ASCII."""
    octets = np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int64)
    octets[(octets != ord("\n")) & ((octets < ord(" ")) | (octets > ord("~")))] = ord("?")
    return np.where(octets == ord("\n"), 0, octets - ord(" ") + 1)


def load_text(length: int = TEXT.length) -> Dataset:
    """Return the corpus as sequences of ``length`` characters."""
    characters = encode_text(read_text())
    count = (len(characters) - 1) // length
    samples, labels = (characters[at : at + count * length].reshape(count, length) for at in (0, 1))
    is_test = np.arange(count) % TEXT_TEST_EVERY == TEXT_TEST_EVERY - 1
    return Dataset(samples[~is_test], labels[~is_test], samples[is_test], labels[is_test])
