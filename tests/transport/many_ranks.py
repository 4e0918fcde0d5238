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
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.errors import NetOffloadError, PeerLostError
from netoffload.transport import Calls, DataPlane, Lane, Settings, set_up, wait_all
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.rounds.exchange import TcpExchange

COUNT: Final = 10_000
"""Floats of the vector that is summed."""

PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


@dataclass(frozen=True)
class Trial:
    """What is tried: ranks that may open so many files each, and which rank is killed in the end, if any."""

    ranks: int
    files: int
    timeout_s: float
    lose: int | None = None


def hear(conn: Connection) -> Any:
    """Receive an object; None if the other end has closed."""
    try:
        return conn.recv()
    except EOFError:
        return None


@dataclass
class Relay:
    """A rendezvous over the process that started the ranks."""

    parent: Connection
    rank: int
    size: int
    group: None = None

    def __call__(self, value: Any) -> list[Any]:
        self.parent.send((value,))
        return list(hear(self.parent))


def take_part(gather: Relay, trial: Trial) -> dict[str, Any]:
    size, begun_s = trial.ranks, time.monotonic()
    plane = set_up(gather, "127.0.0.1", Settings("inceptionn", 10, timeout_s=trial.timeout_s), DataPlane)
    calls, exchange, connected_s = Calls(plane), plane.exchange, time.monotonic()
    vectors = [np.full(COUNT, gather.rank + 1, np.float32) for _ in range(2)]
    calls.run(lambda _: ring_allreduce(exchange, vectors[0], tagged=True), [Lane.TAGGED])
    summed_s = time.monotonic()
    calls.start(lambda _: ring_allreduce(exchange, vectors[1], tagged=False), [Lane.UNTAGGED]).wait()
    ranges = [f"a sum is {one.min():g} to {one.max():g}" for one in vectors if (one != size * (size + 1) // 2).any()]
    wrong = ranges + talk(exchange) + ["it loaded mpi4py"] * ("mpi4py" in sys.modules)
    found: dict[str, Any] = {
        "set_up_s": connected_s - begun_s,
        "sum_s": summed_s - connected_s,
        "files": len(os.listdir("/proc/self/fd")) - 1,  # that of the folder itself
        "connections": len(exchange.watch.connections()),
        "calls": calls.totals.calls,
    }
    if trial.lose is not None:
        gather("ready")
        found["told_s"], text = lose(exchange, trial.lose)
        wrong += text
    calls.close()
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


def fork_ranks(trial: Trial) -> dict[int, tuple[int, Connection]]:
    ranks: dict[int, tuple[int, Connection]] = {}
    for rank in range(trial.ranks):
        ours, theirs = Pipe()
        if (pid := os.fork()) == 0:
            try:
                end_with_parent()
                for other in (ours, *(conn for _, conn in ranks.values())):
                    other.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (trial.files, trial.files))
                theirs.send(take_part(Relay(theirs, rank, trial.ranks), trial))
            except (NetOffloadError, OSError) as error:
                theirs.send({"wrong": [f"{type(error).__name__}: {error}"]})
            finally:
                os._exit(0)
        theirs.close()
        ranks[rank] = pid, ours
    return ranks


def run(trial: Trial) -> dict[str, Any]:
    """Start the ranks, and return the record: the most that any rank needed, and what is wrong."""
    prepare()
    gc.freeze()  # so that the ranks share this process's memory: garbage collection would write to it
    ranks = fork_ranks(trial)
    try:
        said = [hear(conn) for _, conn in ranks.values()]
        while all(isinstance(one, tuple) for one in said):
            for _, conn in ranks.values():
                conn.send([value for (value,) in said])
            said = [hear(conn) for _, conn in ranks.values()]
    finally:
        for pid, conn in ranks.values():
            conn.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    ended = {"wrong": ["it ended without a result"]}
    told = {rank: one or ended for rank, one in enumerate(said) if rank != trial.lose and not isinstance(one, tuple)}

    def most(name: str) -> Any:
        return max((one[name] for one in told.values() if one.get(name) is not None), default=None)

    record = {name: most(name) for name in ("connections", "files", "calls", "set_up_s", "sum_s", "told_s")}
    wrong = [f"rank {rank}: {text}" for rank, one in told.items() for text in one["wrong"]]
    return {"ranks": trial.ranks, "files_allowed": trial.files, "lost": trial.lose, "most": record, "wrong": wrong}


def main(words: list[str]) -> int:
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
