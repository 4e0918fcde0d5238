"""Requests without MPI: callbacks, and calls queued from any thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from netoffload.errors import CollectiveError
from netoffload.transport import Request, wait_all
from netoffload.transport.calls import CallQueue
from netoffload.transport.messages.requests import Arrival


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
