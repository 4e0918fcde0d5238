"""Ranks as threads of one process, joined by real TCP connections on loopback: for trying things out."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from netoffload.errors import CollectiveError
from netoffload.transport.plane import wire_up
from netoffload.transport.rendezvous.agreement import UNTAGGED, Marking, Offer, Quantiser, agree
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Listeners


def run_tcp(
    size: int,
    body: Callable[[TcpExchange], Any],
    timeout_s: float = 10.0,
    late_s: float = 20.0,
    addresses: Sequence[str] | None = None,
    marking: Marking | None = None,
    coding: Quantiser | None = None,
) -> list[Any]:
    """Run ``body`` on every rank, rank 0 in this thread; return each rank's result, or its CollectiveError."""
    meeting, table = threading.Barrier(size, timeout=20), [Offer()] * size
    prepare()  # here, or the others would take a rank that compiles for late or stuck

    def run(rank: int) -> Any:
        address = "127.0.0.1" if addresses is None else addresses[rank]
        try:
            listeners = Listeners(size, address, marking)
            table[rank] = Offer(address=address, ports=listeners.ports, marking=marking)
            meeting.wait()
            offers = list(table)
            tos = (UNTAGGED if coding else agree(offers).marking).tos
            exchange = wire_up(rank, offers, listeners, tos, timeout_s, late_s, coding)
            with contextlib.closing(exchange):
                return body(exchange)
        except CollectiveError as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        others = [threads.submit(run, rank) for rank in range(1, size)]
        return [run(0), *(other.result() for other in others)]
