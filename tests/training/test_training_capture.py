"""Gradients kept for later: of a run, and of one process without a testbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from netoffload.collectives.samples import read_gradients
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods import Method, Sent, Update
from netoffload.training.capture import MAX_VECTORS, CapturingMethod
from netoffload.training.config import TrainSettings
from netoffload.training.plan import Capture, Planned
from netoffload.training.sample import sample_gradients


class Doubling(Method):
    """A method that overwrites the gradient, as a real one does."""

    def __init__(self) -> None:
        self.sent = Sent()

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        gradient *= 2
        update(gradient)


@pytest.mark.parametrize(("iterations", "every", "kept"), [(7, 3, [3, 6]), (2, 1, [1, 2]), (40, 1, range(1, 33))])
def test_what_goes_in_is_kept_and_passed_on(iterations: int, every: int, kept: list[int], tmp_path: Path) -> None:
    capturing = CapturingMethod(Doubling(), every)
    sums: list[float] = []
    for iteration in range(1, iterations + 1):
        gradient = np.full(3, iteration, np.float32)
        capturing.step(gradient, np.zeros(3, np.float32), lambda total: sums.append(float(total[0])))
    capturing.write(tmp_path)
    assert sums == [2.0 * iteration for iteration in range(1, iterations + 1)]
    gradients = read_gradients(tmp_path / "gradients.npy")
    assert gradients.tolist() == [[iteration] * 3 for iteration in kept]
    assert len(gradients) <= MAX_VECTORS


def test_a_capture_that_cannot_be_is_refused(tmp_path: Path) -> None:
    run = Planned(TrainSettings("inc", iterations=10), has_nics=False)
    Capture(tmp_path / "g.npy", 10).check([run])
    with pytest.raises(UsageError, match="one exchange at a time"):
        Capture(tmp_path / "g.npy", 5).check([run, run])
    with pytest.raises(UsageError, match="every 11 of 10 iterations"):
        Capture(tmp_path / "g.npy", 11).check([run])
    with pytest.raises(UsageError, match="no folder"):
        Capture(tmp_path / "none" / "g.npy", 5).check([run])


@pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY", b"PK\x03\x04junk", np.zeros(3).tobytes()])
def test_a_file_without_gradients_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"bad.npy is no \.npy file of float32"):
        read_gradients(tmp_path / "bad.npy")
    with pytest.raises(UsageError, match="cannot read gradients"):
        read_gradients(tmp_path / "none.npy")
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(UsageError, match=r"other.npy is no \.npy file of float32"):
        read_gradients(tmp_path / "other.npy")


@pytest.mark.slow
def test_a_sample_is_that_of_its_seed() -> None:
    once, again, other = sample_gradients(1), sample_gradients(1), sample_gradients(1, seed=2)
    assert once.shape == (1, 1_149_010)
    assert np.isfinite(once).all()
    assert np.abs(once).max() > 1e-3
    assert once.tobytes() == again.tobytes()
    assert once.tobytes() != other.tobytes()
