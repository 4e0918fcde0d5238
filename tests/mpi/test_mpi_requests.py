"""Comparing requests, and probes: they do what mpi4py's calls of these names do."""

import threading
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from netoffload.collectives.transfer import octets_of
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages.requests import Arrival, Request
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload_mpi import CompComm
from netoffload_mpi.requests import CompRequest
from tests.transport.tcp_ranks import die, run_tcp


def test_any_and_some_tell_each_end_once() -> None:
    calls = [Request() for _ in range(4)]
    requests = [CompRequest(call) for call in calls]
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, False)
    assert CompRequest.Testsome(requests) == []
    calls[2].complete(Arrival(7, 3, 5))
    status = MPI.Status()
    assert CompRequest.Testany(requests, status) == (2, True)
    assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (7, 3, 5)
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, False)
    calls[3].complete(Arrival(1, 1, 1))
    calls[0].complete(Arrival(0, 2, 2))
    statuses = [MPI.Status() for _ in requests]
    assert CompRequest.Waitsome(requests, statuses) == [0, 3]
    assert [(one.source, one.tag) for one in statuses[:2]] == [(0, 2), (1, 1)]
    calls[1].complete()
    assert CompRequest.Waitany(requests) == 1
    assert CompRequest.Waitany(requests) == MPI.UNDEFINED
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, True)
    assert CompRequest.Waitsome(requests) is CompRequest.Testsome(requests) is None
    assert CompRequest.Testall(requests)


@pytest.mark.parametrize("wait", [CompRequest.Waitany, CompRequest.Waitsome])
def test_a_wait_for_any_wakes_up_and_raises_what_went_wrong(wait: Any) -> None:
    good, bad = Request(), Request()
    requests = [CompRequest(bad), CompRequest(good)]
    threading.Timer(0.05, good.complete).start()
    assert wait(requests) in (1, [1])
    threading.Timer(0.05, bad.fail, [CollectiveError("no")]).start()
    with pytest.raises(CollectiveError, match="no"):
        wait(requests)
    assert wait(requests) in (MPI.UNDEFINED, None)


def probe(exchange: TcpExchange, source: int | None, tag: int | None, *, wait: bool = True) -> Arrival | None:
    return exchange.watch.probe(source, tag, wait=wait)


def test_a_probe_says_what_the_next_receive_gets() -> None:
    def body(exchange: TcpExchange) -> bool:
        if exchange.rank > 0:
            for tag in (4, 5):
                data = np.full(10 * exchange.rank + tag, tag, np.float32)
                exchange.watch.send(0, tag, octets_of(data)).wait()
            return probe(exchange, 0, 9) == Arrival(0, 9, 0)
        assert probe(exchange, 1, 6, wait=False) is None
        assert probe(exchange, 2, 5) == Arrival(2, 5, 25)
        assert probe(exchange, 2, 5, wait=False) == Arrival(2, 5, 25)  # it is still there
        for _ in range(4):
            found = probe(exchange, None, None)
            assert found is not None
            into = np.zeros(found.count, np.float32)
            request = exchange.watch.receive(found.source, found.tag, octets_of(into))
            request.wait()
            assert request.arrival == found
            assert found.count == 10 * found.source + found.tag
            assert (into == found.tag).all()
        assert probe(exchange, None, None, wait=False) is None
        for peer in (1, 2):
            exchange.watch.send(peer, 9, memoryview(b"")).wait()
        return True

    assert run_tcp(3, body) == [True] * 3


@pytest.mark.parametrize("source", [1, None])
@pytest.mark.parametrize(("end", "said"), [(die, "rank 1 died"), (TcpExchange.close, "closed their|rank 1 closed")])
def test_a_probe_of_a_rank_that_ends_raises(end: Any, said: str, source: int | None) -> None:
    def body(exchange: TcpExchange) -> Any:
        if exchange.rank == 1:
            end(exchange)
            return None
        with pytest.raises(PeerLostError, match=said):
            probe(exchange, source, 3)
        return "raised"

    assert run_tcp(2, body)[0] == "raised"


def test_the_communicators_probes_are_mpis() -> None:
    with CompComm(MPI.COMM_SELF) as comm:
        status = MPI.Status()
        assert not comm.Iprobe_comp()
        comm.Send_comp(np.zeros(3, np.float32), 0, 8)
        assert comm.Iprobe_comp(status=status)
        assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (0, 8, 3)
        assert comm.Probe_comp(0, 8)
        assert comm.Probe_comp(MPI.PROC_NULL, status=status)
        assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
        with pytest.raises(ValueError, match="rank 1 does not exist"):
            comm.Probe_comp(1)
