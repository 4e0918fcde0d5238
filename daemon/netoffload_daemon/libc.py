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
ppoll = types.ExternalFunction("ppoll", types.intc(_POINTER, types.uintp, _POINTER, _POINTER))
recvmmsg = types.ExternalFunction("recvmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc, _POINTER))
sendmmsg = types.ExternalFunction("sendmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc))
memcpy = types.ExternalFunction("memcpy", _POINTER(_POINTER, _POINTER, types.uintp))
mutex_lock = types.ExternalFunction("pthread_mutex_lock", types.intc(_POINTER))
mutex_unlock = types.ExternalFunction("pthread_mutex_unlock", types.intc(_POINTER))
_getsockname = types.ExternalFunction("getsockname", types.intc(types.intc, _POINTER, _POINTER))
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

MUTEX_WORDS: Final = 8
"""A pthread_mutex_t takes 40 octets on x86-64 and 48 on AArch64; all zeros is an open one, as its initializer says."""

# struct sockaddr_ll as 32-bit words (linux/if_packet.h), and room for the length behind it.
_ADDRESS_WORDS: Final = 5
_ADDRESS_IFINDEX: Final = 1
_NO_INTERFACE: Final = -1

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


@inline_kernel
def wait(polled: Any, count: Any, timeout_ns: Any, room: Any) -> Any:
    """Wait until one of the first ``count`` descriptors in ``polled`` is ready; return how many are.

    Args:
        polled: int32[n, 2], each a ``struct pollfd``.
        count: how many of them; 0 sleeps.
        timeout_ns: at most this long; negative waits for ever.
        room: int64[2] to work in.
    """
    if timeout_ns < 0:
        return ppoll(polled.ctypes.data, count, 0, 0)
    room[0] = timeout_ns // 1_000_000_000
    room[1] = timeout_ns % 1_000_000_000
    return ppoll(polled.ctypes.data, count, room.ctypes.data, 0)


@inline_kernel
def is_interface_gone(descriptor: Any) -> Any:
    """Whether this is a packet socket whose interface was deleted: the kernel has then bound it to interface -1."""
    address = np.zeros(_ADDRESS_WORDS + 1, np.int32)
    address[_ADDRESS_WORDS] = _ADDRESS_WORDS * 4
    data = address.ctypes.data
    if _getsockname(descriptor, data, data + _ADDRESS_WORDS * 4) != 0:
        return False
    return address[_ADDRESS_IFINDEX] == _NO_INTERFACE


def make_messages(count: int) -> tuple[Uint64Array, Uint64Array]:
    """Return ``count`` message headers (uint64[count, 8]) and the vectors of one (uint64[count, 2]) they point to."""
    vectors = np.zeros((count, 2), np.uint64)
    messages = np.zeros((count, MESSAGE_WORDS), np.uint64)
    for index in range(count):
        messages[index, MESSAGE_IOV] = vectors[index].ctypes.data
        messages[index, MESSAGE_IOV_COUNT] = 1
    return messages, vectors
