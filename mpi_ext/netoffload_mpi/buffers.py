"""Buffer specifications as mpi4py takes them, turned into float32 vectors that share the caller's memory.

Accepted: ``x``, ``[x, MPI.FLOAT]``, ``[x, n, MPI.FLOAT]`` (tuples likewise), where x offers the buffer protocol (NumPy,
``array.array``, memoryview) or DLPack on the CPU (torch). Raw octets count as float32 only where the specification
says MPI.FLOAT. Everything else is refused before an octet moves; MPI libraries differ in what they do with a type
they do not know, and a wrong sum without a word (bfloat16 under Open MPI) is among it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Float32Array
from netoffload.errors import UsageError

_FORMS = "give x, [x, MPI.FLOAT] or [x, n, MPI.FLOAT]"


class BufferTypeError(UsageError, TypeError):
    """A buffer whose type cannot be reduced: not float32, not contiguous, not in this machine's memory."""


def float_vector(spec: Any, *, writable: bool) -> Float32Array:
    """Return the float32 vector that a buffer specification names, sharing its memory.

    Args:
        spec: the specification.
        writable: whether it will be written.

    Raises:
        BufferTypeError: not float32, not C-contiguous, not in main memory, or read-only where it will be written.
        UsageError: a count that is negative or more than there is.
    """
    data, count, says_float = _split(spec)
    octets = _memory(data, raw_allowed=says_float)
    if writable and octets.readonly:
        raise BufferTypeError("receive buffer is read-only")
    if len(octets) % 4:
        raise BufferTypeError(f"buffer of {len(octets)} octets is no whole number of float32")
    vector: Float32Array = np.frombuffer(octets, dtype=np.float32)
    if count is None:
        return vector
    if not 0 <= count <= vector.size:
        raise UsageError(f"count {count} is outside 0..{vector.size}, the length of the buffer")
    return vector[:count]


def _split(spec: Any) -> tuple[Any, int | None, bool]:
    """Return data, count and whether the specification names MPI.FLOAT."""
    if not isinstance(spec, list | tuple):
        return spec, None, False
    if len(spec) not in (2, 3):
        raise BufferTypeError(f"buffer specification of {len(spec)} parts: {_FORMS}")
    count = spec[1] if len(spec) == 3 else None
    if isinstance(spec[-1], int | np.integer):  # [x, n]: the type is that of x
        return spec[0], int(spec[-1]) if len(spec) == 2 else _refuse_type(spec[-1]), False
    if count is not None and not isinstance(count, int | np.integer):
        raise BufferTypeError(f"count {count!r} in a buffer specification is no integer: {_FORMS}")
    if spec[-1] not in (MPI.FLOAT, "f", "f4", "float32", np.float32):
        _refuse_type(spec[-1])
    return spec[0], None if count is None else int(count), True


def _refuse_type(given: object) -> int:
    name = given.Get_name() if isinstance(given, MPI.Datatype) else repr(given)
    raise BufferTypeError(f"type {name} cannot be reduced here, only float32: {_FORMS}")


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
        raise BufferTypeError(f"buffer holds {view.format!r} (struct notation), only float32 can be reduced here")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _dlpack_memory(data: Any) -> memoryview:
    if not hasattr(data, "__dlpack__"):
        raise BufferTypeError(f"{type(data).__name__} is no buffer: {_FORMS}")
    try:
        return np.from_dlpack(data).data
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise BufferTypeError(f"{type(data).__name__} cannot be used as a buffer: {error}") from error
