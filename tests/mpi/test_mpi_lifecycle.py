"""A CompComm beside its calls: accounts, requirements, background calls. Ranks are threads, sockets are real."""

import re
import socket
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from netoffload.collectives import barrier
from netoffload.collectives.announcement import ANNOUNCEMENT_OCTETS
from netoffload.errors import CollectiveError, UsageError
from netoffload.transport.calls import CallQueue
from netoffload.transport.info import CommInfo
from netoffload.transport.plane import LIMIT_S_MAX, DataPlane, Settings
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi import CompComm
from tests.mpi.verify.local_ranks import ThreadComm
from tests.shared.interrupts import interrupted_in
from tests.transport.tcp_ranks import run_tcp, wait_less

TWO_THREADS = "rank 0 calls collectives of one communicator from two threads at the same time"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"codec": "foo", "bound_k": 10}, "'foo'"),
        ({"codec": "inceptionn", "bound_k": 17}, r"bound 17 is outside 1\.\.16"),
        ({"codec": "inceptionn"}, "give both codec and bound_k"),
        ({"bound_k": 10}, "give both codec and bound_k"),
        ({"codec": "packed", "bound_k": 10.0}, "bound 10.0 is not a whole number"),
        ({"chunk_octets": "256KiB"}, "'256KiB'"),
        ({"offload": 1}, "offload 1 is unknown: choose from nic"),
        *(
            ({name: limit_s}, f"^{name} is .*: give a number of seconds above 0$")
            for name in ("timeout_s", "late_s")
            for limit_s in (0, -1, float("nan"), "x")
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_before_the_first_call(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CompComm(MPI.COMM_SELF, **wrong)


@pytest.mark.parametrize(("octets", "says"), [(1 << 50, "give at most 1073741824"), (3, "give at least 4")])
def test_chunks_that_cannot_be_are_refused(octets: int, says: str) -> None:
    with pytest.raises(UsageError, match=says), CompComm(MPI.COMM_SELF, chunk_octets=octets) as comm:
        comm.Barrier_comp()


def test_a_bound_may_be_any_integer_and_a_limit_infinite() -> None:
    bound: Any = np.int64(10)
    limits: Any = {"timeout_s": float("inf"), "late_s": 1e30}
    with CompComm(MPI.COMM_SELF, codec="packed", bound_k=bound, offload="inline", **limits) as comm:
        values = np.full(50_000, 0.25, np.float32)
        comm.Allreduce_comp(MPI.IN_PLACE, values)
        assert (values == 0.25).all()
        assert comm.calls().plane.settings.bound_k == 10
        assert comm.exchange().late_s == LIMIT_S_MAX


@pytest.mark.parametrize(("name", "value"), [("NETOFFLOAD_CHUNK", "abc"), ("NETOFFLOAD_ADDRESS", "1.2.3.4")])
def test_a_wrong_value_of_the_environment_is_refused_by_its_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with CompComm(MPI.COMM_SELF) as comm, pytest.raises(UsageError, match=rf"^\${name}.*{value}"):
        comm.Barrier_comp()


@pytest.mark.parametrize("answer", ["false", "yes", "01"])
def test_what_is_neither_1_nor_0_requires_nothing_by_chance(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETOFFLOAD_REQUIRE", answer)
    with pytest.raises(UsageError, match=rf"^\$NETOFFLOAD_REQUIRE is '{answer}': write 1"):
        CompComm(MPI.COMM_SELF)


@pytest.mark.parametrize("by_environment", [False, True])
def test_compression_that_is_off_cannot_be_required(by_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_environment:
        monkeypatch.setenv("NETOFFLOAD_REQUIRE", "1")
        monkeypatch.setenv("NETOFFLOAD_OFFLOAD", "off")
    options: dict[str, Any] = {} if by_environment else {"require": True, "offload": "off"}
    with CompComm(MPI.COMM_SELF, **options) as comm, pytest.raises(UsageError, match="and offload is off"):
        comm.Barrier_comp()


def test_what_one_rank_requires_in_vain_is_told_to_all() -> None:
    def body(exchange: TcpExchange) -> None:
        required = exchange.rank == 2
        comm = ThreadComm.over(exchange, Settings(require=required, per_call=required))
        values = np.ones(100, np.float32)
        if required:
            with pytest.raises(CollectiveError, match="this rank has no NIC"):
                comm.Allreduce_comp(MPI.IN_PLACE, values)
            return
        comm.Allreduce_comp(MPI.IN_PLACE, values)
        barrier(exchange)

    told = run_tcp(3, body)
    assert told[2] is None
    for error in told[:2]:
        assert isinstance(error, CollectiveError)
        assert "compression is required, but this rank has no NIC" in str(error)


@pytest.mark.parametrize(
    ("odd", "usual"),
    [
        ({"average": True}, {}),
        ({"average": True}, {"algorithm": "wa"}),
        ({"algorithm": "hierarchical", "average": True}, {"algorithm": "hierarchical"}),
        ({"algorithm": "mpi"}, {}),
        ({"algorithm": "mpi", "average": True}, {"algorithm": "mpi"}),
        ({"algorithm": "hierarchical", "top": "wa"}, {"algorithm": "hierarchical"}),
    ],
)
def test_ranks_that_differ_in_an_option_all_hear_of_it(
    odd: dict[str, Any], usual: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_less(monkeypatch)

    def body(exchange: TcpExchange) -> None:
        options = odd if exchange.rank == 1 else usual
        ThreadComm.over(exchange).Allreduce_comp(MPI.IN_PLACE, np.ones(100, np.float32), **options)

    for error in run_tcp(3, body):
        assert isinstance(error, CollectiveError)
        assert "ranks disagree" in str(error)


def test_octets_of_both_lanes_count_where_an_algorithm_uses_both() -> None:
    meeting = 2 * ANNOUNCEMENT_OCTETS  # two rounds among three ranks, on the untagged lane

    def body(exchange: TcpExchange) -> list[int]:
        comm, values = ThreadComm.over(exchange), np.ones(120_000, np.float32)
        counts = []
        for algorithm in ("ring", "wa", "hierarchical"):
            comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm=algorithm, groups=[[0], [1], [2]])
            counts.append(comm.last_info.raw_octets)
            assert comm.last_info.seconds > 0
        comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm="hierarchical", groups=[[0], [1], [2]], top="wa")
        assert (comm.totals().calls, comm.totals().nic) == (4, None)
        return [*counts, comm.last_info.raw_octets]

    octets = 4 * 120_000
    ring, (up, down) = 4 * octets // 3, (octets, 2 * octets)
    workers = [ring, up + meeting, ring, up + 2 * meeting]
    assert run_tcp(3, body) == [[ring, down + meeting, ring, down + 2 * meeting], workers, workers]


def test_new_connections_begin_a_new_account(alone: CompComm) -> None:
    for _ in range(2):
        alone.Barrier_comp()
        assert alone.totals().calls == 1
        alone.close()
        assert alone.totals().calls == 1


def test_calls_that_end_at_the_same_time_all_count(alone: CompComm) -> None:
    threads, each = 2, 5000
    calls = alone.calls()

    def account() -> None:
        for _ in range(each):
            calls.account(CommInfo(1, 4))

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(account) for _ in range(threads)]:
                done.result()
    finally:
        sys.setswitchinterval(before_s)
    assert (alone.totals().calls, alone.totals().raw_octets) == (threads * each, 4 * threads * each)


def test_what_goes_to_oneself_or_nobody_is_no_traffic(alone: CompComm) -> None:
    values, into = np.ones(3, np.float32), np.zeros(3, np.float32)
    alone.Send_comp(values, 0)
    alone.Sendrecv_comp(values, MPI.PROC_NULL, 0, into, 0)
    assert into.tolist() == [1.0] * 3
    alone.Send_comp(values, MPI.PROC_NULL)
    assert (alone.totals().calls, alone.totals().raw_octets) == (3, 0)


def test_a_sendrecv_that_is_refused_leaves_no_receive(alone: CompComm) -> None:
    values, into = np.ones(3, np.float32), np.zeros(3, np.float32)
    for dest, tag in ((1, 0), (0, -7)):
        with pytest.raises(UsageError):
            alone.Sendrecv_comp(values, dest, tag, np.zeros(3, np.float32), 0)
    alone.Send_comp(values, 0)
    assert alone.Irecv_comp(into, 0).Test()
    assert into.tolist() == [1.0] * 3


@pytest.mark.parametrize("peer", [{"dest": "0"}, {"dest": None}, {"dest": 0.0}, {"dest": 0, "tag": 1.5}])
def test_a_peer_or_tag_that_is_no_integer_is_refused(alone: CompComm, peer: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^(rank|tag) .* is not a whole number$"):
        alone.Send_comp(np.ones(3, np.float32), **peer)


def test_an_interrupted_receive_takes_no_later_message(alone: CompComm) -> None:
    abandoned, into = np.zeros(3, np.float32), np.zeros(3, np.float32)
    alone.Barrier_comp()
    with pytest.raises(KeyboardInterrupt), interrupted_in("wait_all"):
        alone.Recv_comp(abandoned, 0)
    alone.Send_comp(np.ones(3, np.float32), 0)
    assert alone.Irecv_comp(into, 0).Test()
    assert (abandoned.tolist(), into.tolist()) == ([0.0] * 3, [1.0] * 3)


def test_an_interrupted_call_that_waits_for_another_ends_both_on_every_rank() -> None:
    interrupted = threading.Event()

    def body(exchange: TcpExchange) -> None:
        comm, values = ThreadComm.over(exchange), np.ones(9, np.float32)
        if exchange.rank == 1:
            assert interrupted.wait(10)
            comm.Allreduce_comp(MPI.IN_PLACE, values)
            return
        first = comm.Iallreduce_comp(MPI.IN_PLACE, values)
        with pytest.raises(KeyboardInterrupt), interrupted_in("join"):
            comm.Barrier_comp()
        interrupted.set()
        first.Wait()

    for error in run_tcp(2, body, timeout_s=30):
        assert isinstance(error, CollectiveError)
        assert "KeyboardInterrupt" in str(error)


def test_a_background_call_that_has_ended_is_let_go() -> None:
    class Buffers:
        def use(self) -> None:
            pass

    queue, buffers = CallQueue(), Buffers()
    gone = weakref.ref(buffers)
    request = queue.start(buffers.use)
    del buffers
    request.wait()
    del request
    deadline_s = time.monotonic() + 10
    while not queue.is_idle and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert gone() is None
    queue.end()


def test_a_dropped_duplicate_leaves_no_thread(alone: CompComm) -> None:
    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "collectives"}

    before, duplicates = ours(), [alone.Dup() for _ in range(3)]
    for duplicate in duplicates:
        duplicate.Iallreduce_comp(MPI.IN_PLACE, np.ones(3, np.float32)).Wait()
    started = ours() - before
    assert len(started) == 3
    handles = [MPI.Intracomm(duplicate) for duplicate in duplicates]
    del duplicate, duplicates
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
    for handle in handles:
        handle.Free()


def test_two_threads_in_one_communicator_are_told_so_on_every_rank() -> None:
    entered, refused = threading.Event(), threading.Event()

    def body(exchange: TcpExchange) -> None:
        comm, values = ThreadComm.over(exchange), np.ones(9, np.float32)
        if exchange.rank == 1:
            assert refused.wait(10)
            comm.Allreduce_comp(MPI.IN_PLACE, values)
            return

        def first() -> None:
            with pytest.raises(CollectiveError, match=TWO_THREADS):
                comm.calls().run(enter, ())

        def enter(plane: DataPlane) -> None:
            entered.set()
            barrier(plane.exchange)

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(first)
            assert entered.wait(10)
            try:
                comm.Allreduce_comp(MPI.IN_PLACE, values)
            finally:
                refused.set()
                other.result()

    for error in run_tcp(2, body):
        assert isinstance(error, CollectiveError)
        assert re.search(TWO_THREADS, str(error))


def test_the_account_of_connections_that_have_ended_names_them_still() -> None:
    def body(exchange: TcpExchange) -> int:
        peer = 1 - exchange.rank
        channel = exchange.channel(peer, tagged=True)
        exchange.watch.connection(peer, Lane.MESSAGES)
        barrier(exchange)
        channel.conn.shutdown(socket.SHUT_RDWR)
        barrier(exchange)
        (tagged, messages) = exchange.tagged_connections()
        assert tagged[0] == messages[0] == 1 - exchange.rank
        barrier(exchange)
        return int(tagged[1][1])

    ports = run_tcp(2, body)
    assert len(set(ports)) == 2
    assert min(ports) > 0
