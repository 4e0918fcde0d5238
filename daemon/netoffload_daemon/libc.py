"""System calls for compiled code: libc symbols by name, pointers as integers.

``types.ExternalFunction`` names a symbol that LLVM resolves, so the caller can be cached on disk, which ctypes pointers
prevent. Structures are NumPy arrays with the layout of 64-bit Linux (x86-64 and AArch64 agree on these).
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from netoffload.codec.jit import inline_kernel

_POINTER: Final = types.uintp

read = types.ExternalFunction("read", types.intp(types.intc, _POINTER, types.uintp))
write = types.ExternalFunction("write", types.intp(types.intc, _POINTER, types.uintp))
poll = types.ExternalFunction("poll", types.intc(_POINTER, types.uintp, types.intc))
recvmmsg = types.ExternalFunction("recvmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc, _POINTER))
sendmmsg = types.ExternalFunction("sendmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc))
_clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, _POINTER))
_errno_location = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())

_CLOCK_MONOTONIC: Final = 1

MSG_DONTWAIT: Final = 0x40
MSG_TRUNC: Final = 0x20

POLLIN: Final = 0x01
POLLOUT: Final = 0x04

# struct mmsghdr as eight 64-bit words.
MESSAGE_WORDS: Final = 8
MESSAGE_IOV: Final = 2
MESSAGE_IOV_COUNT: Final = 3
MESSAGE_FLAGS: Final = 6
MESSAGE_LEN: Final = 7

Uint64Array = npt.NDArray[np.uint64]


@inline_kernel
def errno() -> Any:
    """Return the error number of the last failed call of this thread."""
    return np.int64(numba.carray(_errno_location(), 1)[0])


@inline_kernel
def now_ns(clock: Any) -> Any:
    """Return the monotonic time; ``clock`` is int64[2] to work in."""
    _clock_gettime(_CLOCK_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


def make_messages(count: int) -> tuple[Uint64Array, Uint64Array]:
    """Return ``count`` message headers (uint64[count, 8]) and the vectors of one (uint64[count, 2]) they point to."""
    vectors = np.zeros((count, 2), np.uint64)
    messages = np.zeros((count, MESSAGE_WORDS), np.uint64)
    for index in range(count):
        messages[index, MESSAGE_IOV] = vectors[index].ctypes.data
        messages[index, MESSAGE_IOV_COUNT] = 1
    return messages, vectors
