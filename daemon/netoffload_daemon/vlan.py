"""VLAN tags of frames from a packet socket: the kernel takes them out, and reports them in a control message.

With ``PACKET_AUXDATA`` (packet(7)) every message of recvmmsg comes with one ``struct tpacket_auxdata``. This module
puts the tag (IEEE 802.1Q) back, so that a frame with a VLAN tag reaches the host as it was on the wire::

    was    4 free | vnet 10 | addresses 12 |          ethertype ...
    is              vnet 10 | addresses 12 | tag 4 |  ethertype ...

The buffers have :data:`TAG_LEN` octets free in front of the frame, so only the 22 octets before the tag are moved.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint8Array, Uint64Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import load_u16, load_u32, put_be16, store_u16, u8
from netoffload.wire import ethernet, vnet

TAG_LEN: Final = ethernet.VLAN_TAG_LEN
_TAG_AT: Final = vnet.VNET_LEN + ethernet.ETHERTYPE

# struct cmsghdr and, behind it, struct tpacket_auxdata (linux/if_packet.h): field offsets, and the room for both.
CONTROL_LEN: Final = 40
_LEVEL: Final = 8
_TYPE: Final = 12
_STATUS: Final = 16
_TCI: Final = 32
_TPID: Final = 34

_SOL_PACKET: Final = 263
_PACKET_AUXDATA: Final = 8
_VLAN_VALID: Final = 1 << 4
_TPID_VALID: Final = 1 << 6

# Words of struct msghdr.
_MESSAGE_CONTROL: Final = 4
_MESSAGE_CONTROL_LEN: Final = 5


def make_controls(messages: Uint64Array) -> Uint8Array:
    """Return room for the control messages, uint8[messages, CONTROL_LEN], with ``messages`` pointing to it."""
    controls = np.zeros((len(messages), CONTROL_LEN), np.uint8)
    for index in range(len(messages)):
        messages[index, _MESSAGE_CONTROL] = controls[index].ctypes.data
        messages[index, _MESSAGE_CONTROL_LEN] = CONTROL_LEN
    return controls


@inline_kernel
def restore_tag(octets: Uint8Array, message: Uint64Array, control: Uint8Array) -> int:
    """Put back the VLAN tag of a received frame, if it had one; return where the frame starts then.

    The frame with its virtio-net header starts at ``TAG_LEN``. The room for a control message in ``message`` is reset.
    """
    told = message[_MESSAGE_CONTROL_LEN]
    message[_MESSAGE_CONTROL_LEN] = CONTROL_LEN
    if (
        told < _TPID + 2
        or load_u32(control, _LEVEL) != _SOL_PACKET
        or load_u32(control, _TYPE) != _PACKET_AUXDATA
        or load_u32(control, _STATUS) & _VLAN_VALID == 0
    ):
        return TAG_LEN
    has_type = load_u32(control, _STATUS) & _TPID_VALID
    put_tag_back(octets, load_u16(control, _TPID) if has_type else ethernet.ETHERTYPE_VLAN, load_u16(control, _TCI))
    return 0


@inline_kernel
def put_tag_back(octets: Uint8Array, ethertype: int, tci: int) -> None:
    """Insert a tag of the type ``ethertype``, 0x8100 or 0x88A8, into the frame at ``TAG_LEN``; then it starts at 0."""
    for at in range(_TAG_AT):
        octets[at] = octets[at + TAG_LEN]
    put_be16(octets, _TAG_AT, ethertype)
    put_be16(octets, _TAG_AT + 2, tci)
    if load_u16(octets, vnet.HDR_LEN):
        store_u16(octets, vnet.HDR_LEN, load_u16(octets, vnet.HDR_LEN) + TAG_LEN)
    if u8(octets, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        store_u16(octets, vnet.CSUM_START, load_u16(octets, vnet.CSUM_START) + TAG_LEN)
