"""Long checks spread over new processes, with the results in order.

A terminal sends Ctrl-C to all processes; only the caller heeds it, and takes no more results. The processes end when
their caller ends, even if it is killed.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

from netoffload.errors import RunError, UsageError

T = TypeVar("T")


def in_order(function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], jobs: int | None) -> Iterator[T]:
    """Yield ``function(*task)`` of every task in the order of the tasks, from ``jobs`` processes (None: one per core).

    The function stands at the top of a module, so that a new process finds it.
    """
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    if jobs < 1:
        raise UsageError(f"{jobs} jobs: use at least 1")
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin)
    try:
        yield from (future.result() for future in [pool.submit(function, *task) for task in tasks])
    except BrokenProcessPool as error:
        raise RunError("a process ended without an answer: a kernel may have run past its arrays") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
