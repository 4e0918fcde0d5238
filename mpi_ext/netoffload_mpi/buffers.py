"""Buffer specifications as mpi4py takes them, turned into float32 vectors that share the caller's memory.

A specification (a list or tuple) means what it means to mpi4py 4.1 (its ``msgbuffer.pxi``):

- one block: ``x``, ``[x, MPI.FLOAT]``, ``[x, count]``, ``[x, count, MPI.FLOAT]``, ``[x, count, displ, MPI.FLOAT]``; for
  ``count`` also ``(count, displ)``. Without a count the block is all of x after ``displ``.
- blocks of different lengths: the same with ``counts`` and ``displs``, any sequence of one number per rank. A tuple is
  always ``(counts, displs)``. A single number for ``counts`` holds for each block; one for ``displs`` is the distance
  from block to block. Without ``displs`` blocks follow each other.

None as the type means the buffer's own type. x offers the buffer protocol (NumPy, ``array.array``, memoryview) or
DLPack on the CPU (torch), in C's or Fortran's order: values are taken in the order of memory. None for x, with a type,
is a buffer of no floats. Raw octets count as float32 only if the specification says MPI.FLOAT. Everything else is
refused before an octet moves. MPI libraries differ in what they do with a type that they do not know: Open MPI adds
bfloat16 wrongly without an error.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Half
from netoffload.collectives.schedule import Span, consecutive, partition
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError

_FLOAT32_DTYPE = np.dtype(np.float32)
"""The dtype object of nearly every vector; float32 of another octet order has another object."""

_IN_PLACE_TYPE = type(MPI.IN_PLACE)

_FORMS = "give x, [x, MPI.FLOAT] or [x, n, MPI.FLOAT]"


class BufferTypeError(UsageError, TypeError):
    """A buffer that cannot be used: it is not float32, not contiguous, or not in this machine's memory."""


def is_in_place(spec: Any) -> bool:
    """Return whether ``spec`` is ``MPI.IN_PLACE``, or None, which means the same to mpi4py."""
    # Not ==, which arrays would do element by element.
    return spec is None or isinstance(spec, _IN_PLACE_TYPE)


def float_vector(spec: Any, *, writable: bool) -> Float32Array:
    """Return the float32 vector that a buffer specification names, sharing its memory."""
    if type(spec) is np.ndarray and spec.ndim == 1 and spec.dtype is _FLOAT32_DTYPE:  # a fast way for short calls
        flags = spec.flags
        if flags.c_contiguous and (flags.writeable or not writable):
            return spec
    return _block(spec, 1, writable)


def numbers(spec: Any, *, writable: bool) -> tuple[Float32Array, Half | None]:
    """Do :func:`float_vector`, also for 16-bit floats, whose vector is uint16; return it and their type."""
    data = spec[0] if isinstance(spec, list | tuple) and spec else spec
    half = None if getattr(data, "dtype", None) is _FLOAT32_DTYPE else _half_of(data)
    if half is None:
        return float_vector(spec, writable=writable), None
    return _block(spec, 1, writable, half), half


def equal_blocks(spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
    """Return the vector of ``size`` equal blocks, and their places. A count is that of one block, as in mpi4py."""
    vector = _block(spec, size, writable)
    if vector.size % size:
        raise UsageError(f"buffer of {vector.size} floats is not a multiple of {size}, the number of ranks")
    return vector, partition(vector.size, size)


def uneven_blocks(spec: Any, size: int, *, writable: bool) -> tuple[Float32Array, tuple[Span, ...]]:
    """Return the vector of a specification with counts and displacements, and the places of its ``size`` blocks."""
    parts = _split(spec, (tuple,))
    vector = _vector(parts, writable)
    if parts.count is None:
        counts = [len(span) for span in partition(vector.size, size)]
    else:
        counts = [_integer(parts.count)] * size if _is_integer(parts.count) else _integers(parts.count, "counts", size)
    if min(counts) < 0:
        raise UsageError(f"counts {counts}: no block has less than 0 floats")
    if parts.displ is None:
        starts = [span.start for span in consecutive(counts)]
    elif _is_integer(parts.displ):
        starts = [_integer(parts.displ) * number for number in range(size)]
    else:
        starts = _integers(parts.displ, "displacements", size)
    spans = tuple(
        Span(start, start + count) if count else Span(0, 0) for start, count in zip(starts, counts, strict=True)
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
    count: Any = None
    displ: Any = None
    says_float: bool = False


def _split(spec: Any, pairs: tuple[type, ...]) -> _Parts:
    """Return the parts of a specification; a count of a type in ``pairs`` is a pair of count and displacement."""
    if not isinstance(spec, list | tuple):
        return _Parts(spec)
    count: Any = None
    displ: Any = None
    kind: Any = None
    match spec:
        case (data, given):
            count, kind = (None, given) if _is_type(given) else (given, None)
        case (data, count, kind):
            pass
        case (data, count, displ, kind):
            pass
        case _:
            raise BufferTypeError(f"buffer specification of {len(spec)} parts: {_FORMS}")
    if len(spec) < 4 and isinstance(count, pairs):
        pair: Any = count
        if len(pair) != 2:
            raise UsageError(
                f"{count!r} in a buffer specification: a tuple is (count, displacement); counts are a list"
            )
        count, displ = pair
    if kind is not None:
        _check_type(kind)
    return _Parts(data, count, displ, kind is not None)


def _is_type(value: object) -> bool:
    return isinstance(value, MPI.Datatype | str | type | np.dtype)


def _is_integer(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _integer(value: Any) -> int:
    if not _is_integer(value):
        raise BufferTypeError(f"count {value!r} in a buffer specification is not an integer: {_FORMS}")
    return operator.index(value)


def _integers(values: Any, what: str, size: int) -> list[int]:
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError as error:
        raise BufferTypeError(f"{what} {values!r} are not integers: give one per rank") from error
    if len(numbers) != size:
        raise UsageError(f"{what} {numbers}: give one per rank, {size} numbers")
    return numbers


def _check_type(given: Any) -> None:
    known = given == MPI.FLOAT if isinstance(given, MPI.Datatype) else given in ("f", "f4", "float32", np.float32)
    if not known:
        name = given.Get_name() or "of the program's own" if isinstance(given, MPI.Datatype) else repr(given)
        raise BufferTypeError(f"type {name} cannot be sent, only float32: {_FORMS}")


def _block(spec: Any, times: int, writable: bool, half: Half | None = None) -> Float32Array:
    """Return the vector of a specification of one block; its length is ``times`` the count."""
    parts = _split(spec, (list, tuple))
    vector = _vector(parts, writable, half)
    displ = 0 if parts.displ is None else _integer(parts.displ)
    if not 0 <= displ <= vector.size:
        raise UsageError(f"displacement {displ} is outside 0..{vector.size}, the length of the buffer")
    vector = vector[displ:]
    if parts.count is None:
        return vector
    count = _integer(parts.count) * times
    if not 0 <= count <= vector.size:
        raise UsageError(f"count {count} is outside 0..{vector.size}, the length of the buffer")
    return vector[:count]


def _vector(parts: _Parts, writable: bool, half: Half | None = None) -> Float32Array:
    if half is not None and parts.says_float:
        raise BufferTypeError(f"the buffer holds {half.value}, not MPI.FLOAT: leave the type out")
    if half is None and isinstance(parts.data, np.ndarray) and (found := _half_of(parts.data)) is not None:
        raise BufferTypeError(
            f"buffer holds {found.value}: Allreduce_comp takes it, in both buffers; here give float32"
        )
    if isinstance(parts.data, type(MPI.IN_PLACE)):
        raise BufferTypeError("MPI.IN_PLACE stands for a send buffer: give an array")
    if parts.says_float and (parts.data is None or isinstance(parts.data, type(MPI.BOTTOM))):
        return np.empty(0, np.float32)
    octets = _memory(parts.data, writable=writable, raw_allowed=parts.says_float, half=half)
    if writable and octets.readonly:
        raise BufferTypeError("receive buffer is read-only: give a writable one")
    if half is None and len(octets) % 4:
        raise BufferTypeError(f"buffer of {len(octets)} octets is not a whole number of float32")
    vector: Float32Array = np.frombuffer(octets, dtype=np.uint16 if half else np.float32)
    return vector


def _memory(data: Any, *, writable: bool, raw_allowed: bool, half: Half | None) -> memoryview:
    """Return the octets of ``data`` in the order of memory, without a copy."""
    try:
        view = memoryview(data.view(np.uint16).data if half and isinstance(data, np.ndarray) else data)
    except TypeError:
        view = _dlpack_memory(data, writable, half)
    except (BufferError, ValueError) as error:
        raise BufferTypeError(f"buffer cannot be used: {error}") from error
    if not view.contiguous:
        raise BufferTypeError("buffer is not contiguous: make a contiguous copy first")
    kinds = ("H", "=H") if half else ("f", "<f", "=f", "@f", *(("B", "b", "c") if raw_allowed else ()))
    if view.format not in kinds:
        raise BufferTypeError(f"buffer holds {view.format!r} (struct notation), but only float32 can be sent")
    if not view.nbytes:
        return memoryview(bytearray())
    return (view if view.c_contiguous else np.asarray(view).T.data).cast("B")


def _half_of(data: Any) -> Half | None:
    """Return the 16-bit type of NumPy's or DLPack's values; None: they are none."""
    if isinstance(data, np.ndarray):
        kind = data.dtype
        return next((half for half in Half if half.value == kind.name and kind.isnative), None)
    try:
        return _HALVES.get(_dlpack_type(data)) if hasattr(data, "__dlpack__") else None
    except (BufferError, RuntimeError, ValueError, TypeError):
        return None  # whoever takes its memory says what is wrong with it


def _dlpack_memory(data: Any, writable: bool, half: Half | None) -> memoryview[Any]:
    """Return a DLPack tensor's values, flat, through mpi4py."""
    if not hasattr(data, "__dlpack__"):
        raise BufferTypeError(f"{type(data).__name__} is not a buffer: {_FORMS}")
    try:
        if half is None and _dlpack_type(data) != _FLOAT32:
            raise TypeError("it does not hold float32")
        if getattr(data, "is_neg", bool)():  # torch's: a reader changes the signs, and DLPack does not say so
            raise TypeError("its values are negated when they are read: call resolve_neg() first")
        # Not through NumPy, which treats all tensors of producers older than DLPack 1.0 as read-only.
        return MPI.buffer.frombuffer(data, readonly=not writable).cast("H" if half else "f")
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise BufferTypeError(f"{type(data).__name__} cannot be used as a buffer: {error}") from error


_FLOAT32 = (2, 32, 1)  # DLPack's DLDataType of float32: code, bits, lanes
_HALVES: dict[tuple[int, ...], Half] = {(2, 16, 1): Half.FLOAT16, (4, 16, 1): Half.BFLOAT16}

_DLTENSOR_TYPE = struct.Struct("=16x4xBBH")
"""Beginning of a DLTensor: a pointer and a device of 8 octets each, the number of dimensions, the type."""

_DLTENSOR_AT = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Offset of the DLTensor by the name of its capsule; DLPack 1.0 and later use the second."""

_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _dlpack_type(data: Any) -> tuple[int, ...]:
    """Return the type of a DLPack tensor, without taking its memory over."""
    try:
        capsule = data.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = data.__dlpack__()
    name = _capsule_name(capsule)
    at = _capsule_pointer(capsule, name) + _DLTENSOR_AT[name]
    return _DLTENSOR_TYPE.unpack(ctypes.string_at(at, _DLTENSOR_TYPE.size))
