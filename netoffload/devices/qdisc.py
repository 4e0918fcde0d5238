"""Whether an interface has tc filters (rtnetlink(7)): a NIC that sets none looks for those of one that was killed.

One request by hand, because every NIC asks when it starts, and to import pyroute2 takes 0.12 s of the second that this
lasts (``python -X importtime -c "import netoffload.netlink.redirect"``). Whoever finds some loads it.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/netlink.h, linux/rtnetlink.h
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_REQUEST_DUMP: Final = 0x301
_RTM_GETQDISC: Final = 38
_HEADER: Final = struct.Struct("=IHHII")
_TCMSG: Final = struct.Struct("=BBHiIII")
_REPLY_LEN_MAX: Final = 1 << 16


def has_clsact(name: str, netns: str | None = None) -> bool:
    """Say whether interface ``name`` has a clsact, which is where filters hang; needs no rights but to enter ``netns``.

    Raises:
        DeviceError: no such interface or namespace.
    """
    with in_netns(netns):
        try:
            index = socket.if_nametoindex(name)
        except OSError as error:
            raise DeviceError(f"interface {name} cannot be looked at: {error.strerror}") from error
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
            length = _HEADER.size + _TCMSG.size
            sock.sendall(
                _HEADER.pack(length, _RTM_GETQDISC, _NLM_F_REQUEST_DUMP, 1, 0) + _TCMSG.pack(0, 0, 0, index, 0, 0, 0)
            )
            return _names_clsact(sock, index)


def _names_clsact(sock: socket.socket, index: int) -> bool:
    while True:
        octets = sock.recv(_REPLY_LEN_MAX)
        while octets:
            length, kind = _HEADER.unpack_from(octets)[:2]
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):  # a kernel without qdiscs says "not supported"
                return False
            message, octets = octets[_HEADER.size : length], octets[length + 3 & ~3 :]
            if _TCMSG.unpack_from(message)[3] == index and b"clsact\0" in message[_TCMSG.size :]:
                return True
