"""Captured frames: offload blocks as layers of scapy, as lines of text, and in Wireshark.

::

    Ether / IP or IPv6 / IPComp / OffloadBlock / BlockTCP / Raw        a block, as scapy shows and builds it
    Ether / IP or IPv6 / UDP / OffloadEntry / IPComp / ...             in UDP

``layers``         these layers, bound to scapy's own, and the capability word in a SYN
``capture``        a pcap or pcapng file -> one record per frame, and sums per flow
``netoffload.lua`` a dissector for Wireshark and tshark, which works without this package

The layers are a second, separate implementation of the formats in ``netoffload.wire``. The tests send blocks from the
layers through the engine, and read the engine's blocks with the layers (``tests/dissect``). scapy is GPL-2.0-only and
an optional extra. So this package can be imported without scapy, ``layers`` and ``capture`` cannot.
"""

from pathlib import Path


def lua_path() -> Path:
    """Return the path of the Wireshark dissector."""
    return Path(__file__).with_name("netoffload.lua")
