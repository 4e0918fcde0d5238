"""Ranks as threads of one process, and how one of them dies."""

from __future__ import annotations

from netoffload_mpi.dataplane import TcpExchange
from netoffload_mpi.joining import Lane
from netoffload_mpi.verify.local_ranks import run_tcp

__all__ = ["die", "run_tcp"]


def die(exchange: TcpExchange) -> None:
    """End the control connections without a farewell: what the kernel does for a killed process."""
    with exchange.watch._lock:  # all of them before its own watch sees one
        exchange.watch._links.shut_down([Lane.CONTROL])
