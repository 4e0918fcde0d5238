"""Buffer specifications as mpi4py takes them, turned into float32 vectors that share the caller's memory.

Accepted are ``x``, ``[x, MPI.FLOAT]``, ``[x, n]``, ``[x, n, MPI.FLOAT]`` (tuples likewise) and, where blocks differ in
length, ``[x, counts, MPI.FLOAT]``, ``[x, counts, displs, MPI.FLOAT]``, ``[x, (counts, displs), MPI.FLOAT]``; x offers
the buffer protocol (NumPy, ``array.array``, memoryview) or DLPack on the CPU (torch). Raw octets count as float32 only
where the specification says MPI.FLOAT. Everything else is refused before an octet moves; MPI libraries differ in what
they do with a type they do not know, and a wrong sum without a word (bfloat16 under Open MPI) is among it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Float32Array
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.errors import UsageError

_FORMS = "give x, [x, MPI.FLOAT] or [x, n, MPI.FLOAT]"


class BufferTypeError(UsageError, TypeError):
    """A buffer whose type cannot be exchanged: not float32, not contiguous, not in this machine's memory."""


def is_in_place(spec: Any) -> bool:
    """Return whether ``spec`` is ``MPI.IN_PLACE``."""
    # MPI.IN_PLACE compares with == against anything; arrays would compare element by element.
    return isinstance(spec, type(MPI.IN_PLACE))


def float_vector(spec: Any, *, writable: bool) -> Float32Array:
    """Return the float32 vector that a buffer specification names, sharing its memory.

    Args:
        spec: the specification.
        writable: whether it will be written.

    Raises:
        BufferTypeError: not float32, not C-contiguous, not in main memory, or read-only where it will be written.
        UsageError: a count that is negative or more than there is.
    """
    parts = _split(spec)
    if parts.displs is not None or not (parts.counts is None or _is_integer(parts.counts)):
        raise BufferTypeError(f"counts {parts.counts!r} where one count is meant: {_FORMS}")
    return _cut(_vector(parts, writable), parts.counts)


def equal_blocks(spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
    """Return the vector of a specification that names ``size`` equal blocks, and their places.

    A count in the specification is that of one block, as in mpi4py.

    Raises:
        BufferTypeError: as in :func:`float_vector`.
        UsageError: the length is no multiple of ``size``, or less than the count asks for.
    """
    parts = _split(spec)
    if parts.displs is not None or not (parts.counts is None or _is_integer(parts.counts)):
        raise BufferTypeError(f"counts {parts.counts!r} where all blocks are equal: {_FORMS}")
    vector = _vector(parts, writable)
    if parts.counts is None and vector.size % size:
        raise UsageError(f"buffer of {vector.size} floats is no multiple of {size}, the number of ranks")
    vector = _cut(vector, None if parts.counts is None else int(parts.counts) * size)
    return vector, partition(vector.size, size)


def uneven_blocks(spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
    """Return the vector of a specification with counts and displacements, and the places of its ``size`` blocks.

    Without displacements blocks follow each other; without counts they are as equal as can be.

    Raises:
        BufferTypeError: as in :func:`float_vector`.
        UsageError: not one count (and displacement) per rank, or blocks that reach beyond the buffer.
    """
    parts = _split(spec)
    vector = _vector(parts, writable)
    if parts.counts is None:
        return vector, partition(vector.size, size)
    counts = [int(parts.counts)] * size if _is_integer(parts.counts) else _integers(parts.counts, "counts", size)
    displs = None if parts.displs is None else _integers(parts.displs, "displacements", size)
    spans = (
        consecutive(counts)
        if displs is None
        else tuple(Span(start, start + count) for start, count in zip(displs, counts, strict=True))
    )
    for span in spans:
        if not 0 <= span.start <= span.stop <= vector.size:
            raise UsageError(
                f"block of {len(span)} floats at {span.start} reaches beyond the {vector.size} floats of the buffer"
            )
    return vector, spans


@dataclass(frozen=True)
class _Parts:
    data: Any
    counts: Any = None
    displs: Any = None
    says_float: bool = False


def _split(spec: Any) -> _Parts:
    if not isinstance(spec, list | tuple):
        return _Parts(spec)
    if not 2 <= len(spec) <= 4:
        raise BufferTypeError(f"buffer specification of {len(spec)} parts: {_FORMS}")
    data, *rest = spec
    says_float = not _is_counts(rest[-1])
    if says_float:
        _check_type(rest.pop())
    elif len(rest) == 2 and not _is_counts(rest[0]):
        _check_type(rest[-1])
    if len(rest) == 1 and isinstance(rest[0], list | tuple) and rest[0] and not _is_integer(rest[0][0]):
        rest = list(rest[0])  # (counts, displs)
        if len(rest) != 2:
            raise BufferTypeError(f"counts {spec[1]!r} in a buffer specification: {_FORMS}")
    for part in rest:
        if not (part is None or _is_counts(part)):
            raise BufferTypeError(f"count {part!r} in a buffer specification is no integer: {_FORMS}")
    if len(rest) > 2:
        raise BufferTypeError(f"buffer specification of {len(spec)} parts without a type at its end: {_FORMS}")
    return _Parts(data, rest[0] if rest else None, rest[1] if len(rest) == 2 else None, says_float)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_counts(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(item is None or _is_counts(item) for item in value)
    return _is_integer(value) or (isinstance(value, np.ndarray) and value.dtype.kind in "iu")


def _integers(values: Any, what: str, size: int) -> list[int]:
    numbers = [int(value) for value in values] if not _is_integer(values) else [int(values)]
    if len(numbers) != size or (what == "counts" and min(numbers, default=0) < 0):
        raise UsageError(f"{what} {numbers}: give one per rank, {size} numbers that are not negative")
    return numbers


def _cut(vector: Float32Array, count: int | None) -> Float32Array:
    if count is None:
        return vector
    if not 0 <= count <= vector.size:
        raise UsageError(f"count {count} is outside 0..{vector.size}, the length of the buffer")
    return vector[:count]


def _check_type(given: object) -> None:
    if given not in (MPI.FLOAT, "f", "f4", "float32", np.float32):
        name = given.Get_name() if isinstance(given, MPI.Datatype) else repr(given)
        raise BufferTypeError(f"type {name} cannot be exchanged here, only float32: {_FORMS}")


def _vector(parts: _Parts, writable: bool) -> Float32Array:
    octets = _memory(parts.data, raw_allowed=parts.says_float)
    if writable and octets.readonly:
        raise BufferTypeError("receive buffer is read-only")
    if len(octets) % 4:
        raise BufferTypeError(f"buffer of {len(octets)} octets is no whole number of float32")
    vector: Float32Array = np.frombuffer(octets, dtype=np.float32)
    return vector


def _memory(data: Any, *, raw_allowed: bool) -> memoryview:
    """Return the octets of ``data`` without a copy."""
    try:
        view = memoryview(data)
    except TypeError:
        view = _dlpack_memory(data)
    except (BufferError, ValueError) as error:
        raise BufferTypeError(f"buffer cannot be used: {error}") from error
    if not view.c_contiguous:
        raise BufferTypeError("buffer is not C-contiguous: make a contiguous copy first")
    kinds = ("f", "<f", "=f", "@f", *(("B", "b", "c") if raw_allowed else ()))
    if view.format not in kinds:
        raise BufferTypeError(f"buffer holds {view.format!r} (struct notation), only float32 can be exchanged here")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _dlpack_memory(data: Any) -> memoryview:
    if not hasattr(data, "__dlpack__"):
        raise BufferTypeError(f"{type(data).__name__} is no buffer: {_FORMS}")
    try:
        return np.from_dlpack(data).data
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise BufferTypeError(f"{type(data).__name__} cannot be used as a buffer: {error}") from error
