"""Gradients that are kept: of a run, and of one process without a testbed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.models.gradients import read_gradients
from netoffload.lab.results import read_file
from netoffload.lab.training import data
from netoffload.lab.training.capture import MAX_VECTORS, Board, Captured, Kept, Layer, check_tensorboard
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.inprocess import run_threads, sample_gradients
from netoffload.lab.training.loop import RankRun
from netoffload.lab.training.parallel import batch_source
from netoffload.lab.training.plan import Outputs, Planned
from netoffload.lab.training.replica import Replica, Watch


def watched(replica: Replica, every: int, first: int, iterations: int) -> Kept:
    """Return what is kept of iterations whose gradients come in two parts and are overwritten on the way."""
    kept, half = Kept(), replica.gradient.size // 2
    watch = Watch(replica, every, kept.keep)
    for replica.iteration in range(first, first + iterations):
        replica.gradient.fill(replica.iteration + 1)
        replica.observe(half, replica.gradient[half:])
        replica.gradient[half:] *= 2
        replica.observe(0, replica.gradient[:half])
        replica.gradient[:half] *= 2
        watch.after_iteration(replica.iteration + 1)
    return kept


@pytest.mark.parametrize(("iterations", "every", "kept"), [(7, 3, [3, 6]), (2, 1, [1, 2]), (40, 1, range(1, 33))])
def test_a_gradient_is_kept_as_it_was_before_it_travelled(
    iterations: int, every: int, kept: list[int], tmp_path: Path
) -> None:
    replica = Replica(TrainSettings("inc"), torch.nn.Sequential(torch.nn.Linear(2, 1)))
    watched(replica, every, 0, iterations).write(tmp_path)
    gradients = read_gradients(tmp_path / "gradients.npy")
    assert gradients.tolist() == [[iteration] * 3 for iteration in kept]
    assert len(gradients) <= MAX_VECTORS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["inc", "psgd:p=1", "wa", "none:via=server"])
@pytest.mark.parametrize("bucket_mb", [0.0, 0.5])
def test_every_door_shows_a_workers_own_gradient(method: str, bucket_mb: float) -> None:
    settings = TrainSettings(method, nodes=2, iterations=1)
    if settings.spec.sums_gradients:
        settings = dataclasses.replace(settings, bucket_mb=bucket_mb)
    kept: dict[int, list[Float32Array]] = {0: [], 1: []}

    def watching(rank: int, run: RankRun) -> Callable[[int], None] | None:
        return Watch(run.replica, 1, lambda _, gradient: kept[rank].append(gradient)).after_iteration

    dataset = data.load(settings)
    run_threads(settings, dataset, watching=lambda rank, run: watching(rank, run) if run.is_worker else None)
    for rank, gradients in kept.items():
        replica = Replica(settings)
        replica.backward(*next(batch_source(settings, dataset, rank)(0)))
        [gradient] = gradients
        np.testing.assert_array_equal(gradient, replica.gradient)


def test_a_capture_says_where_its_layers_lie(tmp_path: Path) -> None:
    replica, vectors = Replica(TrainSettings("inc")), tmp_path / "kept.npy"
    watched(replica, 2, 5, 3).write(tmp_path, replica.layers)
    Outputs(vectors).keep_capture(tmp_path)
    captured = read_file(Captured, tmp_path / "kept.layers.json")
    assert captured.iterations == (6, 8)
    assert len(np.load(vectors)) == 2
    assert captured.layers[:2] == (Layer("0.weight", (500, 784), 0, 392_000), Layer("0.bias", (500,), 392_000, 500))
    last = captured.layers[-1]
    assert last.offset + last.size == replica.parameters.size


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    board = Board(tmp_path, [Layer("a.weight", (2, 3), 0, 6), Layer("a.bias", (2,), 6, 2)])
    for done, loss in ((1, 0.5), (2, None), (3, 0.25)):
        board.add_scalars(done, loss=loss, accuracy=None)
    board.add_histograms(3, "gradient", np.array([0, 1, 2, 3, 4, 5, np.nan, 1], np.float32))
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (3, 0.25)]
    assert (events.Tags()["scalars"], events.Tags()["histograms"]) == (["loss"], ["gradient/a.weight"])
    [histogram] = events.Histograms("gradient/a.weight")
    assert (histogram.step, histogram.histogram_value.num, histogram.histogram_value.sum) == (3, 6, 15)


def test_a_missing_tensorboard_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'netoffload\[tensorboard\]'"):
        check_tensorboard()


def test_a_capture_that_cannot_be_is_refused(tmp_path: Path) -> None:
    run = Planned(TrainSettings("inc", iterations=10), has_nics=False)
    Outputs(tmp_path / "g.npy", 10).check([run], None)
    with pytest.raises(UsageError, match="keeps gradients of a single run"):
        Outputs(tmp_path / "g.npy", 5).check([run, run], None)
    with pytest.raises(UsageError, match="every 11 of 10 iterations"):
        Outputs(tmp_path / "g.npy", 11).check([run], None)
    with pytest.raises(UsageError, match="is not a folder"):
        Outputs(tmp_path / "none" / "g.npy", 5).check([run], None)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY", b"PK\x03\x04junk", np.zeros(3).tobytes()])
def test_a_file_without_gradients_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"bad.npy is not a \.npy file of float32"):
        read_gradients(tmp_path / "bad.npy")
    with pytest.raises(UsageError, match="cannot read gradients"):
        read_gradients(tmp_path / "none.npy")
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(UsageError, match=r"other.npy is not a \.npy file of float32"):
        read_gradients(tmp_path / "other.npy")


@pytest.mark.slow
def test_a_sample_is_that_of_its_seed() -> None:
    once, again, other = sample_gradients(1), sample_gradients(1), sample_gradients(1, seed=2)
    assert once.shape == (1, 1_149_010)
    assert np.isfinite(once).all()
    assert np.abs(once).max() > 1e-3
    assert once.tobytes() == again.tobytes()
    assert once.tobytes() != other.tobytes()
