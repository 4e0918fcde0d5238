"""Many ranks as processes of this machine, without MPI and NICs: connect, sum, talk, and lose one; a program.

``netoffload verify group`` starts it. All ranks are forked from one process, which has loaded everything, so that
hundreds fit into memory. Each of them may open so many files and no more.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import re
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.errors import NetOffloadError, PeerLostError
from netoffload_mpi.agreement import Offer
from netoffload_mpi.dataplane import TcpExchange
from netoffload_mpi.driver import prepare
from netoffload_mpi.joining import Listeners
from netoffload_mpi.requests import CompRequest
from netoffload_mpi.wiring import wire_up

ADDRESS: Final = "127.0.0.1"
COUNT: Final = 10_000
"""Floats of the vector that is summed."""

_LENGTH: Final = struct.Struct("!Q")


def tell(conn: socket.socket, what: Any) -> None:
    """Send an object to the process at the other end."""
    octets = pickle.dumps(what)
    conn.sendall(_LENGTH.pack(len(octets)) + octets)


def hear(conn: socket.socket) -> Any:
    """Receive an object; None if the other end is gone."""
    with conn.makefile("rb", buffering=0) as stream:
        length = stream.read(_LENGTH.size)
        left = _LENGTH.unpack(length)[0] if length else 0
        octets = bytearray()
        while len(octets) < left and (more := stream.read(left - len(octets))):
            octets += more
    return pickle.loads(octets) if left and len(octets) == left else None


def take_part(rank: int, size: int, parent: socket.socket, asked: argparse.Namespace) -> dict[str, Any]:
    """Be one rank; return what it found: times, sockets, and what is wrong."""
    listeners = Listeners(size, ADDRESS)
    tell(parent, Offer(address=ADDRESS, ports=listeners.ports))
    offers = hear(parent)
    begun_s = time.monotonic()
    exchange = wire_up(rank, offers, listeners, timeout_s=asked.timeout)
    connected_s = time.monotonic()
    values = np.full(COUNT, rank + 1, np.float32)
    ring_allreduce(exchange, values, tagged=True)
    summed_s = time.monotonic()
    wrong = [] if (values == size * (size + 1) // 2).all() else [f"the sum is {values.min():g} to {values.max():g}"]
    wrong += talk(exchange)
    found: dict[str, Any] = {
        "set_up_s": connected_s - begun_s,
        "sum_s": summed_s - connected_s,
        "files": len(os.listdir("/proc/self/fd")) - 1,  # that of the folder itself
        "connections": len(exchange.watch.connections()),
    }
    if asked.lose is not None:
        tell(parent, "ready")
        hear(parent)  # all are
        found["told_s"], text = lose(exchange, asked.lose)
        wrong += text
    exchange.close()
    return found | {"wrong": wrong}


def talk(exchange: TcpExchange) -> list[str]:
    """Send a message to a rank that need not be a neighbour, and get one from another; return what is wrong."""
    rank, size = exchange.rank, exchange.size
    distance = size // 2 - (size > 4)
    into = np.zeros(1, np.float32)
    coming = exchange.watch.receive(None, 1, octets_of(into))
    going = exchange.watch.send((rank + distance) % size, 1, octets_of(np.full(1, rank, np.float32)))
    CompRequest.Waitall([coming, going])
    barrier(exchange)
    return [] if into[0] == (rank - distance) % size else [f"a message said {into[0]:g}"]


def lose(exchange: TcpExchange, victim: int) -> tuple[float | None, list[str]]:
    """Let a rank kill itself; return how long this one took to hear of it, and what is wrong."""
    if exchange.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begun_s = time.monotonic()
    try:
        while True:
            barrier(exchange)
    except PeerLostError as error:
        is_named = re.match(rf"rank {victim} (died|is gone)\b", str(error))
        return time.monotonic() - begun_s, [] if is_named else [str(error)]


def fork_ranks(asked: argparse.Namespace) -> dict[int, tuple[int, socket.socket]]:
    """Start the ranks; return process id and connection of each."""
    ranks: dict[int, tuple[int, socket.socket]] = {}
    for rank in range(asked.ranks):
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            for other in (ours, *(conn for _, conn in ranks.values())):
                other.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (asked.files, asked.files))
            try:
                tell(theirs, take_part(rank, asked.ranks, theirs, asked))
            except (NetOffloadError, OSError) as error:
                tell(theirs, {"wrong": [f"{type(error).__name__}: {error}"]})
            os._exit(0)
        theirs.close()
        ranks[rank] = pid, ours
    return ranks


def gather(ranks: Mapping[int, tuple[int, socket.socket]], kind: type) -> dict[int, Any]:
    """Hear something of this kind from all ranks and tell it to all; return who said something else, and what."""
    said = [hear(conn) for _, conn in ranks.values()]
    wrong = {rank: one for rank, one in enumerate(said) if not isinstance(one, kind)}
    for _, conn in ranks.values() if not wrong else ():
        tell(conn, said)
    return wrong


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks, and return the record."""
    prepare()
    gc.freeze()  # the ranks share what there is now, as long as nobody counts it
    ranks = fork_ranks(asked)
    try:
        found = gather(ranks, Offer)
        if not found and asked.lose is not None:
            found = gather(ranks, str)
        if not found:
            found = {rank: hear(conn) for rank, (_, conn) in ranks.items() if rank != asked.lose}
    finally:
        for pid, conn in ranks.values():
            conn.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    told = {rank: one or {"wrong": ["it ended without a word"]} for rank, one in found.items()}

    def most(name: str) -> Any:
        return max((one[name] for one in told.values() if one.get(name) is not None), default=None)

    record = {name: most(name) for name in ("connections", "files", "set_up_s", "sum_s", "told_s")}
    wrong = [f"rank {rank}: {text}" for rank, one in told.items() for text in one["wrong"]]
    return {"ranks": asked.ranks, "files_allowed": asked.files, "lost": asked.lose, "most": record, "wrong": wrong}


def main(arguments: list[str]) -> int:
    """Try it, print the record, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m netoffload_mpi.verify.group",
        description=(__doc__ or "").partition("\n\n")[0],
        allow_abbrev=False,
    )
    parser.add_argument("--ranks", type=int, default=256, metavar="N")
    parser.add_argument("--files", type=int, default=1024, metavar="N", help="that each rank may open (ulimit -n)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="silence after which a rank is lost")
    parser.add_argument("--lose", type=int, metavar="RANK", help="kill this rank in the end; the others must name it")
    record = run(parser.parse_args(arguments))
    print(json.dumps(record))
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
