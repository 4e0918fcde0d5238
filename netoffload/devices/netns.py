"""Entering another network namespace for a moment: a TAP or a packet socket that is opened there stays there."""

import contextlib
import ctypes
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from netoffload.errors import DeviceError

_CLONE_NEWNET: Final = 0x40000000
_OWN_NETNS: Final = "/proc/thread-self/ns/net"
_REFLECT_TOS: Final = Path("/proc/sys/net/ipv4/tcp_reflect_tos")
_SO_NETNS_COOKIE: Final = 71  # <asm-generic/socket.h>; Python has no name for it
_CONF: Final = Path("/proc/sys/net/ipv4/conf")  # shows the namespace of the thread that reads it


@contextlib.contextmanager
def in_netns(path: str | None) -> Iterator[None]:
    """Run the body with this thread in the namespace at ``path``; None means the thread's present one."""
    if path is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        own = os.open(_OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, own)
        _enter(path)
        stack.callback(_set_ns, own)
        yield


def is_same_netns(first: str | None, second: str | None) -> bool:
    """Whether two paths lead to the same namespace, even if they are spelt differently; None is this thread's."""
    return os.path.samestat(_status(first or _OWN_NETNS), _status(second or _OWN_NETNS))


def arp_ignore(name: str, netns: str | None) -> int:
    """Return the sysctl ``arp_ignore`` in force for interface ``name``; 0: the kernel answers for all its addresses."""
    with in_netns(netns):
        files = (_CONF / kind / "arp_ignore" for kind in ("all", name))
        return max((int(path.read_text()) for path in files if path.exists()), default=0)


def reflects_tos(netns: str | None) -> bool:
    """Whether a socket that accepts a connection takes the ToS of the peer's SYN (``tcp_reflect_tos``)."""
    with in_netns(netns):
        return _REFLECT_TOS.exists() and int(_REFLECT_TOS.read_text()) != 0


def netns_cookie(path: str | None) -> int:
    """Return a namespace's number, which no other one has had since the boot; None is this thread's.

    The inode of its file is no such number: the next namespace may have that of a deleted one.
    """
    with in_netns(path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            return int.from_bytes(one.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
        except OSError:  # Linux before 5.14
            return _status(path or _OWN_NETNS).st_ino


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise DeviceError(f"network namespace {path} cannot be opened: {error.strerror}") from error


def _enter(path: str) -> None:
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(f"network namespace {path} cannot be opened: {error.strerror}") from error
    try:
        _set_ns(there)
    except OSError as error:
        hint = ": start the NIC with sudo" if error.errno == errno.EPERM else ""
        raise DeviceError(f"network namespace {path} cannot be entered: {error.strerror}{hint}") from error
    finally:
        os.close(there)


def _set_ns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # Python has os.setns from 3.12 on
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
