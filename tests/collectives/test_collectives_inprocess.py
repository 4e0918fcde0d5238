"""Ring and worker-aggregator over threads: right sums, identical ranks, and failures that name their cause."""

import itertools
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload import codec
from netoffload.collectives import aggregate, barrier, ring_allreduce, tree_exchange, worker_exchange
from netoffload.collectives.hierarchy import SubExchange
from netoffload.collectives.inprocess import InProcessExchange, run_ranks
from netoffload.collectives.reference import ring_sum, tree_of_aggregators
from netoffload.collectives.samples import gradient_of, whole_numbers
from netoffload.collectives.schedule import aggregator_tree
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import PeerLostError, UsageError
from tests.shared.example_counts import examples

SIZES = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 7, 1024, 100_003)
BOUND_K = 10


gradients = partial(gradient_of, sigma=0.05, seed=1)


def quantise(block: Float32Array) -> None:
    codec.get("inceptionn").round_trip(block, BOUND_K, out=block)


def ring_of(size: int, count: int, chunk: int = 4096, capacity: int = 65536) -> list[Float32Array]:
    def body(exchange: InProcessExchange) -> Float32Array:
        values = gradients(exchange.rank, count)
        ring_allreduce(exchange, values, tagged=True, quantise=quantise, chunk_floats=chunk)
        return values

    return run_ranks(size, body, codec=codec.get("inceptionn"), bound_k=BOUND_K, capacity_octets=capacity, timeout_s=5)


@settings(max_examples=examples(40))
@given(
    size=st.integers(1, 6),
    count=st.integers(0, 500),
    chunk=st.sampled_from([1, 3, 8, 64, 4096]),
    capacity=st.sampled_from([16, 17, 64, 1000, 65536]),
)
def test_no_chunk_or_buffer_size_changes_or_blocks_the_ring(size: int, count: int, chunk: int, capacity: int) -> None:
    for result, expected in zip(ring_of(size, count, chunk, capacity), ring_of(size, count), strict=True):
        assert result.tobytes() == expected.tobytes()


@pytest.mark.covering(1)
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("size", [size for size in SIZES if size > 1])
@pytest.mark.parametrize("count", COUNTS)
def test_aggregator_updates_with_the_sum_and_all_get_the_parameters(size: int, count: int, tagged: bool) -> None:
    aggregator = size // 2

    def body(exchange: InProcessExchange) -> Float32Array:
        parameters = np.full(count, -1.0, dtype=np.float32)
        if exchange.rank == aggregator:
            parameters[:] = 0.5

            def update(total: Float32Array) -> None:
                parameters[:] -= total

            aggregate(exchange, parameters, update, tagged=tagged)
        else:
            gradient = gradients(exchange.rank, count)
            worker_exchange(exchange, gradient, parameters, aggregator=aggregator, tagged=tagged)
        return parameters

    results = run_ranks(size, body, codec=codec.get("inceptionn"), bound_k=BOUND_K, capacity_octets=4099)
    total = np.zeros(count, dtype=np.float32)
    for rank in range(size):
        if rank != aggregator:
            gradient = gradients(rank, count)
            if tagged:
                quantise(gradient)
            total += gradient  # in rank order, as the aggregator promises
    for result in results:
        # Bit for bit: the sum has one order, and the parameters travel untagged even when the gradients are tagged.
        assert result.tobytes() == (np.float32(0.5) - total).tobytes()


@pytest.mark.covering(1)
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize(("workers", "groups", "count"), [(4, 2, 600_001), (5, 2, 1000), (8, 4, 300_000), (3, 1, 0)])
def test_a_tree_of_aggregators_has_one_sum_and_no_room_for_whole_vectors(
    workers: int, groups: int, count: int, tagged: bool
) -> None:
    tree = aggregator_tree(workers, groups)
    vectors = [gradients(rank, count) for rank in range(len(tree))]

    def body(exchange: InProcessExchange) -> tuple[Float32Array, int]:
        parameters, asked = np.full(count, -1.0, dtype=np.float32), [0]

        def scratch(count: int) -> Float32Array:
            asked.append(count)
            return exchange.scratch(count)

        def update(total: Float32Array) -> None:
            parameters[:] = total

        whole = SubExchange(exchange, range(exchange.size))
        whole.scratch = scratch
        tree_exchange(whole, tree, vectors[exchange.rank].copy(), parameters, update, tagged=tagged)
        return parameters, max(asked)

    def round_trip(values: Float32Array) -> Float32Array:
        rounded = values.copy()
        quantise(rounded)
        return rounded

    results = run_ranks(len(tree), body, codec=codec.get("inceptionn"), bound_k=BOUND_K)
    expected = tree_of_aggregators(vectors, tree, round_trip if tagged else None)
    for rank, (result, asked) in enumerate(results):
        assert result.tobytes() == expected.tobytes()
        assert asked == len(tree[rank].children) * 2**18  # a window of 1 MiB for each


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_nobody_leaves_the_barrier_before_all_have_entered(size: int) -> None:
    def body(exchange: InProcessExchange) -> tuple[float, float]:
        entered = time.monotonic()
        barrier(exchange)
        return entered, time.monotonic()

    times = run_ranks(size, body)
    assert min(left for _, left in times) >= max(entered for entered, _ in times)


def test_a_rank_that_leaves_is_named() -> None:
    def body(exchange: InProcessExchange) -> None:
        if exchange.rank != 1:
            ring_allreduce(exchange, np.zeros(1000, dtype=np.float32), tagged=False)

    with pytest.raises(PeerLostError, match=r"rank \d closed"):
        run_ranks(3, body)


def test_a_silent_rank_is_named_after_the_time_limit() -> None:
    given_up = threading.Event()

    def body(exchange: InProcessExchange) -> None:
        if exchange.rank == 1:
            assert given_up.wait(10)
            return
        with pytest.raises(PeerLostError, match=r"rank 1 was silent for 0\.2 s"):
            ring_allreduce(exchange, np.zeros(1000, dtype=np.float32), tagged=False)
        given_up.set()

    run_ranks(2, body, timeout_s=0.2)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [1, 3])
def test_what_interrupts_the_caller_ends_the_ranks(size: int) -> None:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def body(exchange: InProcessExchange) -> None:
        values = np.ones(100, np.float32)
        for step in itertools.count():
            ring_allreduce(exchange, values, tagged=False)
            if step == 10 and exchange.rank == 0:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_ranks(size, body)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not [one for one in threading.enumerate() if one.name.startswith("rank_")]


def test_what_interrupts_the_caller_while_ranks_start_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_and_interrupt(self: ThreadPoolExecutor, call: Callable[..., object], *words: object) -> Future[object]:
        future = submit(self, call, *words)
        if len(self._threads) == 2:
            raise KeyboardInterrupt
        return future

    def body(exchange: InProcessExchange) -> None:
        while True:
            ring_allreduce(exchange, np.ones(100, np.float32), tagged=False)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_ranks(2, body, timeout_s=3600)
    assert not [one for one in threading.enumerate() if one.name.startswith("rank_")]


@pytest.mark.parametrize(
    "values",
    [np.zeros(8), np.zeros((2, 4), dtype=np.float32), np.zeros(16, dtype=np.float32)[::2]],
    ids=["float64", "matrix", "strided"],
)
def test_only_contiguous_float32_vectors(values: Float32Array) -> None:
    with pytest.raises(UsageError, match="contiguous float32 vectors"):
        run_ranks(2, lambda exchange: ring_allreduce(exchange, values, tagged=True))


def test_an_aggregator_needs_workers_and_a_worker_another_rank() -> None:
    vector = np.zeros(4, dtype=np.float32)
    with pytest.raises(UsageError, match="at least one worker"):
        run_ranks(1, lambda exchange: aggregate(exchange, vector, lambda total: None, tagged=False))
    with pytest.raises(UsageError, match="cannot be a worker"):
        run_ranks(1, lambda exchange: worker_exchange(exchange, vector, vector, aggregator=0, tagged=False))
    with pytest.raises(UsageError, match="lengths must be equal"):
        run_ranks(2, lambda exchange: worker_exchange(exchange, vector, vector[:2], aggregator=0, tagged=False))


def test_the_oracle_is_the_plain_sum_where_that_is_exact() -> None:
    vectors = [whole_numbers(rank, 1001, seed=1) for rank in range(4)]
    np.testing.assert_array_equal(ring_sum(vectors), np.sum(vectors, axis=0, dtype=np.float64).astype(np.float32))
