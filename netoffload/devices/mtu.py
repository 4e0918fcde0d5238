"""The MTU of an interface, watched: if it shrinks while a NIC runs, the NIC must make smaller frames from then on.

The kernel announces changes of links on a netlink socket (group ``RTNLGRP_LINK``) that is opened in the interface's
namespace. The watch takes an announcement as a reason to ask for the MTU, and does not read it: so it does not matter
which link changed, or whether the kernel had to drop announcements. To ask needs no rights, so the watch works after
the process has given up root.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/rtnetlink.h, linux/sockios.h
_RTMGRP_LINK: Final = 1
_SIOCGIFNAME: Final = 0x8910
_SIOCGIFMTU: Final = 0x8921
_IFREQ: Final = struct.Struct("16si20x")


class MtuWatch:
    """A thread that reports the MTU of one interface, at its start and after every change; a context manager."""

    def __init__(self, name: str, netns: str | None, report: Callable[[int], None]) -> None:
        """Open the socket; the thread starts when the context is entered.

        It calls ``report`` with the MTU in octets, perhaps several times with the same one.
        """
        self._report = report
        with contextlib.ExitStack() as stack, in_netns(netns):
            try:
                self._index = socket.if_nametoindex(name)
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                self._sock = stack.enter_context(socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE))
                self._sock.bind((0, _RTMGRP_LINK))
            except OSError as error:
                raise DeviceError(f"the MTU of {name} cannot be watched: {error.strerror}") from error
            stack.pop_all()
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
        while True:
            with contextlib.suppress(OSError):  # the interface is gone: the NIC keeps the last MTU
                self._report(self._read_mtu())
            ready = select.select([self._sock.fileno(), self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            try:
                while self._sock.recv(1):  # the rest of an announcement is dropped with its beginning
                    pass
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    return

    def _read_mtu(self) -> int:
        """Return the MTU; every socket of a namespace answers for its interfaces, whatever they are called by now."""
        request = fcntl.ioctl(self._sock, _SIOCGIFNAME, _IFREQ.pack(b"", self._index))
        return int(_IFREQ.unpack(fcntl.ioctl(self._sock, _SIOCGIFMTU, request))[1])
