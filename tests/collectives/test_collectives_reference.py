"""The slow oracle, where its result is known."""

import numpy as np
import pytest

from netoffload.collectives.reference import ring_sum
from netoffload.collectives.samples import parse_sigma, whole_numbers
from netoffload.errors import UsageError


def test_oracle_is_the_plain_sum_where_that_is_exact() -> None:
    vectors = [whole_numbers(rank, 1001, seed=1) for rank in range(4)]
    np.testing.assert_array_equal(ring_sum(vectors), np.sum(vectors, axis=0, dtype=np.float64).astype(np.float32))


def test_sigma_is_read_or_refused() -> None:
    assert parse_sigma("gaussian:0.002") == 0.002
    for wrong in ("gaussian", "gaussian:", "gaussian:x", "gaussian:0", "gaussian:2", "gaussian:nan", "laplace:0.1", ""):
        with pytest.raises(UsageError, match="write gaussian"):
            parse_sigma(wrong)
