"""Lose a rank in the middle of every kind of call, and check that every other rank raises an error; a rank program.

``lost_rank`` starts it, with a shell between the launcher and each rank, because launchers end all
ranks as soon as they see one die. Every family of calls has its own communicator and its own thread, which calls
without end. So at any moment a rank is in the middle of all of them. When all families run, the victim kills (or stops)
itself, or a test strikes from outside, for example by cutting a link. Every rank writes to a folder what every family
raised, and when, because MPI does not work without the lost rank.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.config import ENV_OFFLOAD, Offload
from netoffload_mpi import MPI, CompComm, CompRequest

Call = Callable[[CompComm, Float32Array], Any]
"""A call on a vector of ``LONG_FLOATS``, which is repeated until a rank is lost."""

SHORT_FLOATS: Final = 1_000
"""Length at which, on up to nine ranks, an allreduce is not a ring (``gathering.is_short``), and trees are binomial."""

LONG_FLOATS: Final = 60_000
"""Length of vectors: more than ``tree.BINOMIAL_FLOATS``, so that chains are used."""
CALLS_BEFORE: Final = 2
"""Number of calls that every family completes on every rank before the victim is lost."""
DELAY_S: Final = 0.2  # longest delay of the victim's death after that; the seed decides the delay
POLL_S: Final = 0.02
LINGER_S: Final = 60.0
STRIKES: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def short(values: Float32Array) -> Float32Array:
    """Return the part of a vector that short calls use; they take another algorithm than long ones."""
    return values[:SHORT_FLOATS]


def equal_parts(comm: CompComm, values: Float32Array) -> Float32Array:
    """Return the longest part of a vector that can be cut into equal parts for all ranks."""
    return values[: values.size // comm.size * comm.size]


def _scatter_all(comm: CompComm, values: Float32Array) -> None:
    everything = np.concatenate([values] * comm.size) if comm.rank == 0 else None
    comm.Scatter_comp(everything, values)


def _sendrecv(comm: CompComm, values: Float32Array) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv_comp(values, right, 0, np.empty_like(values), left, 0)


def _everybody(comm: CompComm, values: Float32Array) -> None:
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    requests = [comm.Irecv_comp(np.empty_like(values), rank) for rank in others]
    requests += [comm.Isend_comp(values, rank) for rank in others]
    CompRequest.Waitall(requests)


def _probe(comm: CompComm, values: Float32Array) -> None:
    request = comm.Isend_comp(short(values), (comm.rank + 1) % comm.size)
    comm.Probe_comp()
    comm.Recv_comp(np.empty_like(values))
    request.Wait()


def _in_flight(comm: CompComm, values: Float32Array) -> None:
    requests = [comm.Iallreduce_comp(MPI.IN_PLACE, np.zeros_like(values)) for _ in range(3)]
    requests.append(comm.Ibcast_comp(short(values)))
    while CompRequest.Waitsome(requests) is not None:
        pass


FAMILIES: Final[dict[str, Call]] = {
    "allreduce, ring": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, values),
    "allreduce, short": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, short(values)),
    "allreduce, hierarchical": lambda comm, values: comm.Allreduce_comp(
        MPI.IN_PLACE, values, algorithm="hierarchical", groups=[[0, 1], list(range(2, comm.size))]
    ),
    "allreduce, wa": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm="wa"),
    "broadcast, chain": lambda comm, values: comm.Bcast_comp(values),
    "broadcast, tree": lambda comm, values: comm.Bcast_comp(short(values)),
    "gather": lambda comm, values: comm.Gather_comp(values, np.empty(values.size * comm.size, np.float32)),
    "scatter": _scatter_all,
    "allgather": lambda comm, values: comm.Allgather_comp(MPI.IN_PLACE, equal_parts(comm, values)),
    "all-to-all": lambda comm, values: comm.Alltoall_comp(MPI.IN_PLACE, equal_parts(comm, values)),
    "barrier": lambda comm, _: comm.Barrier_comp(),
    "reduce, chain": lambda comm, values: comm.Reduce_comp(values, np.empty_like(values)),
    "reduce, tree": lambda comm, values: comm.Reduce_comp(short(values), np.empty_like(short(values))),
    "reduce-scatter": lambda comm, values: comm.Reduce_scatter_block_comp(MPI.IN_PLACE, equal_parts(comm, values)),
    "send and receive": _sendrecv,
    "non-blocking messages": _everybody,
    "probe": _probe,
    "non-blocking collectives": _in_flight,
}


@dataclass
class Family:
    """One family on this rank: how many calls it completed, and how it ended."""

    comm: CompComm
    call: Call
    calls: int = 0
    error: str = ""
    at_s: float = 0.0

    def loop(self) -> None:
        """Call until an error is raised, and note it with the time of the machine's monotonic clock."""
        values = np.zeros(LONG_FLOATS, np.float32)
        try:
            while True:
                self.call(self.comm, values)
                self.calls += 1
        except BaseException as error:
            self.at_s = time.monotonic()
            self.error = f"{type(error).__name__}: {error}"


def leave(folder: Path, name: str, what: Any) -> None:
    """Write JSON to a file that appears only when it is complete."""
    (folder / f"part.{name}").write_text(json.dumps(what), encoding="utf-8")
    (folder / f"part.{name}").rename(folder / name)


def wait_for(folder: Path, pattern: str, count: int, limit_s: float = LINGER_S) -> bool:
    """Return whether ``count`` files matching the pattern appear within the limit."""
    deadline_s = time.monotonic() + limit_s
    while len(list(folder.glob(pattern))) < count:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def run(world: CompComm, asked: argparse.Namespace) -> None:
    """Start all families, lose the victim, and write this rank's report; the victim does not return."""
    families = {name: Family(world.Dup(), FAMILIES[name]) for name in asked.family or FAMILIES}
    for family in families.values():
        family.comm.exchange()  # collective, so it is done one after the other
    threads = [threading.Thread(target=family.loop, name=name, daemon=True) for name, family in families.items()]
    for thread in threads:
        thread.start()
    while any(family.calls < CALLS_BEFORE and not family.error for family in families.values()):
        time.sleep(POLL_S)
    leave(asked.out, f"ready.{world.rank}", os.getpid())
    if world.rank == asked.victim:
        wait_for(asked.out, "ready.*", world.size)
        time.sleep(random.Random(asked.seed).uniform(0, DELAY_S))
        leave(asked.out, "struck", {"at_s": time.monotonic(), "pid": os.getpid()})
        os.kill(os.getpid(), STRIKES[asked.strike])
    for thread in threads:
        thread.join()
    told = {name: {"error": one.error, "at_s": one.at_s, "calls": one.calls} for name, one in families.items()}
    leave(asked.out, f"told.{world.rank}", told)
    wait_for(asked.out, "told.*", world.size - (asked.victim >= 0))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mpi4py -m tests.mpi.verify.failures",
        description=(__doc__ or "").partition("\n\n")[0],
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="empty, and the same for all ranks")
    parser.add_argument("--victim", type=int, default=-1, metavar="RANK", help="rank to lose; default: none")
    parser.add_argument("--strike", choices=STRIKES, default="kill")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="default: all; repeat for several")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="silence after which a rank is lost")
    parser.add_argument("--offload", choices=list(Offload), help=f"who compresses; default: ${ENV_OFFLOAD}, else auto")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    run(CompComm(MPI.COMM_WORLD, timeout_s=asked.timeout, offload=asked.offload), asked)
    sys.stdout.flush()
    os._exit(0)  # MPI cannot end without the rank, or the network, that it has lost


if __name__ == "__main__":
    main(sys.argv[1:])
