"""The host's side: a TAP interface with a virtio-net header (Linux ``Documentation/networking/tuntap.rst``).

The interface may exist (persistent, made by a testbed or by ``ip tuntap add ... vnet_hdr``); else the NIC makes it, and
:func:`keep` makes it persistent. Then its addresses and its connections outlive the NIC. The kernel accepts attaching
without the virtio-net header, which would silently change the form of frames; so the flags are read back.
"""

import errno
import fcntl
import os
import socket
import struct
from typing import Final, NamedTuple

from netoffload.config import TAP_QUEUE_FRAMES
from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError
from netoffload.wire.vnet import VNET_LEN

TUN_PATH: Final = "/dev/net/tun"

# linux/if_tun.h
_TUNSETIFF: Final = 0x400454CA
_TUNGETIFF: Final = 0x800454D2
_TUNSETPERSIST: Final = 0x400454CB
_TUNSETOFFLOAD: Final = 0x400454D0
_TUNGETVNETHDRSZ: Final = 0x800454D7
_IFF_TAP: Final = 0x0002
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_IFF_PERSIST: Final = 0x0800
_FLAGS: Final = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
_OFFLOAD_CSUM_TSO: Final = 0x01 | 0x02 | 0x04
"""Checksum, TSO over IPv4 and IPv6. TSO with ECN is left out: there CWR holds for a frame's first segment only."""

_IFREQ: Final = struct.Struct("16sH22x")

# linux/sockios.h
_SIOCSIFTXQLEN: Final = 0x8943
_IFREQ_NUMBER: Final = struct.Struct("16si20x")


class Tap(NamedTuple):
    """A TAP interface that is open."""

    descriptor: int
    """Non-blocking; the interface has a carrier until the descriptor is closed."""
    is_new: bool
    """This call made the interface. It ends with its descriptor, unless :func:`keep` is called."""


def open_tap(name: str, netns: str | None = None) -> Tap:
    """Open the TAP interface ``name``; make it, with a queue of ``TAP_QUEUE_FRAMES``, if it does not exist."""
    with in_netns(netns):
        try:
            descriptor = os.open(TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"{TUN_PATH} cannot be opened ({error.strerror}): load the module tun") from error
        try:
            is_new = _attach(descriptor, name)
            if is_new:
                _set_queue_len(name)
        except BaseException:
            os.close(descriptor)
            raise
    return Tap(descriptor, is_new)


def keep(tap: Tap) -> None:
    """Let a TAP stay when its descriptor is closed, also if the process is killed."""
    try:
        fcntl.ioctl(tap.descriptor, _TUNSETPERSIST, 1)
    except OSError as error:
        raise DeviceError(f"the TAP cannot be made persistent ({error.strerror}): start with --ephemeral") from error


def _set_queue_len(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _SIOCSIFTXQLEN, _IFREQ_NUMBER.pack(name.encode(), TAP_QUEUE_FRAMES))
        except OSError as error:
            raise DeviceError(f"TAP {name} refuses a queue of {TAP_QUEUE_FRAMES} frames: {error.strerror}") from error


def _attach(descriptor: int, name: str) -> bool:
    """Attach to the TAP, and say whether it is new; an existing TAP that is not persistent is in use, and refused."""
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, _IFREQ.pack(name.encode(), _FLAGS))
    except OSError as error:
        why = {
            errno.EPERM: "this needs root (CAP_NET_ADMIN): start the NIC with sudo",
            errno.EBUSY: "another process has it open",
            errno.EINVAL: "a device of that name exists and is not a plain TAP; choose another name",
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
    return not flags & _IFF_PERSIST
