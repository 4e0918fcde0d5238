"""Compiled rounds against the same rounds channel by channel, over real sockets, one thread per rank."""

import itertools
import re
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from netoffload.codec import CodecId
from netoffload.collectives import Operation, barrier, ring_allgather, ring_allreduce, ring_reduce_scatter
from netoffload.collectives.announcement import ANNOUNCEMENT_OCTETS, Announcement, Call, meet
from netoffload.collectives.exchange import Gathering, RingRound
from netoffload.collectives.hierarchy import hierarchical_allreduce
from netoffload.collectives.operations import apply
from netoffload.collectives.reference import reduce_scatter, ring_sum
from netoffload.collectives.schedule import consecutive, partition
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import CollectiveError, PeerLostError, UsageError
from netoffload.transport.messages import watch
from netoffload.transport.rendezvous.agreement import Quantiser
from netoffload.transport.rounds import driver, loop_port, meeting_loop
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane
from tests.transport.tcp_ranks import Watched, rounded, run_tcp

SIZES = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 7, 1024, *(() if JIT_DISABLED else (20_003,)))
CHUNKS = (3, 1000, 65_536)
ROUNDED = Quantiser(CodecId.INCEPTIONN, 10)
GONE = "rank 0 closed its communicator while rank 1 waited for it"
HARD = np.array([0.0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 1.0, -1.0], np.float32)


def values_of(rank: int, count: int) -> Float32Array:
    """Gradients, every ninth replaced by a value that is hard to get right."""
    random = np.random.default_rng([rank, count])
    values = random.normal(0.0, 0.05, count).astype(np.float32)
    values[::9] = random.choice(HARD, values[::9].size)
    return values


def assert_same(values: Float32Array, expected: Float32Array, operation: Operation = Operation.SUM) -> None:
    """Equal bits, but any NaN for a NaN; of two zeros MAX and MIN may keep either."""
    np.testing.assert_array_equal(values, expected)
    if operation in (Operation.SUM, Operation.PROD):
        is_number = ~np.isnan(expected)
        np.testing.assert_array_equal(values[is_number].view(np.uint32), expected[is_number].view(np.uint32))


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("count", [0, 1, 7, 121, 1000])
def test_combining_is_what_numpy_does(operation: Operation, count: int) -> None:
    pairs = np.array(list(itertools.product(HARD, HARD)), np.float32)  # 121: each with each
    ours, theirs = (np.resize(column, count) for column in (pairs[:, 0], pairs[:, 1]))
    expected = ours.copy()
    apply(operation, expected, theirs)
    with np.errstate(all="ignore"):
        loop_port.combine(int(operation), ours, theirs)
    assert_same(ours, expected, operation)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_allreduce_is_that_of_the_oracles(size: int) -> None:
    cases = [
        (operation, count, chunk, quantise)
        for (operation, count), (chunk, quantise) in zip(
            itertools.product(Operation, COUNTS), itertools.cycle(itertools.product(CHUNKS, (None, ROUNDED)))
        )
    ]
    sums = [
        ring_sum([values_of(rank, count) for rank in range(size)], operation=operation)
        for operation, count, _, _ in cases
    ]

    def body(exchange: TcpExchange) -> list[bytes]:
        results = []
        compiled, by_hand = Watched(exchange), Watched(exchange, by_hand=True)
        for (operation, count, chunk, quantise), total in zip(cases, sums, strict=True):
            both = []
            for one in (compiled, by_hand):
                values = values_of(exchange.rank, count)
                tagged = quantise is not None
                ring_allreduce(one, values, tagged=tagged, operation=operation, quantise=quantise, chunk_floats=chunk)
                both.append(values)
            assert_same(both[0], both[1], operation)
            assert_same(both[0], rounded(total, quantise if size > 1 else None), operation)
            results.append(both[0].tobytes())
        assert compiled.driven == [not JIT_DISABLED] * (2 * len(cases) if size > 1 else 0)  # meeting and ring
        return results

    everybody = run_tcp(size, body)
    assert everybody == [everybody[0]] * size


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_halves_of_an_allreduce_with_blocks_of_any_length(size: int) -> None:
    spans = consecutive([17, 0, 3000, 1, 800][:size])
    count = spans[-1].stop
    vectors = [values_of(rank, count) for rank in range(size)]
    scattered = reduce_scatter(vectors, spans, operation=Operation.MIN)
    own = [rounded(vectors[rank][span.start : span.stop], ROUNDED) for rank, span in enumerate(spans)]

    def body(exchange: TcpExchange) -> None:
        watched = Watched(exchange)
        span, values = spans[exchange.rank], vectors[exchange.rank].copy()
        ring_reduce_scatter(watched, values, spans, tagged=False, operation=Operation.MIN, chunk_floats=100)
        assert_same(values[span.start : span.stop], scattered[exchange.rank], Operation.MIN)
        values = vectors[exchange.rank].copy()
        ring_allgather(watched, values, spans, tagged=True, quantise=ROUNDED)
        assert_same(values, np.concatenate(own))
        assert watched.driven == [not JIT_DISABLED] * 4

    assert run_tcp(size, body) == [None] * size


def test_rings_of_rings_are_driven_too() -> None:
    def body(exchange: TcpExchange) -> float:
        values, watched = np.full(10_001, exchange.rank, np.float32), Watched(exchange)
        hierarchical_allreduce(watched, values, [[0, 1], [2, 3]], tagged=False)
        # One meeting of all and one before each round but the first; three rings.
        assert watched.driven == [not JIT_DISABLED] * 6
        return float(values.min())

    assert run_tcp(4, body) == [6.0] * 4


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_a_round_may_be_left_and_entered_again_after_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAIN_SLICE_NS", 0)
    monkeypatch.setattr(driver, "OTHER_SLICE_NS", 0)
    count = 300_001

    def body(exchange: TcpExchange) -> bytes:
        values = values_of(exchange.rank, count)
        ring_allreduce(exchange, values, tagged=True, quantise=ROUNDED, chunk_floats=1000)
        return values.tobytes()

    expected = rounded(ring_sum([values_of(rank, count) for rank in range(3)]), ROUNDED)
    results = run_tcp(3, body)
    assert results == [results[0]] * 3
    assert_same(np.frombuffer(results[0], np.float32), expected)


def test_octets_and_times_are_counted() -> None:
    count = 100_000

    def body(exchange: TcpExchange) -> None:
        start_s, before = (
            time.monotonic(),
            exchange.sent_octets([Lane.UNTAGGED]),
        )  # of the meeting that ended the set-up
        ring_allreduce(exchange, np.ones(count, np.float32), tagged=True, quantise=ROUNDED, chunk_floats=10_000)
        watch = exchange.stopwatch
        assert exchange.sent_octets([Lane.TAGGED]) == 2 * 4 * count // 2
        assert exchange.sent_octets([Lane.UNTAGGED]) - before == ANNOUNCEMENT_OCTETS
        elapsed_s = time.monotonic() - start_s
        assert 0 < watch.reduce_s < elapsed_s
        assert 0 < watch.codec_s < elapsed_s
        assert watch.wire_s >= watch.late_s >= 0

    assert run_tcp(2, body) == [None] * 2


def test_what_compiled_code_cannot_do_is_done_by_hand() -> None:
    def halve(values: Float32Array) -> None:
        values /= 2

    def body(exchange: TcpExchange) -> Sequence[float]:
        watched = Watched(exchange)
        values = np.ones(1001, np.float32)
        ring_allreduce(watched, values, tagged=False, quantise=halve)
        shifted = np.zeros(4 * 1001 + 1, np.uint8)[1:].view(np.float32)  # misaligned
        shifted += 1
        ring_allreduce(watched, shifted, tagged=False)
        assert watched.driven == [not JIT_DISABLED, False] * 2
        return [*np.unique(values), *np.unique(shifted)]

    assert run_tcp(2, body) == [[1.0, 2.0]] * 2


def drawn(rank: int, dtype: str) -> Any:
    return np.random.default_rng(rank).integers(0, 60, 30_001).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8"])
def test_rings_of_every_type_are_exact(dtype: str) -> None:
    def body(exchange: TcpExchange) -> list[bytes]:
        results = []
        for operation in (Operation.SUM, Operation.MAX, Operation.MIN):
            values = drawn(exchange.rank, dtype)
            ring_allreduce(exchange, values, tagged=False, operation=operation, chunk_floats=1001)
            results.append(values.tobytes())
        spans = partition(30_001, 3)
        own = spans[exchange.rank]
        values = drawn(exchange.rank, dtype)
        ring_reduce_scatter(exchange, values, spans, tagged=False)
        gathered = np.zeros_like(values)
        gathered[own.start : own.stop] = values[own.start : own.stop]
        ring_allgather(exchange, gathered, spans, tagged=False)
        return [*results, gathered.tobytes()]

    vectors = np.stack([drawn(rank, dtype) for rank in range(3)])
    total = vectors.sum(0, dtype=dtype).tobytes()
    assert run_tcp(3, body) == [[total, vectors.max(0).tobytes(), vectors.min(0).tobytes(), total]] * 3


def test_what_nics_do_not_know_is_refused_before_anything_moves() -> None:
    def body(exchange: TcpExchange) -> str:
        with pytest.raises(UsageError, match="contiguous float32 vectors, not int32"):
            ring_allreduce(exchange, drawn(0, "int32"), tagged=True)
        with pytest.raises(UsageError, match="float64, int32, int64, uint8 vectors, not complex64"):
            ring_allreduce(exchange, drawn(0, "complex64"), tagged=False)
        return "refused"

    assert run_tcp(1, body) == ["refused"]


def stuck_ring(exchange: TcpExchange) -> None:
    ring_allreduce(exchange, np.zeros(100_000, np.float32), tagged=False)


def join_no_further(exchange: TcpExchange) -> None:
    """Meet for :func:`stuck_ring`, so that rank 0 is in its ring, or about to be, and cannot get out."""
    meet(exchange, Announcement(Call.RING_ALLREDUCE, 100_000, False, Operation.SUM))


def test_an_interrupt_ends_a_blocking_call_and_the_others_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 20.0)  # the reason comes, however busy the machine is
    interrupted = threading.Event()

    def body(exchange: TcpExchange) -> str:
        if exchange.rank == 0:
            with pytest.raises(KeyboardInterrupt):
                stuck_ring(exchange)
            interrupted.set()
            return ""
        join_no_further(exchange)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        assert interrupted.wait(10)
        with pytest.raises(Exception, match="rank 0") as caught:
            barrier(exchange)
        return str(caught.value)

    assert "KeyboardInterrupt" in run_tcp(2, body, timeout_s=30)[1]


@pytest.mark.parametrize(
    "octets",
    [bytes(200), Announcement(Call.RING_ALLREDUCE, 9, True, Operation.SUM).to_octets()],
    ids=["rest of a ring", "another call"],
)
@pytest.mark.parametrize("gives_up", [True, False])
def test_what_a_rank_sent_before_it_gave_up_is_not_taken_for_its_next_call(
    gives_up: bool, octets: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 leaves in the middle of a call, and rank 1 reads the call's octets before it hears of it."""
    monkeypatch.setattr(watch, "GRACE_S", 20.0)  # the reason comes, however busy the machine is
    met = threading.Event()

    def body(exchange: TcpExchange) -> None:
        if exchange.rank == 1:
            whole = Watched(exchange)

            def drive(round_: RingRound | Gathering) -> bool:
                result = exchange.drive(round_)
                met.set()
                return result

            whole.drive = drive
            barrier(whole)
            return
        exchange.channel(1, tagged=False).send_some(memoryview(octets))
        assert met.wait(10)
        if gives_up:
            exchange.watch.give_up(CollectiveError("rank 0 has had enough"))

    lost = run_tcp(2, body)[1]
    assert str(lost) == ("rank 0 has had enough" if gives_up else GONE)


def test_closing_from_another_thread_ends_a_round() -> None:
    entered, exchanges = threading.Event(), {}

    def body(exchange: TcpExchange) -> None:
        exchanges[exchange.rank] = exchange
        if exchange.rank == 0:
            entered.set()
            stuck_ring(exchange)
            return
        assert entered.wait(10)
        join_no_further(exchange)
        exchanges[0].close()

    lost = run_tcp(2, body, timeout_s=30)
    assert isinstance(lost[0], PeerLostError)
    # Before the round or in it; rank 1 lives, and is not to blame.
    assert re.match("rank 0 (closed its communicator|has closed its connections)", str(lost[0]))


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_whoever_comes_to_a_meeting_breaks_the_silence() -> None:
    left, right = socket.socketpair()
    with left, right:
        ours, heard, port = np.arange(24, dtype=np.uint8), np.zeros(24, np.uint8), loop_port.make_port()
        floats, spans, hops = np.empty(0, np.float32), np.empty((0, 2), np.int64), np.empty(0, np.uint8)
        plan = meeting_loop.GatheringPlan(
            ours, heard, 24, floats, floats.view(np.uint32), floats, spans, hops, 0, 0, loop_port.NOT_ROUNDED, 0
        )
        port.state[loop_port.QUIET_NS] = 5  # of slices before
        right.sendall(ours.tobytes())
        pairs = np.array([(left.fileno(), left.fileno())], np.int64)
        assert meeting_loop.run_gathering(pairs, 10**9, 10**9, plan, port) == loop_port.DONE
        assert port.state[loop_port.QUIET_NS] == 0
        assert heard.tobytes() == right.recv(24) == ours.tobytes()
