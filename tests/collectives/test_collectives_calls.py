"""Every collective over threads, with exact channels and with the codec in them, against the oracle, bit for bit."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import (
    Exchange,
    Half,
    Operation,
    ShortAllreduce,
    aggregator_allreduce,
    allgather_payloads,
    allreduce_halves,
    alltoall,
    barrier,
    broadcast,
    gather,
    hierarchical_allreduce,
    reduce,
    reference,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scatter,
)
from netoffload.collectives.announcement import check_root
from netoffload.collectives.hierarchy import check_groups, default_groups, groups_by_network
from netoffload.collectives.inprocess import InProcessExchange, run_ranks
from netoffload.collectives.ring import chunk_for, spans_in_words
from netoffload.collectives.samples import gradient_of
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError, NetOffloadError, PeerLostError, UsageError

SIZES = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 7, 1024, 20_003)
BOUND_K = 10
CHUNK = 4096
CODEC = codec.get("inceptionn")

by_size = pytest.mark.parametrize("size", SIZES)
by_count = pytest.mark.parametrize("count", COUNTS)
by_tag = pytest.mark.parametrize("tagged", [False, True])
every_value = pytest.mark.covering(1)
every_pair = pytest.mark.covering(2)


Test = TypeVar("Test", bound=Callable[..., None])


def every_case(test: Test) -> Test:
    """Every size, every count, tagged or not."""
    found: Test = every_value(by_size(by_count(by_tag(test))))
    return found


def round_trip(values: Float32Array) -> Float32Array:
    return CODEC.round_trip(values, BOUND_K)


def quantise(values: Float32Array) -> None:
    CODEC.round_trip(values, BOUND_K, out=values)


values_of = functools.partial(gradient_of, sigma=0.05, seed=1)


def run(size: int, body: Callable[[InProcessExchange], Float32Array], tagged: bool) -> list[bytes]:
    results = run_ranks(
        size, body, codec=CODEC if tagged else None, bound_k=BOUND_K, capacity_octets=16384, timeout_s=20
    )
    return [result.tobytes() for result in results]


def in_place(size: int, count: int, tagged: bool, call: Callable[..., None]) -> list[bytes]:
    """What a call leaves of each rank's vector."""

    def body(exchange: InProcessExchange) -> Float32Array:
        values = values_of(exchange.rank, count)
        call(exchange, values, tagged=tagged)
        return values

    return run(size, body, tagged)


def vectors_of(size: int, count: int) -> list[Float32Array]:
    return [values_of(rank, count) for rank in range(size)]


def uneven(count: int, size: int) -> list[int]:
    """Counts that differ from rank to rank; some are 0."""
    return [(count * rank) // max(size - 1, 1) for rank in range(size)]


@every_pair
@by_size
@by_count
@by_tag
@pytest.mark.parametrize("operation", list(Operation))
def test_ring_with_every_operation(size: int, count: int, tagged: bool, operation: Operation) -> None:
    own, hop = (quantise, round_trip) if tagged else (None, None)
    call = functools.partial(ring_allreduce, operation=operation, quantise=own, chunk_floats=CHUNK)
    expected = reference.ring_sum(vectors_of(size, count), hop, operation)
    assert in_place(size, count, tagged, call) == [expected.tobytes()] * size


@every_case
def test_reduce_scatter_in_uneven_parts(size: int, count: int, tagged: bool) -> None:
    spans = consecutive(uneven(count, size))
    total = spans[-1].stop

    def body(exchange: InProcessExchange) -> Float32Array:
        values = values_of(exchange.rank, total)
        ring_reduce_scatter(exchange, values, spans, tagged=tagged, chunk_floats=CHUNK)
        span = spans[exchange.rank]
        return values[span.start : span.stop]

    expected = reference.reduce_scatter(vectors_of(size, total), spans, round_trip if tagged else None)
    assert run(size, body, tagged) == [block.tobytes() for block in expected]


@every_case
def test_allgather_of_uneven_parts_with_gaps(size: int, count: int, tagged: bool) -> None:
    counts = uneven(count, size)
    spans = [Span(span.start + rank, span.stop + rank) for rank, span in enumerate(consecutive(counts))]

    def body(exchange: InProcessExchange) -> Float32Array:
        values = np.full(sum(counts) + size, 9.0, np.float32)
        span = spans[exchange.rank]
        values[span.start : span.stop] = values_of(exchange.rank, len(span))
        ring_allgather(exchange, values, spans, tagged=tagged, quantise=quantise if tagged else None)
        return values

    expected = np.full(sum(counts) + size, 9.0, np.float32)
    for rank, span in enumerate(spans):
        part = values_of(rank, len(span))
        expected[span.start : span.stop] = round_trip(part) if tagged and size > 1 else part
    assert run(size, body, tagged) == [expected.tobytes()] * size


@every_case
def test_broadcast_and_reduce_from_and_to_every_root(size: int, count: int, tagged: bool) -> None:
    for root in {0, size // 2, size - 1}:
        down = functools.partial(broadcast, root=root, quantise=quantise if tagged else None)
        own = values_of(root, count)
        expected = round_trip(own) if tagged and size > 1 else own
        assert in_place(size, count, tagged, down) == [expected.tobytes()] * size
        up = functools.partial(reduce, root=root, operation=Operation.SUM, chunk_floats=CHUNK)
        total = reference.tree_reduction(vectors_of(size, count), root, round_trip if tagged else None)
        assert in_place(size, count, tagged, up)[root] == total.tobytes()


@every_case
def test_gather_scatter_and_alltoall_in_uneven_parts(size: int, count: int, tagged: bool) -> None:
    counts = uneven(count, size)
    spans, root = consecutive(counts), size - 1
    total = sum(counts)

    def hop(values: Float32Array, travels: bool) -> Float32Array:
        return round_trip(values) if tagged and travels else values

    def collect(exchange: InProcessExchange) -> Float32Array:
        target = np.zeros(total, np.float32)
        gather(exchange, values_of(exchange.rank, counts[exchange.rank]), target, spans, root=root, tagged=tagged)
        return target

    def hand_out(exchange: InProcessExchange) -> Float32Array:
        own = np.zeros(counts[exchange.rank], np.float32)
        whole = values_of(7, total) if exchange.rank == root else None
        scatter(exchange, whole, spans if exchange.rank == root else None, own, root=root, tagged=tagged)
        return own

    def swap(exchange: InProcessExchange) -> Float32Array:
        # Rank r sends counts[q] floats to every rank q, so it receives counts[r] from every one.
        source, mine = values_of(exchange.rank, total), counts[exchange.rank]
        target = np.zeros(size * mine, np.float32)
        alltoall(exchange, source, spans, target, consecutive([mine] * size), tagged=tagged)
        return target

    parts = [hop(values_of(rank, counts[rank]), rank != root) for rank in range(size)]
    assert run(size, collect, tagged)[root] == np.concatenate(parts).tobytes()
    whole = values_of(7, total)
    cut = [hop(whole[span.start : span.stop].copy(), rank != root) for rank, span in enumerate(spans)]
    assert run(size, hand_out, tagged) == [part.tobytes() for part in cut]
    swapped = [
        np.concatenate([hop(values_of(other, total)[span.start : span.stop], other != rank) for other in range(size)])
        for rank, span in enumerate(spans)
    ]
    assert run(size, swap, tagged) == [part.tobytes() for part in swapped]


def groupings() -> Iterator[tuple[int, list[list[int]]]]:
    for size in SIZES:
        yield size, default_groups(size)
    yield 4, [[3, 1], [0, 2]]
    yield 5, [[0, 1, 2], [3, 4]]
    yield 8, [[0], [1, 2, 3, 4], [5, 6, 7]]
    yield 3, [[0, 1, 2]]
    yield 3, [[2], [0], [1]]


@every_value
@pytest.mark.parametrize(("size", "groups"), list(groupings()), ids=str)
@pytest.mark.parametrize("count", [0, 7, 20_003])
@by_tag
@pytest.mark.parametrize("top", ["ring", "wa"])
def test_hierarchies(size: int, groups: list[list[int]], count: int, tagged: bool, top: str) -> None:
    own, hop = (quantise, round_trip) if tagged else (None, None)
    call = functools.partial(hierarchical_allreduce, groups=groups, top=top, quantise=own, chunk_floats=CHUNK)
    expected = reference.hierarchical_sum(vectors_of(size, count), groups, hop, top=top)
    assert in_place(size, count, tagged, call) == [expected.tobytes()] * size


@every_case
def test_aggregator_that_works_too(size: int, count: int, tagged: bool) -> None:
    call = functools.partial(aggregator_allreduce, aggregator=size // 2, operation=Operation.MAX)
    hop = round_trip if tagged else None
    expected = reference.aggregated(vectors_of(size, count), size // 2, hop, Operation.MAX)
    assert in_place(size, count, tagged, call) == [expected.tobytes()] * size


def test_groups_hold_every_rank_once() -> None:
    assert [default_groups(size) for size in (1, 4, 5, 6)] == [
        [[0]],
        [[0, 1], [2, 3]],
        [[0], [1], [2], [3], [4]],
        [[0, 1], [2, 3], [4, 5]],
    ]
    assert groups_by_network(["10.0.1.1", "10.0.2.1", "10.0.1.2"]) == [[0, 2], [1]]
    for bad in ([[0], [0, 1]], [[0]], [[0, 1], []], [[0, 2]]):
        with pytest.raises(UsageError, match="exactly once"):
            run_ranks(2, functools.partial(hierarchical_allreduce, values=zeros(4), groups=bad, tagged=False))
    given: Any
    for given in (5, [0, 1], [["0", "1"]]):
        with pytest.raises(UsageError, match="are no lists of ranks"):
            check_groups(given, 2)
    given = [np.array([0, 2]), np.array([1])]
    assert check_groups(given, 3) == [[0, 2], [1]]


def test_a_root_is_any_integer_below_the_size() -> None:
    assert type(check_root(np.int64(1), 2)) is int
    for bad in (2, -1, "0", 0.0):
        with pytest.raises(UsageError, match=f"root {bad} is not a rank"):
            check_root(bad, 2)  # type: ignore[arg-type]


def test_every_call_takes_a_root_of_numpy() -> None:
    root: Any = np.int64(1)

    def body(exchange: InProcessExchange) -> list[list[float]]:
        own, spans = np.full(3, exchange.rank, np.float32), consecutive([3] * 4)
        shared, summed, through, block = own.copy(), own.copy(), own.copy(), own.copy()
        gathered = np.arange(12, dtype=np.float32)
        broadcast(exchange, shared, root=root, tagged=False)
        reduce(exchange, summed, root=root, tagged=False)
        aggregator_allreduce(exchange, through, aggregator=root, tagged=False)
        scatter(exchange, gathered, spans, block, root=root, tagged=False)
        gather(exchange, own, gathered, spans, root=root, tagged=False)
        return [one.tolist() for one in (shared, through, block, summed, gathered)]

    found = run_ranks(4, body)
    for rank, (shared, through, block, *_) in enumerate(found):
        assert (shared, through, block) == ([1] * 3, [6] * 3, list(range(3 * rank, 3 * rank + 3)))
    assert found[1][3:] == [[6] * 3, [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3]


Body = Callable[[InProcessExchange], object]


def zeros(count: int) -> Float32Array:
    return np.zeros(count, np.float32)


def short_sum(exchange: Exchange, count: int) -> None:
    ShortAllreduce(exchange, count, tagged=False)(zeros(count), zeros(count))


DISAGREEMENTS: dict[str, tuple[Body, str]] = {
    "length of a short vector": (
        lambda e: ShortAllreduce(e, 10 + (e.rank == 2), tagged=False)(
            zeros(10 + (e.rank == 2)), zeros(10 + (e.rank == 2))
        ),
        r"ranks disagree: rank \d calls untagged ring-allreduce SUM of 1[01] floats, rank \d calls .* of 1[01] floats",
    ),
    "call instead of a short vector": (
        lambda e: barrier(e) if e.rank == 1 else short_sum(e, 10),
        r"(calls barrier, rank \d calls untagged ring-allreduce|SUM of 10 floats, rank \d calls barrier)",
    ),
    "parts": (
        lambda e: ring_reduce_scatter(
            e, zeros(8), partition(8, 4) if e.rank else consecutive([5, 1, 1, 1]), tagged=False
        ),
        r"of 8 floats, parts 5, 1 \(3 times\), rank [1-3] calls .*, parts 2 \(4 times\); all|"
        r"of 8 floats, parts 2 \(4 times\), rank 0 calls .*, parts 5, 1 \(3 times\); all",
    ),
    "gathered counts": (
        lambda e: gather(e, zeros(2 + (e.rank == 3)), zeros(8), partition(8, 4), root=1, tagged=False),
        r"rank 3 sends 3 floats to rank 1, which expects 2",
    ),
    "scattered counts": (
        lambda e: scatter(e, zeros(8), partition(8, 4), zeros(2 + (e.rank == 3)), root=1, tagged=False),
        r"rank 1 sends 2 floats to rank 3, which expects 3",
    ),
}


@pytest.mark.parametrize("what", list(DISAGREEMENTS))
def test_ranks_that_disagree_all_raise_and_one_names_both(what: str) -> None:
    body, message = DISAGREEMENTS[what]
    raised: dict[int, NetOffloadError] = {}

    def noting(exchange: InProcessExchange) -> None:
        try:
            body(exchange)
        except NetOffloadError as error:
            raised[exchange.rank] = error
            raise

    with pytest.raises(CollectiveError, match=message):
        run_ranks(4, noting, timeout_s=10)
    assert sorted(raised) == [0, 1, 2, 3]
    assert all(isinstance(error, CollectiveError) for error in raised.values())
    assert not all(isinstance(error, PeerLostError) for error in raised.values())


ALGORITHMS: dict[str, Body] = {
    "barrier": barrier,
    "ring": lambda e: ring_allreduce(e, zeros(9), tagged=False),
    "ring, tagged": lambda e: ring_allreduce(e, zeros(9), tagged=True),
    "ring of float64": lambda e: ring_allreduce(e, np.zeros(9), tagged=False),
    "ring of octets": lambda e: ring_allreduce(e, np.zeros(9, np.uint8), tagged=False),
    "ring, longer": lambda e: ring_allreduce(e, zeros(10), tagged=False),
    "ring, MAX": lambda e: ring_allreduce(e, zeros(9), tagged=False, operation=Operation.MAX),
    "short, longer": lambda e: short_sum(e, 11),
    "float16": lambda e: allreduce_halves(e, np.zeros(9, np.uint16), Half.FLOAT16, tagged=False),
    "bfloat16": lambda e: allreduce_halves(e, np.zeros(9, np.uint16), Half.BFLOAT16, tagged=False),
    "payloads": lambda e: allgather_payloads(e, np.zeros(9, np.uint8)),
    "reduce-scatter": lambda e: ring_reduce_scatter(e, zeros(9), partition(9, 3), tagged=False),
    "reduce-scatter, uneven": lambda e: ring_reduce_scatter(e, zeros(9), consecutive([7, 1, 1]), tagged=False),
    "allgather": lambda e: ring_allgather(e, zeros(9), partition(9, 3), tagged=False),
    "allgather, uneven": lambda e: ring_allgather(e, zeros(9), consecutive([1, 7, 1]), tagged=False),
    "broadcast": lambda e: broadcast(e, zeros(9), root=0, tagged=False),
    "broadcast from 1": lambda e: broadcast(e, zeros(9), root=1, tagged=False),
    "reduce": lambda e: reduce(e, zeros(9), root=0, tagged=False),
    "gather": lambda e: gather(e, zeros(3), zeros(9), partition(9, 3), root=0, tagged=False),
    "scatter": lambda e: scatter(e, zeros(9), partition(9, 3), zeros(3), root=0, tagged=False),
    "all-to-all": lambda e: alltoall(e, zeros(9), partition(9, 3), zeros(9), partition(9, 3), tagged=False),
    "aggregator": lambda e: aggregator_allreduce(e, zeros(9), tagged=False),
    "groups": lambda e: hierarchical_allreduce(e, zeros(9), [[0], [1, 2]], tagged=False),
    "other groups": lambda e: hierarchical_allreduce(e, zeros(9), [[0, 1], [2]], tagged=False),
    "groups below an aggregator": lambda e: hierarchical_allreduce(e, zeros(9), [[0], [1, 2]], tagged=False, top="wa"),
}


@pytest.mark.slow
@pytest.mark.parametrize("first", list(ALGORITHMS))
def test_every_two_calls_that_differ_are_an_error_that_names_both(first: str) -> None:
    for other in list(ALGORITHMS)[list(ALGORITHMS).index(first) + 1 :]:
        pair = ALGORITHMS[first], ALGORITHMS[other]
        raised: list[str] = []

        def noting(exchange: InProcessExchange, pair: tuple[Body, Body] = pair, raised: list[str] = raised) -> None:
            try:
                pair[exchange.rank == 1](exchange)
            except CollectiveError as error:
                raised.append(str(error))
                raise

        with pytest.raises(CollectiveError, match=r"ranks disagree: rank \d calls (.*), rank \d calls (?!\1;)"):
            run_ranks(3, noting, timeout_s=10)
        assert len(raised) == 3


def test_blocks_that_do_not_fit_are_refused_before_anything_moves() -> None:
    with pytest.raises(UsageError, match="give one per rank"):
        run_ranks(1, lambda e: gather(e, zeros(1), zeros(4), partition(4, 2), root=0, tagged=False))
    with pytest.raises(UsageError, match="reach beyond"):
        run_ranks(1, lambda e: gather(e, zeros(5), zeros(4), [Span(0, 5)], root=0, tagged=False))
    with pytest.raises(UsageError, match="own block has 3 floats where 4"):
        run_ranks(1, lambda e: gather(e, zeros(3), zeros(4), [Span(0, 4)], root=0, tagged=False))
    with pytest.raises(UsageError, match="root 1 is not a rank"):
        run_ranks(1, lambda e: broadcast(e, zeros(3), root=1, tagged=False))
    with pytest.raises(UsageError, match="needs a buffer"):
        run_ranks(1, lambda e: gather(e, zeros(3), None, None, root=0, tagged=False))


def test_time_is_counted_where_it_goes() -> None:
    def body(exchange: InProcessExchange) -> Float32Array:
        ring_allreduce(exchange, zeros(200_000), tagged=True, quantise=quantise)
        watch = exchange.stopwatch
        return np.array([watch.wire_s, watch.reduce_s, watch.codec_s], np.float32)

    for result in run(3, body, True):
        seconds = np.frombuffer(result, np.float32)
        assert (seconds[1:] > 0).all()


@pytest.mark.parametrize(
    ("rate_bps", "round_trip_s", "octets"),
    [(1e8, 1e-4, 65536), (1e9, 1e-4, 125_000 // 32 * 32), (1e11, 1e-4, 524_288), (1e8, 20e-3, 250_000 // 32 * 32)],
)
def test_a_chunk_is_a_millisecond_or_a_round_trip_within_limits(
    rate_bps: float, round_trip_s: float, octets: int
) -> None:
    assert 4 * chunk_for(rate_bps, round_trip_s) == octets


def test_spans_are_named_by_their_lengths_or_by_their_limits() -> None:
    assert spans_in_words([Span(0, 2), Span(2, 5)]) == "2, 3"
    assert spans_in_words([Span(2, 5), Span(0, 2)]) == "2-5, 0-2"
