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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.programs import end_at_once
from netoffload.config import Offload, parse_count
from netoffload.errors import CollectiveError
from netoffload.transport.local_ranks import run_tcp
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi import MPI, CompComm
from tests.mpi.verify.cases import nothing
from tests.mpi.verify.local_ranks import ThreadComm
from tests.mpi.verify.messages import Calls, comp_calls, mpi_calls, told
from tests.mpi.verify.programs import COUNTS, Op, Program, Sent, generate
from tests.mpi.verify.run import first_difference

THREAD_RANKS: Final = (2, 3, 4)  # numbers of ranks that batches of programs use in turn
BATCH: Final = 50  # number of programs that use the same connections
SMALL_BUFFER_OCTETS: Final = 32 * 1024
"""Socket buffer of a message connection, which then holds 150 KB. With smaller buffers loopback, whose segments are as
long, would wait for timers."""
LONG_COUNTS: Final = (*COUNTS, 1_000_003)
"""Counts for MPI's ranks, whose socket buffers have the kernel's size: 4 MB exceed what those hold at first."""
MISMATCH: Final = 1
LARGEST: Final = 1000
"""Largest value; values are whole numbers, so that every order of adding is exact."""


def values_of(program: Program, number: int, rank: int, count: int) -> Float32Array:
    """Return the values of ``rank`` for the message or collective of this number."""
    draw = np.random.default_rng([program.key, number, rank])
    return draw.integers(-LARGEST, LARGEST + 1, count, dtype=np.int32).astype(np.float32)


@dataclass
class Run:
    """One rank's part in a program; ``at`` is the index of the call under way, for the report of a hang."""

    program: Program
    rank: int
    calls: Calls
    at: int = 0
    _requests: dict[int, Any] = field(default_factory=dict)
    _statuses: dict[int, MPI.Status] = field(default_factory=dict)
    _seen: dict[int, list[Any]] = field(default_factory=dict)
    _due: dict[int, list[Any]] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    """Buffers that calls read; they must live until the calls end."""

    def carry_out(self) -> str | None:
        """Carry the program out; return what is wrong with the results, None if nothing is."""
        ops = self.program.ranks[self.rank]
        for self.at, op in enumerate(ops):
            if op.call == "Wait":
                self._wait(op)
            elif op.call == "RecvAny":
                self._seen[self.at] = self._from_anybody(op)
            elif op.call in _POINT_TO_POINT:
                self._message(op)
            else:
                self._collective(op)
        for index, op in enumerate(ops):
            seen = self._seen.get(index, [])
            if op.call == "Irecv":
                seen = [*seen, told(self._statuses[op.slot])]
            if (difference := first_difference(seen, self._expected(index, op))) is not None:
                return f"rank {self.rank}, call {index} ({describe(op)}): {difference}"
        return None

    def _message(self, op: Op) -> None:
        status, into = MPI.Status(), nothing(op.capacity)
        data = values_of(self.program, op.number, self.rank, op.count) if op.number >= 0 else None
        call = self.calls(op.call)
        self._kept.append(data)
        match op.call:
            case "Send":
                call(data, op.peer, op.tag)
            case "Isend":
                self._requests[op.slot] = call(data, op.peer, op.tag)
            case "Irecv":
                self._requests[op.slot] = call(into, op.peer, op.tag)
                self._seen[self.at] = [into]
            case "Recv":
                call(into, op.peer, op.tag, status)
                self._seen[self.at] = [into, told(status)]
            case "Sendrecv":
                call(data, op.peer, op.tag, into, op.source, op.tag, status)
                self._seen[self.at] = [into, told(status)]
            case _:
                while not call(op.peer, op.tag, status):
                    pass
                self._seen[self.at] = [told(status)]

    def _from_anybody(self, op: Op) -> list[Any]:
        came = {}
        for _ in range(op.count):
            into, status = nothing(op.capacity), MPI.Status()
            self.calls("Recv")(into, MPI.ANY_SOURCE, op.tag, status)
            came[status.source] = [into, told(status)]
        return [part for source in sorted(came) for part in came[source]]

    def _collective(self, op: Op) -> None:
        arguments, seen, self._due[self.at] = _planned(self.program, op, self.rank)
        self._kept.append(arguments)
        if op.slot < 0:
            self.calls(op.call)(*arguments)
        else:
            self._requests[op.slot] = self.calls(f"I{op.call.lower()}")(*arguments)
        self._seen[self.at] = seen

    def _wait(self, op: Op) -> None:
        requests = [self._requests.pop(slot) for slot in op.slots]
        statuses = [MPI.Status() for _ in requests]
        self._statuses |= zip(op.slots, statuses, strict=True)
        if op.how == "all":
            # The class of the requests waits for them: mpi4py's or ours.
            type(requests[0]).Waitall(requests, statuses)
        elif op.how == "any":
            for _ in requests:
                status = MPI.Status()
                index = type(requests[0]).Waitany(requests, status)
                self._statuses[op.slots[index]] = status
        else:
            for request, status in zip(requests, statuses, strict=True):
                if op.how == "each":
                    request.Wait(status)
                while op.how == "test" and not request.Test(status):
                    pass

    def _expected(self, index: int, op: Op) -> list[Any]:
        if op.call in _POINT_TO_POINT or op.call == "RecvAny":
            expected: list[Any] = []
            for sent in sorted(op.got, key=lambda one: one.source):
                if op.call not in ("Probe", "Iprobe"):
                    expected.append(self._received(sent, op.capacity))
                expected.append((sent.source, sent.tag, sent.count))
            return expected
        return self._due.get(index, [])

    def _received(self, sent: Sent, capacity: int) -> Float32Array:
        into = nothing(capacity)
        into[: sent.count] = values_of(self.program, sent.number, sent.source, sent.count)
        return into


def describe(op: Op) -> str:
    if op.call == "Wait":
        return f"wait {op.how} for requests {', '.join(map(str, op.slots))}"
    words = [op.call, f"rank {op.peer}", f"tag {op.tag}", f"{max(op.count, op.capacity)} floats"]
    return ", ".join([*words, f"request {op.slot}"] if op.slot >= 0 else words)


_POINT_TO_POINT: Final = ("Send", "Isend", "Recv", "Irecv", "Sendrecv", "Probe", "Iprobe")


def _blocks(op: Op, size: int) -> list[list[int]]:
    """Return how many floats each rank sends to each in an alltoallv: uneven numbers, some of them 0."""
    return [[op.count * ((source + 2 * dest + op.number) % 3) // 2 for dest in range(size)] for source in range(size)]


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:index]) for index in range(len(counts))]


def _planned(program: Program, op: Op, rank: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the arguments of a collective, those of them that are compared after the call, and what these must be."""
    size, count, root = program.size, op.count, op.peer
    owns = [values_of(program, op.number, one, count) for one in range(size)]
    own, total, everything = owns[rank].copy(), np.sum(owns, axis=0, dtype=np.float32), np.concatenate(owns)
    into, wide, is_root = nothing(count), nothing(size * count), rank == root
    match op.call:
        case "Allreduce":
            return [own, into], [into], [total]
        case "Reduce":
            return [own, into, MPI.SUM, root], [into], [total if is_root else nothing(count)]
        case "Bcast":
            buf = own if is_root else into
            return [buf, root], [buf], [owns[root]]
        case "Gather":
            return [own, wide if is_root else None, root], [wide], [everything if is_root else nothing(size * count)]
        case "Scatter":
            whole = values_of(program, op.number, root, size * count)
            part = whole[rank * count : (rank + 1) * count].copy()
            return [whole if is_root else None, into, root], [into], [part]
        case "Allgather":
            return [own, wide], [wide], [everything]
        case "Alltoallv":
            blocks = _blocks(op, size)
            data = [values_of(program, op.number, source, sum(row)) for source, row in enumerate(blocks)]
            sending, receiving = blocks[rank], [row[rank] for row in blocks]
            starts, into = [_starts(row)[rank] for row in blocks], nothing(sum(receiving))
            parts = [one[start:][:length].copy() for one, start, length in zip(data, starts, receiving, strict=True)]
            spec = [
                [data[rank], sending, _starts(sending), MPI.FLOAT],
                [into, receiving, _starts(receiving), MPI.FLOAT],
            ]
            return spec, [into], [np.concatenate(parts)]
        case _:
            return [], [], []


START_S: Final = 30.0  # longest time in which all ranks begin a program


class HangWatch:
    """A thread that calls ``on_hang`` once, with the call in which each rank is, if a program exceeds the limit.

    Its time begins when all ``size`` ranks have begun; if one does not, ``START_S`` later.
    """

    def __init__(self, size: int, limit_s: float, on_hang: Callable[[str], None]) -> None:
        self._size, self._limit_s = size, limit_s
        self._on_hang = on_hang
        self._ended = threading.Event()
        self._runs: dict[int, tuple[str, Run, float]] = {}
        self._thread = threading.Thread(target=self._look, name="hang-watch", daemon=True)

    def begin(self, name: str, run: Run) -> None:
        self._runs[run.rank] = name, run, time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._limit_s / 10):
            runs = list(self._runs.values())
            limit_s = self._limit_s + START_S * (len(runs) < self._size)
            if runs and time.monotonic() - max(since_s for _, _, since_s in runs) > limit_s:
                self._on_hang("; ".join(f"{name} hangs: {_whereabouts(run)}" for name, run, _ in runs))
                return


def _whereabouts(run: Run) -> str:
    ops: Sequence[Op] = run.program.ranks[run.rank]
    return f"rank {run.rank} in call {run.at} of {len(ops)} ({describe(ops[run.at]) if ops else 'nothing to do'})"


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
            run = Run(program, exchange.rank, comp_calls(comm))
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
            for whose, calls in (("mpi4py", mpi_calls(mpi)), ("CompComm", comp_calls(world))):
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
