"""Values for benchmarks: the same in every run, different on every rank."""

from pathlib import Path

import numpy as np
import pytest

from netoffload.collectives.samples import gradient_of
from netoffload.errors import UsageError
from netoffload.lab.models.gradients import gradients_from, parse_sigma


def test_a_distribution_is_that_of_its_seed() -> None:
    draw = gradients_from("gaussian:0.002", 7)
    assert draw(2, 1000).tobytes() == gradient_of(2, 1000, 0.002, 7).tobytes()
    assert draw(1, 1000).tobytes() != draw(2, 1000).tobytes()


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_a_files_vectors_follow_each_other_from_the_ranks_own(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.arange(12, dtype=np.float32).reshape(shape))
    draw = gradients_from(str(tmp_path / "g.npy"), 1)
    assert draw(0, 5).tolist() == [0, 1, 2, 3, 4]
    assert draw(2, 14).tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert draw(4, 4).tolist() == [4, 5, 6, 7]
    assert draw(1, 0).size == 0
    assert draw(0, 5).dtype == np.float32


def test_a_file_of_one_vector_is_every_ranks(tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.arange(3, dtype=np.float32))
    assert gradients_from(str(tmp_path / "g.npy"), 1)(5, 4).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [("gaussian:2", "gaussian:0.002"), ("nothing.npy", "not a file"), ("", "not a file"), (".", "not a file")],
)
def test_what_is_neither_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gradients_from(text, 1)


def test_sigma_is_read_or_refused() -> None:
    assert parse_sigma("gaussian:0.002") == 0.002
    for wrong in ("gaussian", "gaussian:", "gaussian:x", "gaussian:0", "gaussian:2", "gaussian:nan", "laplace:0.1", ""):
        with pytest.raises(UsageError, match="write gaussian"):
            parse_sigma(wrong)
