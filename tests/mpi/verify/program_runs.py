"""Carries random programs out, with mpi4py's calls or ours, on threads or on MPI's ranks, and compares the results."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from mpi4py import MPI

from netoffload.compiled.arrays import Float32Array
from tests.mpi.verify.cases import nothing
from tests.mpi.verify.messages import Calls, told
from tests.mpi.verify.programs import Op, Program, Sent
from tests.mpi.verify.run import first_difference

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
            if (difference := first_difference(seen, self._expected(op))) is not None:
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
        arguments, seen = _prepared(self.program, op, self.rank)
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

    def _expected(self, op: Op) -> list[Any]:
        if op.call in _POINT_TO_POINT or op.call == "RecvAny":
            expected: list[Any] = []
            for sent in sorted(op.got, key=lambda one: one.source):
                if op.call not in ("Probe", "Iprobe"):
                    expected.append(self._received(sent, op.capacity))
                expected.append((sent.source, sent.tag, sent.count))
            return expected
        return [] if op.call == "Wait" else _result(self.program, op, self.rank)

    def _received(self, sent: Sent, capacity: int) -> Float32Array:
        into = nothing(capacity)
        into[: sent.count] = values_of(self.program, sent.number, sent.source, sent.count)
        return into


def describe(op: Op) -> str:
    """Return a call in words, for an error."""
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


def _prepared(program: Program, op: Op, rank: int) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a collective, and those of them that are compared after the call."""
    size, count = program.size, op.count
    own = values_of(program, op.number, rank, count)
    wide, is_root = nothing(size * count), rank == op.peer
    match op.call:
        case "Allreduce":
            return [own, into := nothing(count)], [into]
        case "Reduce":
            return [own, into := nothing(count), MPI.SUM, op.peer], [into]
        case "Bcast":
            buf = own if is_root else nothing(count)
            return [buf, op.peer], [buf]
        case "Gather":
            return [own, wide if is_root else None, op.peer], [wide]
        case "Scatter":
            everything = values_of(program, op.number, op.peer, size * count) if is_root else None
            return [everything, into := nothing(count), op.peer], [into]
        case "Allgather":
            return [own, wide], [wide]
        case "Alltoallv":
            sending = _blocks(op, size)[rank]
            receiving = [row[rank] for row in _blocks(op, size)]
            data, into = values_of(program, op.number, rank, sum(sending)), nothing(sum(receiving))
            return [[data, sending, _starts(sending), MPI.FLOAT], [into, receiving, _starts(receiving), MPI.FLOAT]], [
                into
            ]
        case _:
            return [], []


def _result(program: Program, op: Op, rank: int) -> list[Any]:
    """Return what a collective must leave behind."""
    size, count = program.size, op.count
    owns = [values_of(program, op.number, one, count) for one in range(size)]
    total = np.sum(owns, axis=0, dtype=np.float32) if count else nothing(0)
    is_root = rank == op.peer
    match op.call:
        case "Allreduce":
            return [total]
        case "Reduce":
            return [total if is_root else nothing(count)]
        case "Bcast":
            return [owns[op.peer]]
        case "Gather":
            return [np.concatenate(owns) if is_root else nothing(size * count)]
        case "Scatter":
            return [values_of(program, op.number, op.peer, size * count)[rank * count : (rank + 1) * count]]
        case "Allgather":
            return [np.concatenate(owns)]
        case "Alltoallv":
            parts = []
            for source, row in enumerate(_blocks(op, size)):
                data, start = values_of(program, op.number, source, sum(row)), sum(row[:rank])
                parts.append(data[start : start + row[rank]])
            return [np.concatenate(parts)]
        case _:
            return []


class HangWatch:
    """A thread that calls ``on_hang`` once, with the call in which each rank is, if a program exceeds the limit."""

    def __init__(self, limit_s: float, on_hang: Callable[[str], None]) -> None:
        """Watch nothing yet."""
        self._limit_s = limit_s
        self._on_hang = on_hang
        self._ended = threading.Event()
        self._runs: dict[int, tuple[str, Run, float]] = {}
        self._thread = threading.Thread(target=self._look, name="hang-watch", daemon=True)

    def begin(self, name: str, run: Run) -> None:
        """Note that a rank begins a program."""
        self._runs[run.rank] = name, run, time.monotonic()

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._limit_s / 10):
            runs = list(self._runs.values())
            if runs and time.monotonic() - min(since_s for _, _, since_s in runs) > self._limit_s:
                self._on_hang("; ".join(f"{name} hangs: {_whereabouts(run)}" for name, run, _ in runs))
                return


def _whereabouts(run: Run) -> str:
    ops: Sequence[Op] = run.program.ranks[run.rank]
    return f"rank {run.rank} in call {run.at} of {len(ops)} ({describe(ops[run.at]) if ops else 'nothing to do'})"
