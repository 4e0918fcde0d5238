"""Ethernet II: destination 6, source 6, type 2. Frames with a VLAN tag have another type and cross unchanged."""

from typing import Final

ETHERNET_LEN: Final = 14
ETHERTYPE: Final = 12
ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_VLAN: Final = 0x8100
VLAN_TAG_LEN: Final = 4
"""IEEE 802.1Q: type, then priority and VLAN number; the frame's own type follows."""
