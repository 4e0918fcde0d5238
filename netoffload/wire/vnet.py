"""The virtio-net header (Virtio 1.2, 5.1.6) that TAP and packet sockets put before each frame: 10 octets, native order.

It says two things that a frame alone cannot. The checksum is still to be filled in (``NEEDS_CSUM``: sum from
``csum_start`` on, store at ``csum_start + csum_offset``). The frame is to be cut into many (``gso_type``,
``gso_size``).
"""

from typing import Final

VNET_LEN: Final = 10

# Field offsets.
VNET_FLAGS: Final = 0
GSO_TYPE: Final = 1
HDR_LEN: Final = 2
VNET_GSO_SIZE: Final = 4
CSUM_START: Final = 6
CSUM_OFFSET: Final = 8

NEEDS_CSUM: Final = 1
DATA_VALID: Final = 2
"""The card, or a kernel on the same machine, has checked the checksum: it is right."""
GSO_NONE: Final = 0
GSO_TCPV4: Final = 1
GSO_TCPV6: Final = 4
GSO_UDP_L4: Final = 5
"""UDP datagrams of equal length, of either family (Virtio 1.3; Linux 6.2)."""
GSO_ECN: Final = 0x80
