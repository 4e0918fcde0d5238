"""The MTU of an interface, watched: if it shrinks while a NIC runs, the NIC must make smaller frames from then on.

The kernel announces changes of links on a netlink socket (group ``RTNLGRP_LINK``) that is opened in the interface's
namespace. The watch takes an announcement as a reason to ask for the MTU, and does not read it: so it does not matter
which link changed, or whether the kernel had to drop announcements. To ask needs no rights, so the watch works after
the process has given up root.
"""

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/rtnetlink.h, linux/sockios.h
_RTMGRP_LINK: Final = 1
_SIOCGIFNAME: Final = 0x8910
_SIOCGIFMTU: Final = 0x8921
_IFREQ: Final = struct.Struct("16si20x")


@contextlib.contextmanager
def watched_mtu(name: str, netns: str | None, report: Callable[[int], None]) -> Iterator[None]:
    """Let a thread call ``report`` with an interface's MTU in octets, now and after every change.

    It may come several times with the same one.
    """
    with contextlib.ExitStack() as stack:
        with in_netns(netns):
            try:
                index = socket.if_nametoindex(name)
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                sock = stack.enter_context(socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE))
                sock.bind((0, _RTMGRP_LINK))
            except OSError as error:
                raise DeviceError(f"the MTU of {name} cannot be watched: {error.strerror}") from error
        stopped = os.eventfd(0, os.EFD_CLOEXEC)
        stack.callback(os.close, stopped)
        thread = threading.Thread(target=_watch, args=(sock, index, stopped, report), name="mtu", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.eventfd_write(stopped, 1)
            thread.join()


def _watch(sock: socket.socket, index: int, stopped: int, report: Callable[[int], None]) -> None:
    while True:
        with contextlib.suppress(OSError):  # the interface is gone: the NIC keeps the last MTU
            report(_read_mtu(sock, index))
        if stopped in select.select([sock.fileno(), stopped], [], [])[0]:
            return
        try:
            while sock.recv(1):  # the rest of an announcement is dropped with its beginning
                pass
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                return


def _read_mtu(sock: socket.socket, index: int) -> int:
    """Return the MTU; every socket of a namespace answers for its interfaces, whatever they are called by now."""
    request = fcntl.ioctl(sock, _SIOCGIFNAME, _IFREQ.pack(b"", index))
    return int(_IFREQ.unpack(fcntl.ioctl(sock, _SIOCGIFMTU, request))[1])
