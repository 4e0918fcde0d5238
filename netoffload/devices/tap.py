"""The host's side: a TAP interface with a virtio-net header (Linux ``Documentation/networking/tuntap.rst``).

The interface may exist already (persistent, made by a testbed or by ``ip tuntap add ... vnet_hdr``): then its address
and its connections outlive the NIC. Attaching without the virtio-net header would be accepted and silently change
what a frame looks like, so the flags are read back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import Final

from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError
from netoffload.wire.vnet import VNET_LEN

TUN_PATH: Final = "/dev/net/tun"
IFNAMSIZ: Final = 16

# linux/if_tun.h
_TUNSETIFF: Final = 0x400454CA
_TUNGETIFF: Final = 0x800454D2
_TUNSETOFFLOAD: Final = 0x400454D0
_TUNGETVNETHDRSZ: Final = 0x800454D7
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_FLAGS: Final = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
_OFFLOAD_CSUM_TSO: Final = 0x01 | 0x02 | 0x04
"""Checksum, TSO over IPv4 and IPv6. TSO with ECN is left out: such a frame would carry CWR on its first segment
only."""

_IFREQ: Final = struct.Struct("16sH22x")


def open_tap(name: str, netns: str | None = None) -> int:
    """Return a non-blocking descriptor of the TAP interface ``name``, made if it does not exist.

    Args:
        name: interface name, at most 15 characters.
        netns: path of the namespace it is in; None is this one.

    Raises:
        DeviceError: no TUN, no rights, the name is another kind of device or in use by another process.
    """
    if not 0 < len(name.encode()) < IFNAMSIZ:
        raise DeviceError(f"interface name {name!r} is not 1..{IFNAMSIZ - 1} octets long")
    with in_netns(netns):
        try:
            descriptor = os.open(TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"{TUN_PATH} cannot be opened ({error.strerror}): is TUN in this kernel?") from error
        try:
            _attach(descriptor, name)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _attach(descriptor: int, name: str) -> None:
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, _IFREQ.pack(name.encode(), _FLAGS))
    except OSError as error:
        why = {
            errno.EPERM: "this needs root (CAP_NET_ADMIN): start the NIC with sudo",
            errno.EBUSY: "another process has it open",
            errno.EINVAL: "a device of that name exists and is not a plain TAP",
        }.get(error.errno or 0, error.strerror)
        raise DeviceError(f"TAP {name} cannot be opened: {why}") from error
    flags = _IFREQ.unpack(fcntl.ioctl(descriptor, _TUNGETIFF, bytes(_IFREQ.size)))[1]
    (header_len,) = struct.unpack("i", fcntl.ioctl(descriptor, _TUNGETVNETHDRSZ, struct.pack("i", 0)))
    if flags & _FLAGS != _FLAGS or header_len != VNET_LEN:
        raise DeviceError(f"TAP {name} has no {VNET_LEN}-octet virtio-net header (flags {flags:#x}, {header_len})")
    try:
        fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _OFFLOAD_CSUM_TSO)
    except OSError as error:
        raise DeviceError(f"TAP {name} refuses checksum and segmentation offload: {error.strerror}") from error
