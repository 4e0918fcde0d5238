"""A row of the catalogue: the two methods that are made from a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plans import Place, Plan
from netoffload_mpi.requests import CompRequest

P = ParamSpec("P")


def row(
    name: str, plan: Callable[Concatenate[Place, P], Plan]
) -> tuple[Callable[Concatenate[PlaneComm, P], None], Callable[Concatenate[PlaneComm, P], CompRequest]]:
    """Return the blocking method of this name and the one that starts it, with the plan's arguments."""

    def call(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> None:
        self._run(plan, arguments, options)

    def start(self: PlaneComm, /, *arguments: P.args, **options: P.kwargs) -> CompRequest:
        return self._start(plan, arguments, options)

    call.__name__, start.__name__ = name, f"I{name[0].lower()}{name[1:]}"
    call.__doc__, start.__doc__ = plan.__doc__, f"Start :meth:`{name}`."
    call.__dict__["__wrapped__"] = start.__dict__["__wrapped__"] = plan  # help() shows the plan's signature
    return call, start
