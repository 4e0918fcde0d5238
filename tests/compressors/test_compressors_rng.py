"""The random words: the kernel gives the specified ones, and rounding sees no pattern in them."""

import math

import numpy as np
import pytest

from netoffload.compiled.arrays import Uint32Array
from netoffload.compiled.jit import JIT_DISABLED, kernel
from netoffload.compressors.rng import random_word, stream_key
from netoffload.errors import UsageError
from tests.compressors.oracles import words_exact

COUNT = 2_000 if JIT_DISABLED else 50_000
BITS = np.arange(32, dtype=np.uint32)


@kernel
def fill_words(key0: int, key1: int, first: int, out: Uint32Array) -> None:
    low, high = np.uint32(key0), np.uint32(key1)
    for i in range(out.size):
        out[i] = random_word(np.uint32(first + i), low, high)


def words(seed: int, rank: int, step: int, count: int = COUNT) -> np.ndarray:
    out = np.empty(count, np.uint32)
    fill_words(*stream_key(seed, rank, step), 0, out)
    return out


def bits_of(sample: np.ndarray) -> np.ndarray:
    """0 or 1, int64[n, 32]."""
    return (sample[:, None] >> BITS & 1).astype(np.int64)


def z_of_agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The largest |z| over all pairs of a bit of ``a`` and one of ``b``; independent ones agree half the time."""
    signed_a, signed_b = 2.0 * bits_of(a) - 1, 2.0 * bits_of(b) - 1
    return float(np.abs(signed_a.T @ signed_b).max() / math.sqrt(a.size))


@pytest.mark.parametrize("first", [0, 1, 2**31 - 3, 2**32 - 50])
def test_the_kernel_is_the_specification(first: int) -> None:
    key = stream_key(7, 3, 11)
    out = np.empty(50, np.uint32)
    fill_words(*key, first, out)
    assert out.tolist() == words_exact(key, first, 50).tolist()


def test_words_are_the_same_on_every_machine() -> None:
    assert stream_key(1, 2, 3) == (3280329104, 3525067868)
    assert words_exact((1, 2), 0, 3).tolist() == [1991913125, 229111015, 3991167310]


@pytest.mark.parametrize("distance", [1, 2, 64])
def test_neighbours_are_independent_bit_by_bit(distance: int) -> None:
    sample = words(1, 0, 0)
    assert z_of_agreement(sample[:-distance], sample[distance:]) < 5.5  # the largest of 1024


def test_bits_of_one_word_are_independent() -> None:
    sample = words(3, 0, 0)
    signed = 2.0 * bits_of(sample) - 1
    agreement = np.abs(signed.T @ signed) - sample.size * np.eye(32)
    assert agreement.max() / math.sqrt(sample.size) < 5.5


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 0, 0), (1, 1, 0)), ((1, 0, 0), (1, 0, 1)), ((1, 0, 0), (2, 0, 0)), ((0, 0, 1), (0, 1, 0))],
    ids=["ranks", "steps", "seeds", "rank and step"],
)
def test_streams_are_independent(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert z_of_agreement(words(*one), words(*other)) < 5.5


def test_octets_of_the_words_are_uniform() -> None:
    for octet in words(5, 1, 2).view(np.uint8).reshape(-1, 4).T:
        expected = octet.size / 256
        chi2 = float(((np.bincount(octet, minlength=256) - expected) ** 2 / expected).sum())
        assert abs(chi2 - 255) < 5 * math.sqrt(2 * 255)


def test_every_coordinate_changes_the_key() -> None:
    keys = {stream_key(seed, rank, step) for seed in (0, 1, 2**32, 2**63) for rank in range(4) for step in range(64)}
    assert len(keys) == 4 * 4 * 64
    assert len({low for low, _ in keys}) == len({high for _, high in keys}) == len(keys)


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, -1, 0), (0, 0, 2**64)])
def test_a_number_out_of_range_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="seed, rank and step"):
        stream_key(*numbers)
