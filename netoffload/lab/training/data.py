"""The samples that a worker trains on: loads a run's data set, shares it out, makes batches.

Order, split and noise depend on seeds alone, so every rank computes the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch

from netoffload.compiled.arrays import Int64Array
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import DATASETS, SYNTHETIC, TEXT, SampleShape, Tokens
from netoffload.lab.training.dataset import Dataset, Images, Labels, load_cifar10, load_digits, load_mnist

SYNTHETIC_TESTS: Final = 16
"""Test samples of synthetic data: enough to run the model in evaluation mode."""

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
