"""One round of every call over the ranks of a job, compared bit for bit: ``netoffload verify collectives``.

Whole numbers come first: every order of adding them is exact and no codec changes them, so mpi4py's own call has the
right result. An allreduce of numbers like gradients follows, whose right result is in ``collectives.reference``.
"""

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from netoffload.collectives import reference
from netoffload.collectives.samples import gradient_of, whole_numbers
from netoffload.compiled.arrays import Float32Array
from netoffload.config import ENV_CONTROL, Offload
from netoffload.machine.environment import system_versions
from netoffload_mpi.comm import CompComm

SIGMA: Final = 0.05


def _spread(values: Float32Array, size: int) -> list[Any]:
    """Return a buffer specification of equal blocks with their places."""
    block = values.size // size
    return [values, [block] * size, [block * rank for rank in range(size)], MPI.FLOAT]


CALLS: Final[dict[str, Callable[[Float32Array, Float32Array, int], tuple[Any, ...]]]] = {
    "Allreduce": lambda own, into, size: (own, into, MPI.SUM),
    "Reduce": lambda own, into, size: (own, into, MPI.MAX, size - 1),
    "Reduce_scatter": lambda own, into, size: (own, into[: own.size // size], [own.size // size] * size, MPI.SUM),
    "Reduce_scatter_block": lambda own, into, size: (own, into[: own.size // size], MPI.SUM),
    "Bcast": lambda own, into, size: (into, size - 1),
    "Gather": lambda own, into, size: (own[: own.size // size], into, 0),
    "Gatherv": lambda own, into, size: (own[: own.size // size], _spread(into, size), 0),
    "Scatter": lambda own, into, size: (own, into[: own.size // size], 0),
    "Scatterv": lambda own, into, size: (_spread(own, size), into[: own.size // size], 0),
    "Allgather": lambda own, into, size: (own[: own.size // size], into),
    "Allgatherv": lambda own, into, size: (own[: own.size // size], _spread(into, size)),
    "Alltoall": lambda own, into, size: (own, into),
    "Alltoallv": lambda own, into, size: (_spread(own, size), _spread(into, size)),
}
"""The arguments of each call, from this rank's values, a vector for the result that begins with them, and the ranks."""


def one_round(count: int, seed: int, timeout_s: float, offload: Offload | None = None) -> dict[str, Any]:
    """Make every call on vectors of about ``count`` floats; return the record, the same on every rank."""
    with CompComm(MPI.COMM_WORLD, timeout_s=timeout_s, offload=offload) as world:
        rank, size, has_nic = world.rank, world.size, bool(os.environ.get(ENV_CONTROL))
        count = -(-count // size) * size
        own = whole_numbers(rank, count, seed)
        wrong: dict[str, str] = {}
        for name, arguments in CALLS.items():
            results = []
            # mpi4py's own comes last: it would wait for ever for a rank that is missing.
            for method in (world, f"{name}_comp"), (world, f"I{name.lower()}_comp"), (MPI.COMM_WORLD, name):
                into = own.copy()
                request = getattr(*method)(*arguments(own, into, size))
                if request is not None:
                    request.Wait()
                results.append(into)
            wrong[name] = _difference(results[0], results[2]) or _difference(results[1], results[2])
        into = own.copy()
        world.Sendrecv_comp(own, (rank + 1) % size, 0, into, (rank - 1) % size, 0)
        wrong["Sendrecv"] = _difference(into, whole_numbers((rank - 1) % size, count, seed))
        wrong["Allreduce, as the codec rounds"] = _coded_sum(world, count, seed, has_nic)
        of_ranks, precision = world.allgather(wrong), world.precision()
        codec = "none" if precision is None else f"{precision.codec}:{precision.bound_k}"
        record = {"ranks": size, "floats": count, "has_nic": has_nic, "offload": world.offload(), "codec": codec}
    where = {name: [f"rank {at}: {one[name]}" for at, one in enumerate(of_ranks) if one[name]] for name in wrong}
    return {"wrong": where, **record, "versions": system_versions(MPI.Get_library_version())}


def _coded_sum(world: CompComm, count: int, seed: int, has_nic: bool) -> str:
    precision, offload = world.precision(), world.offload()
    is_coded = offload is Offload.INLINE or (offload is Offload.NIC and has_nic)

    def rounded(values: Float32Array) -> Float32Array:
        after = values.copy()
        if precision is not None:
            precision.quantiser()(after)
        return after

    vectors = [gradient_of(rank, count, SIGMA, seed) for rank in range(world.size)]
    total = reference.ring_sum(vectors, rounded if is_coded else None)
    values = vectors[world.rank].copy()
    world.Allreduce_comp(MPI.IN_PLACE, values)
    return _difference(values, rounded(total) if world.size > 1 else total)


def _difference(got: Float32Array, expected: Float32Array) -> str:
    """Say where two vectors first differ in a bit; empty: nowhere."""
    differ = np.flatnonzero(got.view(np.uint32) != expected.view(np.uint32))
    if not differ.size:
        return ""
    at = differ[0]
    return f"value {at} of {got.size} is {got[at]!s} instead of {expected[at]!s} ({differ.size} differ)"
