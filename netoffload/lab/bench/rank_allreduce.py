"""Time reductions on the ranks of any MPI job; also the rank program of ``netoffload bench allreduce``.

``mpiexec -n 4 python -m mpi4py -m netoffload.lab.bench.rank_allreduce --what ring_comp --size 25MB --rate 1gbit``

It runs on every rank. Before a time is taken, the answer must have the bits of the oracle. Before each timed call all
ranks meet in a barrier that sleeps (an MPI barrier spins, and would take cores from the NICs). The slowest rank's time
counts. For short vectors 100 calls in a row are timed together, and the time of one is reported. A testbed's meter
($NETOFFLOAD_METER) counts the octets on the wires.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from netoffload.collectives import Quantise, aggregate, barrier, is_short, worker_exchange
from netoffload.collectives.reference import RoundTrip, aggregated, hierarchical_sum, ring_sum
from netoffload.collectives.samples import whole_numbers
from netoffload.collectives.schedule import ring_octets
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.programs import end_at_once
from netoffload.config import (
    BOUND_K_DEFAULT,
    CODECS,
    ENV_CONTROL,
    ENV_METER,
    ENV_OFFLOAD,
    check_bound_k,
    parse_size_octets,
)
from netoffload.control import request
from netoffload.errors import ReplicaError, UsageError
from netoffload.lab.bench.jobs import ALLREDUCE_ARGUMENTS, WHATS, AllreduceRecord, AllreduceResult
from netoffload.lab.bench.settings import AllreduceSettings
from netoffload.lab.declared import Finding, Table, add_arguments
from netoffload.lab.models.exchange import least_s
from netoffload.lab.models.gradients import Draw, gradients_from
from netoffload.lab.testbed.build import octets_on_wires
from netoffload.lab.testbed.processes import process_cpu_s
from netoffload.lab.units import parse_rate_bps
from netoffload.machine.environment import system_versions
from netoffload_mpi import MPI, CompComm

WHATS_DEFAULT: Final = ("ring", "ring_comp", "mpi")

AGGREGATOR: Final = 0
"""The aggregator's rank, which is a worker as well."""

IN_A_ROW: Final = 100
"""Calls on short vectors that are timed together: a single call would measure how ranks wake up from the barrier."""

WIRE: Final = "octets on all wires"
CPU_S: Final = "CPU seconds of the NIC"

R = TypeVar("R", bound=Finding)

Reduce = Callable[[Float32Array], None]
"""Sums a vector over all ranks in place."""


@contextlib.contextmanager
def reduction(comm: CompComm, what: str) -> Iterator[Reduce]:
    """Yield the function that sums a vector over all ranks in place; collective."""
    if what == "gloo":
        try:
            from netoffload.lab.training.gloo import gloo_reduction
        except ImportError as error:
            raise UsageError(f"gloo needs torch: pip install 'netoffload[train]' ({error})") from error
        with gloo_reduction(MPI.COMM_WORLD) as sum_in_place:
            yield sum_in_place
        return
    reductions: dict[str, Reduce] = {
        "ring": lambda values: comm.Allreduce_ring(MPI.IN_PLACE, values),
        "ring_comp": lambda values: comm.Allreduce_comp(MPI.IN_PLACE, values),
        "wa": lambda values: _through_aggregator(comm, values, tagged=False),
        "wa_comp": lambda values: _through_aggregator(comm, values, tagged=True),
        "hierarchical_comp": lambda values: comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm="hierarchical"),
        "mpi": lambda values: comm.Allreduce(MPI.IN_PLACE, values),
    }
    yield reductions[what]


def _through_aggregator(comm: CompComm, values: Float32Array, *, tagged: bool) -> None:
    exchange = comm.exchange()
    if comm.rank != AGGREGATOR:
        worker_exchange(exchange, values, values, aggregator=AGGREGATOR, tagged=tagged)
    elif comm.size > 1:

        def add_own(total: Float32Array) -> None:
            np.add(values, total, out=values)

        aggregate(exchange, values, add_own, tagged=tagged)


def check_answer(comm: CompComm, what: str, call: Reduce, count: int, draw: Draw, seed: int) -> float:
    """Reduce vectors whose sum is known and compare with the oracle; return the largest error.

    Whole numbers have the same sum in any order. A sum through NICs of ``draw``'s vectors must also have the bits
    that their codec makes hop by hop, because a tolerance of the codec's step is larger than the sum of small
    gradients. A wrong sum, or ranks that differ, raise a ReplicaError on every rank.
    """
    is_modelled = what.endswith("_comp")
    precision = comm.precision() if is_modelled else None
    max_error = 0.0
    exact = functools.partial(whole_numbers, seed=seed)
    for make in (exact, draw) if is_modelled else (exact,):
        values = make(comm.rank, count)
        call(values)
        verdict = None
        digests = comm.gather(hashlib.sha256(values.tobytes()).hexdigest())
        if digests is not None:
            vectors = [make(rank, count) for rank in range(comm.size)]
            max_error = float(np.abs(values - ring_sum(vectors)).max(initial=0.0))
            wanted = _model(comm, what, vectors, None if precision is None else _round_trip(precision.quantiser()))
            verdict = "ranks hold different sums" if len(set(digests)) > 1 else _difference(values, wanted)
        verdict, max_error = comm.bcast((verdict, max_error))
        if verdict is not None:
            raise ReplicaError(f"{what}: {verdict}")
    return max_error


def _round_trip(quantise: Quantise) -> RoundTrip:
    def round_trip(partial: Float32Array) -> Float32Array:
        copy = partial.copy()
        quantise(copy)
        return copy

    return round_trip


def _model(comm: CompComm, what: str, vectors: Sequence[Float32Array], round_trip: RoundTrip | None) -> Float32Array:
    """Return the sum that every rank must hold."""
    if what == "wa_comp":
        return aggregated(vectors, AGGREGATOR, round_trip)
    if what == "hierarchical_comp":
        return hierarchical_sum(vectors, comm.calls().plane.groups(), round_trip)
    return ring_sum(vectors, round_trip)


def _difference(values: Float32Array, wanted: Float32Array) -> str | None:
    """Return what is wrong with a sum; None if it has the wanted bits (0.0 and -0.0 count as equal)."""
    differs = np.flatnonzero((values != wanted) | np.isnan(values))
    if not differs.size:
        return None
    first = differs[0]
    return (
        f"{differs.size} of {values.size} floats are not the sum: float {first} is {values[first]:g}, "
        f"not {wanted[first]:g}"
    )


def measure(comm: CompComm, what: str, call: Reduce, size_octets: int, options: argparse.Namespace) -> AllreduceResult:
    """Check, warm up and time reductions of one size; return one result, the same on every rank."""
    count = size_octets // 4
    # Warms up too: opens the windows, touches the pages.
    max_error = check_answer(comm, what, call, count, options.draw, options.seed)
    exchange = comm.exchange()
    gradient = options.draw(comm.rank, count)
    values = gradient.copy()
    call(values)
    in_a_row = IN_A_ROW if is_short(count, comm.size) else 1

    def sample() -> tuple[float, float]:
        np.copyto(values, gradient)
        barrier(exchange)
        start_s, cpu_before_s = time.perf_counter(), time.process_time()
        call(values)
        for _ in range(in_a_row - 1):
            np.copyto(values, gradient)
            call(values)
        return (time.perf_counter() - start_s) / in_a_row, (time.process_time() - cpu_before_s) / in_a_row

    before = _readings(comm)
    times_s, cpu_s = zip(*(sample() for _ in range(options.repeat)), strict=True)
    barrier(exchange)
    calls, after = options.repeat * in_a_row, _readings(comm)
    per_call = {name: (value - before.get(name, 0.0)) / calls for name, value in after.items()}
    slowest = [max(times) for times in zip(*comm.allgather(times_s), strict=True)]
    ranks_s = sum(comm.allgather(sum(cpu_s))) / options.repeat
    octets: float | None = comm.bcast(per_call.pop(WIRE, None))
    of_nics = comm.allgather(per_call or None)
    nic = None if None in of_nics else {name: sum(one.get(name, 0.0) for one in of_nics) for name in of_nics[0]}
    nic_s = None if nic is None or any(CPU_S not in one for one in of_nics) else nic[CPU_S]
    median_s = statistics.median(slowest)
    bound_s = None if options.rate_bps is None else least_s(comm.size, size_octets, options.rate_bps)
    return AllreduceResult(
        what=what,
        nodes=comm.size,
        size_octets=size_octets,
        times_s=tuple(slowest),
        median_s=median_s,
        min_s=min(slowest),
        max_s=max(slowest),
        bound_s=bound_s,
        over_bound=median_s / bound_s if bound_s else None,
        wire_octets=octets,
        ratio=comm.size * ring_octets(size_octets, comm.size) / octets if octets else None,
        cpu_s=ranks_s + (nic_s or 0.0),
        rank_cpu_s=ranks_s,
        nic_cpu_s=nic_s,
        nic=None if nic is None else {name: value for name, value in nic.items() if name != CPU_S},
        max_error=max_error,
    )


def _readings(comm: CompComm) -> dict[str, float]:
    """Return what a meter and this node's NIC count: octets on all wires (on rank 0), counters, and CPU seconds."""
    meter, nic = os.environ.get(ENV_METER), os.environ.get(ENV_CONTROL)
    readings: dict[str, float] = {WIRE: octets_on_wires(meter)} if comm.rank == 0 and meter else {}
    if nic:
        readings |= request(nic, "counters")["counters"]
        cpu_s = process_cpu_s(request(nic, "info")["pid"])
        readings |= {} if cpu_s is None else {CPU_S: cpu_s}
    return readings


def parser_of(module: str, text: str) -> argparse.ArgumentParser:
    """Return the parser of a program of ranks: its module's docstring is its help, and it takes --json and --out."""
    first, _, rest = text.replace("``", "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m mpi4py -m netoffload.lab.bench.{module}",
        description=first,
        epilog=rest.rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write JSON there, and print nothing")
    return parser


def run(comm: CompComm, options: argparse.Namespace) -> AllreduceRecord:
    """Measure everything that was asked for; return the record, the same on every rank."""
    sizes_octets = [parse_size_octets(text) // 4 * 4 for text in options.size or AllreduceSettings.size]
    if options.repeat < 1 or 0 in sizes_octets:
        raise UsageError("nothing to time: repeat at least once, and sum at least 4 octets")
    options.draw = gradients_from(options.gradients, options.seed)
    options.rate_bps = None if options.rate is None else parse_rate_bps(options.rate)
    with contextlib.ExitStack() as stack:
        whats = dict.fromkeys(options.what or WHATS_DEFAULT)
        calls = {what: stack.enter_context(reduction(comm, what)) for what in whats}
        results = [measure(comm, what, call, size, options) for size in sizes_octets for what, call in calls.items()]
    return AllreduceRecord(**described(comm), results=tuple(results))


def described(comm: CompComm) -> dict[str, Any]:
    """Return the fields with which every record of ranks begins; the same on every rank."""
    precision = comm.precision()
    return {
        "ranks": comm.size,
        "codec": precision and precision.codec,
        "bound_k": precision and precision.bound_k,
        "versions": system_versions(MPI.Get_library_version()),
    }


def table_of(record: AllreduceRecord) -> Table:
    """Return a line per result; times in ms."""
    title = f"{record.ranks} ranks, {record.versions['mpi']}, codec {record.codec or 'none'}; times in ms"
    names = "what size_octets times_s over_bound wire_octets max_error"
    return Table.of(AllreduceResult, record.results, title, only=names)


def main(arguments: list[str]) -> None:
    """Measure as this process's rank of MPI's world; rank 0 reports."""
    parser = parser_of("rank_allreduce", __doc__ or "")
    whats = f"repeat for several; default: {', '.join(WHATS_DEFAULT)}"
    codec = f"codec of ranks that compress by themselves (${ENV_OFFLOAD}=inline)"
    parser.add_argument("--what", choices=WHATS, action="append", help=whats)
    add_arguments(parser, AllreduceSettings, ALLREDUCE_ARGUMENTS)
    parser.add_argument("--codec", choices=CODECS, help=codec)
    parser.add_argument("--bound", type=int, default=BOUND_K_DEFAULT, metavar="K", help="its bound 2^-K (%(default)s)")
    parser.add_argument("--rate", help="rate of every link, such as 1gbit: adds the bound to the report")
    asked = parser.parse_args(arguments)
    precision = (asked.codec, check_bound_k(asked.bound)) if asked.codec else (None, None)
    measure_and_tell(asked, lambda comm: run(comm, asked), table_of, precision)


def measure_and_tell(
    asked: argparse.Namespace,
    measure: Callable[[CompComm], R],
    table: Callable[[R], Table],
    precision: tuple[str, int] | tuple[None, None] = (None, None),
) -> None:
    """Measure on every rank of MPI's world; rank 0 writes the record to ``asked.out``, or prints JSON or a table.

    ``measure`` raises the same UsageError on every rank. ``precision`` is the communicator's codec and bound.
    """
    end_at_once()
    with CompComm(MPI.COMM_WORLD, *precision) as comm:
        try:
            record = measure(comm)
        except UsageError as error:  # every rank has the same arguments, so all of them come here
            if comm.rank == 0:
                print(f"netoffload: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        if comm.rank != 0:
            return
        if asked.out is not None:
            asked.out.write_text(json.dumps(record.to_record()), encoding="utf-8")
        elif asked.json:
            print(json.dumps(record.to_record(), indent=2))
        else:
            print(table(record).text())


if __name__ == "__main__":
    main(sys.argv[1:])
