"""The wire's side, or the NIC's end of a host's veth pair: a packet socket with a virtio-net header on one interface.

The order of the calls matters. The socket is opened with protocol 0, so that it receives nothing before it is bound to
its interface. The virtio-net header is switched on before the first read. The socket never hears the frames that it
sends. The send buffer is small on purpose: a frame counts against it until it leaves the interface's queue. So a full
buffer means that the wire is busy, and the NIC waits instead of losing frames. Frames must pass the queueing
discipline, which does the shaping.

The kernel takes the VLAN tag out of a frame before the socket sees the frame. Every message comes with auxiliary data
(``PACKET_AUXDATA``) that hold the tag, so that the reader can put it back.

A socket hears a frame before the interface's tc filters do, also if they redirect the frame. A filter on the socket
keeps such frames away from it, from the first frame on.
"""

import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
from typing import Final

from netoffload.devices.netns import in_netns
from netoffload.errors import DeviceError

# linux/if_packet.h, linux/if_ether.h, asm-generic/socket.h, linux/sockios.h
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_MR_PROMISC: Final = 1
_PACKET_AUXDATA: Final = 8
_PACKET_VNET_HDR: Final = 15
_PACKET_IGNORE_OUTGOING: Final = 23
_ETH_P_ALL: Final = 0x0003
_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION_LEN: Final = 8
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_SIOCGIFMTU: Final = 0x8921
_ARPHRD_ETHER: Final = 1  # linux/if_arp.h

RECEIVE_BUFFER_OCTETS: Final = 16 << 20
"""Room for 250 large segments while the NIC's process waits for a core; the default holds three."""

SEND_BUFFER_OCTETS: Final = 1 << 20
"""Frames in the wire's queue, with the kernel's overhead: 8 ms at 1 Gb/s. A NIC that waits for a core does not leave
the wire idle, and acknowledgements behind these frames do not wait long."""

_USO_SINCE: Final = (6, 2)


def takes_bundles(release: str | None = None) -> bool:
    """Whether a packet socket of this kernel takes bundles of UDP datagrams (``GSO_UDP_L4``): Linux 6.2 and later."""
    numbers = re.match(r"(\d+)\.(\d+)", release or os.uname().release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _USO_SINCE


def open_packet(
    name: str, netns: str | None = None, what: str = "wire", program: bytes = b""
) -> tuple[socket.socket, int]:
    """Return a non-blocking packet socket on interface ``name``, and the interface's MTU in octets.

    ``program`` is classic BPF (``struct sock_filter[]``) that says how many octets of a frame the socket hears.
    """
    with in_netns(netns):
        try:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        except PermissionError as error:
            raise DeviceError(f"a packet socket on {name} needs root (CAP_NET_RAW): start the NIC with sudo") from error
        try:
            mtu = _bind(sock, name, what, program)
        except BaseException:
            sock.close()
            raise
    return sock, mtu


def _bind(sock: socket.socket, name: str, what: str, program: bytes) -> int:
    try:
        if program:
            instructions = ctypes.create_string_buffer(program, len(program))
            fprog = struct.pack("HP", len(program) // _INSTRUCTION_LEN, ctypes.addressof(instructions))
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
        sock.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_OCTETS)
        sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BUFFER_OCTETS // 2)  # the kernel doubles it
    except OSError as error:
        raise DeviceError(f"packet socket on {name} cannot be set up: {error.strerror}") from error
    try:
        sock.bind((name, _ETH_P_ALL))
        # Frames to the host carry the TAP's address, not the card's: a card that filters would drop them.
        membership = struct.pack("iHH8x", socket.if_nametoindex(name), _PACKET_MR_PROMISC, 0)
        sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
        ifreq = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16si20x", name.encode(), 0))
    except OSError as error:
        why = "no such interface" if error.errno == errno.ENODEV else error.strerror
        raise DeviceError(f"{what} {name} cannot be opened: {why}") from error
    if sock.getsockname()[3] != _ARPHRD_ETHER:
        raise DeviceError(f"{what} {name} is not an Ethernet interface: take a card, a VLAN or one end of a veth pair")
    return int(struct.unpack("16si20x", ifreq)[1])
