"""Looking at captured frames: offload blocks as layers of scapy, as lines of text, and in Wireshark.

::

    Ether / IP or IPv6 / IPComp / OffloadBlock / BlockTCP / Raw        a block, as scapy shows and builds it
    Ether / IP or IPv6 / UDP / OffloadEntry / IPComp / ...             in UDP

``layers``         those layers, bound to scapy's own, and what a SYN says about its NIC
``classes``        how many floats of a payload took which length
``capture``        a pcap or pcapng file -> one record per frame, and sums per flow
``netoffload.lua`` the same for Wireshark and tshark, which needs nothing of this package

The layers are a second implementation of what ``netoffload.wire`` defines, by other means: blocks they build go through
the engine, and blocks the engine makes come out of them (``tests/dissect``). scapy is GPL-2.0-only and an optional
extra, so this package itself imports without it; ``layers`` and ``capture`` say what to install.
"""

from __future__ import annotations

from pathlib import Path


def lua_path() -> Path:
    """Return where the Wireshark dissector is."""
    return Path(__file__).with_name("netoffload.lua")
