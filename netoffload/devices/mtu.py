"""The MTU of an interface, watched: if it shrinks while a NIC runs, the NIC must make smaller frames from then on.

The kernel announces changes on a netlink socket (group ``RTNLGRP_LINK``) that is opened in the interface's namespace.
This needs no rights, so the watch works after the process has given up root. The watch also asks for the MTU: at the
start, in case it changed before the socket was open, and after the kernel had to drop messages.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Final

from netoffload.devices import rtnetlink
from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/rtnetlink.h, linux/if_link.h
_RTM_NEWLINK: Final = 16
_RTM_GETLINK: Final = 18
_RTMGRP_LINK: Final = 1
_IFINFOMSG: Final = struct.Struct("=BxHiII")
_IFLA_MTU: Final = 4


class MtuWatch:
    """A thread that reports the MTU of one interface, at its start and after every change; a context manager."""

    def __init__(self, name: str, netns: str | None, tell: Callable[[int], None]) -> None:
        """Open the socket; the thread starts when the context is entered.

        Args:
            name: the interface's name.
            netns: path of the interface's namespace; None is this one.
            tell: called in the thread with the MTU in octets, perhaps several times with the same one.

        Raises:
            DeviceError: no such interface or namespace.
        """
        self._tell = tell
        with in_netns(netns):
            try:
                self._index = socket.if_nametoindex(name)
                self._sock = rtnetlink.open_rtnetlink(_RTMGRP_LINK)
            except OSError as error:
                raise DeviceError(f"the MTU of {name} cannot be watched: {error.strerror}") from error
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="mtu", daemon=True)

    def __enter__(self) -> MtuWatch:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread and close the socket."""
        os.eventfd_write(self._stopped, 1)
        self._thread.join()
        self._sock.close()
        os.close(self._stopped)

    def _watch(self) -> None:
        self._ask()
        while True:
            ready = select.select([self._sock.fileno(), self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            try:
                self._hear(self._sock.recv(rtnetlink.REPLY_LEN_MAX))
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    return  # the NIC keeps the last MTU
                self._ask()

    def _ask(self) -> None:
        body = _IFINFOMSG.pack(socket.AF_UNSPEC, 0, self._index, 0, 0)
        self._sock.send(rtnetlink.request(_RTM_GETLINK, rtnetlink.REQUEST, body))

    def _hear(self, octets: bytes) -> None:
        for kind, body in rtnetlink.messages(octets):
            if kind == _RTM_NEWLINK and _IFINFOMSG.unpack_from(body)[2] == self._index:
                for attribute, value in rtnetlink.attributes(body[_IFINFOMSG.size :]):
                    if attribute == _IFLA_MTU:
                        self._tell(int.from_bytes(value, sys.byteorder))
