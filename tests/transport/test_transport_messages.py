"""Point-to-point messages over real sockets, one thread per rank: matching, backpressure, endings; and requests."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport import StoreRendezvous
from netoffload.transport.calls import CallQueue, Calls
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.messages.links import Peer
from netoffload.transport.messages.mailbox import Mailbox, Message, Receive
from netoffload.transport.messages.requests import Arrival, Request, wait_all
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane
from tests.shared.commands import python
from tests.transport.stores import MemoryStore
from tests.transport.tcp_ranks import die, run_tcp, values_of


def send(exchange: TcpExchange, peer: int, tag: int, values: Float32Array) -> Request:
    return exchange.watch.send(peer, tag, octets_of(values))


def receive(exchange: TcpExchange, source: int | None, tag: int | None, into: Float32Array) -> Request:
    return exchange.watch.receive(source, tag, octets_of(into))


def received(exchange: TcpExchange, source: int | None, tag: int | None, count: int) -> Float32Array:
    receive(exchange, source, tag, into := np.zeros(count, np.float32)).wait()
    return into


def more_than_buffers_hold() -> int:
    """Return how many floats cannot be on their way between two ranks, even if the kernel gives all that it may."""
    limits = [int(Path(f"/proc/sys/net/ipv4/tcp_{which}mem").read_text().split()[2]) for which in "rw"]
    return sum(limits) // 4 + 500_000


def test_messages_are_announced_when_they_are_posted() -> None:
    """A long message stands still, because the receiver first asks for a short one that was posted behind it."""
    big = more_than_buffers_hold()

    def body(exchange: TcpExchange) -> list[bool]:
        short, long = values_of(2, 4), values_of(1, big)
        if exchange.rank == 0:
            wait_all([send(exchange, 1, 1, long), send(exchange, 1, 2, short)])
            return []
        got = []
        for tag, values in ((2, short), (1, long)):
            request = receive(exchange, 0, tag, into := np.zeros_like(values))
            assert request.join(10)  # wait() would hang with the ranks
            request.wait()
            got.append(into.tobytes() == values.tobytes())
        return got

    assert run_tcp(2, body, late_s=5.0)[1] == [True, True]


def test_an_empty_message_does_not_wait_behind_a_long_one() -> None:
    """The receiver has all of it, and would not look at the long one before its sender goes on."""
    big = more_than_buffers_hold()

    def body(exchange: TcpExchange) -> bool:
        long, nothing = np.ones(big, np.float32), np.zeros(0, np.float32)
        if exchange.rank == 0:
            first, second = send(exchange, 1, 1, long), send(exchange, 1, 2, nothing)
            assert second.join(10)
            barrier(exchange)
            return first.wait()
        receive(exchange, 0, 2, nothing).wait()
        barrier(exchange)
        receive(exchange, 0, 1, long).wait()
        return True

    assert run_tcp(2, body) == [True, True]


def test_any_source_takes_from_everyone_and_oneself() -> None:
    def body(exchange: TcpExchange) -> list[float]:
        going = send(exchange, 0, 1, np.full(9, exchange.rank, np.float32))
        got = []
        if exchange.rank == 0:
            for _ in range(4):
                got.append(float(received(exchange, None, None, 9)[8]))
        going.wait()
        barrier(exchange)
        return sorted(got)

    assert run_tcp(4, body)[0] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_message_nobody_asked_for_does_not_stand_before_a_collective() -> None:
    big = more_than_buffers_hold()

    def body(exchange: TcpExchange) -> float:
        peer = 1 - exchange.rank
        going = send(exchange, peer, 0, values_of(exchange.rank, big))
        total = np.ones(100_000, np.float32)
        ring_allreduce(exchange, total, tagged=True)
        assert not going.test()
        assert received(exchange, peer, 0, big).tobytes() == values_of(peer, big).tobytes()
        going.wait()
        return float(total[-1])

    assert run_tcp(2, body) == [2.0, 2.0]


def test_a_message_longer_than_its_buffer_is_an_error_that_names_both_and_the_next_one_is_whole() -> None:
    def body(exchange: TcpExchange) -> float:
        if exchange.rank == 0:
            wait_all([send(exchange, 1, 4, values_of(1, 10)), send(exchange, 1, 4, np.full(2, 8, np.float32))])
            return 8.0
        with pytest.raises(CollectiveError, match="rank 0 sent 10 floats with tag 4 to a buffer of 9"):
            received(exchange, 0, 4, 9)
        return float(received(exchange, 0, 4, 9)[1])

    assert run_tcp(2, body) == [8.0, 8.0]


def test_a_receive_without_a_message_can_be_cancelled() -> None:
    def body(exchange: TcpExchange) -> bool:
        request = receive(exchange, 1 - exchange.rank, 0, np.zeros(4, np.float32))
        assert not request.test()
        request.cancel()
        barrier(exchange)  # before either closes, which would end the other's receive
        assert request.wait()
        return request.cancel()

    assert run_tcp(2, body) == [True, True]


@pytest.mark.parametrize("with_farewell", [True, False])
def test_a_receive_from_a_rank_that_is_gone_raises(with_farewell: bool) -> None:
    def body(exchange: TcpExchange) -> Any:
        barrier(exchange)
        if exchange.rank == 1:
            if with_farewell:
                exchange.watch.give_up(CollectiveError("rank 1 has had enough"))
            else:
                die(exchange)
            return None
        return received(exchange, 1, 0, 4)

    error = run_tcp(2, body)[0]
    assert isinstance(error, CollectiveError)
    assert ("rank 1 has had enough" if with_farewell else "rank 1 died") in str(error)


@pytest.mark.parametrize("source", [1, None])
@pytest.mark.parametrize("is_posted_first", [True, False])
def test_a_receive_from_a_rank_that_has_closed_fails_and_what_it_sent_still_comes(
    source: int | None, is_posted_first: bool
) -> None:
    posted = threading.Event()

    def body(exchange: TcpExchange) -> Any:
        if exchange.rank == 1:
            send(exchange, 0, 7, values_of(1, 50_000)).wait()
            assert posted.wait(10)
            return None
        hopeless = receive(exchange, source, 3, np.zeros(4, np.float32)) if is_posted_first else None
        posted.set()
        if hopeless is None:
            with pytest.raises(PeerLostError, match="closed"):
                received(exchange, 1, 3, 4)  # until the farewell has been heard
            hopeless = receive(exchange, source, 3, np.zeros(4, np.float32))
        with pytest.raises(PeerLostError, match="rank 1 closed its" if source == 1 else "all other ranks closed their"):
            hopeless.wait()
        return received(exchange, source, 7, 50_000).tobytes() == values_of(1, 50_000).tobytes()

    assert run_tcp(2, body)[0]


@pytest.mark.parametrize("who_closes", ["receiver", "sender"])
def test_a_message_that_a_close_cuts_fails_alone(who_closes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    big, write_messages = np.zeros(more_than_buffers_hold(), np.float32), Peer.write_messages

    def write_once(peer: Peer) -> None:
        if peer.sent_octets == 0:
            write_messages(peer)

    if who_closes == "sender":  # the message is cut, however fast the other end reads
        monkeypatch.setattr(Peer, "write_messages", write_once)

    def body(exchange: TcpExchange) -> bool:
        watch, few = exchange.watch, values_of(1, 4)
        if exchange.rank == 1 and who_closes == "receiver":
            assert watch.probe(0, 9, wait=True)
            send(exchange, 0, 7, few).wait()
        elif exchange.rank == 1:
            send(exchange, 0, 9, big)
            while watch.sent_octets(0) == 0:
                time.sleep(0.001)
        elif exchange.rank == 0:
            cut = send(exchange, 1, 9, big) if who_closes == "receiver" else receive(exchange, 1, 9, big)
            with pytest.raises(PeerLostError, match="rank 1 closed its communicator before"):
                cut.wait()
            if who_closes == "receiver":  # what it sent still comes
                assert received(exchange, 1, 7, 4).tobytes() == few.tobytes()
            send(exchange, 2, 0, few).wait()
        else:
            return received(exchange, 0, 0, 4).tobytes() == few.tobytes()
        return True

    assert run_tcp(3, body) == [True] * 3


def test_a_farewell_behind_a_heartbeat_is_heard() -> None:
    """A lane broke, and the peer's farewell is still on its way when its heartbeat comes."""
    big, is_broken = np.zeros(more_than_buffers_hold(), np.float32), threading.Event()

    def body(exchange: TcpExchange) -> None:
        watch = exchange.watch
        if exchange.rank == 0:
            sent = send(exchange, 1, 9, big)
            received(exchange, 1, 0, 1)  # until the lane stands
            with watch._lock:
                watch._links.shut_down([Lane.MESSAGES])
            is_broken.set()
            with pytest.raises(PeerLostError, match="rank 1 closed its communicator before"):
                sent.wait()
            return
        assert watch.probe(0, 9, wait=True)
        send(exchange, 0, 0, np.zeros(1, np.float32)).wait()
        assert is_broken.wait(10)
        for kind in (Kind.BEAT, Kind.CLOSED):
            threading.Event().wait(0.05)  # rank 0 waits for a farewell meanwhile
            with watch._lock:
                watch._links.announce(Frame(kind))
                watch.shared._flush()

    assert run_tcp(2, body) == [None] * 2


def test_a_receive_that_a_living_rank_may_satisfy_waits_on() -> None:
    heard = threading.Event()

    def body(exchange: TcpExchange) -> float:
        if exchange.rank == 1:
            return 0.0
        if exchange.rank == 2:
            assert heard.wait(10)
            send(exchange, 0, 0, np.full(4, 2, np.float32)).wait()
            received(exchange, 0, 0, 1)  # until rank 0 has it
            return 0.0
        into = np.zeros(4, np.float32)
        waiting = receive(exchange, None, 0, into)
        with pytest.raises(PeerLostError, match="rank 1 closed its communicator while rank 0 waited for it"):
            received(exchange, 1, 0, 4)
        assert not waiting.test()
        heard.set()
        waiting.wait()
        send(exchange, 2, 0, np.zeros(1, np.float32)).wait()
        return float(into[0])

    assert run_tcp(3, body)[0] == 2.0


def test_requests_after_the_end_fail_at_once() -> None:
    def body(exchange: TcpExchange) -> None:
        exchange.close()
        send(exchange, 0, 0, np.zeros(4, np.float32)).wait()

    assert isinstance(run_tcp(1, body)[0], PeerLostError)


def test_mailbox_reads_ahead_only_when_a_later_message_is_wanted() -> None:
    box = Mailbox()
    for tag in (1, 2):
        box.arrive(Message(source=7, tag=tag, octets=8))
    assert box.wanted(7) is None
    request, room = Request(), memoryview(bytearray(8))
    box.post(Receive(source=None, tag=2, into=room, request=request))
    ahead = box.wanted(7)
    assert ahead is not None
    ahead[:] = b"unwanted"
    box.filled(7, 8)
    into = box.wanted(7)
    assert into is not None
    into[:] = b"wanted!!"
    box.filled(7, 8)
    assert request.test()
    assert bytes(room) == b"wanted!!"
    late, room = Request(), memoryview(bytearray(8))
    box.post(Receive(source=7, tag=None, into=room, request=late))
    assert late.test()
    assert bytes(room) == b"unwanted"


def test_mailbox_reads_and_drops_what_was_sent_to_a_context_that_has_ended() -> None:
    box, request, room = Mailbox(), Request(), memoryview(bytearray(8))
    box.drop(Message(source=7, tag=1, octets=8, context=1))
    box.arrive(Message(source=7, tag=1, octets=8, context=2))
    dropped = box.wanted(7)
    assert dropped is not None
    box.filled(7, 8)
    assert box.wanted(7) is None
    box.post(Receive(source=7, tag=1, into=room, request=request, context=1))
    assert not request.test()
    box.end_context(2, CollectiveError("over"))
    assert box.wanted(7) is not None
    box.end_context(1, CollectiveError("over as well"))
    assert str(request.error) == "over as well"


def test_a_mailbox_that_failed_keeps_no_receive() -> None:
    box, request = Mailbox(), Request()
    box.post(Receive(source=None, tag=2, into=memoryview(bytearray(8)), request=request))
    box.fail(CollectiveError("over"))
    assert (str(request.error), box.posted) == ("over", [])


def test_a_request_says_what_arrived_and_raises_its_error_every_time() -> None:
    done = Request.done(Arrival(3, 9, 5))
    assert done.test()
    assert done.arrival == Arrival(3, 9, 5)
    failed = Request()
    assert not failed.test()
    threading.Thread(target=failed.fail, args=(CollectiveError("no"),)).start()
    for _ in range(2):
        with pytest.raises(CollectiveError, match="no"):
            failed.wait()


def test_callbacks_run_once_before_anyone_wakes_up_and_at_once_after_the_end() -> None:
    request, seen = Request(), []

    def callback(ended: Request) -> None:
        seen.append((ended.arrival, ended.test()))

    request.add_done_callback(callback)
    assert seen == []
    request.complete(Arrival(1, 2, 3))
    request.complete(Arrival(4, 5, 6))  # too late
    assert seen == [(Arrival(1, 2, 3), False)]
    request.add_done_callback(callback)
    assert seen[1:] == [(Arrival(1, 2, 3), True)]


def test_a_callback_hears_of_errors_and_withdrawals() -> None:
    ended: list[Request] = []
    failed, withdrawn, begun = Request(), Request(lambda _: True), Request(lambda _: False)
    for request in (failed, withdrawn, begun):
        request.add_done_callback(ended.append)
    failed.fail(CollectiveError("no"))
    assert withdrawn.cancel()
    assert not begun.cancel()
    assert ended == [failed, withdrawn]
    with pytest.raises(CollectiveError, match="no"):
        wait_all([failed, withdrawn])
    assert not begun.wait(0.0)


def test_a_call_that_waits_in_the_queue_can_be_cancelled_and_one_that_runs_cannot() -> None:
    queue, begun, going = CallQueue(), threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        begun.set()
        going.wait(10)
        done.append(0)

    running = queue.start(first)
    second, third, fourth = (queue.start(partial(done.append, number)) for number in (1, 2, 3))
    assert begun.wait(10)
    assert third.cancel()
    assert not running.cancel()
    going.set()
    wait_all([running, second, fourth])
    assert done == [0, 1, 3]


def test_calls_queued_from_many_threads_run_one_at_a_time() -> None:
    queue, running, most = CallQueue(), threading.Semaphore(1), []

    def call() -> None:
        most.append(running.acquire(blocking=False))
        running.release()

    with ThreadPoolExecutor(8) as threads:
        requests = list(threads.map(lambda _: queue.start(call), range(200)))
    wait_all(requests)
    assert most == [True] * 200
    queue.end()


def test_a_close_and_the_end_of_a_program_wait_for_the_thread_of_calls() -> None:
    """Its thread is still in a callback when whoever waited for the callback goes on, as with torch's Futures."""
    woke, ended = threading.Event(), threading.Event()

    def tell(_: Request) -> None:
        woke.set()
        ended.wait(0.2)  # nobody sets it yet
        ended.set()

    calls = Calls(set_up(StoreRendezvous(MemoryStore(), 0, 1, 1.0), "127.0.0.1", Settings(), DataPlane))
    calls.start(lambda _: None, ()).add_done_callback(tell)
    assert woke.wait(10)
    calls.close()
    assert ended.is_set()
    program = (
        "import time; from netoffload.transport.calls import CallQueue; queue = CallQueue(); "
        "queue.start(lambda: (time.sleep(0.2), print('all')))"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "all\n")
