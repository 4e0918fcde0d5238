"""Ranks as threads of one process, joined by real TCP connections on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from netoffload.errors import CollectiveError
from netoffload_mpi.agreement import Gather, Marking, Offer, agree
from netoffload_mpi.dataplane import Lane, TcpExchange
from netoffload_mpi.driver import prepare
from netoffload_mpi.wiring import Listeners, wire_up


def gatherers(size: int) -> list[Gather]:
    """An allgather between threads."""
    meeting = threading.Barrier(size, timeout=20)
    table: list[Any] = [None] * size

    def gather(rank: int, value: Any) -> Sequence[Any]:
        table[rank] = value
        meeting.wait()
        gathered = list(table)
        meeting.wait()
        return gathered

    return [lambda value, rank=rank: gather(rank, value) for rank in range(size)]  # type: ignore[misc]


def die(exchange: TcpExchange) -> None:
    """End the control connections without a farewell: what the kernel does for a killed process."""
    with exchange.watch._lock:  # all of them before its own watch sees one
        for (_, lane), channel in exchange._channels.items():
            if lane is Lane.CONTROL:
                channel.conn.shutdown(socket.SHUT_RDWR)


def run_tcp(
    size: int,
    body: Callable[[TcpExchange], Any],
    timeout_s: float = 10.0,
    late_s: float = 20.0,
    addresses: Sequence[str] | None = None,
    marking: Marking | None = None,
) -> list[Any]:
    """Run ``body`` on every rank; a rank's result is what it returned, or the CollectiveError that it raised.

    Rank 0 is the calling thread. ``addresses``: of the ranks; default: all at 127.0.0.1. ``marking``: of their NICs.
    """
    gathers = gatherers(size)
    prepare()  # here, or the first rank that compiles would be late, or stuck

    def run(rank: int) -> Any:
        address = "127.0.0.1" if addresses is None else addresses[rank]
        with Listeners(rank, size, address, marking) as listeners:
            offers = gathers[rank](Offer(address=address, ports=listeners.ports, marking=marking))
            exchange = wire_up(rank, offers, listeners, gathers[rank], agree(offers)[1].tos, timeout_s, late_s)
        try:
            return body(exchange)
        except CollectiveError as error:
            return error
        finally:
            exchange.close()

    with ThreadPoolExecutor(size) as threads:
        others = [threads.submit(run, rank) for rank in range(1, size)]
        return [run(0), *(other.result() for other in others)]
