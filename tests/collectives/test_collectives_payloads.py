"""Payload exchanges with threads as ranks: each rank gets the right octets, and a ring adds lossy blocks as it must."""

import numpy as np
import pytest

from netoffload.collectives import (
    allgather_payloads,
    alltoall_payloads,
    barrier,
    push_pull,
    ring_payloads,
    serve_payloads,
)
from netoffload.collectives.exchange import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.collectives.payloads import Payload
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError

SIZES = (1, 2, 3, 5)


def payload_of(rank: int, length: int) -> Payload:
    return np.random.default_rng(rank).integers(0, 256, length, np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("longest", [0, 1, 3000])
def test_every_rank_gets_every_payload(size: int, longest: int) -> None:
    made = [payload_of(rank, longest // (rank + 1)) for rank in range(size)]
    for gathered in run_ranks(size, lambda ex: allgather_payloads(ex, made[ex.rank]), capacity_octets=64):
        assert [got.tobytes() for got in gathered] == [payload.tobytes() for payload in made]


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_its_own_payload(size: int) -> None:
    made = [[payload_of(10 * rank + peer, 500 * peer + rank) for peer in range(size)] for rank in range(size)]
    received = run_ranks(size, lambda ex: alltoall_payloads(ex, made[ex.rank]), capacity_octets=64)
    for rank, payloads in enumerate(received):
        assert [got.tobytes() for got in payloads] == [sent[rank].tobytes() for sent in made]


def test_calls_follow_each_other() -> None:
    def body(exchange: Exchange) -> list[int]:
        sizes = []
        for call in range(5):
            sizes += [got.size for got in allgather_payloads(exchange, payload_of(exchange.rank, 100 * call))]
            barrier(exchange)
        return sizes

    assert run_ranks(3, body) == [[100 * call for call in range(5) for _ in range(3)]] * 3


@pytest.mark.parametrize("size", [2, 4])
def test_the_server_answers_all_with_one_payload(size: int) -> None:
    made = [payload_of(rank, 50 + rank) for rank in range(size - 1)]

    def body(exchange: Exchange) -> bytes:
        if exchange.rank == size - 1:
            return serve_payloads(exchange, lambda pushed: np.concatenate(pushed)).tobytes()
        return push_pull(exchange, made[exchange.rank], server=size - 1).tobytes()

    assert run_ranks(size, body, capacity_octets=32) == [np.concatenate(made).tobytes()] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_a_ring_of_exact_payloads_sums(size: int, count: int) -> None:
    vectors = [np.arange(count, dtype=np.float32) * (rank + 1) for rank in range(size)]

    def body(exchange: Exchange) -> Float32Array:
        values = vectors[exchange.rank].copy()
        sent = ring_payloads(
            exchange, values, lambda part, _: part.view(np.uint8).copy(), lambda octets, _: octets.view(np.float32)
        )
        assert sent <= 2 * 4 * count
        return values

    for result in run_ranks(size, body):
        np.testing.assert_array_equal(result, np.sum(vectors, axis=0, dtype=np.float32))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_ring_of_lossy_payloads_leaves_all_ranks_with_the_same_bits(size: int) -> None:
    def body(exchange: Exchange) -> bytes:
        values = np.random.default_rng(exchange.rank).normal(size=501).astype(np.float32)
        ring_payloads(
            exchange,
            values,
            lambda part, block: np.append(part.astype(np.float16), np.float16(block)).view(np.uint8),
            lambda octets, block: check_block(octets.view(np.float16), block),
        )
        return values.tobytes()

    results = run_ranks(size, body)
    assert len(set(results)) == 1
    exact = sum(np.random.default_rng(rank).normal(size=501).astype(np.float32) for rank in range(size))
    np.testing.assert_allclose(np.frombuffer(results[0], np.float32), exact, atol=0.02)


def check_block(halves: np.ndarray[tuple[int], np.dtype[np.float16]], block: int) -> Float32Array:
    assert halves[-1] == block
    return halves[:-1].astype(np.float32)


def test_a_block_of_another_length_is_refused() -> None:
    def body(exchange: Exchange) -> None:
        values = np.zeros(8, np.float32)
        ring_payloads(
            exchange, values, lambda _part, _: np.zeros(1, np.uint8), lambda _octets, _: np.zeros(1, np.float32)
        )

    with pytest.raises(CollectiveError, match="holds 1 floats, not 4"):
        run_ranks(2, body)
