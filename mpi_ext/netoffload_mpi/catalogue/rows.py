"""Rows of the catalogue, and the methods that are made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

from netoffload.compiled.arrays import Float32Array
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plans import Place, Plan
from netoffload_mpi.requests import CompRequest

if TYPE_CHECKING:
    from netoffload_mpi.verify.cases import Case
    from netoffload_mpi.verify.cases import Place as TriedPlace

P = ParamSpec("P")

Family = Callable[[Any, Float32Array], Any]
"""A call of a CompComm on a vector of ``verify.failures.LONG_FLOATS``, which is repeated until a rank is lost."""

SHORT_FLOATS: Final = 1_000
"""Length at which, on up to nine ranks, an allreduce is not a ring (``gathering.is_short``), and trees are binomial."""


@dataclass(frozen=True)
class Row:
    """One collective.

    Attributes:
        name: name of the blocking method.
        plan: makes a plan from the method's arguments.
        cases: makes the cases to try on one communicator.
        families: calls that must name a lost rank, by their names in the report.
    """

    name: str
    plan: Callable[..., Plan]
    cases: Callable[[TriedPlace], Iterator[Case]]
    families: Mapping[str, Family]


CATALOGUE: Final[list[Row]] = []
"""All rows, in the order in which they are tried."""


def row(
    name: str,
    plan: Callable[Concatenate[Place, P], Plan],
    cases: Callable[[TriedPlace], Iterator[Case]],
    families: Mapping[str, Family],
) -> tuple[Callable[Concatenate[PlaneComm, P], None], Callable[Concatenate[PlaneComm, P], CompRequest]]:
    """Add a row to the catalogue; return the blocking method and the one that starts it, with the plan's arguments."""
    CATALOGUE.append(Row(name, plan, cases, families))

    def call(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> None:
        self._run(plan, arguments, options)

    def start(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> CompRequest:
        return self._start(plan, arguments, options)

    call.__name__, start.__name__ = name, f"I{name[0].lower()}{name[1:]}"
    call.__doc__, start.__doc__ = plan.__doc__, f"Start :meth:`{name}`."
    call.__dict__["__wrapped__"] = start.__dict__["__wrapped__"] = plan  # help() shows the plan's signature
    return call, start


def short(values: Float32Array) -> Float32Array:
    """Return the part of a vector that short calls use; they take another algorithm than long ones."""
    return values[:SHORT_FLOATS]


def equal_parts(comm: PlaneComm, values: Float32Array) -> Float32Array:
    """Return the longest part of a vector that can be cut into equal parts for all ranks."""
    return values[: values.size // comm.size * comm.size]


def described(*parts: str) -> str:
    """Describe a case by those of its properties that are not empty."""
    return ", ".join(filter(None, parts))
