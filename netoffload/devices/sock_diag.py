"""Asking a host's kernel for the ToS of a TCP socket (sock_diag(7)): the format, and a descriptor to ask on.

An unprivileged process may ask for any socket of the network namespace in which the descriptor was opened. A NIC opens
it as root in its host's namespace, and asks once per connection. pyroute2 needs 140 us of a core for a question, so
the NIC's loop writes these octets itself, in 5 us.

::

    request   netlink header 16 | family 1 | protocol 1 | extensions 1 | 0 1 | states 4 | ports 4 | addresses 32 | ...
    answer    netlink header 16 | family 1 | state 1 | ... to octet 88 | attributes: length 2 | kind 2 | value
"""

import os
import socket
import struct
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint8Array
from netoffload.devices.netns import in_netns
from netoffload.errors import SystemRefusedError

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY: Final = 20
NLM_F_REQUEST: Final = 1
NLM_F_DUMP: Final = 0x300
INET_DIAG_TOS: Final = 5
INET_DIAG_TCLASS: Final = 6
TCP_LISTEN: Final = 10
ANY_STATE: Final = 0xFFFFFFFF

# Octets of a request.
REQUEST_LEN: Final = 72
TYPE_AT: Final = 4
NUMBER_AT: Final = 8
FAMILY_AT: Final = 16
SPORT_AT: Final = 24
DPORT_AT: Final = 26
SRC_AT: Final = 28
DST_AT: Final = 44
INTERFACE_AT: Final = 60
"""The device of sockets that are bound to one, or whose addresses are link-local; the kernel finds all others too."""

# Octets of an answer.
ANSWER_ROOM: Final = 1024
STATE_AT: Final = 17
ATTRIBUTES_AT: Final = 88

_ANY_COOKIE: Final = 0xFFFFFFFF


def make_request(states: int = ANY_STATE, flags: int = NLM_F_REQUEST) -> Uint8Array:
    """Return uint8[REQUEST_LEN], a request for a TCP socket without family, number, ports and addresses."""
    extensions = 1 << INET_DIAG_TOS - 1 | 1 << INET_DIAG_TCLASS - 1
    header = struct.pack("=IHHII", REQUEST_LEN, SOCK_DIAG_BY_FAMILY, flags, 0, 0)
    body = struct.pack("=BBBBI4x32x", 0, socket.IPPROTO_TCP, extensions, 0, states)
    return np.frombuffer(header + body + struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE), np.uint8).copy()


def open_sock_diag(netns: str | None) -> socket.socket:
    """Return a descriptor on which to ask for the sockets of a namespace (None: this thread's), non-blocking."""
    with in_netns(netns):
        try:
            diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        except OSError as error:
            raise _refusal(error.errno or 0) from error
    request = make_request(1 << TCP_LISTEN, NLM_F_REQUEST | NLM_F_DUMP)
    request[FAMILY_AT] = socket.AF_INET
    diag.send(request.tobytes())
    number = _read_dump(diag)
    if number != 0:
        diag.close()
        raise _refusal(-number)
    diag.setblocking(False)
    return diag


def _read_dump(diag: socket.socket) -> int:
    """Read the answers to a dump; return 0, or the negative number of the kernel's error."""
    while True:
        answers, at = diag.recv(1 << 16), 0
        while at < len(answers):
            length, kind, _, _, _, number = struct.unpack_from("=IHHIIi", answers, at)
            if kind != SOCK_DIAG_BY_FAMILY:  # NLMSG_DONE or NLMSG_ERROR
                return int(number)
            at += length + 3 & ~3


def _refusal(number: int) -> SystemRefusedError:
    return SystemRefusedError(
        f"the kernel does not tell the ToS of sockets ({os.strerror(number)}): load its modules inet_diag and "
        "tcp_diag, or start the NIC with --trust tag where every tagged packet carries float32"
    )
