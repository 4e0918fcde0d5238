"""Many ranks as processes of this machine, without MPI and NICs: connect, sum, send messages, and lose one.

``python -m tests.transport.many_ranks -n 256 --files 1024 --lose 100``

All ranks are forked from one process, which has loaded everything, so that
hundreds fit into memory. Each rank has a limit of open files.
"""

import argparse
import ctypes
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
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.errors import NetOffloadError, PeerLostError
from netoffload.transport.messages.requests import wait_all
from netoffload.transport.plane import wire_up
from netoffload.transport.rendezvous.agreement import Offer
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Listeners

ADDRESS: Final = "127.0.0.1"
COUNT: Final = 10_000
"""Floats of the vector that is summed."""

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""

_LENGTH: Final = struct.Struct("!Q")


@dataclass(frozen=True)
class Trial:
    """What is tried: ranks that may open so many files each, and which rank is killed in the end, if any."""

    ranks: int
    files: int
    timeout_s: float
    lose: int | None = None


def tell(conn: socket.socket, what: Any) -> None:
    """Send an object to the process at the other end."""
    octets = pickle.dumps(what)
    conn.sendall(_LENGTH.pack(len(octets)) + octets)


def hear(conn: socket.socket) -> Any:
    """Receive an object; None if the other end has closed."""
    with conn.makefile("rb", buffering=0) as stream:
        length = stream.read(_LENGTH.size)
        left = _LENGTH.unpack(length)[0] if length else 0
        octets = bytearray()
        while len(octets) < left and (more := stream.read(left - len(octets))):
            octets += more
    return pickle.loads(octets) if left and len(octets) == left else None


def take_part(rank: int, parent: socket.socket, trial: Trial) -> dict[str, Any]:
    """Be one rank; return what it found: times, sockets, and what is wrong."""
    size = trial.ranks
    listeners = Listeners(size, ADDRESS)
    tell(parent, Offer(address=ADDRESS, ports=listeners.ports))
    offers = hear(parent)
    begun_s = time.monotonic()
    exchange = wire_up(rank, offers, listeners, timeout_s=trial.timeout_s)
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
    if trial.lose is not None:
        tell(parent, "ready")
        hear(parent)  # comes when all ranks are ready
        found["told_s"], text = lose(exchange, trial.lose)
        wrong += text
    exchange.close()
    return found | {"wrong": wrong}


def talk(exchange: TcpExchange) -> list[str]:
    """Send a message to a rank that may not be a neighbour, and get one from another; return what is wrong."""
    rank, size = exchange.rank, exchange.size
    distance = size // 2 - (size > 4)
    into = np.zeros(1, np.float32)
    coming = exchange.watch.receive(None, 1, octets_of(into))
    going = exchange.watch.send((rank + distance) % size, 1, octets_of(np.full(1, rank, np.float32)))
    wait_all([coming, going])
    barrier(exchange)
    return [] if into[0] == (rank - distance) % size else [f"a message said {into[0]:g}"]


def lose(exchange: TcpExchange, victim: int) -> tuple[float | None, list[str]]:
    """Let a rank kill itself; return how long this rank took to hear of it, and what is wrong."""
    if exchange.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begun_s = time.monotonic()
    try:
        while True:
            barrier(exchange)
    except PeerLostError as error:
        is_named = re.match(rf"rank {victim} (died|is gone)\b", str(error))
        return time.monotonic() - begun_s, [] if is_named else [str(error)]


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def fork_ranks(trial: Trial) -> dict[int, tuple[int, socket.socket]]:
    """Start the ranks; return process id and connection of each."""
    ranks: dict[int, tuple[int, socket.socket]] = {}
    for rank in range(trial.ranks):
        ours, theirs = socket.socketpair()
        if (pid := os.fork()) == 0:
            try:
                end_with_parent()
                for other in (ours, *(conn for _, conn in ranks.values())):
                    other.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (trial.files, trial.files))
                tell(theirs, take_part(rank, theirs, trial))
            except (NetOffloadError, OSError) as error:
                tell(theirs, {"wrong": [f"{type(error).__name__}: {error}"]})
            finally:
                os._exit(0)
        theirs.close()
        ranks[rank] = pid, ours
    return ranks


def gather(ranks: Mapping[int, tuple[int, socket.socket]], kind: type) -> dict[int, Any]:
    """Receive an object of this type from all ranks and send all to all; return objects of other types by rank."""
    said = [hear(conn) for _, conn in ranks.values()]
    wrong = {rank: one for rank, one in enumerate(said) if not isinstance(one, kind)}
    for _, conn in ranks.values() if not wrong else ():
        tell(conn, said)
    return wrong


def run(trial: Trial) -> dict[str, Any]:
    """Start the ranks, and return the record: the most that any rank needed, and what is wrong."""
    prepare()
    gc.freeze()  # so that the ranks share this process's memory: garbage collection would write to it
    ranks = fork_ranks(trial)
    try:
        found = gather(ranks, Offer)
        if not found and trial.lose is not None:
            found = gather(ranks, str)
        if not found:
            found = {rank: hear(conn) for rank, (_, conn) in ranks.items() if rank != trial.lose}
    finally:
        for pid, conn in ranks.values():
            conn.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    told = {rank: one or {"wrong": ["it ended without a result"]} for rank, one in found.items()}

    def most(name: str) -> Any:
        return max((one[name] for one in told.values() if one.get(name) is not None), default=None)

    record = {name: most(name) for name in ("connections", "files", "set_up_s", "sum_s", "told_s")}
    wrong = [f"rank {rank}: {text}" for rank, one in told.items() for text in one["wrong"]]
    return {"ranks": trial.ranks, "files_allowed": trial.files, "lost": trial.lose, "most": record, "wrong": wrong}


def main(words: list[str]) -> int:
    """Carry a command line out; return 1 if a rank finds something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.transport.many_ranks", allow_abbrev=False)
    parser.add_argument("--ranks", "-n", type=int, default=256)
    parser.add_argument("--files", type=int, default=1024, help="files that each rank may open: its ulimit -n")
    parser.add_argument("--lose", type=int, help="kill this rank at the end; all others must name it")
    parser.add_argument("--timeout", type=float, default=60.0, help="silence in seconds after which a rank is lost")
    asked = parser.parse_args(words)
    record = run(Trial(asked.ranks, asked.files, asked.timeout, asked.lose))
    print(json.dumps(record))
    return int(bool(record["wrong"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
