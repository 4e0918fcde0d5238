"""The slow oracle, where its result is known."""

import numpy as np

from netoffload.collectives.reference import ring_sum
from netoffload.collectives.samples import whole_numbers


def test_oracle_is_the_plain_sum_where_that_is_exact() -> None:
    vectors = [whole_numbers(rank, 1001, seed=1) for rank in range(4)]
    np.testing.assert_array_equal(ring_sum(vectors), np.sum(vectors, axis=0, dtype=np.float64).astype(np.float32))
