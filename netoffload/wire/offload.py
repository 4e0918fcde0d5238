"""The offload block: the form of a compressed segment between two NICs.

::

    IPv4 or IPv6 header (ToS or traffic class kept, protocol or next header 108)
    | IPComp 4 | block header 16 | TCP header verbatim | block payload

    IPComp header (RFC 3173, 3):  next header = 6 | flags = 0 | CPI (private range)          4 octets

    block header, network byte order:
     0  version << 4 | codec id     ``netoffload.codec_specs``
     1  bound k (the error bound is 2**-k)
     2  head << 4 | tail            raw octets before and after the floats, 0..3 each
     3  flags                       1: a MAC of 16 octets follows the payload; receivers refuse others
     4  payload length              of the TCP segment this block stands for, 16 bit
     6  gso_size                    the MSS of the sender's segment; 0: the payload is one segment
     8  half bursts                 bursts in the first half of the floats; 0: no half is marked
    10  half length                 octets they take
    12  CRC32C xor nonce            see below

    block payload: head octets | codec bursts of (payload length - head - tail) / 4 floats | tail octets [| MAC 16]

The place of a burst is known only after all bursts before it are read, so a single decoder mostly waits for memory. The
header marks the middle of the floats, so that two decoders can work side by side. A decoder may ignore the mark and
read from front to back. If no burst starts at the mark, the payload is malformed.

An undecoded block must never look like TCP data: a host without a NIC would pass compressed octets to its application.
So blocks have another protocol number, which such a host drops. The TCP header is verbatim but for its checksum, which
is 0: the receiving NIC changes the payload and leaves the checksum to its host's kernel (virtio-net ``NEEDS_CSUM``).
The CRC protects the segment instead. It covers the pseudo-header (addresses of 4 or 16 octets, protocol 108, length
from the IPComp header on), the IPComp and block headers, the TCP header and the payload. While the CRC is computed, its
field holds protocol and length. The addresses of both families end where the IPComp header starts, so the CRC covers
one run of octets. In UDP (``encapsulation``) the block is the same.

The field holds the CRC combined (exclusive or) with the nonce that the receiving NIC sent in its capability word. A
sender that did not see the handshake guesses it once in 2**32 blocks. An attacker on the path can compute the nonce; a
key protects against that. With a key, the MAC covers the same octets as the CRC, and the field itself.
"""

from typing import Final

from netoffload.wire import tcp

PROTO_IPCOMP: Final = 108
IPCOMP_LEN: Final = 4
IPCOMP_NEXT_TCP: Final = 6
CPI_OFFLOAD: Final = 0xF128
"""Compression parameter index, of 61440..65535 for private agreement (RFC 3173, 3.3); it ends in the ToS 0x28."""

BLOCK_VERSION: Final = 3
BLOCK_LEN: Final = 16
OVERHEAD: Final = IPCOMP_LEN + BLOCK_LEN
BURST_FLOATS: Final = 8
"""Floats in a burst; in every codec a burst is a whole number of octets."""

# Field offsets from the start of the IPComp header.
NEXT_HEADER: Final = 0
IPCOMP_FLAGS: Final = 1
CPI: Final = 2
VERSION_CODEC: Final = 4
BOUND_K: Final = 5
HEAD_TAIL: Final = 6
FLAGS: Final = 7
HAS_MAC: Final = 1
"""The only flag; all other bits are reserved."""
MAC_LEN: Final = 16
PAYLOAD_LEN: Final = 8
GSO_SIZE: Final = 10
HALF_BURSTS: Final = 12
HALF_LEN: Final = 14
CRC: Final = 16
TCP_HEADER: Final = 20

SEGMENT_FLAGS: Final = tcp.ACK_FLAG | tcp.PSH | tcp.FIN | tcp.ECE
"""TCP flags that a block's segment may have. ECE is on every segment between a congestion mark and its answer.
Segments with CWR (only the first one after a mark), SYN, RST or URG leave as TCP; a block with one is forged."""
