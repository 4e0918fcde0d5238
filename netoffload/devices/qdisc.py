"""Whether an interface has tc filters (rtnetlink(7)): a killed NIC may have left some.

Every NIC asks when it starts. Only a NIC that finds a clsact loads pyroute2.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from netoffload.devices import rtnetlink
from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/rtnetlink.h
_RTM_GETQDISC: Final = 38
_TCMSG: Final = struct.Struct("=BBHiIII")


def has_clsact(name: str, netns: str | None = None) -> bool:
    """Say whether interface ``name`` has a clsact, to which filters are attached; only entering ``netns`` needs rights.

    Raises:
        DeviceError: no such interface or namespace.
    """
    with in_netns(netns):
        try:
            index = socket.if_nametoindex(name)
        except OSError as error:
            raise DeviceError(f"interface {name} cannot be read: {error.strerror}") from error
        with rtnetlink.open_rtnetlink() as sock:
            body = _TCMSG.pack(0, 0, 0, index, 0, 0, 0)
            sock.sendall(rtnetlink.request(_RTM_GETQDISC, rtnetlink.REQUEST_DUMP, body))
            return _names_clsact(sock, index)


def _names_clsact(sock: socket.socket, index: int) -> bool:
    while True:
        for kind, message in rtnetlink.messages(sock.recv(rtnetlink.REPLY_LEN_MAX)):
            if kind in (rtnetlink.DONE, rtnetlink.ERROR):  # a kernel without qdiscs answers "not supported"
                return False
            if _TCMSG.unpack_from(message)[3] == index and b"clsact\0" in message[_TCMSG.size :]:
                return True
