"""Communicators of the same ranks over shared connections. Ranks are threads, sockets real."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.config import ENV_CONTROL, ENV_OFFLOAD
from netoffload.control import Handler, serve_control
from netoffload.engine.counters import Counter
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport import (
    DataPlane,
    Lane,
    Settings,
    StoreRendezvous,
    TcpExchange,
    plane,
    set_up,
    wait_all,
)
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.messages.requests import Request
from netoffload.transport.rounds.driver import prepare
from tests.transport.stores import MemoryStore
from tests.transport.tcp_ranks import die

SIZE = 3

MakeOne = Callable[..., TcpExchange]
"""Sets up another communicator of all ranks."""


def run(body: Callable[[int, MakeOne], Any]) -> list[Any]:
    """What ``body`` returned or raised on each rank; rank 0 is the calling thread."""
    prepare()
    store = MemoryStore()

    def be(rank: int) -> Any:
        made: list[TcpExchange] = []
        rendezvous = StoreRendezvous(store, rank, SIZE, limit_s=20.0, group="all")

        def another(**settings: Any) -> TcpExchange:
            made.append(set_up(rendezvous, "127.0.0.1", Settings(**settings), DataPlane).exchange)
            return made[-1]

        try:
            return body(rank, another)
        except CollectiveError as error:
            return error
        finally:
            for exchange in made:
                exchange.close()

    with ThreadPoolExecutor(SIZE) as threads:
        others = [threads.submit(be, rank) for rank in range(1, SIZE)]
        return [be(0), *(other.result() for other in others)]


def send(exchange: TcpExchange, peer: int, value: float, count: int = 3) -> Request:
    return exchange.watch.send(peer, 5, octets_of(np.full(count, value, np.float32)))


def received(exchange: TcpExchange, source: int | None, count: int = 3) -> float:
    into = np.zeros(count, np.float32)
    exchange.watch.receive(source, 5, octets_of(into)).wait()
    return float(into[-1])


def works(exchange: TcpExchange) -> bool:
    values = np.full(9000, exchange.rank, np.float32)
    ring_allreduce(exchange, values, tagged=True)
    return bool((values == 3).all())


def test_duplicates_share_a_watch_and_what_is_not_for_collectives() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        exchanges = [another() for _ in range(4)]
        assert len({exchange.watch.shared for exchange in exchanges}) == 1
        right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
        with ThreadPoolExecutor(len(exchanges)) as threads:  # all at the same time
            assert list(threads.map(works, exchanges)) == [True] * len(exchanges)
        sent = [send(exchange, right, number) for number, exchange in enumerate(exchanges)]
        assert [received(exchange, left) for exchange in reversed(exchanges)] == [3, 2, 1, 0]
        wait_all(sent)
        connections = [dict(exchange.watch.connections()) for exchange in exchanges]
        for lane, kinds in ((Lane.CONTROL, 1), (Lane.MESSAGES, 1), (Lane.TAGGED, 4), (Lane.UNTAGGED, 4)):
            assert len({one[right, lane] for one in connections}) == kinds
        barrier(exchanges[0])
        return len(exchanges[0].watch.shared.links.connections)

    assert run(body) == [2 * 2 + 4 * 2 * 2] * SIZE


def test_a_duplicate_that_closes_leaves_its_siblings_alone() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        first, second = another(), another()
        if rank == 0:
            lost = [send(second, 1, 7, 200_000), send(second, 1, 8, 0)]  # nobody receives the first
            kept = send(first, 1, 9)
            barrier(first)
            second.close()
            assert lost[0].join(10)
            kept.wait()
        else:
            barrier(first)
            waiting = second.watch.receive(0, 6, memoryview(bytearray(4)))
            with pytest.raises(PeerLostError, match="rank 0 closed its communicator"):
                waiting.wait()
            with pytest.raises(PeerLostError, match="rank 0 closed its communicator"):
                send(second, 0, 1).wait()
            with pytest.raises(PeerLostError, match=r"rank 0 closed its communicator|closed its connections"):
                barrier(second)
        assert rank != 1 or received(first, 0) == 9
        return works(first)

    assert run(body) == [True] * SIZE


def test_what_ends_one_communicator_is_no_business_of_its_siblings() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        first, second = another(), another()
        waiting = second.watch.receive(None, 1, memoryview(bytearray(4)))
        with pytest.raises(CollectiveError, match="ranks disagree"):
            ring_allreduce(second, np.zeros(100 + (rank == 2), np.float32), tagged=True)
        with pytest.raises(CollectiveError, match="ranks disagree"):
            waiting.wait()
        with pytest.raises(PeerLostError, match="has closed its connections"):
            barrier(second)
        assert first.watch.failure is None
        return works(first)

    assert run(body) == [True] * SIZE


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_message_to_a_communicator_that_has_closed_holds_nobody_up(is_announced: bool) -> None:
    closed, sent = threading.Event(), threading.Event()

    def body(rank: int, another: MakeOne) -> Any:
        first, second = another(), another()
        if rank == 1:
            if is_announced:
                second.watch.probe(0, 5, wait=True)
            second.close()
            closed.set()
            assert sent.wait(10)
        if rank == 0:
            assert is_announced or closed.wait(10)
            big = send(second, 1, 1, 3_000_000)  # more than connections hold
            assert big.join(10)  # and nobody receives anything
            send(first, 1, 2).wait()
            sent.set()
        value = received(first, 0) if rank == 1 else 2
        barrier(first)
        return value

    assert run(body) == [2.0] * SIZE


def test_the_death_of_a_rank_ends_all_communicators() -> None:
    connected = threading.Barrier(SIZE)

    def body(rank: int, another: MakeOne) -> Any:
        exchanges = [another(), another()]
        connected.wait(10)
        if rank == 1:
            die(exchanges[0])
            return None
        told = []
        for exchange in exchanges:
            with pytest.raises(PeerLostError) as raised:
                works(exchange)
            told.append("rank 1 died" in str(raised.value))
        return told

    told = run(body)
    assert (told[0], told[2]) == ([True] * 2, [True] * 2)


def test_the_last_one_ends_the_watch_and_the_next_one_begins_anew() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        first, second = another(), another()
        watch = first.watch.shared
        first.close()
        assert works(second)
        second.close()
        assert not watch.thread.is_alive()
        assert watch.links.connections == {} or all(one.conn.fileno() < 0 for one in watch.links.connections.values())
        third = another()
        assert third.watch.shared is not watch
        return works(third)

    assert run(body) == [True] * SIZE


def test_ranks_that_do_not_all_have_the_same_watch_make_a_new_one() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        first = another()
        second = another(timeout_s=7.0 + (rank == 0))
        if rank == 2:  # it has none of both, whatever the others have
            second.close()
        third = another(timeout_s=7.0 + (rank == 0))
        assert len({first.watch.shared, second.watch.shared, third.watch.shared}) == 3
        return works(first) and works(third)

    assert run(body) == [True] * SIZE


def test_a_message_that_was_announced_and_cannot_come_any_more_fails() -> None:
    def body(rank: int, another: MakeOne) -> Any:
        exchange = another()
        if rank == 0:
            with exchange.watch._lock:  # nothing connects meanwhile
                exchange.watch._links.peers[1].outgoing += Frame(Kind.MESSAGE, tag=5, count=3, context=1).to_octets()
            barrier(exchange)
            return None
        barrier(exchange)
        if rank == 1:
            received(exchange, 0)
        return None

    assert "rank 0 closed its communicator before a message left" in str(run(body)[1])


def test_one_that_is_forgotten_in_the_middle_of_a_change_closes_later() -> None:
    rendezvous = StoreRendezvous(MemoryStore(), 0, 1, 1.0, group="alone")
    first, second = (set_up(rendezvous, "127.0.0.1", Settings(), DataPlane).exchange for _ in range(2))
    left, watch = first.watch.number, second.watch.shared
    assert left in watch._contexts
    with watch.lock:  # the garbage collector may run here
        del first
    ending = [thread for thread in threading.enumerate() if thread.name == "watch-end"]
    for thread in ending:
        thread.join(10)
    assert left not in watch._contexts
    second.close()


def test_ranks_without_nics_compress_by_themselves_and_a_wish_for_nics_is_answered_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (ENV_CONTROL, ENV_OFFLOAD):
        monkeypatch.delenv(name, raising=False)
    plane.warn_once.cache_clear()

    def compressed(_rank: int, another: MakeOne) -> list[bool]:
        return [another(**settings).watch.shared.links._coding is not None for settings in ({}, {"offload": "off"})]

    assert run(compressed) == [[True, False]] * SIZE
    assert capsys.readouterr().err == ""

    def raw(_rank: int, another: MakeOne) -> list[bool]:
        return [another(offload="nic").watch.shared.links._coding is not None for _ in range(2)]

    assert run(raw) == [[False, False]] * SIZE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("netoffload: warning: no rank knows a NIC, so nothing is compressed: $NETOFFLOAD_CONTROL ")

    def required(rank: int, another: MakeOne) -> str:
        with pytest.raises(CollectiveError) as caught:
            another(offload="nic", require=rank == 1)  # one rank's wish is an error on all
        return str(caught.value)

    for error in run(required):
        assert error.startswith("compression is required, but no rank knows a NIC, so nothing is compressed: ")


def test_ranks_whose_nic_rounds_in_another_way_make_a_new_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nic = {"codec": "inceptionn", "bound_k": 10, "tag": "0x28", "ports": ""}
    counters = {counter.name.lower(): 0 for counter in Counter}
    handlers: dict[str, Handler] = {"info": lambda _: {**nic}, "counters": lambda _: {"counters": counters}}
    monkeypatch.setenv(ENV_CONTROL, str(tmp_path / "nic.sock"))
    together = threading.Barrier(SIZE)

    def body(rank: int, another: MakeOne) -> list[bool]:
        first, alike = another(), another()
        together.wait()
        nic["bound_k"] = 8
        together.wait()
        later = another()
        return [one.watch.shared is first.watch.shared for one in (alike, later)]

    with serve_control(tmp_path / "nic.sock", handlers):
        assert run(body) == [[True, False]] * SIZE


def test_a_rank_that_fails_after_the_meeting_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[..., DataPlane] = plane._plane_of

    def fail(*arguments: Any) -> DataPlane:
        if arguments[1].rank == 1:
            raise OSError("no file descriptor left")
        return made(*arguments)

    def body(rank: int, another: MakeOne) -> str:
        try:
            barrier(another(timeout_s=5.0, late_s=60.0))
        except OSError as error:
            return str(error)
        return "no error"

    monkeypatch.setattr(plane, "_plane_of", fail)
    found = run(body)
    assert found[1] == "no file descriptor left"
    for rank in (0, 2):
        assert "rank 1 gave up: OSError: no file descriptor left" in str(found[rank])
