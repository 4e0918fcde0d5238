"""Reductions of vectors: those that rings do, those that take an all-to-all, sums that compress, sparse sums.

Rings do sum, product, minimum and maximum. AND, OR and XOR work octet by octet, so they need no type. Every rank gets
one part of all vectors (``alltoall``), combines them in the order of the ranks, and sends the result to all
(``ring_allgather``). Both ways carry 2(p-1)/p n octets, and leave the same bits on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ReduceOp

from netoffload import collectives
from netoffload.collectives import Half, Operation
from netoffload.collectives.exchange import Vector
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.compiled.arrays import Float32Array, Uint16Array
from netoffload.errors import UsageError
from netoffload.methods import scales
from netoffload.torch.backend_words import ADDED_AS, Numbers
from netoffload.torch.staging import HALVES, StagedSparse
from netoffload.transport import Calls, DataPlane, Lane

SEGMENT_FLOATS: Final = 4096
SEGMENTS_MAX: Final = 256
"""Longer tensors have longer segments: the ranks exchange a float for each."""


@dataclass(frozen=True)
class Reduction:
    """How the values of all ranks are reduced."""

    name: str  # torch's
    operation: Operation  # how two values are combined
    bitwise: np.ufunc | None = None  # used instead if octets are combined
    is_average: bool = False  # the sum is divided by the number of ranks

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype) -> Reduction:
        """Return the reduction for torch's ``op``; UsageError if this type has no such operation."""
        reduction = next((ours for theirs, ours in _KINDS if op == theirs), None)
        if reduction is None:
            names = ", ".join(ours.name for _, ours in _KINDS)
            raise UsageError(f"there is no such reduction: take one of {names}")
        if not _has(dtype, reduction):
            raise UsageError(f"there is no {reduction.name} of {dtype} tensors: convert them first")
        return reduction

    def finish(self, values: Vector, size: int) -> None:
        """Turn sums into averages if ``is_average``; those of integers are cut towards zero."""
        if self.is_average and values.dtype.kind == "f":
            np.divide(values, values.dtype.type(size), out=values)
        elif self.is_average:
            wide = values.astype(np.int64)
            np.copyto(values, wide // size + ((wide < 0) & (wide % size != 0)), casting="unsafe")


_KINDS: Final = [
    (getattr(ReduceOp, one.name), one)
    for one in (
        Reduction("SUM", Operation.SUM),
        Reduction("AVG", Operation.SUM, is_average=True),
        Reduction("PRODUCT", Operation.PROD),
        Reduction("MIN", Operation.MIN),
        Reduction("MAX", Operation.MAX),
        Reduction("BAND", Operation.SUM, np.bitwise_and),
        Reduction("BOR", Operation.SUM, np.bitwise_or),
        Reduction("BXOR", Operation.SUM, np.bitwise_xor),
    )
]
"""Torch's operations, and ours. (A list, because a ``ReduceOp`` equals its ``RedOpType`` but has another hash.)"""


def _has(dtype: torch.dtype, reduction: Reduction) -> bool:
    """Return whether a type has a reduction."""
    is_bitwise = reduction.bitwise is not None
    if dtype.is_complex:
        return reduction.operation is Operation.SUM and not is_bitwise
    if dtype.is_floating_point:
        return dtype in ADDED_AS and not is_bitwise
    return dtype in ADDED_AS and not (dtype is torch.bool and reduction.is_average)


def all_reduce(
    plane: DataPlane, values: Vector, reduction: Reduction, half: Half | None = None, *, tagged: bool = False
) -> None:
    """Replace ``values``, contiguous, on every rank by the reduction over all ranks; not a bitwise one; collective.

    ``half`` is their type if they are 16-bit floats. ``tagged`` ones take the channels that a plane compresses, if
    the ranks have met on another plane; 16-bit floats do so where every bit is kept.
    """
    if half is None:
        plane.allreduce(values, reduction.operation, tagged=tagged, have_met=tagged)
        reduction.finish(values, plane.exchange.size)
        return
    divisor = plane.exchange.size if reduction.is_average else 1
    plane.allreduce_halves(cast("Uint16Array", values), half, reduction.operation, tagged=tagged, divisor=divisor)


def move_from(plane: DataPlane, words: Float32Array, root: int) -> None:
    """Replace words of any types on all ranks by the root's; collective."""
    plane.move(words.nbytes, lambda tagged: collectives.broadcast(plane.exchange, words, root=root, tagged=tagged))


def move_to_all(plane: DataPlane, words: Float32Array, spans: Sequence[Span]) -> None:
    """Fill ``words[spans[r]]`` with that of rank r; collective."""
    plane.move(words.nbytes, lambda tagged: collectives.ring_allgather(plane.exchange, words, spans, tagged=tagged))


def reduce_scatter(
    plane: DataPlane, values: Vector, spans: Sequence[Span], reduction: Reduction, half: Half | None = None
) -> None:
    """Leave on rank r, in ``values[spans[r]]``, the reduction of that span over all ranks.

    The rest of ``values`` is overwritten.
    """
    exchange, own, operation = plane.exchange, spans[plane.exchange.rank], reduction.operation
    if half is not None:
        halves, divisor = cast("Uint16Array", values), exchange.size if reduction.is_average else 1
        total = collectives.reduce_scatter_halves(
            exchange, halves, spans, half, tagged=False, operation=operation, divisor=divisor
        )
        halves[own.start : own.stop] = half.narrowed(total)
        return
    chunk_floats = plane.chunk_floats()
    collectives.ring_reduce_scatter(
        exchange, values, spans, tagged=False, operation=operation, chunk_floats=chunk_floats
    )
    reduction.finish(values[own.start : own.stop], exchange.size)


def bitwise_reduce_scatter(plane: DataPlane, words: Float32Array, spans: Sequence[Span], ufunc: np.ufunc) -> None:
    """Do :func:`reduce_scatter` with octets."""
    exchange, own = plane.exchange, spans[plane.exchange.rank]
    theirs = np.empty(exchange.size * len(own), np.float32)
    collectives.alltoall(exchange, words, spans, theirs, consecutive([len(own)] * exchange.size), tagged=False)
    rows = theirs.view(np.uint32).reshape(exchange.size, len(own))
    words.view(np.uint32)[own.start : own.stop] = ufunc.reduce(rows, axis=0)


def bitwise_all_reduce(plane: DataPlane, words: Float32Array, ufunc: np.ufunc) -> None:
    """Do :func:`all_reduce` with octets."""
    spans = partition(words.size, plane.exchange.size)
    bitwise_reduce_scatter(plane, words, spans, ufunc)
    collectives.ring_allgather(plane.exchange, words, spans, tagged=False)


class ScaledSum:
    """Sums one tensor after the other over a plane that compresses, each in its scale.

    A tensor has no layers, no name and no history. So it is cut into segments, and each has a scale that follows from
    it. DDP's buckets are such tensors, in which layers lie one after the other.
    """

    def __init__(self, scale: float | str | None, compressed: Calls[DataPlane]) -> None:
        self._is_auto, self._fixed = scale == scales.AUTO, scales.fixed_exponent(scale)
        self._compressed = compressed

    def takes(self, numbers: Numbers) -> bool:
        """Return whether sums of these numbers are compressed: float32; 16-bit floats if every bit is kept."""
        plane = self._compressed.plane
        keeps_bits = plane.precision is not None and plane.keeps_bits
        return numbers.dtype is torch.float32 or (keeps_bits and numbers.half is not None)

    def __call__(self, plane: DataPlane, values: Float32Array, reduction: Reduction, half: Half | None) -> None:
        """Do :func:`all_reduce`; the ranks meet on ``plane``, the exact one. Values that are not finite stay there."""
        parts = [] if half else _segments(values)
        exponents = self._meet(plane, parts)
        if exponents is None:
            all_reduce(plane, values, reduction)
            return
        for part, exponent in zip(parts, exponents, strict=True):
            scales.multiply(part, exponent)
        self._compressed.run(lambda other: all_reduce(other, values, reduction, half, tagged=True), (Lane.TAGGED,))
        for part, exponent in zip(parts, exponents, strict=True):
            scales.multiply(part, -exponent)

    def _meet(self, plane: DataPlane, parts: list[Float32Array]) -> list[int] | None:
        """Meet the other ranks, and return each part's exponent; None: a value is not finite."""
        precision = self._compressed.plane.precision
        rms = None if precision is None else scales.codec_rms(precision.codec)
        if not self._is_auto or rms is None:
            collectives.barrier(plane.exchange)
            return [self._fixed] * len(parts)
        maximum = plane.short_allreduce(scales.meeting_floats(len(parts)), Operation.MAX, tagged=False)
        loudness, _ = scales.meet_loudest(parts, maximum)
        return scales.exponents_for(rms, loudness, [part.size for part in parts])


def _segments(values: Float32Array) -> list[Float32Array]:
    """Return views of a vector's segments; they depend on its length only, and so are the same on every rank."""
    length = max(SEGMENT_FLOATS, -(-values.size // SEGMENTS_MAX))
    return np.split(values, range(length, values.size, length))


def sparse_sum(plane: DataPlane, tensor: Tensor) -> None:
    """Replace a sparse COO tensor on every rank by the sum over all ranks; collective."""
    staged = StagedSparse(tensor, torch.float32 if tensor.dtype in HALVES else tensor.dtype)
    staged.add_up(collectives.allgather_payloads(plane.exchange, staged.payload()))
    with torch.no_grad():  # not detach(): a detached sparse tensor has indices of its own
        tensor.copy_(staged.put_back())
