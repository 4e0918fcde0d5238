"""Time computation and reductions one after the other and at the same time; the rank program of ``bench overlap``.

``mpiexec -n 2 python -m mpi4py -m netoffload.lab.bench.rank_overlap --compute python --buckets 8 --size 4MB``

A step computes some buckets and sums each over all ranks, as a backward pass does. It runs in four ways: computation
alone, communication alone, all computation and then all communication (serial), and each bucket on its way while the
next one is computed (overlapped). All four take turns, and the slowest rank's time of a step counts. By default, a
bucket's computation lasts as long as its communication, because overlapping then gains most.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from netoffload.collectives import barrier
from netoffload.collectives.samples import gradients_from
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice, parse_size_octets
from netoffload.errors import ReplicaError, UsageError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.jobs import COMPUTE, OVERLAP_ARGUMENTS, OverlapRecord, OverlapResult
from netoffload.lab.bench.rank_allreduce import described, measure_and_tell, parser_of
from netoffload.lab.bench.settings import OverlapSettings
from netoffload.lab.declared import Table, add_arguments
from netoffload_mpi import MPI, CompComm
from netoffload_mpi.requests import CompRequest

CALIBRATION_S: Final = 0.1

NUMPY_FLOATS: Final = 64 * 1024
"""Floats of one unit of NumPy's work: 256 KiB take some 20 us, like one operation of a small network."""

PYTHON_ADDITIONS: Final = 1000
"""Additions of one unit of Python's work, which takes some 20 us as well."""

Compute = Callable[[], None]
"""Computes one bucket."""


def _numpy_unit(values: Float32Array) -> None:
    np.multiply(values, np.float32(1), out=values)


def _python_unit() -> None:
    total = 0
    for number in range(PYTHON_ADDITIONS):
        total += number


def computation(kind: str, seconds: float) -> Compute:
    """Return a function that keeps a core busy for ``seconds``, or sleeps that long; its speed is measured here."""
    if kind == "sleep":
        return functools.partial(time.sleep, seconds)
    work = np.ones(NUMPY_FLOATS, np.float32)
    unit = _python_unit if kind == "python" else functools.partial(_numpy_unit, work)
    units, start_s = 0, time.thread_time()
    while (took_s := time.thread_time() - start_s) < CALIBRATION_S:
        unit()
        units += 1
    count = round(units * seconds / took_s)

    def compute() -> None:
        for _ in range(count):
            unit()

    return compute


class Step:
    """One step's buckets, and the four ways to do it; ``gradients``: float32[buckets, n] of this rank."""

    def __init__(self, comm: CompComm, gradients: Float32Array, compute: Compute) -> None:
        self._comm = comm
        self._gradients = gradients
        self._compute = compute
        self.values = gradients.copy()

    def compute_alone(self) -> None:
        """Compute all buckets."""
        for _ in self.values:
            self._compute()

    def communicate_alone(self) -> None:
        """Sum all buckets, one after the other."""
        for bucket in self.values:
            self._comm.Allreduce_comp(MPI.IN_PLACE, bucket)

    def serial(self) -> None:
        """Compute all, then sum all."""
        self.compute_alone()
        self.communicate_alone()

    def overlapped(self) -> None:
        """Sum each bucket while the next ones are computed."""
        requests = []
        for bucket in self.values:
            self._compute()
            requests.append(self._comm.Iallreduce_comp(MPI.IN_PLACE, bucket))
        CompRequest.Waitall(requests)

    def time_s(self, way: Callable[[], None]) -> float:
        """Return the slowest rank's time for one of the ways; collective."""
        np.copyto(self.values, self._gradients)
        barrier(self._comm.exchange())
        start_s = time.perf_counter()
        way()
        seconds: list[float] = self._comm.allgather(time.perf_counter() - start_s)
        return max(seconds)

    def digest(self) -> str:
        """Return a digest of the values, for comparison."""
        return hashlib.sha256(self.values.tobytes()).hexdigest()


def measure(comm: CompComm, kind: str, gradients: Float32Array, compute_s: float | None, repeat: int) -> OverlapResult:
    """Check, warm up and time all ways with one kind of computation; return the result, the same on every rank.

    ``gradients`` are float32[buckets, n]. Without ``compute_s``, computing a bucket takes as long as communicating it.
    """
    plain = Step(comm, gradients, lambda: None)
    plain.time_s(plain.communicate_alone)  # warms up
    bucket_s = plain.time_s(plain.communicate_alone) / len(gradients)
    per_bucket_s = bucket_s if compute_s is None else compute_s
    expected = plain.digest()
    step = Step(comm, gradients, computation(kind, per_bucket_s))

    def summing(name: str, way: Callable[[], None], _number: int) -> float:
        time_s = step.time_s(way)
        if set(comm.allgather(step.digest())) != {expected}:
            raise ReplicaError(f"{name} with {kind}: ranks hold different sums, or not those of communication alone")
        return time_s

    ways = {"communication": step.communicate_alone, "serial": step.serial, "overlapped": step.overlapped}
    contenders = [
        Contender("compute", lambda _number: step.time_s(step.compute_alone)),
        *(Contender(name, functools.partial(summing, name, way)) for name, way in ways.items()),
    ]
    take_turns(contenders, repeat)
    return summary(kind, per_bucket_s, {contender.name: tuple(contender.samples) for contender in contenders})


def summary(kind: str, per_bucket_s: float, times_s: dict[str, tuple[float, ...]]) -> OverlapResult:
    """Return the medians, and how much of the shorter part disappeared behind the longer one."""
    compute_s, communication_s, serial_s, overlapped_s = (
        statistics.median(times_s[name]) for name in ("compute", "communication", "serial", "overlapped")
    )
    return OverlapResult(
        compute_kind=kind,
        compute_s_per_bucket=per_bucket_s,
        times_s=times_s,
        compute_s=compute_s,
        communication_s=communication_s,
        serial_s=serial_s,
        overlapped_s=overlapped_s,
        overlap=(serial_s - overlapped_s) / min(compute_s, communication_s),
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("rank_overlap", __doc__ or "")
    add_arguments(parser, OverlapSettings, OVERLAP_ARGUMENTS)
    return parser.parse_args(arguments)


def run(comm: CompComm, asked: argparse.Namespace) -> OverlapRecord:
    """Measure everything that was asked for; return the record, the same on every rank."""
    for kind in asked.compute or ():
        check_choice("compute", kind, COMPUTE)
    count = parse_size_octets(asked.size) // 4
    no_time = asked.compute_ms is not None and not 0 < asked.compute_ms < math.inf
    if asked.repeat < 1 or asked.buckets < 1 or count < 1 or no_time:
        raise UsageError("nothing to time: compute and sum at least one bucket of at least 4 octets, at least once")
    if comm.size < 2:
        raise UsageError("one rank exchanges nothing: start at least 2")
    draw = gradients_from(asked.gradients, asked.seed)
    gradients = draw(comm.rank, asked.buckets * count).reshape(asked.buckets, count)
    compute_s = None if asked.compute_ms is None else asked.compute_ms / 1e3
    return OverlapRecord(
        **described(comm),
        buckets=asked.buckets,
        size_octets=4 * count,
        results=tuple(
            measure(comm, kind, gradients, compute_s, asked.repeat) for kind in dict.fromkeys(asked.compute or COMPUTE)
        ),
    )


def table_of(record: OverlapRecord) -> Table:
    """Return a line per kind of computation; times in ms."""
    title = f"{record.ranks} ranks, {record.buckets} buckets of {record.size_octets / 1e6:.4g} MB; medians in ms"
    return Table.of(OverlapResult, record.results, title)


def main(arguments: list[str]) -> None:
    """Measure as this process's rank of MPI's world; rank 0 reports."""
    asked = _parse(arguments)
    measure_and_tell(asked, lambda comm: run(comm, asked), table_of)


if __name__ == "__main__":
    main(sys.argv[1:])
