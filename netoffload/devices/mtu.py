"""The MTU of an interface, watched: whoever makes it smaller while a NIC runs must get smaller frames from then on.

The kernel tells it on a netlink socket (group ``RTNLGRP_LINK``), to whoever opened one in the interface's namespace; no
rights are needed, so the watch goes on after they are given up. It is asked once at the start, for a change before
the socket was open, and whenever it had to drop messages because nobody read them in time.
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
    """A thread that says the MTU of one interface, at its start and after every change; a context manager."""

    def __init__(self, name: str, netns: str | None, tell: Callable[[int], None]) -> None:
        """Open the socket; nothing is told before the context is entered.

        Args:
            name: of the interface.
            netns: path of the namespace it is in; None is this one.
            tell: called in the thread with the MTU in octets; a few times with the same one, perhaps.

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
                    return  # the last MTU stays
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
