"""Octets <-> values. No I/O, no clock, no compiled code.

One file per format, all on one plan: field offsets, a frozen dataclass of valid values, ``parse_...`` and ``emit_...``
side by side. The contract: ``parse`` either returns values or raises :class:`~netoffload.errors.WireError`, whatever
the octets are; ``emit`` trusts its values; ``parse(emit(x)) == x``.

A frame on its way from one NIC to the other, outermost first::

    vnet       10   only between a NIC and the kernel: checksum and segmentation left to do
    ethernet   14
    ipv4       20+  ToS 0x28 marks a tagged flow; protocol 6, or 108 for an offload block
    ipv6       40   or this one, with a traffic class and a next header
    udp        12   a compressed frame may travel in UDP: its header, and the length of the block
    offload    20   IPComp header and block header, only in a compressed frame
    tcp        20+  in the SYN of a tagged connection: capability 8, an option that says what a NIC decodes
    payload

``checksum`` and ``authentication`` are what is computed over them: sums, and a MAC for NICs that share a key.

The compiled engine reads and writes the same offsets (it imports the constants); this package is what it is tested
against.
"""
