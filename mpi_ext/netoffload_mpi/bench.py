"""The rank program of ``netoffload bench allreduce``: checks the answer, then times it.

``python -m mpi4py -m netoffload_mpi.bench --what ring --size 25000000 --repeat 5 --out FILE``, started once on every
rank. Rank 0 writes one JSON object to FILE. Before each timed call all ranks meet in a barrier that sleeps (an MPI
barrier spins, and would take cores from the NICs); the time of a call is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

import netoffload
from netoffload.codec.kernels import KERNEL
from netoffload.collectives import Float32Array, barrier
from netoffload.collectives.reference import ring_sum
from netoffload.collectives.samples import gradient_of, parse_sigma, whole_numbers
from netoffload.config import ENV_METER
from netoffload.control import request
from netoffload.errors import ReplicaError
from netoffload_mpi import MPI, CompComm

WHATS: Final = ("ring", "ring_comp", "mpi")
"""The ring untagged, the ring tagged, and MPI's own Allreduce."""

CODEC_STEP: Final = 2.0**-7
"""What one rounding may err by at large k: the last bit of the 8-bit form of ``inceptionn``. At small k it is 2**-k."""


def check_answer(comm: CompComm, what: str, count: int, sigma: float, seed: int) -> dict[str, Any]:
    """Reduce once and compare with the oracle; return what was seen.

    Raises:
        ReplicaError: a wrong sum, or ranks that differ; on every rank.
    """
    call = reduction(comm, what)
    precision = comm.precision() if what == "ring_comp" else None
    make: Callable[[int], Float32Array] = (
        (lambda rank: whole_numbers(rank, count, seed))
        if precision is None
        else (lambda rank: gradient_of(rank, count, sigma, seed))
    )
    values = make(comm.rank)
    call(values)
    digests = comm.allgather(hashlib.sha256(values.tobytes()).hexdigest())
    verdict: dict[str, Any] = {}
    if comm.rank == 0:
        vectors = [make(rank) for rank in range(comm.size)]
        exact = ring_sum(vectors)
        verdict["max_error"] = float(np.abs(values - exact).max(initial=0.0))
        if precision is not None:
            rounded = precision.quantiser()

            def round_trip(partial: Float32Array) -> Float32Array:
                copy = partial.copy()
                rounded(copy)
                return copy

            verdict["equals_model"] = ring_sum(vectors, round_trip).tobytes() == values.tobytes()
    verdict = comm.bcast(verdict)
    allowed = 0.0 if precision is None else comm.size * max(CODEC_STEP, 2.0**-precision.bound_k)
    if len(set(digests)) > 1:
        raise ReplicaError(f"{what}: ranks hold different sums")
    if not verdict["max_error"] <= allowed:
        raise ReplicaError(f"{what}: sum is off by {verdict['max_error']:g}, more than {allowed:g}")
    return verdict


def reduction(comm: CompComm, what: str) -> Callable[[Float32Array], None]:
    """Return the function that sums a vector over all ranks in place."""
    calls: dict[str, Callable[[Float32Array], None]] = {
        "ring": lambda values: comm.Allreduce_ring(MPI.IN_PLACE, values),
        "ring_comp": lambda values: comm.Allreduce_comp(MPI.IN_PLACE, values),
        "mpi": lambda values: comm.Allreduce(MPI.IN_PLACE, values),
    }
    return calls[what]


def measure(comm: CompComm, what: str, size_octets: int, repeat: int, sigma: float, seed: int) -> dict[str, Any]:
    """Check, warm up and time reductions of one size; return one result, the same on every rank."""
    count = size_octets // 4
    verdict = check_answer(comm, what, count, sigma, seed)  # and warm-up: opens the windows, touches the pages
    call, exchange = reduction(comm, what), comm.exchange()
    gradient = gradient_of(comm.rank, count, sigma, seed)
    values = gradient.copy()
    call(values)
    seconds = []
    before, nic_before = _wire_totals(comm), comm.totals().nic_counters
    for _ in range(repeat):
        np.copyto(values, gradient)
        barrier(exchange)
        start_s = time.perf_counter()
        call(values)
        seconds.append(time.perf_counter() - start_s)
    barrier(exchange)
    after, nic_after = _wire_totals(comm), comm.totals().nic_counters
    slowest = [max(times) for times in zip(*comm.allgather(seconds), strict=True)]
    nics = comm.allgather(None if nic_before is None else _delta(nic_before, nic_after or {}))
    return {
        "what": what,
        "size_octets": 4 * count,
        "times_s": slowest,
        "wire_octets": None if before is None or after is None else (after - before) / repeat,
        "nic": None if None in nics else {name: sum(nic[name] for nic in nics) / repeat for name in nics[0]},
        **verdict,
    }


def _wire_totals(comm: CompComm) -> int | None:
    """Return the octets that all nodes have sent on their wires, None without a meter; the same on every rank."""
    path = os.environ.get(ENV_METER)
    total = None
    if comm.rank == 0 and path:
        total = sum(int(node["tx_octets"]) for node in request(path, "wires")["nodes"])
    agreed: int | None = comm.bcast(total)
    return agreed


def _delta(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def main(arguments: list[str]) -> None:
    """Measure as this process's rank of MPI's world; rank 0 writes the record."""
    parser = argparse.ArgumentParser(prog="python -m mpi4py -m netoffload_mpi.bench", description=__doc__)
    parser.add_argument("--what", choices=WHATS, required=True)
    parser.add_argument("--size", type=int, action="append", required=True, metavar="OCTETS")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gradients", default="gaussian:0.002")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    sigma = parse_sigma(asked.gradients)
    with CompComm(MPI.COMM_WORLD) as comm:
        precision = comm.precision()
        results = [measure(comm, asked.what, size, asked.repeat, sigma, asked.seed) for size in asked.size]
        record = {
            "ranks": comm.size,
            "codec": precision and precision.codec,
            "bound_k": precision and precision.bound_k,
            "versions": {
                "netoffload": netoffload.__version__,
                "python": sys.version.split()[0],
                "numpy": np.__version__,
                "mpi": MPI.Get_library_version().split("\n")[0].strip("\0 "),
                "kernel": os.uname().release,
                "codec_kernel": KERNEL,
            },
            "results": results,
        }
        if comm.rank == 0:
            asked.out.write_text(json.dumps(record), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
