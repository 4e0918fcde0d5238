"""Plans: a collective's checked arguments, as a function of the data plane that carries the call out.

To make a plan uses nothing but the arguments. So a wrong type is refused before an octet moves, and in the caller's
thread, even if another thread carries the plan out. The plans are in ``catalogue``; this module has what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Operation
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi.buffers import float_vector, is_in_place
from netoffload_mpi.plane import MpiPlane

_OPERATIONS = (
    (MPI.SUM, Operation.SUM),
    (MPI.MAX, Operation.MAX),
    (MPI.MIN, Operation.MIN),
    (MPI.PROD, Operation.PROD),
)


class Plan(NamedTuple):
    """A call that can be carried out."""

    run: Callable[[MpiPlane], None]  # carries the call out
    lanes: tuple[Lane, ...] = (Lane.TAGGED,)  # the lanes that carry its data
    calling: str = ""  # the call in words, if the algorithm's name does not say all that must be the same on all ranks


class Place(NamedTuple):
    """Where this rank is in its communicator."""

    rank: int
    size: int


def operation_of(op: MPI.Op) -> Operation:
    """Return the operation for one of MPI's."""
    for known, operation in _OPERATIONS:
        if op == known:
            return operation
    raise UsageError("only MPI.SUM, MAX, MIN and PROD can be reduced here: use mpi4py's own calls for other operations")


def source_of(sendbuf: Any, target: Float32Array) -> Float32Array | None:
    """Return the send buffer, of the target's length; None if it is the target."""
    if is_in_place(sendbuf):
        return None
    source = float_vector(sendbuf, writable=False)
    if source.size != target.size:
        raise UsageError(f"send buffer of {source.size} floats, receive buffer of {target.size}: make them equal")
    return source


def not_in_place(spec: Any) -> Any:
    """Return a specification if it names a buffer."""
    if is_in_place(spec):
        raise UsageError("MPI.IN_PLACE and None are for the root only: give this rank's buffer")
    return spec


def check_root(place: Place, root: int) -> None:
    """Raise UsageError if ``root`` is not a rank."""
    if not 0 <= root < place.size:
        raise UsageError(f"root {root} is not a rank: there are {place.size}, counted from 0")


def copy(target: Float32Array, source: Float32Array | None) -> None:
    """Copy ``source`` to ``target``, unless they are the same memory."""
    if source is not None and target.size and target.ctypes.data != source.ctypes.data:
        np.copyto(target, source)
