"""Short vectors over real sockets: the ring's bits, one message per round, and errors that all ranks raise."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from netoffload.codec import CodecId
from netoffload.collectives import Operation, Quantise, ShortAllreduce, is_short
from netoffload.collectives.announcement import ANNOUNCEMENT_OCTETS
from netoffload.collectives.gathering import SHORT_OCTETS
from netoffload.collectives.reference import RoundTrip, ring_sum
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.rendezvous.agreement import Marking, Offer, Quantiser, agree
from netoffload.transport.rounds import meeting_loop
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.rounds.loop_port import ASLEEP_NS, PATIENCE, PATIENCE_NS, make_port
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi import MPI
from tests.mpi.verify.local_ranks import ThreadComm
from tests.transport.tcp_ranks import Watched, rounded, run_tcp, values_of

ROUNDED = Quantiser(CodecId.INCEPTIONN, 10)
COUNTS = (0, 1, 7, 256, 1000)


def round_trip(values: Float32Array) -> Float32Array:
    return rounded(values, ROUNDED)


def rings_sum(size: int, count: int, operation: Operation, hop: RoundTrip | None, owner: RoundTrip) -> bytes:
    total = ring_sum([values_of(rank, count) for rank in range(size)], hop, operation)
    return (owner(total) if size > 1 else total).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_the_sum_has_the_rings_bits(size: int) -> None:
    def keep(values: Float32Array) -> Float32Array:
        return values

    kinds: list[tuple[Quantise | None, bool]] = [(None, False), (ROUNDED, False), (ROUNDED, True)]
    cases = [
        (count, operation, quantise, has_nics)
        for (count, operation), (quantise, has_nics) in zip(
            itertools.product(COUNTS, Operation), itertools.cycle(kinds)
        )
    ]

    def body(exchange: TcpExchange) -> list[bytes]:
        results, ways = [], (Watched(exchange), Watched(exchange, by_hand=True))
        for count, operation, quantise, has_nics in cases:
            for way in ways:
                own, into = values_of(exchange.rank, count), np.empty(count, np.float32)
                hops = [has_nics] * size
                call = ShortAllreduce(
                    way, count, tagged=True, operation=operation, quantise=quantise, rounded_hops=hops
                )
                call(own, into)
                np.testing.assert_array_equal(own, values_of(exchange.rank, count))
                call(own, own)  # again, and in place
                assert own.tobytes() == into.tobytes()
                results.append(into.tobytes())
        assert ways[0].driven == [not JIT_DISABLED] * 2 * len(cases)
        return results

    expected = [
        rings_sum(size, count, operation, round_trip if has_nics else None, round_trip if quantise else keep)
        for count, operation, quantise, has_nics in cases
        for _ in range(2)
    ]
    assert run_tcp(size, body) == [expected] * size


def test_where_only_some_ranks_have_nics_the_compiled_sum_is_that_by_hand() -> None:
    hops = [True, False, False, True]

    def body(exchange: TcpExchange) -> list[bytes]:
        results = []
        for by_hand in (False, True):
            values = values_of(exchange.rank, 300)
            way = Watched(exchange, by_hand=by_hand)
            ShortAllreduce(way, 300, tagged=True, quantise=ROUNDED, rounded_hops=hops)(values, values)
            results.append(values.tobytes())
        return results

    results = run_tcp(4, body)
    assert len({octets for of_rank in results for octets in of_rank}) == 1
    assert results[0][0] != rings_sum(4, 300, Operation.SUM, None, round_trip)


def test_a_hop_is_rounded_where_both_its_ranks_have_a_nic() -> None:
    offers = [Offer(marking=marking) for marking in (Marking(), Marking(), None, Marking())]
    assert agree(offers).rounded_hops(offers) == (True, False, False, True)


@pytest.mark.parametrize(("size", "rounds"), [(2, [1]), (3, [1, 1]), (4, [1, 2]), (5, [1, 2, 1])])
def test_one_message_each_way_per_round(size: int, rounds: list[int]) -> None:
    """What a CompComm sends for 256 floats: the announcement and vectors on the untagged lane, and nothing else."""

    def body(exchange: TcpExchange) -> None:
        comm, ones = ThreadComm.over(exchange), np.ones(256, np.float32)
        before = exchange.sent_octets([Lane.UNTAGGED])
        comm.Allreduce_comp(MPI.IN_PLACE, ones)
        assert (ones == size).all()
        comm.Allreduce_comp(np.full(256, 3, np.float32), ones, average=True)
        assert (ones == 3).all()
        octets = sum(ANNOUNCEMENT_OCTETS + vectors * ones.nbytes for vectors in rounds)
        assert exchange.sent_octets([Lane.UNTAGGED]) - before == 2 * octets
        assert exchange.sent_octets([Lane.TAGGED]) == 0
        assert comm.last_info.raw_octets == octets
        assert comm.totals().calls == 2

    assert run_tcp(size, body) == [None] * size


@pytest.mark.parametrize("size", [2, 3, 8])
def test_longer_vectors_go_round_the_ring(size: int) -> None:
    longest = SHORT_OCTETS // 4 // (size - 1)
    assert is_short(longest, size)
    assert not is_short(longest + 1, size)
    assert not is_short(1, 1)

    def body(exchange: TcpExchange) -> float:
        comm = ThreadComm.over(exchange)
        values = np.ones(longest + 1, np.float32)
        comm.Allreduce_comp(MPI.IN_PLACE, values)
        assert exchange.sent_octets([Lane.TAGGED]) > 0
        return float(values.max())

    assert run_tcp(size, body) == [float(size)] * size


def _sum(count: int, **options: Any) -> Any:
    return lambda comm: comm.Allreduce_comp(MPI.IN_PLACE, np.zeros(count, np.float32), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (_sum(257), "rank 1 calls tagged ring-allreduce SUM of 257 floats"),
        (_sum(100_000), "rank 1 calls tagged ring-allreduce SUM of 100000 floats"),
        (_sum(0), "rank 1 calls tagged ring-allreduce SUM of 0 floats"),
        (_sum(256, op=MPI.MAX), "rank 1 calls tagged ring-allreduce MAX of 256 floats"),
        (_sum(256, average=True), "rank 1 calls Allreduce_comp of 256 floats with average=True"),
        (lambda comm: comm.Barrier_comp(), "rank 1 calls barrier"),
        (lambda comm: comm.Bcast_comp(np.zeros(256, np.float32)), "rank 1 calls tagged broadcast of 256 floats"),
        (lambda comm: comm.Allreduce_ring(MPI.IN_PLACE, np.zeros(256, np.float32)), "rank 1 calls untagged ring"),
        (lambda comm: comm.Allreduce_comp(MPI.IN_PLACE, np.zeros(256)), "rank 1 refuses its arguments"),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_who_calls_something_else_is_named_on_all_ranks(size: int, odd: Any, says: str) -> None:
    def body(exchange: TcpExchange) -> None:
        comm = ThreadComm.over(exchange)
        _sum(256)(comm)
        try:
            (odd if exchange.rank == 1 else _sum(256))(comm)
        except TypeError as error:  # the refusal itself
            assert "float32" in str(error)
            raise CollectiveError("rank 1 refuses its arguments, ranks disagree") from error

    told = run_tcp(size, body)
    assert all(isinstance(error, CollectiveError) and "ranks disagree" in str(error) for error in told)
    assert any(re.search(says, str(error)) for error in told)


def test_closed_connections_are_said() -> None:
    def body(exchange: TcpExchange) -> None:
        comm = ThreadComm.over(exchange)
        plane = comm.calls().plane
        call = plane.short_allreduce(256, Operation.SUM, tagged=True)
        values = np.zeros(256, np.float32)
        call(values, values)
        assert plane.short_allreduce(256, Operation.SUM, tagged=True) is call
        exchange.close()
        with pytest.raises(PeerLostError, match=f"rank {exchange.rank} has closed its connections"):
            call(values, values)

    assert run_tcp(2, body) == [None] * 2


def test_patience_lasts_where_it_is_worth_it() -> None:
    """A peer that comes soon is asked for all of the time before a rank sleeps, one that never does for none."""
    state = make_port().state
    assert state[PATIENCE] == PATIENCE_NS
    for _ in range(30):
        meeting_loop._learn_patience(10 * PATIENCE_NS, 9 * PATIENCE_NS, True, state)
    assert state[PATIENCE] == 0
    assert state[ASLEEP_NS] == 30 * PATIENCE_NS  # what it did not sleep is added to what the sleep has counted
    meeting_loop._learn_patience(PATIENCE_NS // 2, PATIENCE_NS // 2, True, state)
    assert state[PATIENCE] == PATIENCE_NS
