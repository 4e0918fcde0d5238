from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from netoffload.errors import UsageError
from netoffload.training import data, image_files
from netoffload.training.config import TrainSettings
from netoffload.training.dataset import open_saved, save


def test_a_saved_set_opens_as_it_was(tmp_path: Path) -> None:
    dataset = image_files.load_digits(3)
    save(dataset, tmp_path)
    opened = open_saved(tmp_path)
    for field in dataclasses.fields(dataset):
        np.testing.assert_array_equal(getattr(opened, field.name), getattr(dataset, field.name))
    (tmp_path / "test_labels.npy").write_bytes(b"no numpy file")
    with pytest.raises(UsageError, match="cannot open the data set"):
        open_saved(tmp_path)


def test_shards_share_out_every_sample_once() -> None:
    images = np.arange(23, dtype=np.float32)[:, None]
    labels = np.arange(23, dtype=np.int64)
    shards = [data.shard(images, labels, worker, 4) for worker in range(4)]
    assert [mine.tolist() for _, mine in shards] == [list(range(worker, 20, 4)) for worker in range(4)]
    assert all(torch.equal(some[:, 0].long(), mine) for some, mine in shards)


def test_batches_are_whole_epochs_in_a_new_order_that_the_seed_decides() -> None:
    images, labels = torch.arange(11.0)[:, None], torch.arange(11)

    def take(seed: int, worker: int) -> list[list[int]]:
        chosen = itertools.islice(data.batches(images, labels, 5, seed, worker), 6)
        return [mine.tolist() for some, mine in chosen if torch.equal(some[:, 0].long(), mine)]

    epochs = [list(itertools.chain(*take(1, 0)[at : at + 2])) for at in (0, 2, 4)]
    assert all(len(set(epoch)) == 10 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert take(1, 0) == take(1, 0)
    assert len({str(take(1, 0)), str(take(2, 0)), str(take(1, 1))}) == 3


def test_too_many_workers_for_the_data_are_refused() -> None:
    with pytest.raises(UsageError, match="60 workers get 23 samples each of digits"):
        data.load(TrainSettings("inc", nodes=60))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"method": "star"}, "exchange 'star' is unknown: choose from wa, wa\\+c, inc, inc\\+c"),
        ({"nodes": 0}, "0 workers"),
        ({"nodes": 64}, "64 workers"),
        ({"iterations": 0}, "iterations is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"loss_scale": 3.0}, "not a power of two"),
        ({"loss_scale": 0.0}, "not a power of two"),
        ({"learning_rate": float("nan")}, "learning rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"data": "mnist"}, "--data-dir"),
        ({"data": "cifar"}, "data set 'cifar' is unknown"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        dataclasses.replace(TrainSettings("inc"), **wrong)  # type: ignore[arg-type]
