"""Connections that are made at first use, and a watch without a full mesh. Ranks are threads."""

import contextlib
import json
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages import links
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.messages.links import neighbours
from netoffload.transport.messages.requests import wait_all
from netoffload.transport.plane import wire_up
from netoffload.transport.rendezvous.agreement import Offer
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.joining import LIVES, Joiner
from netoffload.transport.wiring.lanes import Lane, Listeners
from tests.shared.commands import python
from tests.transport.tcp_ranks import die, run_tcp

SIZE = 12
"""Some of so many ranks are no neighbours."""


@pytest.mark.parametrize("size", [2, 3, 5, 6, 12, 256])
def test_neighbours_are_mutual_few_and_all_ranks_of_a_small_group(size: int) -> None:
    all_of = [set(neighbours(rank, size)) for rank in range(size)]
    for rank, ranks in enumerate(all_of):
        assert rank not in ranks
        assert all(rank in all_of[other] for other in ranks)
        assert len(ranks) == size - 1 if size <= 5 else len(ranks) <= 2 * (size - 1).bit_length()


def test_an_allreduce_takes_a_few_sockets_per_doubling_of_the_ranks() -> None:
    size = 24

    def body(exchange: TcpExchange) -> int:
        values = np.full(1000, exchange.rank, np.float32)
        ring_allreduce(exchange, values, tagged=True)
        assert values[0] == size * (size - 1) // 2
        return len(exchange.watch.connections())

    doublings = (size - 1).bit_length()
    assert max(run_tcp(size, body)) <= 2 * doublings + 2 * doublings + 2  # control, meetings, ring; once 4 * 23


def test_within_a_namespace_only_what_is_untagged_needs_no_tcp() -> None:
    def body(exchange: TcpExchange) -> dict[Lane, socket.AddressFamily]:
        ring_allreduce(exchange, np.ones(1000, np.float32), tagged=True)
        return {lane: one.conn.family for (_, lane), one in exchange.watch.connections()}

    families = dict.fromkeys((Lane.CONTROL, Lane.TAGGED), socket.AF_INET) | {Lane.UNTAGGED: socket.AF_UNIX}
    assert run_tcp(2, body) == [families] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("size", "files"), [(3, 1024), (16, 40), (16, 20)])
def test_processes_without_mpi_sum_talk_and_name_who_is_killed_or_who_has_no_file_descriptor_left(
    size: int, files: int
) -> None:
    done = python(
        "-m", "tests.transport.many_ranks", "-n", str(size), "--files", str(files), "--lose", "1", timeout_s=110
    )
    record = json.loads(done.stdout)
    if files > 20:
        assert record["wrong"] == []
        assert (record["most"]["calls"], record["most"]["files"] <= files, record["most"]["told_s"] > 0) == (
            2,
            True,
            True,
        )
    else:
        assert done.returncode == 1
        assert "has no file descriptor left" in " ".join(record["wrong"])
        assert "raise `ulimit -n`" in " ".join(record["wrong"])


@pytest.mark.slow
def test_a_program_may_hide_numba_before_its_first_call() -> None:
    """As mpi4py's tests do, which look for GPUs."""
    code = (
        "import sys, numpy as np; from netoffload.transport import *;"
        "from netoffload.transport.local_ranks import run_tcp; from netoffload.collectives import ring_allreduce;"
        "sys.modules['numba'] = None; ones = [np.ones(100_000, np.float32) for _ in range(2)];"
        "gather = lambda value: [value]; gather.rank, gather.size, gather.group = 0, 1, None;"
        "set_up(gather, 'localhost', Settings('bounded', 10, offload='inline'), DataPlane).exchange.close();"
        "run_tcp(2, lambda exchange: ring_allreduce(exchange, ones[exchange.rank], tagged=False));"
        "print(ones[1][-1], sys.modules['numba'])"
    )
    done = python("-c", code)
    assert done.stdout == "2.0 None\n", done.stderr


def test_who_dies_is_named_by_ranks_that_have_no_connection_to_it_and_make_no_call() -> None:
    victim = 2
    make_no_call = threading.Barrier(SIZE)

    def body(exchange: TcpExchange) -> bool:
        barrier(exchange)  # who has left it may not die while another rank is still in it
        make_no_call.wait(timeout=60)
        if exchange.rank == victim:
            die(exchange)
            return False
        deadline_s = time.monotonic() + 10
        while exchange.watch.failure is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert f"rank {victim} died" in str(exchange.watch.failure)
        return victim in neighbours(exchange.rank, SIZE)

    knew = run_tcp(SIZE, body)
    assert True in knew
    assert False in knew[victim + 1 :]


@pytest.mark.slow
def test_a_rank_that_never_connects_is_named_in_time() -> None:
    listeners = [Listeners(3, "127.0.0.1") for _ in range(3)]
    offers = [Offer(address="127.0.0.1", ports=one.ports) for one in listeners]

    def connect(rank: int) -> str:
        with pytest.raises(CollectiveError) as raised:
            wire_up(rank, offers, listeners[rank], timeout_s=2.0)
        return str(raised.value)

    with contextlib.closing(listeners[1]), ThreadPoolExecutor(2) as threads:
        for text in threads.map(connect, (0, 2)):
            assert "could not connect with rank 1 at 127.0.0.1: timed out" in text


@pytest.mark.parametrize(("farewell", "heard"), [(Frame(Kind.CLOSED).to_octets(), LIVES), (b"", b"")])
def test_a_rank_that_ends_says_that_it_lives_to_whom_it_does_not_know(farewell: bytes, heard: bytes) -> None:
    listeners = Listeners(2, "127.0.0.1")
    offer = Offer(address="127.0.0.1", ports=listeners.ports)
    joiner = Joiner(0, [offer, offer], listeners)
    with socket.create_connection(("127.0.0.1", listeners.ports[False]), 10) as probe:
        joiner.close(farewell)  # a fork says nothing, and leaves what waits to its parent
        try:
            assert probe.recv(9) == heard
        except ConnectionResetError:
            assert not heard


def test_messages_go_between_all_ranks_also_those_that_are_no_neighbours() -> None:
    def body(exchange: TcpExchange) -> list[float]:
        rank, others = exchange.rank, [peer for peer in range(SIZE) if peer != exchange.rank]
        going = [exchange.watch.send(peer, 1, octets_of(np.full(2, rank, np.float32))) for peer in others]
        going += [exchange.watch.send(peer, 2, memoryview(b"")) for peer in others]
        into = {peer: np.zeros(2, np.float32) for peer in others}
        coming = [exchange.watch.receive(peer, 1, octets_of(into[peer])) for peer in others]
        coming += [exchange.watch.receive(None, 2, memoryview(bytearray())) for _ in others]
        wait_all([*coming, *going])
        barrier(exchange)
        return [float(into[peer][1]) for peer in others]

    assert run_tcp(SIZE, body) == [[peer for peer in range(SIZE) if peer != rank] for rank in range(SIZE)]


@pytest.mark.slow
@pytest.mark.parametrize("source", [None, 3])
@pytest.mark.parametrize("posted_before", [True, False])
def test_a_receive_hears_that_ranks_which_are_no_neighbours_have_closed(
    source: int | None, posted_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "REFUSED_S", 0.1)
    assert 3 not in neighbours(0, SIZE)

    def body(exchange: TcpExchange) -> None:
        barrier(exchange)
        if exchange.rank != 0:
            if posted_before:
                exchange.watch.receive(0, 1, memoryview(bytearray(4))).wait()
            return
        into = memoryview(bytearray(4))
        if not posted_before:
            deadline_s = time.monotonic() + 10
            while exchange.watch.left() != set(neighbours(0, SIZE)) and time.monotonic() < deadline_s:
                time.sleep(0.01)
        request = exchange.watch.receive(source, 1, into)
        if posted_before:
            wait_all([exchange.watch.send(peer, 1, memoryview(bytes(4))) for peer in range(1, SIZE)])
        request.wait()

    told = run_tcp(SIZE, body)
    assert told[1:] == [None] * (SIZE - 1)
    assert isinstance(told[0], PeerLostError)
    assert ("all other ranks closed" if source is None else "rank 3 closed its communicator") in str(told[0])


@pytest.mark.parametrize("count", [None, 0, 1])
def test_a_probe_of_a_rank_that_has_closed_and_a_message_to_it_end(
    count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe if there is no count."""
    monkeypatch.setattr(links, "REFUSED_S", 0.1)
    left = threading.Event()

    def body(exchange: TcpExchange) -> None:
        barrier(exchange)
        if exchange.rank == 3:
            exchange.close()
            left.set()
        if exchange.rank == 0:
            assert left.wait(10)
            if count is None:
                exchange.watch.probe(3, None, wait=True)
            else:
                exchange.watch.send(3, 1, octets_of(np.ones(count, np.float32))).wait()

    said = "rank 3 closed its communicator" + (" before rank 0 could send to it" if count is not None else "")
    assert said in str(run_tcp(SIZE, body)[0])


def test_a_reason_to_give_up_reaches_ranks_that_are_no_neighbours() -> None:
    def body(exchange: TcpExchange) -> None:
        if exchange.rank == 5:
            exchange.abort(CollectiveError("rank 5 says no"))
            return
        barrier(exchange)

    told = run_tcp(SIZE, body)
    assert {str(error) for rank, error in enumerate(told) if rank != 5} == {"rank 5 says no"}


def test_a_rank_without_a_file_descriptor_for_its_watch_says_so() -> None:
    listeners = Listeners(2, "127.0.0.1")
    offers = [Offer(address="127.0.0.1", ports=listeners.ports)] * 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(CollectiveError, match="rank 0 cannot connect: Too many open files; raise `ulimit -n`"):
            wire_up(0, offers, listeners, timeout_s=2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
