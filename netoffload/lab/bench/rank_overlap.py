"""Time computation and reductions one after the other and at the same time; the rank program of ``bench overlap``.

``mpiexec -n 2 python -m mpi4py -m netoffload.lab.bench.rank_overlap --compute python --buckets 8 --size 4MB``

A step computes some buckets and sums each over all ranks, as a backward pass does. It runs in four ways: computation
alone, communication alone, all computation and then all communication (serial), and each bucket on its way while the
next one is computed (overlapped). All four take turns, and the slowest rank's time of a step counts. By default, a
bucket's computation lasts as long as its communication, because overlapping then gains most.
"""

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
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice, parse_size_octets
from netoffload.errors import ReplicaError, UsageError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.jobs import COMPUTE, OVERLAP_ARGUMENTS, OverlapRecord, OverlapResult
from netoffload.lab.bench.rank_allreduce import described, measure_and_tell, parser_of
from netoffload.lab.bench.settings import OverlapSettings
from netoffload.lab.declared import Table, add_arguments
from netoffload.lab.models.gradients import gradients_from
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


def measure(comm: CompComm, kind: str, gradients: Float32Array, compute_s: float | None, repeat: int) -> OverlapResult:
    """Check, warm up and time all ways with one kind of computation; return the result, the same on every rank.

    ``gradients`` are float32[buckets, n]. Without ``compute_s``, computing a bucket takes as long as communicating it.
    """
    values = gradients.copy()

    def communicate() -> None:
        for bucket in values:
            comm.Allreduce_comp(MPI.IN_PLACE, bucket)

    def time_s(way: Callable[[], None]) -> float:
        np.copyto(values, gradients)
        barrier(comm.exchange())
        start_s = time.perf_counter()
        way()
        seconds: list[float] = comm.allgather(time.perf_counter() - start_s)
        return max(seconds)

    time_s(communicate)  # warms up
    bucket_s = time_s(communicate) / len(gradients)
    expected = hashlib.sha256(values.tobytes()).digest()
    per_bucket_s = bucket_s if compute_s is None else compute_s
    compute_one = computation(kind, per_bucket_s)

    def compute() -> None:
        for _ in values:
            compute_one()

    def serial() -> None:
        compute()
        communicate()

    def overlapped() -> None:
        requests = []
        for bucket in values:
            compute_one()
            requests.append(comm.Iallreduce_comp(MPI.IN_PLACE, bucket))
        CompRequest.Waitall(requests)

    def turn(name: str, way: Callable[[], None], _number: int) -> float:
        took_s = time_s(way)
        if way is not compute and set(comm.allgather(hashlib.sha256(values.tobytes()).digest())) != {expected}:
            raise ReplicaError(f"{name} with {kind}: ranks hold different sums, or not those of communication alone")
        return took_s

    ways = {"compute": compute, "communication": communicate, "serial": serial, "overlapped": overlapped}
    contenders = [Contender(name, functools.partial(turn, name, way)) for name, way in ways.items()]
    take_turns(contenders, repeat)
    computing_s, communication_s, serial_s, overlapped_s = (statistics.median(one.samples) for one in contenders)
    return OverlapResult(
        compute_kind=kind,
        compute_s_per_bucket=per_bucket_s,
        times_s={one.name: tuple(one.samples) for one in contenders},
        compute_s=computing_s,
        communication_s=communication_s,
        serial_s=serial_s,
        overlapped_s=overlapped_s,
        overlap=(serial_s - overlapped_s) / min(computing_s, communication_s),
    )


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
    parser = parser_of("rank_overlap", __doc__ or "")
    add_arguments(parser, OverlapSettings, OVERLAP_ARGUMENTS)
    asked = parser.parse_args(arguments)
    measure_and_tell(asked, lambda comm: run(comm, asked), table_of)


if __name__ == "__main__":
    main(sys.argv[1:])
