"""A program for three ranks: whether the benchmark's check accepts right reductions and refuses broken ones."""

from collections.abc import Callable

import numpy as np

from netoffload.collectives import reference
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import ReplicaError
from netoffload.lab.bench import rank_allreduce
from netoffload.lab.models.gradients import gradients_from
from netoffload_mpi import MPI, CompComm

COUNT = 4000
Vectors = list[Float32Array]

comm = CompComm(MPI.COMM_WORLD, "inceptionn", 10)


def hop(values: Float32Array) -> Float32Array:
    precision, copy = comm.precision(), values.copy()
    assert precision is not None
    precision.quantiser()(copy)
    return copy


MODELS: dict[str, Callable[[Vectors], Float32Array]] = {
    "ring_comp": lambda vectors: reference.ring_sum(vectors, hop),
    "wa_comp": lambda vectors: reference.aggregated(vectors, 0, hop),
    "hierarchical_comp": lambda vectors: reference.hierarchical_sum(vectors, [[0], [1], [2]], hop),
    "ring": reference.ring_sum,
}


def right(what: str, values: Float32Array) -> None:
    values[:] = MODELS[what](comm.allgather(values))


def exact(_what: str, values: Float32Array) -> None:
    values[:] = reference.ring_sum(comm.allgather(values))


def one_sent_as_zero(what: str, values: Float32Array) -> None:
    right(what, values)
    values[np.argmax(np.abs(values))] = 0


def zeros(_what: str, values: Float32Array) -> None:
    values.fill(0)


def verdict(what: str, reduction: Callable[[str, Float32Array], None]) -> str:
    draw = gradients_from("gaussian:0.002", 1)
    try:
        rank_allreduce.check_answer(comm, what, lambda values: reduction(what, values), COUNT, draw, 1)
    except ReplicaError:
        return "refused"
    return "accepted"


def main() -> None:
    for what in MODELS:
        for reduction in (right, exact, one_sent_as_zero, zeros):
            said = verdict(what, reduction)
            if comm.rank == 0:
                print(what, reduction.__name__, said, flush=True)


if __name__ == "__main__":
    main()
