import dataclasses
import gzip
import itertools
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from netoffload.errors import UsageError
from netoffload.lab.testbed.plan import NODES_MAX
from netoffload.lab.training import data
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import Dataset, load_digits, open_saved, save
from netoffload.lab.training.data_spec import Shape, Tokens
from netoffload.lab.training.run import nodes_needed


def test_a_saved_set_opens_as_it_was(tmp_path: Path) -> None:
    dataset = load_digits(3)
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
    dataset, settings = Dataset(images, labels, images, labels), TrainSettings("inc", nodes=4)
    shards = [data.share(settings, dataset, worker) for worker in range(4)]
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


@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_the_first_batches_can_be_left_out(first: int) -> None:
    images, labels = torch.arange(11.0)[:, None], torch.arange(11)
    whole, rest = (data.batches(images, labels, 5, 1, 0, at) for at in (0, first))
    for (_, expected), (_, mine) in itertools.islice(zip(itertools.islice(whole, first, None), rest, strict=False), 4):
        assert torch.equal(mine, expected)


def test_too_many_workers_for_the_data_are_refused() -> None:
    with pytest.raises(UsageError, match="60 workers get 23 samples each of digits"):
        data.load(TrainSettings("inc", nodes=60))


def test_64_workers_and_a_server_fit_into_a_testbed() -> None:
    for method, ranks in (("inc", 64), ("wa", NODES_MAX), ("terngrad:via=server", NODES_MAX)):
        assert nodes_needed([TrainSettings(method, nodes=64)]) == ranks


def test_every_model_names_a_data_set_and_a_record_gets_its_whole_name() -> None:
    assert TrainSettings("inc").data_spec.name == "digits"
    assert TrainSettings("inc", model="gpt").resolved().data == "text"
    whole = "synthetic:channels=3,side=224,classes=1000"
    assert TrainSettings("inc", model="alexnet").resolved().data == whole
    smaller = TrainSettings("inc", model="alexnet", data="synthetic:side=64,samples=7")
    assert smaller.resolved().data == "synthetic:channels=3,side=64,classes=1000,samples=7"
    assert smaller.resolved().sample_shape == smaller.sample_shape == Shape(3, 64, 1000)


@pytest.mark.parametrize("name", ["synthetic:side=9,channels=2,classes=5", "synthetic:length=9,classes=5,samples=30"])
def test_noise_has_the_shape_of_its_name_and_depends_on_the_seed(name: str) -> None:
    settings = TrainSettings("inc", model="gpt" if "length" in name else "cnn", data=name, nodes=2, batch=10)
    dataset, again = data.load(settings), data.load(settings)
    other = data.load(dataclasses.replace(settings, seed=2))
    shape = settings.sample_shape
    assert dataset.train_images.shape == (30 if settings.data_spec.samples else 20, shape.features)
    np.testing.assert_array_equal(dataset.train_images, again.train_images)
    assert not np.array_equal(dataset.train_images, other.train_images)
    assert set(np.unique(dataset.train_labels)) == set(range(5))
    if isinstance(shape, Tokens):
        np.testing.assert_array_equal(dataset.train_images[:, 1:], dataset.train_labels[:, :-1])


def test_the_corpus_is_this_pythons_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, text = data.load_text(), data.read_text()
    assert len(dataset.train_labels) > 2500  # 350,000 characters
    assert 8.9 < len(dataset.train_labels) / len(dataset.test_labels) < 9.2
    np.testing.assert_array_equal(dataset.train_images[:, 1:], dataset.train_labels[:, :-1])
    alphabet = np.array(["\n", *map(chr, range(32, 127))])
    plain = "".join(character if character == "\n" or " " <= character <= "~" else "?" for character in text)
    assert "".join(alphabet[dataset.train_labels[4]]) == plain[4 * 128 + 1 : 5 * 128 + 1]
    assert "".join(alphabet[dataset.test_images[0]]) == plain[9 * 128 : 10 * 128]
    short = TrainSettings("inc", model="gpt", data="text:length=32")
    assert (short.resolved().data, data.load(short).test_labels.shape[1]) == ("text:length=32", 32)
    monkeypatch.setattr(data, "TEXT_MODULE", "pydoc_data.nothing")
    with pytest.raises(UsageError, match=r"this Python lacks pydoc_data\.nothing, the text corpus: install"):
        data.load_text()


def test_dirichlet_shares_out_every_sample_once_the_more_alike_the_larger_alpha() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 4000)

    def unlike(alpha: float) -> float:
        parts = data.dirichlet_split(labels, 4, alpha, seed=1)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(4000))
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        return float((counts.max(0) / counts.sum(0)).mean())

    assert 0.25 < unlike(1000.0) < 0.3 < unlike(1.0) < unlike(0.01)
    assert unlike(0.01) > 0.9
    first, again, other = (data.dirichlet_split(labels, 4, 0.5, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_workers_get_what_their_sharing_says() -> None:
    dataset = load_digits(1)
    labels = dataset.train_labels
    settings = TrainSettings("inc", nodes=4, sharing="dirichlet:alpha=0.3")
    images, mine = data.share(settings, dataset, 2)
    chosen = data.dirichlet_split(labels, 4, 0.3, settings.seed)[2]
    np.testing.assert_array_equal(mine, labels[chosen])
    np.testing.assert_array_equal(images, dataset.train_images[chosen])
    for sharing, expected in (("shared", labels), ("partitioned", labels[2:1436:4])):
        np.testing.assert_array_equal(
            data.share(dataclasses.replace(settings, sharing=sharing), dataset, 2)[1], expected
        )


def test_noise_too_large_for_memory_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"^synthetic:channels=1,side=9999999,.* does not fit into memory: Unable to"):
        data.load(TrainSettings("inc", model="cnn", data="synthetic:side=9999999"))


def test_a_split_too_uneven_is_one_line() -> None:
    with pytest.raises(
        UsageError, match=r"worker \d+ gets \d+ of 1437 samples by dirichlet:alpha=0\.001: a batch is 25$"
    ):
        data.load(TrainSettings("inc", nodes=9, sharing="dirichlet:alpha=0.001"))
    with pytest.raises(UsageError, match="sequences have no classes to split by"):
        data.load(TrainSettings("inc", model="gpt", sharing="dirichlet:alpha=1"))
    with pytest.raises(UsageError, match="4 samples are no batch of 5"):
        next(data.batches(torch.zeros(4, 1), torch.zeros(4), 5, 1, 0))


def write_idx(path: Path, values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], *, gz: bool = False) -> None:
    octets = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(octets) if gz else octets)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder like MNIST's with 60 training and 20 test images; half of the files are compressed."""
    random = np.random.default_rng(0)
    for prefix, count in (("train", 60), ("t10k", 20)):
        write_idx(
            tmp_path / f"{prefix}-images-idx3-ubyte.gz", random.integers(0, 256, (count, 28, 28), np.uint8), gz=True
        )
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", random.integers(0, 10, count, np.uint8))
    return tmp_path


def test_digits_are_real_images_split_by_the_seed() -> None:
    first, again, other = data.load_digits(1), data.load_digits(1), data.load_digits(2)
    assert first.train_images.shape == (1437, 784)
    assert first.test_images.shape == (360, 784)
    assert first.train_images.dtype == np.float32
    assert first.train_labels.dtype == np.int64
    assert 0 == first.train_images.min() < 0.9 < first.train_images.max() <= 1
    assert set(first.test_labels) == set(range(10))
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))
    assert not np.array_equal(first.test_labels, other.test_labels)


@pytest.mark.slow  # importing scikit-learn takes a second
def test_digits_are_those_of_the_package_wherever_it_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn import datasets

    wanted = datasets.load_digits(return_X_y=True)
    for is_there in (True, False):
        monkeypatch.setattr(Path, "is_file", lambda _path, is_there=is_there: is_there)
        pixels, labels = data._digits()
        assert (str(pixels.dtype), str(labels.dtype)) == ("float32", "int64")
        np.testing.assert_array_equal(pixels, wanted[0])
        np.testing.assert_array_equal(labels, wanted[1])


def test_mnist_is_read_plain_and_compressed(mnist: Path) -> None:
    settings = TrainSettings("inc", nodes=2, data="mnist", data_dir=str(mnist), batch=10)
    loaded = data.load(settings)
    fashion = data.load(dataclasses.replace(settings, data="fashion-mnist"))
    np.testing.assert_array_equal(fashion.train_images, loaded.train_images)
    raw = data.read_idx(mnist / "train-images-idx3-ubyte.gz")
    assert loaded.train_images.shape == (60, 784)
    assert loaded.test_labels.shape == (20,)
    np.testing.assert_array_equal(loaded.train_images[7] * np.float32(255), raw[7].reshape(-1))


def test_each_missing_file_is_named_with_all_four(mnist: Path) -> None:
    for name in data.MNIST_FILES:
        path = next(mnist.glob(f"{name}*"))
        octets = path.read_bytes()
        path.unlink()
        with pytest.raises(
            UsageError, match=rf"has no {name}\[\.gz\].*train-images.*train-labels.*t10k-images.*t10k-lab"
        ):
            data.load_mnist(mnist)
        path.write_bytes(octets)
    data.load_mnist(mnist)


@pytest.mark.parametrize("cut", [0, 3, 7, 20, -1])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"])
def test_a_file_cut_anywhere_is_one_clear_error(mnist: Path, name: str, cut: int) -> None:
    path = mnist / name
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match="damaged"):
        data.load_mnist(mnist)


def test_other_damage_is_one_clear_error(mnist: Path) -> None:
    labels = mnist / "train-labels-idx1-ubyte"
    good = labels.read_bytes()
    images = mnist / "train-images-idx3-ubyte.gz"
    good_images = images.read_bytes()
    labels.write_bytes(good + b"\0")
    with pytest.raises(UsageError, match="61 octets of data, 60 expected"):
        data.load_mnist(mnist)
    write_idx(labels, np.zeros(59, np.uint8))
    with pytest.raises(UsageError, match="not MNIST's"):
        data.load_mnist(mnist)
    write_idx(labels, np.full(60, 10, np.uint8))
    with pytest.raises(UsageError, match=r"outside 0\.\.9"):
        data.load_mnist(mnist)
    labels.write_bytes(good)
    images.write_bytes(bytes(octet ^ 0x5A for octet in good_images))
    with pytest.raises(UsageError, match="damaged"):
        data.load_mnist(mnist)


def write_cifar(folder: Path, count: int = 40) -> Path:
    rng = np.random.default_rng(1)
    parts: dict[str, Any] = {
        f"{kind}_{part}": rng.integers(0, 256 if kind == "x" else 10, (size, *shape), np.uint8)
        for part, size in (("train", count), ("test", 10))
        for kind, shape in (("x", (32, 32, 3)), ("y", ()))
    }
    np.savez(folder / "some.npz", **parts)
    return folder / "some.npz"


def test_cifar10_is_read_plane_by_plane_and_normalised(tmp_path: Path) -> None:
    path = write_cifar(tmp_path)
    loaded = data.load_cifar10(tmp_path)
    assert loaded.train_images.shape == (40, 3 * 32 * 32)
    planes = loaded.train_images.reshape(40, 3, 32, 32)
    np.testing.assert_allclose(planes.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(planes.std((0, 2, 3)), 1, atol=1e-4)
    with np.load(path) as stored:
        raw = stored["x_train"]
        np.testing.assert_array_equal(loaded.test_labels, stored["y_test"])
    assert np.argmax(planes[7, 2]) == np.argmax(raw[7, :, :, 2])  # blue of image 7, row by row


@pytest.mark.parametrize("change", [lambda labels: labels.astype(int) - 1, lambda labels: labels + 0.5, lambda _: 99])
def test_labels_of_cifar10_are_integers_of_ten_classes(change: Callable[[Any], Any], tmp_path: Path) -> None:
    with np.load(write_cifar(tmp_path)) as stored:
        parts = dict(stored)
    parts["y_train"] = np.broadcast_to(change(parts["y_train"]), parts["y_train"].shape)
    np.savez(tmp_path / "some.npz", **parts)
    with pytest.raises(UsageError, match=r"labels are no integers 0\.\.9"):
        data.load_cifar10(tmp_path)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", "array"])
def test_a_file_that_is_no_npz_is_named_in_our_words(content: bytes | str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    with pytest.raises(UsageError, match=r"a.npz is damaged, or no \.npz file of x_train, y_train, x_test, y_test$"):
        data.load_cifar10(path)
    with pytest.raises(UsageError, match=r"cannot read .*none.npz: No such file"):
        data.load_cifar10(tmp_path / "none.npz")


@pytest.mark.parametrize("spoilt", ["nothing", "two", "keys", "shape", "labels"])
def test_a_file_that_is_not_cifar10_is_refused(spoilt: str, tmp_path: Path) -> None:
    if spoilt == "two":
        write_cifar(tmp_path).rename(tmp_path / "b.npz")
        write_cifar(tmp_path)
    elif spoilt != "nothing":
        images, labels = np.zeros((3, 32, 32, 3), np.uint8), np.zeros(3, np.uint8)
        arrays: dict[str, Any] = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
        if spoilt == "keys":
            del arrays["y_test"]
        else:
            arrays["x_test" if spoilt == "shape" else "y_test"] = np.zeros((3, 28, 28), np.uint8)
        np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError):
        data.load_cifar10(tmp_path)


def write_batch(path: Path, images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> None:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(pickle.dumps({b"data": planes, b"labels": labels, b"batch_label": b"a batch"}, protocol=2))


def test_python_batches_are_what_the_npz_file_is(tmp_path: Path) -> None:
    expected = data.load_cifar10(write_cifar(tmp_path))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    with np.load(tmp_path / "some.npz") as stored:
        for number, part in ((1, slice(0, 25)), (2, slice(25, 40))):
            write_batch(folder / f"data_batch_{number}", stored["x_train"][part], stored["y_train"][part].tolist())
        write_batch(folder / "test_batch", stored["x_test"], stored["y_test"].tolist())
    found = data.load_cifar10(folder)
    for field in dataclasses.fields(expected):
        np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", [b"", b"junk", "harm", pickle.dumps({b"data": 1}), pickle.dumps([])])
def test_a_batch_that_is_none_is_named_and_runs_nothing(content: bytes | str, tmp_path: Path) -> None:
    if isinstance(content, str):
        content = pickle.dumps(Harm(tmp_path / "harm"))
    (tmp_path / "data_batch_1").write_bytes(content)
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(UsageError, match=r"data_batch_1 is no python batch of CIFAR-10: "):
        data.load_cifar10(tmp_path)
    assert not (tmp_path / "harm").exists()
    (tmp_path / "data_batch_1").unlink()
    with pytest.raises(UsageError, match=r"has no data_batch_1 to data_batch_5 beside its test_batch"):
        data.load_cifar10(tmp_path)
