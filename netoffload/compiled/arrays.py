"""Names for the arrays that kernels and their callers pass on, all contiguous, and a view of read-only ones."""

from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

_Scalar = TypeVar("_Scalar", bound=np.generic)

Float32Array = npt.NDArray[np.float32]  # a vector, a gradient, a segment's values
Float64Array = npt.NDArray[np.float64]  # sums and statistics of float32
Uint8Array = npt.NDArray[np.uint8]  # octets: a frame, a payload, a buffer
Uint16Array = npt.NDArray[np.uint16]  # half-precision bit patterns; codes of up to 16 bits
Uint32Array = npt.NDArray[np.uint32]  # bit patterns of float32; random words
Uint64Array = npt.NDArray[np.uint64]  # addresses, and structures of the C library
Int32Array = npt.NDArray[np.int32]  # structures of the kernel's interfaces, such as ``pollfd``
Int64Array = npt.NDArray[np.int64]  # counters, sizes and times in nanoseconds
BoolArray = npt.NDArray[np.bool_]  # choices, one per element


class _Unlocked:
    """A read-only array's memory as an array of the type that kernels are compiled for."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array  # the new array refers to this object, which keeps the memory
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def readable(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return a view that a kernel may take, and may only read.

    To Numba a read-only array has another type: the kernel, and all that it calls, would be compiled once more.
    """
    return array if array.flags.writeable else np.asarray(_Unlocked(array))


class Stretch(NamedTuple):
    """Part of an octet array. Within compiled code it can be passed on at no cost."""

    octets: Uint8Array
    at: int
    length: int
