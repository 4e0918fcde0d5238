"""Frames in, frames out: what the NIC does to a frame. Compiled, no I/O, time and random numbers as arguments.

::

    nic.from_host   transmit ─► forms ─► pack ─► encapsulation ──────────► wire   a tagged segment becomes blocks
                           └──► plain ─────────────────────────────────► wire   or stays a segment
    nic.from_clock  lent ──► plain ─────────────────────────────────────► wire   octets that the host never sends again
    nic.from_wire   unwrap ─► find_block ─► note ─► take ─► finish ─► host       blocks become one large segment again

``nic`` has these calls, ``state`` what one NIC remembers. Their callers are the daemon's loop, ``tests/fuzz`` and
``pair`` (two NICs back to back in memory); they call nothing below.

Both directions take one frame with its virtio-net header and write into buffers that the caller made once; nothing is
allocated per frame. A frame that the NIC does not handle crosses unchanged: the caller writes the buffer it has read.

**The promise.** Every value of a tagged stream arrives as it was sent or as the codec makes it, never as a mixture.
``forms`` keeps the promise: each float has one form, exact or rounded, in every segment that holds some of its octets.
Once compression has begun, all floats are rounded, if the application writes whole floats. The promise holds only if
every segment of the connection crosses this NIC, and if the flow table outlives the process.

**Which segments.** TCP over IPv4 without options or IPv6 without extension headers, not fragmented. Both hosts tag the
connection, and the NIC has seen its handshake (``handshake``). The tag is a policy: a ToS or traffic class, and ports.
Somebody promises that the connection carries float32: the sender's socket by its own tag, or the operator
(``promises``). ``judgement`` looks at the first kilobyte of a stream, and at every segment behind it. What is not an
array of float32 stays exact. A lossless codec lifts all of this: no promise, no verdict, no whole floats. There
``gain`` decides, by whether blocks are shorter.
A segment becomes blocks if it has a payload and none of the flags SYN, RST, URG and CWR; with such a flag it leaves
plain. A segment with a TCP signature, or with a wrong checksum, crosses unchanged.

**Plain segments** carry the codec's values as well. A segment leaves plain if its blocks would not be smaller, or while
its connection is on ``probation`` because blocks do not arrive.

**Receive.** The NIC checks a block before it uses any octet of the block. The connection is known, and the CRC is right
and combined with the nonce of the handshake. With a key, the MAC is right. Version, codec and lengths fit. The decoder
checks the tags of each burst before it decodes the burst. A bad block is dropped under its reason and TCP sends it
again. Plain segments are accepted at any time. The peer's acknowledgements tell the transmit side which octets are
settled. The host sees acknowledgements of whole floats, or of lent octets (``lent``).

**The path.** ``path`` limits a connection's blocks to a length that arrives. ``router_errors`` turns errors about
blocks into errors about the host's segments.

**What may be lost.** Every frame that ends here has a reason (``Counter.DROP_...``). Every tagged segment that leaves
plain or crosses unchanged has one too (``Counter.BYPASS_...``).

Other files: ``counters``, the list of all events; ``flows``, the table, and ``flow_report``, its rows for people;
``orphans``, connections without a handshake; ``network``, IPv4 and IPv6; ``segment`` and ``sums``, access to headers;
``authentication``, the MAC; ``summary``, ratios and rates, in plain Python; ``bypass``, what the kernel may carry.
"""
