"""System calls for compiled code: libc symbols by name, pointers as integers.

``types.ExternalFunction`` names a symbol that LLVM resolves. So callers can be cached on disk, unlike callers with
ctypes pointers. Structures are NumPy arrays with the layout of 64-bit Linux, the same on x86-64 and AArch64. This file
has the calls that several loops need; ``netoffload_daemon.libc`` has those for packet sockets.
"""

from typing import Final

from numba import types

from netoffload.compiled.arrays import Int32Array, Int64Array
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel
from netoffload.compiled.octets import int32_at

_POINTER: Final = types.uintp

read = types.ExternalFunction("read", types.intp(types.intc, _POINTER, types.uintp))
write = types.ExternalFunction("write", types.intp(types.intc, _POINTER, types.uintp))
send = types.ExternalFunction("send", types.intp(types.intc, _POINTER, types.uintp, types.intc))
recv = types.ExternalFunction("recv", types.intp(types.intc, _POINTER, types.uintp, types.intc))
_ppoll = types.ExternalFunction("ppoll", types.intc(_POINTER, types.uintp, _POINTER, _POINTER))
memcpy = types.ExternalFunction("memcpy", _POINTER(_POINTER, _POINTER, types.uintp))
sched_yield = types.ExternalFunction("sched_yield", types.intc())
_clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, _POINTER))
_errno_location = types.ExternalFunction("__errno_location", _POINTER())

_CLOCK_MONOTONIC: Final = 1

MUTEX_WORDS: Final = 8
"""A pthread_mutex_t takes 40 octets on x86-64 and 48 on AArch64; all zeros is an unlocked one (its initializer)."""

if JIT_DISABLED:  # plain Python has one thread here, and cannot call a symbol of libc

    def mutex_lock(address: int) -> int:
        """Lock nothing."""
        return 0

    mutex_unlock = mutex_lock
else:
    mutex_lock = types.ExternalFunction("pthread_mutex_lock", types.intc(_POINTER))
    mutex_unlock = types.ExternalFunction("pthread_mutex_unlock", types.intc(_POINTER))

MSG_DONTWAIT: Final = 0x40
MSG_NOSIGNAL: Final = 0x4000

POLLIN: Final = 0x01
POLLOUT: Final = 0x04


@inline_kernel
def errno() -> int:
    """Return the error number of the last failed call of this thread."""
    return int32_at(_errno_location())


@inline_kernel
def now_ns(clock: Int64Array) -> int:
    """Return the monotonic time; ``clock`` is int64[2] to work in."""
    _clock_gettime(_CLOCK_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@inline_kernel
def wait(polled: Int32Array, count: int, timeout_ns: int, room: Int64Array) -> int:
    """Wait until one of the first ``count`` descriptors in ``polled`` is ready; return how many are ready.

    With a ``count`` of 0 the call only sleeps; with a negative ``timeout_ns`` it waits for ever.
    """
    if timeout_ns < 0:
        return _ppoll(polled.ctypes.data, count, 0, 0)
    room[0] = timeout_ns // 1_000_000_000
    room[1] = timeout_ns % 1_000_000_000
    return _ppoll(polled.ctypes.data, count, room.ctypes.data, 0)
