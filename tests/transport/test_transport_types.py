"""Untagged rings of other types than float32, over sockets: exact, and refused where NICs would take part."""

from typing import Any

import numpy as np
import pytest

from netoffload.collectives import Operation, ring_allgather, ring_allreduce, ring_reduce_scatter
from netoffload.collectives.schedule import partition
from netoffload.errors import CollectiveError, UsageError
from netoffload.transport import TcpExchange
from tests.transport.tcp_ranks import run_tcp, wait_less

SIZE = 3
COUNT = 30_001


def drawn(rank: int, dtype: str) -> Any:
    return np.random.default_rng(rank).integers(0, 60, COUNT).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8"])
def test_rings_of_every_type_are_exact(dtype: str) -> None:
    def body(exchange: TcpExchange) -> list[bytes]:
        results = []
        for operation in (Operation.SUM, Operation.MAX, Operation.MIN):
            values = drawn(exchange.rank, dtype)
            ring_allreduce(exchange, values, tagged=False, operation=operation, chunk_floats=1001)
            results.append(values.tobytes())
        spans = partition(COUNT, SIZE)
        own = spans[exchange.rank]
        values = drawn(exchange.rank, dtype)
        ring_reduce_scatter(exchange, values, spans, tagged=False)
        gathered = np.zeros_like(values)
        gathered[own.start : own.stop] = values[own.start : own.stop]
        ring_allgather(exchange, gathered, spans, tagged=False)
        return [*results, gathered.tobytes()]

    vectors = np.stack([drawn(rank, dtype) for rank in range(SIZE)])
    total = vectors.sum(0, dtype=dtype).tobytes()
    assert run_tcp(SIZE, body) == [[total, vectors.max(0).tobytes(), vectors.min(0).tobytes(), total]] * SIZE


def test_types_that_differ_between_ranks_are_an_error_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_less(monkeypatch)

    def body(exchange: TcpExchange) -> None:
        ring_allreduce(exchange, drawn(0, "int64" if exchange.rank else "float64"), tagged=False)

    for error in run_tcp(SIZE, body):
        assert isinstance(error, CollectiveError)
        assert "ranks disagree" in str(error)


def test_what_nics_do_not_know_is_refused_before_anything_moves() -> None:
    def body(exchange: TcpExchange) -> str:
        with pytest.raises(UsageError, match="contiguous float32 vectors, not int32"):
            ring_allreduce(exchange, drawn(0, "int32"), tagged=True)
        with pytest.raises(UsageError, match="float64, int32, int64, uint8 vectors, not complex64"):
            ring_allreduce(exchange, drawn(0, "complex64"), tagged=False)
        return "refused"

    assert run_tcp(1, body) == ["refused"]
