"""Which ToS the host's sockets have: the answers to the engine's questions (``netoffload.engine.promises``).

The loop asks behind the segment that raised the question, in 5 us. The kernel answers within the call.
``netoffload.devices.sock_diag`` has the format.
"""

from typing import Final, NamedTuple

import numpy as np

from netoffload.compiled import syscalls
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u16, load_u32, put_be16, put_be32, store_u32, u8
from netoffload.devices import sock_diag
from netoffload.engine import flows as flow_table
from netoffload.engine import promises
from netoffload.engine.state import NicState

AF_INET: Final = 2
AF_INET6: Final = 10


class Diag(NamedTuple):
    """How to ask the host's kernel."""

    descriptor: Int64Array
    request: Uint8Array
    answer: Uint8Array


def make_diag(descriptor: int = -1, interface: int = 0) -> Diag:
    """Return the memory for questions; without a descriptor every question stays open.

    ``interface`` is the index of the host's device where its sockets are, 0 if it is not known.
    """
    answer, request = np.zeros(sock_diag.ANSWER_ROOM, np.uint8), sock_diag.make_request()
    request[sock_diag.INTERFACE_AT : sock_diag.INTERFACE_AT + 4] = np.array([interface], np.uint32).view(np.uint8)
    return Diag(np.array([descriptor], np.int64), request, answer)


@kernel
def answer_questions(nic: NicState, diag: Diag) -> None:
    """Ask the kernel about every connection in question, and tell the engine."""
    while promises.count_questions(nic):
        slot = promises.slot_in_question(nic)
        promises.answer(nic, _ask(nic.flows[slot], slot, diag))


@inline_kernel
def _ask(flow: Int64Array, number: int, diag: Diag) -> int:
    """Return the ToS or traffic class of a connection's socket, or one of ``promises.ANSWER_...``."""
    request, answer = diag.request, diag.answer
    is_ipv4 = flow[flow_table.IP_VERSION] == 4
    request[sock_diag.FAMILY_AT] = AF_INET if is_ipv4 else AF_INET6
    store_u32(request, sock_diag.NUMBER_AT, number)
    ports = flow[flow_table.PORTS]
    put_be16(request, sock_diag.SPORT_AT, ports >> 16)
    put_be16(request, sock_diag.DPORT_AT, ports & 0xFFFF)
    _put_address(request, sock_diag.SRC_AT, flow[flow_table.SRC_HIGH], flow[flow_table.SRC_LOW], is_ipv4)
    _put_address(request, sock_diag.DST_AT, flow[flow_table.DST_HIGH], flow[flow_table.DST_LOW], is_ipv4)
    if syscalls.write(diag.descriptor[0], request.ctypes.data, sock_diag.REQUEST_LEN) < 0:
        return promises.ANSWER_NONE
    while True:
        length = syscalls.read(diag.descriptor[0], answer.ctypes.data, sock_diag.ANSWER_ROOM)
        if length < sock_diag.FAMILY_AT:
            return promises.ANSWER_NONE
        if load_u32(answer, sock_diag.NUMBER_AT) == number:  # else the answer to an earlier question
            return _read_tos(answer, length, is_ipv4)


@inline_kernel
def _put_address(request: Uint8Array, at: int, high: int, low: int, is_ipv4: bool) -> None:
    if is_ipv4:
        put_be32(request, at, low)
        for octet in range(4, 16):
            request[at + octet] = 0
    else:
        for octet in range(8):
            request[at + octet] = high >> 56 - 8 * octet & 0xFF
            request[at + 8 + octet] = low >> 56 - 8 * octet & 0xFF


@inline_kernel
def _read_tos(answer: Uint8Array, length: int, is_ipv4: bool) -> int:
    if load_u16(answer, sock_diag.TYPE_AT) != sock_diag.SOCK_DIAG_BY_FAMILY:
        return promises.ANSWER_NO_SOCKET
    if u8(answer, sock_diag.STATE_AT) == sock_diag.TCP_LISTEN:
        return promises.ANSWER_NO_SOCKET  # the kernel found no connection, and took the listener of its port
    wanted = sock_diag.INET_DIAG_TOS if is_ipv4 else sock_diag.INET_DIAG_TCLASS
    at = sock_diag.ATTRIBUTES_AT
    while at + 4 < length:
        if load_u16(answer, at + 2) == wanted:
            return u8(answer, at + 4)
        at += max(load_u16(answer, at) + 3 & ~3, 4)
    return promises.ANSWER_NO_SOCKET
