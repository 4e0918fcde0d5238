"""The fast ring against the slow oracle, bit for bit, with and without a codec."""

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import ring_allreduce
from netoffload.collectives.inprocess import InProcessExchange, run_ranks
from netoffload.collectives.reference import ring_sum
from netoffload.collectives.samples import gradient_of, parse_sigma, whole_numbers
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

BOUND_K = 8


def round_trip(values: Float32Array) -> Float32Array:
    return codec.get("inceptionn").round_trip(values, BOUND_K)


def quantise(values: Float32Array) -> None:
    codec.get("inceptionn").round_trip(values, BOUND_K, out=values)


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 20_003])
def test_ring_is_the_oracle_bit_for_bit(size: int, count: int, tagged: bool) -> None:
    vectors = [gradient_of(rank, count, sigma=0.1, seed=3) for rank in range(size)]

    def body(exchange: InProcessExchange) -> bytes:
        values = vectors[exchange.rank].copy()
        ring_allreduce(exchange, values, tagged=tagged, quantise=quantise if tagged else None, chunk_floats=1024)
        return values.tobytes()

    expected = ring_sum(vectors, round_trip if tagged else None).tobytes()
    assert run_ranks(size, body, codec=codec.get("inceptionn"), bound_k=BOUND_K) == [expected] * size


def test_oracle_is_the_plain_sum_where_that_is_exact() -> None:
    vectors = [whole_numbers(rank, 1001, seed=1) for rank in range(4)]
    np.testing.assert_array_equal(ring_sum(vectors), np.sum(vectors, axis=0, dtype=np.float64).astype(np.float32))


def test_sigma_is_read_or_refused() -> None:
    assert parse_sigma("gaussian:0.002") == 0.002
    for wrong in ("gaussian", "gaussian:", "gaussian:x", "gaussian:0", "gaussian:2", "gaussian:nan", "laplace:0.1", ""):
        with pytest.raises(UsageError, match="write gaussian"):
            parse_sigma(wrong)
