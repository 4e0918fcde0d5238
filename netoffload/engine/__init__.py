"""Frames in, frames out: what the NIC does to a frame. Compiled, no I/O, time and random numbers as arguments.

::

    nic.from_host   transmit ─► forms ─► pack, blocks ─► encapsulation ──► wire   a tagged segment becomes blocks
                           └──► plain ─────────────────────────────────► wire   or stays a segment
    nic.from_clock  lent ──► plain ─────────────────────────────────────► wire   what the host will not send again
    nic.from_wire   unwrap ─► inspect ─► note ─► take ─► finish ──► host          blocks become one large segment again

``nic`` holds the state of one NIC and these calls. The daemon's loop, the fuzzers and ``pair``, two NICs back to back
in memory, use nothing below it.

Both directions take one frame with its virtio-net header and write into buffers the caller made once; nothing is
allocated per frame. What is not ours crosses unchanged, by the caller writing the very buffer it has read.

**The promise.** Every value of a tagged stream arrives as it was sent or as the codec makes it, never as a mixture.
``forms`` keeps it: each float has one form, exact or rounded, in every segment that holds some of it. In a stream
written in whole floats it is the codec's, once compression has begun. The promise needs every segment of the
connection to come by, and the flow table to outlive the process.

**Which segments.** TCP over IPv4 without options or IPv6 without extension headers, no fragment, of a connection whose
handshake the NIC has seen on both sides (``handshake``), between hosts that both tag it. The tag is a policy: a ToS or
traffic class, and ports. ``judgement`` looks at the first kilobyte of what is sent: what is no array of float32 stays
exact to its end. A block needs a segment with payload and none of SYN, RST, URG and CWR; with those flags the segment
leaves plain. A segment with a TCP signature, or with a wrong checksum, crosses as it is.

**Plain segments** carry the codec's values as well. A segment leaves plain if its blocks would not be smaller, or while
its connection is on ``probation`` because blocks do not arrive.

**Receive.** A block is checked before any octet of it is used: its connection is known, its CRC is right and combined
with the nonce of the handshake, with a key its MAC is right, version, codec and lengths fit; and a burst's tags before
that burst is. A bad one is dropped under its reason and TCP sends it again. Plain segments are accepted at any time.
What the peer acknowledges tells the transmit side what is settled; the host hears of whole floats.

**The path.** ``path`` limits a connection's blocks to what arrives, ``router_errors`` makes errors about blocks into
errors about the host's segments.

**What may be lost.** Every frame that ends here has a reason (``Counter.DROP_...``). Every tagged segment that leaves
plain or crosses has one too (``Counter.BYPASS_...``).

Files: ``nic`` and ``pair``; ``counters`` the list of what can happen; ``sequence``, ``options`` and ``sums`` header
access; ``network`` IPv4 and IPv6; ``flows`` the table, ``flow_report`` for people; ``handshake``; ``transmit``;
``judgement``; ``forms``; ``lent``; ``plain``; ``probation``; ``path``; ``pack`` and ``blocks``; ``authentication`` and
``libcrypto`` the MAC; ``encapsulation`` into UDP and out of it; ``receive`` and ``block_view``; ``router_errors``;
``vlan`` for the loop; ``fuzz`` damaged frames into both directions; ``summary`` what follows from the counters, in
plain Python; ``bypass`` which frames the kernel may carry past it. Apart from all this, ``hardware`` models the burst
engine as a circuit, in plain Python too.
"""
