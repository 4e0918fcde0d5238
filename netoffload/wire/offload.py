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

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netoffload.errors import WireError
from netoffload.wire import tcp
from netoffload.wire.checksum import crc32c

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


@dataclass(frozen=True)
class Block:
    """One offload block without MAC. ``payload`` is head octets, bursts, tail octets; ``tcp_header`` has checksum 0."""

    codec: int
    bound_k: int
    head: int
    tail: int
    payload_len: int
    gso_size: int
    tcp_header: bytes
    payload: bytes
    half_bursts: int = 0
    half_len: int = 0
    nonce: int = 0

    @property
    def count(self) -> int:
        """How many floats the bursts hold."""
        return (self.payload_len - self.head - self.tail) // 4

    @property
    def bursts(self) -> bytes:
        """The codec payload between the raw octets."""
        return self.payload[self.head : len(self.payload) - self.tail]


def emit_block(block: Block, src: bytes, dst: bytes) -> bytes:
    """Return the octets after the IP header: IPComp header, block header, TCP header, payload.

    Args:
        src: source address, 4 or 16 octets (the CRC covers it).
    """
    octets = bytearray(OVERHEAD)
    octets[NEXT_HEADER] = IPCOMP_NEXT_TCP
    octets[CPI : CPI + 2] = CPI_OFFLOAD.to_bytes(2, "big")
    octets[VERSION_CODEC] = BLOCK_VERSION << 4 | block.codec
    octets[BOUND_K] = block.bound_k
    octets[HEAD_TAIL] = block.head << 4 | block.tail
    octets[PAYLOAD_LEN : PAYLOAD_LEN + 2] = block.payload_len.to_bytes(2, "big")
    octets[GSO_SIZE : GSO_SIZE + 2] = block.gso_size.to_bytes(2, "big")
    octets[HALF_BURSTS : HALF_BURSTS + 2] = block.half_bursts.to_bytes(2, "big")
    octets[HALF_LEN : HALF_LEN + 2] = block.half_len.to_bytes(2, "big")
    octets += block.tcp_header + block.payload
    octets[CRC : CRC + 4] = (_crc(bytes(octets), src, dst) ^ block.nonce).to_bytes(4, "big")
    return bytes(octets)


def parse_block(octets: bytes, src: bytes, dst: bytes, nonce: int = 0) -> Block:
    """Read the octets after an IP header with protocol 108.

    The codec's payload is not checked. ``nonce`` is the nonce of the receiving NIC.
    """
    if len(octets) < OVERHEAD + 20:
        raise WireError(f"offload block of {len(octets)} octets is shorter than its headers")
    if octets[NEXT_HEADER] != IPCOMP_NEXT_TCP or octets[IPCOMP_FLAGS] != 0:
        raise WireError("IPComp header does not announce TCP")
    if int.from_bytes(octets[CPI : CPI + 2], "big") != CPI_OFFLOAD:
        raise WireError("IPComp CPI is not the offload block's")
    if octets[VERSION_CODEC] >> 4 != BLOCK_VERSION:
        raise WireError(f"offload block version {octets[VERSION_CODEC] >> 4} is not {BLOCK_VERSION}")
    if octets[FLAGS] != 0:
        raise WireError("offload block has a reserved bit set")
    if _crc(octets, src, dst) ^ nonce != int.from_bytes(octets[CRC : CRC + 4], "big"):
        raise WireError("offload block has a bad CRC")
    head, tail = octets[HEAD_TAIL] >> 4, octets[HEAD_TAIL] & 15
    tcp_len = 4 * (octets[TCP_HEADER + 12] >> 4)
    payload_len = int.from_bytes(octets[PAYLOAD_LEN : PAYLOAD_LEN + 2], "big")
    payload = octets[TCP_HEADER + tcp_len :]
    if not 20 <= tcp_len <= len(octets) - TCP_HEADER:
        raise WireError(f"TCP header of {tcp_len} octets does not fit its block")
    if octets[TCP_HEADER + tcp.FLAGS] & ~SEGMENT_FLAGS:
        raise WireError("offload block of a segment with SYN, RST, URG or CWR")
    half_bursts = int.from_bytes(octets[HALF_BURSTS : HALF_BURSTS + 2], "big")
    half_len = int.from_bytes(octets[HALF_LEN : HALF_LEN + 2], "big")
    floats_len = payload_len - head - tail
    if (
        head > 3
        or tail > 3
        or floats_len < 4 * BURST_FLOATS * half_bursts
        or floats_len % 4
        or len(payload) < head + half_len + tail
    ):
        raise WireError("offload block lengths contradict each other")
    return Block(
        codec=octets[VERSION_CODEC] & 15,
        bound_k=octets[BOUND_K],
        head=head,
        tail=tail,
        payload_len=payload_len,
        gso_size=int.from_bytes(octets[GSO_SIZE : GSO_SIZE + 2], "big"),
        tcp_header=octets[TCP_HEADER : TCP_HEADER + tcp_len],
        payload=payload,
        half_bursts=half_bursts,
        half_len=half_len,
        nonce=nonce,
    )


def nonce_of(octets: bytes, src: bytes, dst: bytes) -> int:
    """Return the nonce of a block from its IPComp header on, which everyone who sees the block can compute.

    Args:
        octets: the block, without damage and without MAC.
    """
    return _crc(octets, src, dst) ^ int.from_bytes(octets[CRC : CRC + 4], "big")


def _crc(octets: bytes, src: bytes, dst: bytes) -> int:
    protocol_and_length = bytes((0, PROTO_IPCOMP)) + len(octets).to_bytes(2, "big")
    return crc32c(src + dst + octets[:CRC] + protocol_and_length + octets[CRC + 4 :])
