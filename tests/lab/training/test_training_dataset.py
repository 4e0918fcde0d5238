import dataclasses
import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netoffload.errors import UsageError
from netoffload.lab.training import data, dataset
from netoffload.lab.training.config import TrainSettings


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
    first, again, other = dataset.load_digits(1), dataset.load_digits(1), dataset.load_digits(2)
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
        pixels, labels = dataset._digits()
        assert (str(pixels.dtype), str(labels.dtype)) == ("float32", "int64")
        np.testing.assert_array_equal(pixels, wanted[0])
        np.testing.assert_array_equal(labels, wanted[1])


def test_mnist_is_read_plain_and_compressed(mnist: Path) -> None:
    settings = TrainSettings("inc", nodes=2, data="mnist", data_dir=str(mnist), batch=10)
    loaded = data.load(settings)
    fashion = data.load(dataclasses.replace(settings, data="fashion-mnist"))
    np.testing.assert_array_equal(fashion.train_images, loaded.train_images)
    raw = dataset.read_idx(mnist / "train-images-idx3-ubyte.gz")
    assert loaded.train_images.shape == (60, 784)
    assert loaded.test_labels.shape == (20,)
    np.testing.assert_array_equal(loaded.train_images[7] * np.float32(255), raw[7].reshape(-1))


def test_each_missing_file_is_named_with_all_four(mnist: Path) -> None:
    for name in dataset.MNIST_FILES:
        path = next(mnist.glob(f"{name}*"))
        octets = path.read_bytes()
        path.unlink()
        with pytest.raises(
            UsageError, match=rf"has no {name}\[\.gz\].*train-images.*train-labels.*t10k-images.*t10k-lab"
        ):
            dataset.load_mnist(mnist)
        path.write_bytes(octets)
    dataset.load_mnist(mnist)


@pytest.mark.parametrize("cut", [0, 3, 7, 20, -1])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"])
def test_a_file_cut_anywhere_is_one_clear_error(mnist: Path, name: str, cut: int) -> None:
    path = mnist / name
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match="damaged"):
        dataset.load_mnist(mnist)


def test_other_damage_is_one_clear_error(mnist: Path) -> None:
    labels = mnist / "train-labels-idx1-ubyte"
    good = labels.read_bytes()
    images = mnist / "train-images-idx3-ubyte.gz"
    good_images = images.read_bytes()
    labels.write_bytes(good + b"\0")
    with pytest.raises(UsageError, match="61 octets of data, 60 expected"):
        dataset.load_mnist(mnist)
    write_idx(labels, np.zeros(59, np.uint8))
    with pytest.raises(UsageError, match="not MNIST's"):
        dataset.load_mnist(mnist)
    write_idx(labels, np.full(60, 10, np.uint8))
    with pytest.raises(UsageError, match=r"outside 0\.\.9"):
        dataset.load_mnist(mnist)
    labels.write_bytes(good)
    images.write_bytes(bytes(octet ^ 0x5A for octet in good_images))
    with pytest.raises(UsageError, match="damaged"):
        dataset.load_mnist(mnist)


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
    loaded = dataset.load_cifar10(tmp_path)
    assert loaded.train_images.shape == (40, 3 * 32 * 32)
    planes = loaded.train_images.reshape(40, 3, 32, 32)
    np.testing.assert_allclose(planes.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(planes.std((0, 2, 3)), 1, atol=1e-4)
    with np.load(path) as stored:
        raw = stored["x_train"]
        np.testing.assert_array_equal(loaded.test_labels, stored["y_test"])
    assert np.argmax(planes[7, 2]) == np.argmax(raw[7, :, :, 2])  # blue of image 7, row by row


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", "array"])
def test_a_file_that_is_no_npz_is_named_in_our_words(content: bytes | str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    with pytest.raises(UsageError, match=r"a.npz is no \.npz file of x_train, y_train, x_test, y_test$"):
        dataset.load_cifar10(path)
    with pytest.raises(UsageError, match=r"cannot read .*none.npz: No such file"):
        dataset.load_cifar10(tmp_path / "none.npz")


@pytest.mark.parametrize("spoilt", ["nothing", "text", "two", "keys", "shape", "labels"])
def test_a_file_that_is_not_cifar10_is_refused(spoilt: str, tmp_path: Path) -> None:
    if spoilt == "text":
        (tmp_path / "a.npz").write_text("no zip")
    elif spoilt == "two":
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
        dataset.load_cifar10(tmp_path)


def write_batch(path: Path, images: np.ndarray[Any, np.dtype[np.uint8]], labels: list[int]) -> None:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(pickle.dumps({b"data": planes, b"labels": labels, b"batch_label": b"a batch"}, protocol=2))


def test_python_batches_are_what_the_npz_file_is(tmp_path: Path) -> None:
    expected = dataset.load_cifar10(write_cifar(tmp_path))
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    with np.load(tmp_path / "some.npz") as stored:
        for number, part in ((1, slice(0, 25)), (2, slice(25, 40))):
            write_batch(folder / f"data_batch_{number}", stored["x_train"][part], stored["y_train"][part].tolist())
        write_batch(folder / "test_batch", stored["x_test"], stored["y_test"].tolist())
    found = dataset.load_cifar10(folder)
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
        dataset.load_cifar10(tmp_path)
    assert not (tmp_path / "harm").exists()
    (tmp_path / "data_batch_1").unlink()
    with pytest.raises(UsageError, match=r"has no data_batch_1 to data_batch_5 beside its test_batch"):
        dataset.load_cifar10(tmp_path)
