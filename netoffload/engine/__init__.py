"""Frames in, frames out: what the NIC does to a frame. Compiled, no I/O, time as an argument.

::

    host ──► transmit ──► encode ──► blocks ──► wire          tx: tagged TCP payload becomes offload blocks
    host ◄── finish ◄── decode ◄── receive ◄── wire           rx: blocks become one large segment again

Both directions take one frame with its virtio-net header and write into buffers the caller made once; nothing is
allocated per frame. What is not ours crosses unchanged, by the caller writing the very buffer it has read.

**Transmit.** A segment is compressed if it is TCP over IPv4 without options or IPv6 without extension headers, no
fragment, its ToS or traffic class matches 0x28 (the two ECN bits ignored), it has payload, none of SYN, RST, URG, CWR,
TCP-MD5, TCP-AO, and the flow's SYN was seen: floats are counted from the first octet after the SYN, and the octets of a
float cut by the segment's limits travel raw at the block's head and tail. Retransmissions need no memory: a float's
code depends on the float alone.

**Cut floats.** A float of which some octets travelled raw must not be completed by octets that were decoded. The NICs
round the MSS down to whole floats, so that TCP does not cut what is written as floats. In a flow where a float was cut
all the same (by odd writes, a window, a path's odd MTU), what was sent before is sent again raw only: so a float is
either raw in every segment that holds some of it, or whole in the first one that arrives. What is left: the first cut
of a flow is made by a retransmission, and an original of before comes to the peer as well, late, or early and waiting
out of order for what the retransmission brings. The one float at the cut may then be mixed. A peer would have to keep
parts of floats from its host to prevent that, and a retransmission of less than a float would make no progress.

**On the wire.** A block is a frame of IPComp, or a datagram of UDP, whose kernel then takes those of a segment as one
bundle. ``receive`` sees IPComp always.

**Receive.** A block of ours is checked (length, CRC, version, codec, lengths) before any octet of it is used, and a
burst's tags before that burst is; a bad one is dropped under its reason and TCP sends it again. Raw frames are accepted
at any time.

**What may be lost.** Every frame that ends here has a reason (``Counter.DROP_...``). Every tagged segment that crosses
uncompressed has one too (``Counter.BYPASS_...``).

**Handshake.** The NICs of both ends add a word to the SYN and the SYN/ACK of a tagged connection and take the peer's
out again: which codecs they decode. A flow is compressed only towards a peer that said so; receivers take raw and
compressed segments at any time. A flow whose compressed range was sent again
:data:`~netoffload.engine.flows.RETRIES_MAX` times without progress goes on raw, for a network that loses our blocks.

Files: ``counters`` the list of what can happen; ``fields``, ``options`` and ``sums`` header access; ``network`` IPv4
and IPv6; ``flows`` the table; ``handshake``; ``transmit``; ``blocks``; ``authentication`` a MAC for NICs that share a
key, ``libcrypto`` OpenSSL for it; ``encapsulation`` into UDP and out of it; ``rounding`` for what crosses raw for want
of gain; ``receive``; ``vlan`` for the loop; ``fuzz`` damaged frames into both directions; ``summary`` what follows from
the counters, in plain Python; ``bypass`` which frames the kernel may carry past it. Apart from all this, ``hardware``
models the burst engine as a circuit, in plain Python too.
"""
