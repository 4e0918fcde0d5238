"""Putting back the VLAN tag (IEEE 802.1Q) that the kernel took out of a frame before a packet socket saw it.

::

    was    4 free | vnet 10 | addresses 12 |          ethertype ...
    is              vnet 10 | addresses 12 | tag 4 |  ethertype ...

The caller has left :data:`TAG_LEN` octets free in front of the frame, so only the 22 octets before the tag are moved.
"""

from __future__ import annotations

from typing import Final

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.fields import put_be16
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import load_u16, store_u16, u8
from netoffload.wire import ethernet, vnet

TAG_LEN: Final = ethernet.VLAN_TAG_LEN

_TAG_AT: Final = vnet.VNET_LEN + ethernet.ETHERTYPE


@inline_kernel
def put_tag_back(octets: Uint8Array, ethertype: int, tci: int) -> None:
    """Insert a tag into the frame with virtio-net header that starts at ``TAG_LEN``; then it starts at 0.

    Args:
        octets: uint8, ``TAG_LEN`` octets of any value, virtio-net header, frame.
        ethertype: the tag's own type, 0x8100 or 0x88A8.
    """
    for at in range(_TAG_AT):
        octets[at] = octets[at + TAG_LEN]
    put_be16(octets, _TAG_AT, ethertype)
    put_be16(octets, _TAG_AT + 2, tci)
    if load_u16(octets, vnet.HDR_LEN):
        store_u16(octets, vnet.HDR_LEN, load_u16(octets, vnet.HDR_LEN) + TAG_LEN)
    if u8(octets, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        store_u16(octets, vnet.CSUM_START, load_u16(octets, vnet.CSUM_START) + TAG_LEN)
