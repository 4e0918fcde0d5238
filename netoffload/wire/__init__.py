"""The formats: where each field is, and what its values mean. No I/O, no clock, no compiled code.

A frame on its way from one NIC to the other, outermost first::

    vnet       10   only between a NIC and the kernel: checksum and segmentation left to do
    ethernet   14
    ipv4       20+  ToS 0x28 marks a tagged flow; protocol 6, or 108 for an offload block
    ipv6       40   instead of ipv4, with a traffic class and a next header
    udp        12   a compressed frame may travel in UDP: its header, and the length of the block
    offload    20   IPComp header and block header, only in a compressed frame
    tcp        20+  in the SYN of a tagged connection: capability 8, an option that says what a NIC decodes
    payload

``checksum`` has the sums over frames, ``authentication`` the MAC for NICs that share a key.

The compiled engine imports the offsets from here. ``tests/shared/formats.py`` has slow readers and writers of all
formats, which the tests compare it with.
"""
