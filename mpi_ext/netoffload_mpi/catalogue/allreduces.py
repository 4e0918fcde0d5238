"""The allreduce: its plan, and cases of every operation, algorithm and form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from netoffload.collectives import (
    Groups,
    Operation,
    aggregator_allreduce,
    hierarchical_allreduce,
    is_short,
    reference,
    ring_allreduce,
)
from netoffload.collectives.announcement import Announcement, Call, meet
from netoffload.collectives.hierarchy import default_groups
from netoffload.collectives.transfer import aborting_on_error
from netoffload.compiled.arrays import Float32Array
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi.buffers import float_vector
from netoffload_mpi.catalogue.rows import row, short
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plane import MpiPlane
from netoffload_mpi.plans import Place, Plan, copy, operation_of, source_of
from netoffload_mpi.verify.cases import OPS, Case, Observed, Prepared, Rounding, nothing
from netoffload_mpi.verify.cases import Place as TriedPlace

ALGORITHMS = ("ring", "hierarchical", "wa", "mpi")
"""Algorithms of an allreduce: one ring; rings of rings; an aggregator; plain MPI, uncompressed."""


class AllreduceOptions(NamedTuple):
    """How an allreduce is done; ``CompComm.Allreduce_comp`` describes the fields."""

    algorithm: str = "ring"
    groups: Groups | None = None
    top: str = "ring"
    average: bool = False
    tagged: bool = True

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that carry data; what an aggregator sends down is untagged."""
        if not self.tagged:
            return (Lane.UNTAGGED,)
        has_aggregator = self.algorithm == "wa" or (self.algorithm == "hierarchical" and self.top == "wa")
        return (Lane.TAGGED, Lane.UNTAGGED) if has_aggregator else (Lane.TAGGED,)


def plan_allreduce(
    place: Place,
    sendbuf: Any,
    recvbuf: Any,
    op: MPI.Op = MPI.SUM,
    *,
    algorithm: str = "ring",
    groups: Groups | None = None,
    top: str = "ring",
    average: bool = False,
) -> Plan:
    """Reduce over all ranks, to all ranks, which end with bit-identical values.

    The codec's error is added once per hop.

    Args:
        sendbuf: this rank's values, or ``MPI.IN_PLACE``.
        recvbuf: buffer for the result; of the same length on all ranks.
        op: ``MPI.SUM``, ``MAX``, ``MIN`` or ``PROD``.
        algorithm: ``ring``; ``hierarchical`` (rings of rings); ``wa`` (rank 0 aggregates; only what goes up is
            tagged); ``mpi`` (plain MPI, uncompressed).
        groups: for ``hierarchical``: lists of ranks, the same on all ranks. Default: the ranks of each /24 network, or
            on one network groups of about the square root of the number of ranks.
        top: for ``hierarchical``: how the groups' sums are added, ``ring`` or ``wa``.
        average: divide the sum by the number of ranks.
    """
    return _plan_allreduce(place, sendbuf, recvbuf, op, AllreduceOptions(algorithm, groups, top, average))


def plan_allreduce_ring(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> Plan:
    """Do :meth:`Allreduce_comp` untagged: the uncompressed baseline, exact float32."""
    return _plan_allreduce(place, sendbuf, recvbuf, op, AllreduceOptions(tagged=False))


def _plan_allreduce(place: Place, sendbuf: Any, recvbuf: Any, op: MPI.Op, options: AllreduceOptions) -> Plan:
    operation = operation_of(op)
    check_choice("algorithm", options.algorithm, ALGORITHMS)
    if options.average and operation is not Operation.SUM:
        raise UsageError("average=True goes with MPI.SUM only")
    values = float_vector(recvbuf, writable=True)
    source = source_of(sendbuf, values)
    tagged = options.tagged
    calling = f"Allreduce_comp of {values.size} floats with average=True" if options.average else ""
    divisor = np.float32(place.size) if options.average else None

    def run_short(plane: MpiPlane) -> None:
        call = plane.short_allreduce(values.size, operation, tagged=tagged)
        call(values if source is None else source, values)
        if divisor is not None:
            np.divide(values, divisor, out=values)

    if options.algorithm == "ring" and is_short(values.size, place.size):
        return Plan(run_short, options.lanes, calling)

    def run(plane: MpiPlane) -> None:
        exchange, chunk_floats = plane.exchange, plane.chunk_floats()
        quantise = plane.quantise if tagged else None
        copy(values, source)
        if options.algorithm == "mpi":
            with aborting_on_error(exchange):
                meet(exchange, Announcement(Call.PLAIN_ALLREDUCE, values.size, False, operation))
            plane.mpi.Allreduce(MPI.IN_PLACE, [values, MPI.FLOAT], op)
        elif options.algorithm == "wa":
            aggregator_allreduce(exchange, values, tagged=tagged, operation=operation)
        elif options.algorithm == "hierarchical":
            groups = plane.groups() if options.groups is None else options.groups
            hierarchical_allreduce(
                exchange,
                values,
                groups,
                tagged=tagged,
                top=options.top,
                operation=operation,
                quantise=quantise,
                chunk_floats=chunk_floats,
            )
        else:
            ring_allreduce(
                exchange,
                values,
                tagged=tagged,
                operation=operation,
                quantise=quantise,
                chunk_floats=chunk_floats,
            )
        if divisor is not None:
            np.divide(values, divisor, out=values)

    return Plan(run, options.lanes, calling)


def _allreduces(at: TriedPlace) -> Iterator[Case]:
    """Every algorithm with every operation, in place and not; averages; groups of all kinds."""
    # The order in which plain MPI adds is unknown, so its result is known only if every order is exact.
    for algorithm in ALGORITHMS if at.exact else ALGORITHMS[:-1]:
        for op in OPS:
            yield _allreduce(at, op, in_place=False, algorithm=algorithm)
        yield _allreduce(at, MPI.SUM, in_place=True, algorithm=algorithm)
        yield _allreduce(at, MPI.SUM, in_place=True, algorithm=algorithm, average=True)
    yield _allreduce(at, MPI.SUM, in_place=False, algorithm="hierarchical", top="wa")
    for groups in ([[0], list(range(at.size - 1, 0, -1))], [list(range(at.size))]):
        if all(groups):
            yield _allreduce(at, MPI.MAX, in_place=True, algorithm="hierarchical", groups=groups)
            yield _allreduce(at, MPI.SUM, in_place=False, algorithm="hierarchical", groups=groups)
            yield _allreduce(at, MPI.SUM, in_place=True, algorithm="hierarchical", groups=groups, top="wa")


def _rings(at: TriedPlace) -> Iterator[Case]:
    for op in OPS:
        case = _allreduce(at, op, in_place=op == MPI.MIN, algorithm="ring")
        model: Callable[[], Observed] = functools.partial(_untagged_sum, at, op)
        yield Case("Allreduce", case.variant, case.make, model=model, label="Allreduce_ring", ours="Allreduce_ring")


def _untagged_sum(at: TriedPlace, op: MPI.Op) -> Observed:
    return (reference.ring_sum(at.vectors(op), None, operation_of(op)),)


def _allreduce(at: TriedPlace, op: MPI.Op, *, in_place: bool, **options: Any) -> Case:
    own, operation = at.own(op), operation_of(op)

    def make(_: Rounding) -> Prepared:
        target = own.copy() if in_place else nothing(at.count)
        return Prepared((MPI.IN_PLACE if in_place else own, target, op), (target,))

    def model() -> Observed:
        total = _allreduced(at, at.vectors(op), operation, options)
        return (total / np.float32(at.size) if options.get("average") else total,)

    words = [operation.name, "in place" if in_place else "", *(f"{name}={value}" for name, value in options.items())]
    return Case(
        "Allreduce",
        ", ".join(filter(None, words)),
        make,
        options,
        None if options["algorithm"] == "mpi" else model,
        at.size if options.get("average") else 1,
        f"Allreduce_comp {options['algorithm']}",
    )


def _allreduced(
    at: TriedPlace, vectors: Sequence[Float32Array], operation: Operation, options: Mapping[str, Any]
) -> Float32Array:
    """Return the oracle's result, rounded as owners round the blocks that they send to others."""
    if options["algorithm"] == "wa":
        return reference.aggregated(vectors, 0, at.hop, operation)
    if options["algorithm"] == "ring":
        total = reference.ring_sum(vectors, at.hop, operation)
        return at.rounding.owner(total) if at.size > 1 else total
    top, groups = options.get("top", "ring"), options.get("groups") or default_groups(at.size)
    total = reference.hierarchical_sum(vectors, groups, at.hop, operation, top)
    has_owner = at.size > 1 and (top == "ring" or max(map(len, groups)) > 1)
    return at.rounding.owner(total) if has_owner else total


class Allreduces(PlaneComm):
    """The calls that reduce to all ranks; :class:`~netoffload_mpi.comm.CompComm` says what calls have in common."""

    Allreduce_comp, Iallreduce_comp = row(
        "Allreduce_comp",
        plan_allreduce,
        _allreduces,
        {
            "allreduce, ring": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, values),
            "allreduce, short": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, short(values)),
            "allreduce, hierarchical": lambda comm, values: comm.Allreduce_comp(
                MPI.IN_PLACE, values, algorithm="hierarchical", groups=[[0, 1], list(range(2, comm.size))]
            ),
            "allreduce, wa": lambda comm, values: comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm="wa"),
        },
    )
    Allreduce_ring = row("Allreduce_ring", plan_allreduce_ring, _rings, {})[0]
