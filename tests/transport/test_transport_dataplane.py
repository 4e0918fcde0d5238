"""The TCP exchange over real sockets on loopback, one thread per rank."""

import contextlib
import itertools
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import (
    Operation,
    aggregate,
    aggregator_allreduce,
    alltoall,
    barrier,
    hierarchical_allreduce,
    ring_allreduce,
    worker_exchange,
)
from netoffload.collectives.announcement import Announcement, Call, meet
from netoffload.collectives.hierarchy import SubExchange
from netoffload.collectives.schedule import consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload.config import ENV_CONTROL, TOS_COMPRESS
from netoffload.control import serve_control
from netoffload.engine import judgement
from netoffload.errors import CollectiveError, ControlError, PeerLostError, UsageError
from netoffload.transport.calls import CallQueue, Calls
from netoffload.transport.info import NicAccount
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.plane import DataPlane, Settings
from netoffload.transport.rendezvous.agreement import Agreement, Marking, Offer, Precision, agree, own_address, own_nic
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring import nearby
from netoffload.transport.wiring.hello import Hello, Step
from netoffload.transport.wiring.lanes import CALL_LANES, Lane, Listeners
from tests.shared.ports import free_port
from tests.transport.tcp_ranks import run_tcp, values_of, wait_less


def test_tag_is_on_both_ends_of_tagged_connections_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = nearby.connect  # ranks of different namespaces do not find each other nearby
    monkeypatch.setattr(nearby, "connect", lambda token: connect(token[::-1]))

    def body(exchange: TcpExchange) -> list[int]:
        channels = [exchange.channel(1 - exchange.rank, tagged=tagged) for tagged in (False, True)]
        return [channel.conn.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) for channel in channels]

    # Rank 0 accepted its connections, rank 1 made them.
    assert run_tcp(2, body) == [[0, TOS_COMPRESS]] * 2
    assert run_tcp(2, body, marking=Marking(0x48)) == [[0, 0x48]] * 2


def test_tagged_listeners_have_ports_that_the_nics_take_and_others_have_any() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        ports = ((first, first), (7900, 7999))
        with contextlib.closing(Listeners(3, "127.0.0.1", Marking(0x48, ports))) as listeners:
            assert 7900 <= listeners.ports[True] <= 7999
            assert not 7900 <= listeners.ports[False] <= 7999
        with pytest.raises(OSError, match=f"no port of {first} is free"):
            Listeners(2, "127.0.0.1", Marking(0x48, ports[:1]))


def test_a_rank_asks_its_nic_how_to_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"codec": "bounded", "bound_k": 8, "tag": "0x48", "ports": "7100-7110"}
    monkeypatch.delenv(ENV_CONTROL, raising=False)
    assert own_nic(None) == (None, None)
    with serve_control(tmp_path / "nic.sock", {"info": lambda _: info}):
        monkeypatch.setenv(ENV_CONTROL, str(tmp_path / "nic.sock"))
        assert own_nic(None) == (Marking(0x48, ((7100, 7110),)), Precision("bounded", 8))
        info["tag"] = "any"
        with pytest.raises(UsageError, match="ranks have exact connections too"):
            own_nic(None)


def test_ranks_without_a_nic_mark_as_the_others_do() -> None:
    assert agree([Offer(), Offer()]) == Agreement(None, Marking(TOS_COMPRESS))
    assert agree([Offer(), Offer(marking=Marking(0x48))]) == Agreement(None, Marking(0x48))


def test_a_rank_connects_from_the_address_that_it_offered() -> None:
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]  # the routing table says 127.0.0.1 for all of them

    def body(exchange: TcpExchange) -> list[str]:
        conns = [exchange.channel(peer, tagged=True).conn for peer in range(3) if peer != exchange.rank]
        return [conn.getsockname()[0] for conn in conns]

    assert run_tcp(3, body, timeout_s=2, addresses=addresses) == [[address] * 2 for address in addresses]


def test_a_closed_peer_is_named_at_once_on_every_rank() -> None:
    def body(exchange: TcpExchange) -> None:
        if exchange.rank != 2:
            ring_allreduce(exchange, np.zeros(10_000_000, dtype=np.float32), tagged=False)

    started = time.monotonic()
    lost = run_tcp(4, body, timeout_s=20)
    assert time.monotonic() - started < 10  # far from the time limit
    assert lost[2] is None
    for rank in (0, 1, 3):
        assert isinstance(lost[rank], PeerLostError)
        assert "rank 2 closed its communicator" in str(lost[rank])


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [4.0, 20.0])  # the others must not call those silent that probe each other
def test_a_cut_connection_of_two_living_ranks_is_called_that_on_all_ranks(timeout_s: float) -> None:
    def body(exchange: TcpExchange) -> str:
        barrier(exchange)
        if exchange.rank == 1:
            with exchange.watch._lock:
                connection = exchange.watch._links.peers[2].control
                assert connection is not None
                connection.shutdown(socket.SHUT_RDWR)
        try:
            while True:
                barrier(exchange)
        except PeerLostError as error:
            return str(error)

    cut = "the connection between rank 1 and rank 2 was cut, though both live"
    assert run_tcp(4, body, timeout_s=timeout_s) == [cut] * 4


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_of_a_rank_may_not_use_its_connections_and_leaves_them_to_its_parent() -> None:
    def body(exchange: TcpExchange) -> tuple[int, float]:
        calls = Calls(DataPlane(exchange, None, None, [], NicAccount(None, list), Settings()))
        if exchange.rank == 0 and (child := os.fork()) == 0:
            refused = 0
            for call in (
                lambda: calls.run(lambda plane: barrier(plane.exchange), [Lane.UNTAGGED]),
                lambda: calls.start(lambda plane: barrier(plane.exchange), [Lane.UNTAGGED]),
                lambda: barrier(exchange),
                lambda: ring_allreduce(exchange, np.ones(9, np.float32), tagged=True),
                lambda: exchange.watch.send(1, 0, memoryview(b"")),
                lambda: exchange.watch.receive(1, 0, memoryview(b"")),
                lambda: exchange.watch.probe(1, 0, wait=False),
            ):
                try:
                    call()
                except UsageError as error:
                    refused += "is a fork of the process that connected" in str(error)
            signal.alarm(10)  # ends it, should it wait for a lock that no thread of it holds
            exchange.close()
            os._exit(refused)
        said = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if exchange.rank == 0 else 7
        values = np.ones(1000, np.float32)  # the parent's connections still work
        calls.run(lambda plane: ring_allreduce(plane.exchange, values, tagged=True), [Lane.TAGGED])
        return said, float(values.max())

    assert run_tcp(2, body) == [(7, 2.0)] * 2


@pytest.mark.slow
def test_a_late_rank_is_waited_for_beyond_the_time_limit() -> None:
    def body(exchange: TcpExchange) -> float:
        values = np.ones(100, dtype=np.float32)
        if exchange.rank == 1:
            threading.Event().wait(2.0)
        ring_allreduce(exchange, values, tagged=False)
        assert exchange.rank == 1 or exchange.stopwatch.late_s > 0.5
        return float(values[0])

    assert run_tcp(3, body, timeout_s=1.0) == [3.0] * 3


def slow_between_rounds(exchange: TcpExchange, rank: int, at_request: int) -> SubExchange:
    """Return all ranks; one of them takes longer than the time limit where it asks for scratch memory."""
    slow, requests = SubExchange(exchange, range(exchange.size)), itertools.count(1)

    def scratch(count: int) -> Float32Array:
        if exchange.rank == rank and next(requests) == at_request:
            threading.Event().wait(2.0)
        return exchange.scratch(count)

    slow.scratch = scratch
    return slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "rank", "at_request"),
    [
        # Rank 0 aggregates for 2, which waits, while 1 and 3 wait for the allgather.
        (partial(hierarchical_allreduce, groups=[[0, 1], [2, 3]], top="wa"), 0, 2),
        # Rank 0 waits for rank 2, and its group for the broadcast.
        (partial(hierarchical_allreduce, groups=[[0, 1, 3], [2]], top="ring"), 2, 1),
        (aggregator_allreduce, 0, 1),
    ],
)
def test_ranks_between_rounds_are_late_and_not_stuck(call: Callable[..., None], rank: int, at_request: int) -> None:
    def body(exchange: TcpExchange) -> float:
        values = np.ones(100_000, np.float32)
        call(slow_between_rounds(exchange, rank, at_request), values, tagged=False)
        return float(values.min())

    assert run_tcp(4, body, timeout_s=1.0) == [4.0] * 4


@pytest.mark.slow
def test_ranks_that_are_long_busy_with_others_in_an_alltoall_are_late_and_not_stuck() -> None:
    counts = [[5, 5_000, 5], [5, 5, 5], [5, 5, 5]]

    def body(exchange: TcpExchange) -> bytes:
        if exchange.rank == 0:  # its link to rank 1 is slow: five pieces, and rank 2 waits
            channel = exchange.channel(1, tagged=True)
            send_some = channel.send_some

            def trickle(data: memoryview) -> int:
                threading.Event().wait(0.4)
                return send_some(data[:4000])

            setattr(channel, "send_some", trickle)  # noqa: B010 - mypy refuses the plain assignment
        rank = exchange.rank
        source_spans = consecutive(counts[rank])
        target_spans = consecutive([row[rank] for row in counts])
        target = np.zeros(target_spans[-1].stop, np.float32)
        alltoall(exchange, values_of(rank, source_spans[-1].stop), source_spans, target, target_spans, tagged=True)
        return target.tobytes()

    results = run_tcp(3, body, timeout_s=1.0)
    sent = [values_of(rank, sum(row)) for rank, row in enumerate(counts)]
    for rank, result in enumerate(results):
        spans = [consecutive(row)[rank] for row in counts]
        assert result == b"".join(one[span.start : span.stop].tobytes() for one, span in zip(sent, spans, strict=True))


def test_heartbeats_that_a_watch_could_not_read_are_no_silence() -> None:
    """Its thread got no core or lock for longer than the limit, and what came meanwhile waits in the kernel."""
    is_held, is_judged = threading.Event(), threading.Event()

    def body(exchange: TcpExchange) -> None:
        barrier(exchange)
        watch = exchange.watch.shared
        if exchange.rank == 1:
            assert is_held.wait(10)
            with watch.lock:
                watch.links.announce(Frame(Kind.BEAT))
                watch._flush()
            assert is_judged.wait(20)
            return
        with watch.lock:
            is_held.set()
            peer = watch.links.peers[1]
            assert peer.control is not None
            assert select.select([peer.control], [], [], 10)[0]
            peer.heard_s -= 3600
            watch._check_silence()
        is_judged.set()
        assert watch.failure is None

    assert run_tcp(2, body) == [None] * 2


def test_a_process_that_died_before_it_had_read_all_is_called_dead_and_not_reset() -> None:
    """The kernel then resets its connections."""

    def body(exchange: TcpExchange) -> None:
        barrier(exchange)
        watch = exchange.watch.shared
        if exchange.rank == 1:
            with watch.lock:
                for peer in watch.links.peers.values():
                    assert peer.control is not None
                    peer.control.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for listener in watch.links._joiner._listeners:
                    listener.shutdown(socket.SHUT_RDWR)
                for peer in watch.links.peers.values():
                    assert peer.control is not None
                    peer.control.close()
            return
        while True:
            barrier(exchange)

    lost = run_tcp(3, body, timeout_s=20)
    assert [str(lost[rank]) for rank in (0, 2)] == ["rank 1 died: its connections closed without a farewell"] * 2


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_after_the_late_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_less(monkeypatch)
    given_up = threading.Event()

    def body(exchange: TcpExchange) -> None:
        if exchange.rank == 1:
            assert given_up.wait(10)
            return
        try:
            barrier(exchange)
        finally:
            given_up.set()

    lost = run_tcp(2, body, timeout_s=1.0, late_s=1.5)
    assert isinstance(lost[0], PeerLostError)
    assert "rank 1 lives but did not come to this call within the timeout of 1.5 s" in str(lost[0])


@pytest.mark.slow
def test_a_rank_that_is_stuck_in_the_call_is_named_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_less(monkeypatch)
    ended = threading.Event()

    def body(exchange: TcpExchange) -> None:
        if exchange.rank == 1:
            meet(exchange, Announcement(Call.RING_ALLREDUCE, 100, False, Operation.SUM))
            assert ended.wait(10)
            deadline_s = time.monotonic() + 10
            while exchange.watch.failure is None and time.monotonic() < deadline_s:
                time.sleep(0.01)  # what rank 0 says on leaving is on its way
            raise exchange.watch.failure or AssertionError("nobody told rank 1")
        try:
            ring_allreduce(exchange, np.zeros(100, dtype=np.float32), tagged=False)
        finally:
            ended.set()

    lost = run_tcp(2, body, timeout_s=1.0)
    for error in lost:
        assert isinstance(error, PeerLostError)
        assert "rank 1 lives but neither sent nor took anything for the timeout of 1 s" in str(error)


def test_what_a_caller_raised_is_told_to_all() -> None:
    def body(exchange: TcpExchange) -> None:
        gradient, parameters = np.zeros(9, dtype=np.float32), np.zeros(9, dtype=np.float32)
        if exchange.rank == 0:

            def update(total: Float32Array) -> None:
                raise CollectiveError("optimizer says no")

            aggregate(exchange, parameters, update, tagged=False)
        worker_exchange(exchange, gradient, parameters, aggregator=0, tagged=False)

    for error in run_tcp(3, body):
        assert str(error) == "optimizer says no"


def test_whoever_waits_for_what_was_closed_meanwhile_hears_so() -> None:
    def body(exchange: TcpExchange) -> None:
        channel = exchange.channel(1 - exchange.rank, tagged=True)
        exchange.close()
        with pytest.raises(PeerLostError, match="closed its communicator"):
            exchange.wait([channel], [])

    assert run_tcp(2, body) == [None] * 2


def test_a_stranger_on_the_port_is_not_taken_for_a_rank() -> None:
    def body(exchange: TcpExchange) -> bytes:
        if exchange.rank == 0:
            joiner = exchange.watch._links._joiner
            port = joiner._listeners[1].getsockname()[1]
            for source, secret in (("127.0.0.2", joiner._secret), ("127.0.0.1", bytes(16))):
                with socket.create_connection(("127.0.0.1", port), 10, (source, 0)) as stranger:
                    stranger.sendall(Hello(Step.CALL, 1, 0, Lane.TAGGED, 1).sealed(secret).to_octets())
                    with contextlib.suppress(ConnectionResetError):
                        assert stranger.recv(1) == b""
        values = np.ones(3, np.float32)
        ring_allreduce(exchange, values, tagged=True)
        return values.tobytes()

    assert run_tcp(2, body) == [np.full(3, 2, np.float32).tobytes()] * 2


@pytest.mark.parametrize("lane", Lane)
def test_a_hello_is_floats_that_a_nic_takes_for_floats_and_leaves_exact(lane: Lane) -> None:
    hello = Hello(Step.CALL, 1_000_000, 3, lane, 7 * (lane in CALL_LANES), bytes(range(240, 256)), bytes(range(16)))
    octets = hello.to_octets()
    assert Hello.from_octets(octets) == hello
    floats = np.frombuffer(octets, np.float32)
    judged = np.zeros(judgement.JUDGE_FIELDS, np.int64)
    judgement.weigh(judged, floats.view(np.uint8), 0, floats.nbytes, 0, 0)
    assert judged[judgement.JUDGED_VERDICT] == judgement.FLOATS
    for each in codec.CODECS.values():
        after = floats.copy()
        each.round_trip(floats, 10, out=after)
        assert after.tobytes() == octets


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        ([Offer(), Offer(failure="no such thing")], "rank 1 could not set up its data plane: no such thing"),
        ([Offer(), Offer(version=99)], "rank 1 speaks version 99"),
        (
            [Offer(), Offer(precision=Precision("inceptionn", 10)), Offer(precision=Precision("bounded", 10))],
            "rank 1 inceptionn with bound 10, rank 2 bounded with bound 10",
        ),
        (
            [Offer(), Offer(marking=Marking(0x48)), Offer(marking=Marking(0x48, ((7100, 7110),)))],
            "NICs have different tags: rank 1 0x48, rank 2 0x48 on ports 7100-7110",
        ),
    ],
)
def test_ranks_that_cannot_work_together_say_why(offers: list[Offer], message: str) -> None:
    with pytest.raises(CollectiveError, match=message):
        agree(offers)


def test_address_is_the_given_one_or_loopback_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETOFFLOAD_ADDRESS", raising=False)
    assert own_address(lambda host: [host, host], "here") == "127.0.0.1"
    monkeypatch.setenv("NETOFFLOAD_ADDRESS", "127.0.0.7")
    assert own_address(lambda host: [host, "elsewhere"], "here") == "127.0.0.7"


def test_a_call_that_comes_after_the_close_fails_at_once() -> None:
    def body(exchange: TcpExchange) -> str:
        calls = Calls(cast("DataPlane", SimpleNamespace(exchange=exchange)))
        assert calls._queue.start(lambda: None).join(10)
        calls.close()
        late = calls.start(lambda _: None, [])
        assert late.join(5)
        return str(late.error)

    assert run_tcp(2, body) == ["the communicator was closed before this call began"] * 2


def test_a_thread_that_cannot_start_leaves_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue = CallQueue()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            queue.start(lambda: None)
    assert queue.is_idle
    assert queue.start(lambda: None).join(5)


def test_a_reason_that_has_no_octets_reaches_the_other_ranks() -> None:
    def body(exchange: TcpExchange) -> str:
        barrier(exchange)
        if exchange.rank == 0:
            exchange.abort(ValueError("no such file: \udcff"))
            return "closed"
        with pytest.raises(CollectiveError) as caught:
            barrier(exchange)
        return str(caught.value)

    said = run_tcp(2, body, timeout_s=10)
    assert said[0] == "closed"
    assert "rank 0 gave up: ValueError: no such file: ?" in said[1]


@pytest.mark.parametrize("given", ["localhost", "0.0.0.0", "192.0.2.1"])
def test_what_is_no_address_of_this_host_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("NETOFFLOAD_ADDRESS", given)
    with pytest.raises(UsageError, match="which is no IPv4 address of this host"):
        own_address(lambda _: ["here"], "here")


@pytest.mark.parametrize("required", [False, True])
def test_a_nic_that_does_not_answer_after_a_call(required: bool) -> None:
    """Without ``require`` the call is over; with it all ranks end, or one would repeat it and meet the others' next."""

    class Silent:
        def read(self) -> None:
            raise ControlError("32 connections are open already")

    def body(exchange: TcpExchange) -> tuple[bool, int]:
        settings = Settings(per_call=True, require=required)
        account = cast("NicAccount", Silent())
        calls = Calls(DataPlane(exchange, None, None, [], account, settings))
        try:
            calls.run(lambda plane: barrier(plane.exchange), CALL_LANES)
        except ControlError:
            return exchange._close.alive, calls.totals.calls
        return exchange._close.alive, calls.totals.calls

    assert run_tcp(2, body) == [(not required, 1)] * 2


def test_a_port_is_free_again_while_an_earlier_connection_of_it_is_in_time_wait() -> None:
    port = free_port()
    marking = Marking(ports=((port, port),))
    for _ in range(2):
        listeners = Listeners(2, "127.0.0.1", marking)
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = listeners.sockets[True].accept()
            far.close()  # the end that closes first waits
            assert near.recv(1) == b""
        with pytest.raises(OSError, match=r"no port of \d+ is free"):
            Listeners(2, "127.0.0.1", marking)
        listeners.close()
