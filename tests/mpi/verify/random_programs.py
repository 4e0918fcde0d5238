"""Random programs of messages and collectives, which must end with the results that MPI prescribes; a rank program.

``python -m mpi4py -m tests.mpi.verify.random_programs --programs 1k``

With one MPI rank, threads are the ranks, over real connections with small socket buffers, and ``CompComm`` must give
the results that the program's writer knows. With several, every program runs twice, with mpi4py's calls and with ours,
and both must give these results. The command ends with exit code 1 at the first wrong result or hanging program, and
names the program; ``--first`` and ``--programs 1`` repeat it.
"""

import argparse
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netoffload.compiled.programs import end_at_once
from netoffload.config import Offload, parse_count
from netoffload.errors import CollectiveError
from netoffload.transport.local_ranks import run_tcp
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi import MPI, CompComm
from tests.mpi.verify.local_ranks import ThreadComm
from tests.mpi.verify.messages import Calls
from tests.mpi.verify.program_runs import HangWatch, Run
from tests.mpi.verify.programs import COUNTS, Program, generate

THREAD_RANKS: Final = (2, 3, 4)  # numbers of ranks that batches of programs use in turn
BATCH: Final = 50  # number of programs that use the same connections
SMALL_BUFFER_OCTETS: Final = 32 * 1024
"""Socket buffer of a message connection, which then holds 150 KB. With smaller buffers loopback, whose segments are as
long, would wait for timers."""
LONG_COUNTS: Final = (*COUNTS, 1_000_003)
"""Counts for MPI's ranks, whose socket buffers have the kernel's size: 4 MB exceed what those hold at first."""
MISMATCH: Final = 1


@dataclass(frozen=True)
class Series:
    """``count`` programs of a seed, from number ``first`` on."""

    seed: int
    first: int
    count: int
    limit_s: float

    def name(self, number: int) -> str:
        return f"program {number} of seed {self.seed}"

    def program(self, number: int, size: int, *, long: bool) -> Program:
        return generate(random.Random(f"{self.seed}:{number}"), size, LONG_COUNTS if long else COUNTS)

    def batches(self) -> Iterator[tuple[int, range]]:
        """Yield numbers of ranks and of programs; a program has the same number of ranks in every series."""
        number, last = self.first, self.first + self.count
        while number < last:
            batch = number // BATCH
            stop = min((batch + 1) * BATCH, last)
            yield THREAD_RANKS[batch % len(THREAD_RANKS)], range(number, stop)
            number = stop


MakeComm = Callable[[TcpExchange], CompComm]


def ours(comm: CompComm) -> Calls:
    return lambda name: getattr(comm, f"{name}_comp")


def plain(comm: MPI.Intracomm) -> Calls:
    return lambda name: getattr(comm, name)


def on_threads(series: Series) -> str | None:
    """Carry programs out by threads of this process; return the first error."""
    for size, numbers in series.batches():
        programs = [(series.name(number), series.program(number, size, long=False)) for number in numbers]
        if (wrong := play(programs, series.limit_s)) is not None:
            return wrong
    return None


def play(programs: Sequence[tuple[str, Program]], limit_s: float, make: MakeComm = ThreadComm.over) -> str | None:
    """Carry out named programs for one number of ranks over the same connections; return the first error.

    ``make`` makes the communicator to try from connections.
    """
    exchanges: list[TcpExchange] = []
    wrong: list[str] = []

    def hang(where: str) -> None:
        wrong.insert(0, where)
        for exchange in list(exchanges):
            exchange.close()  # ends every call

    def body(exchange: TcpExchange) -> None:
        exchanges.append(exchange)
        shrink_buffers(exchange)
        comm = make(exchange)
        for name, program in programs:
            run = Run(program, exchange.rank, ours(comm))
            watch.begin(name, run)
            if (text := run.carry_out()) is not None:
                wrong.append(f"{name}: {text}")
                raise CollectiveError(text)
            comm.Barrier_comp()

    with HangWatch(programs[0][1].size, limit_s, hang) as watch:
        raised = [error for error in run_tcp(programs[0][1].size, body) if error is not None]
    if raised and not wrong:
        wrong.append(f"{programs[0][0]} or one of the {len(programs) - 1} after it: {raised[0]}")
    return wrong[0] if wrong else None


def shrink_buffers(exchange: TcpExchange) -> None:
    for peer in range(exchange.size):
        if peer == exchange.rank:
            continue
        conn = exchange.watch.connection(peer, Lane.MESSAGES).conn
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            conn.setsockopt(socket.SOL_SOCKET, option, SMALL_BUFFER_OCTETS)


def on_ranks(world: CompComm, series: Series) -> str | None:
    """Carry programs out on MPI's ranks, with mpi4py's calls and with ours; collective, with one result for all."""
    mpi = MPI.Intracomm(world).Dup()

    def hang(where: str) -> None:
        print(f"netoffload: {where}", file=sys.stderr, flush=True)
        os._exit(MISMATCH)  # a thread hangs in MPI or in a call; mpiexec ends the other ranks

    with HangWatch(1, series.limit_s, hang) as watch:
        for number in range(series.first, series.first + series.count):
            program = series.program(number, world.size, long=True)
            text: str | None = None
            for whose, calls in (("mpi4py", plain(mpi)), ("CompComm", ours(world))):
                run = Run(program, world.rank, calls)
                watch.begin(f"{series.name(number)} over {whose}", run)
                if (found := run.carry_out()) is not None:
                    text = text or f"{series.name(number)} over {whose}: {found}"
                mpi.Barrier()
            said: list[str | None] = mpi.allgather(text)
            if any(said):
                return next(one for one in said if one)
    return None


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mpi4py -m tests.mpi.verify.random_programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--programs", type=parse_count, default=1000, metavar="N", help="number of programs; 10k is 10,000"
    )
    parser.add_argument("--seed", type=int, default=1, help="decides all programs")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="begin with this program")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="a program that takes longer hangs")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    end_at_once()
    asked = _parse(arguments)
    series = Series(asked.seed, asked.first, asked.programs, asked.limit)
    started_s = time.monotonic()
    size, rank = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
    if size == 1:
        wrong = on_threads(series)
    else:
        with CompComm(MPI.COMM_WORLD, offload=Offload.NIC) as world:
            wrong = on_ranks(world, series)
    record: dict[str, Any] = {
        "programs": series.count,
        "seed": series.seed,
        "ranks": list(THREAD_RANKS) if size == 1 else [size],
        "are_threads": size == 1,
        "elapsed_s": time.monotonic() - started_s,
        "wrong": wrong,
    }
    if rank == 0:
        print(json.dumps(record, indent=2))
        if wrong:
            print(f"netoffload: {wrong}", file=sys.stderr, flush=True)
    if wrong:
        MPI.Finalize()  # all ranks come here; else mpi4py would abort the job with a message
        sys.exit(MISMATCH)


if __name__ == "__main__":
    main(sys.argv[1:])
