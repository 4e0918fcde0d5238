"""System calls of the loop that ``netoffload.compiled.syscalls`` lacks: for packet sockets and random words."""

from typing import Final

import numpy as np
from numba import types

from netoffload.compiled.arrays import Int32Array, Int64Array, Uint64Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import whole

_POINTER: Final = types.uintp

recvmmsg = types.ExternalFunction("recvmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc, _POINTER))
sendmmsg = types.ExternalFunction("sendmmsg", types.intc(types.intc, _POINTER, types.uintc, types.intc))
_getrandom = types.ExternalFunction("getrandom", types.intp(_POINTER, types.uintp, types.uintc))
_getsockname = types.ExternalFunction("getsockname", types.intc(types.intc, _POINTER, _POINTER))

MSG_TRUNC: Final = 0x20

# struct mmsghdr as eight 64-bit words.
MESSAGE_WORDS: Final = 8
MESSAGE_IOV: Final = 2
MESSAGE_IOV_COUNT: Final = 3
MESSAGE_FLAGS: Final = 6
MESSAGE_LEN: Final = 7

# struct sockaddr_ll as 32-bit words (linux/if_packet.h), and room for the length behind it.
_ADDRESS_WORDS: Final = 5
ADDRESS_ROOM: Final = _ADDRESS_WORDS + 1
_ADDRESS_IFINDEX: Final = 1
_NO_INTERFACE: Final = -1


@inline_kernel
def is_interface_gone(descriptor: int, address: Int32Array) -> bool:
    """Whether this is a packet socket whose interface was deleted; the kernel binds such a socket to interface -1.

    ``address`` is int32[ADDRESS_ROOM], room for the socket's address.
    """
    address[_ADDRESS_WORDS] = _ADDRESS_WORDS * 4
    data = address.ctypes.data
    if _getsockname(descriptor, data, data + _ADDRESS_WORDS * 4) != 0:
        return False
    return address[_ADDRESS_IFINDEX] == _NO_INTERFACE


@inline_kernel
def message_len(message: Uint64Array) -> int:
    """Return the octets that ``recvmmsg`` or ``sendmmsg`` moved for a message header, as int64."""
    return whole(message[MESSAGE_LEN] & np.uint64(0xFFFFFFFF))


@inline_kernel
def draw_random(words: Int64Array) -> None:
    """Fill int64[1 + n]: the count of used words becomes 0, and n random words of 32 bits follow."""
    _getrandom(words.ctypes.data, 8 * words.size, 0)
    for index in range(words.size):
        words[index] &= 0xFFFFFFFF
    words[0] = 0


def make_messages(count: int) -> tuple[Uint64Array, Uint64Array]:
    """Return ``count`` message headers (uint64[count, 8]), and the vectors (uint64[count, 2]) to which they point."""
    vectors = np.zeros((count, 2), np.uint64)
    messages = np.zeros((count, MESSAGE_WORDS), np.uint64)
    for index in range(count):
        messages[index, MESSAGE_IOV] = vectors[index].ctypes.data
        messages[index, MESSAGE_IOV_COUNT] = 1
    return messages, vectors
