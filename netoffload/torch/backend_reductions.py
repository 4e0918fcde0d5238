"""Exact reductions of vectors: those that rings do, and those that take an all-to-all.

Rings do sum, product, minimum and maximum. AND, OR and XOR work octet by octet, so they need no type. Every rank gets
one part of all vectors (``alltoall``), combines them in the order of the ranks, and sends the result to all
(``ring_allgather``). Both ways carry 2(p-1)/p n octets, and leave the same bits on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch.distributed import ReduceOp

from netoffload.collectives import (
    Operation,
    alltoall,
    is_short,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
)
from netoffload.collectives.exchange import Vector
from netoffload.collectives.ring import allreduce_round
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.collectives.transfer import aborting_on_error
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.torch.backend_words import ADDED_AS
from netoffload.transport import DataPlane

_KINDS: Final[Sequence[tuple[Any, Operation, np.ufunc | None]]] = (
    (ReduceOp.SUM, Operation.SUM, None),
    (ReduceOp.AVG, Operation.SUM, None),
    (ReduceOp.PRODUCT, Operation.PROD, None),
    (ReduceOp.MIN, Operation.MIN, None),
    (ReduceOp.MAX, Operation.MAX, None),
    (ReduceOp.BAND, Operation.SUM, np.bitwise_and),
    (ReduceOp.BOR, Operation.SUM, np.bitwise_or),
    (ReduceOp.BXOR, Operation.SUM, np.bitwise_xor),
)
"""Torch's operations, and ours. (A list, because a ``ReduceOp`` equals its ``RedOpType`` but has another hash.)"""


@dataclass(frozen=True)
class Reduction:
    """How the values of all ranks are reduced.

    Attributes:
        operation: how two values are combined.
        bitwise: used instead of ``operation`` if octets are combined; else None.
        is_average: the sum is divided by the number of ranks.
        name: torch's name of the reduction.
    """

    operation: Operation
    bitwise: np.ufunc | None
    is_average: bool
    name: str

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype) -> Reduction:
        """Return the reduction for torch's ``op``.

        Raises:
            UsageError: this type has no such operation.
        """
        for index, (one, _, _) in enumerate(_KINDS):
            if op == one and (found := _reduction(index, dtype)) is not None:
                return found
        name = next((_name(one) for one, _, _ in _KINDS if op == one), "such reduction")
        raise UsageError(f"there is no {name} of {dtype} tensors: convert them first")

    def finish(self, values: Vector, size: int) -> None:
        """Turn sums into averages if ``is_average``; those of integers are cut towards zero."""
        if self.is_average and values.dtype.kind == "f":
            np.divide(values, values.dtype.type(size), out=values)
        elif self.is_average:
            wide = values.astype(np.int64)
            np.copyto(values, wide // size + ((wide < 0) & (wide % size != 0)), casting="unsafe")


@functools.cache
def _reduction(index: int, dtype: torch.dtype) -> Reduction | None:
    """Return the reduction in a row of ``_KINDS`` for a type; None: the type has no such operation."""
    one, operation, ufunc = _KINDS[index]
    is_average = one is ReduceOp.AVG
    if dtype.is_complex:
        has_operation = operation is Operation.SUM and ufunc is None
    else:
        is_float, is_bool = dtype.is_floating_point, dtype is torch.bool
        has_operation = dtype in ADDED_AS and not (is_float and ufunc is not None) and not (is_bool and is_average)
    return Reduction(operation, ufunc, is_average, _name(one)) if has_operation else None


def _name(op: Any) -> str:
    return str(op).rpartition(".")[2]


def all_reduce(plane: DataPlane, values: Vector, reduction: Reduction) -> None:
    """Replace ``values`` on every rank by the reduction over all ranks, in place; collective.

    Args:
        plane: the ranks.
        values: contiguous vector, equally long and of the same type on all ranks.
        reduction: how they are reduced; not a bitwise one.

    Raises:
        CollectiveError: ranks disagree on length, type or operation.
        PeerLostError: a rank is lost.
    """
    exchange, operation = plane.exchange, reduction.operation
    if values.dtype.char == "f" and is_short(values.size, exchange.size):
        floats = cast("Float32Array", values)
        plane.short_allreduce(values.size, operation, tagged=False)(floats, floats)
    else:
        ring_allreduce(exchange, values, tagged=False, operation=operation, chunk_floats=plane.chunk_floats())
    reduction.finish(values, exchange.size)


def compressed_all_reduce(plane: DataPlane, values: Float32Array, reduction: Reduction) -> None:
    """Do :func:`all_reduce` over the channels that a plane compresses, for ranks that have met on another plane."""
    exchange, operation = plane.exchange, reduction.operation
    if is_short(values.size, exchange.size):
        plane.short_allreduce(values.size, operation, tagged=True)(values, values)
    else:
        with aborting_on_error(exchange):
            allreduce_round(
                exchange,
                values,
                tagged=True,
                operation=operation,
                quantise=plane.quantise,
                chunk_floats=plane.chunk_floats(),
            )
    reduction.finish(values, exchange.size)


def reduce_scatter(plane: DataPlane, values: Vector, spans: Sequence[Span], reduction: Reduction) -> None:
    """Leave on rank r, in ``values[spans[r]]``, the reduction of that span over all ranks.

    The rest of ``values`` is overwritten. Arguments and errors are those of :func:`all_reduce`.
    """
    exchange = plane.exchange
    chunk_floats = plane.chunk_floats()
    operation = reduction.operation
    ring_reduce_scatter(exchange, values, spans, tagged=False, operation=operation, chunk_floats=chunk_floats)
    own = spans[exchange.rank]
    reduction.finish(values[own.start : own.stop], exchange.size)


def bitwise_reduce_scatter(plane: DataPlane, words: Float32Array, spans: Sequence[Span], ufunc: np.ufunc) -> None:
    """Do :func:`reduce_scatter` with octets."""
    exchange, own = plane.exchange, spans[plane.exchange.rank]
    theirs = np.empty(exchange.size * len(own), np.float32)
    alltoall(exchange, words, spans, theirs, consecutive([len(own)] * exchange.size), tagged=False)
    rows = theirs.view(np.uint32).reshape(exchange.size, len(own))
    words.view(np.uint32)[own.start : own.stop] = ufunc.reduce(rows, axis=0)


def bitwise_all_reduce(plane: DataPlane, words: Float32Array, ufunc: np.ufunc) -> None:
    """Do :func:`all_reduce` with octets."""
    spans = partition(words.size, plane.exchange.size)
    bitwise_reduce_scatter(plane, words, spans, ufunc)
    ring_allgather(plane.exchange, words, spans, tagged=False)
