"""One segment becomes blocks.

A TSO segment of up to 64 KiB comes in as one frame. *Coalesced* packing encodes as many floats as fit into one wire
frame, then goes on with the next; at ratio r there are r times fewer frames. *Per-segment* packing makes one frame of
every MSS-sized piece, as the paper's NIC does. Sequence numbers say where each block belongs, so a lost block costs
only itself. Where the blocks together are not smaller than the raw frames, the segment leaves plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.codec.kernels import ENCODE_SLACK, codec_for
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.engine import flows as flow_table
from netoffload.engine import path
from netoffload.engine.authentication import is_on
from netoffload.engine.blocks import Piece, Sending, emit_block
from netoffload.engine.counters import Counter
from netoffload.engine.encapsulation import wrap
from netoffload.engine.sequence import advance
from netoffload.wire import offload, vnet
from netoffload.wire.capability import TAKES_UDP
from netoffload.wire.encapsulation import DATAGRAM_OVERHEAD
from netoffload.wire.ethernet import ETHERNET_LEN

if TYPE_CHECKING:
    from netoffload.engine.blocks import EngineSettings, Room, Segment
    from netoffload.engine.counters import Counters
    from netoffload.engine.flows import FlowTable

MAX_WIRE_FRAMES: Final = 256
"""The most frames that one segment may become; a segment that needs more (an MSS below 256 octets) leaves plain.
With coalesced packing, an MTU of 576 and only incompressible floats it takes 133."""

CACHE_LINE: Final = 64
"""Alignment of wire frames, octets."""

MTU_MAX: Final = 9000
"""The largest datagram that the NIC makes, even if the wire takes larger ones."""

BLOCKS_ROOM: Final = 4 * 65536 + MTU_MAX + MAX_WIRE_FRAMES * (CACHE_LINE + ENCODE_SLACK)
"""Octets for the blocks of one segment. Packing stops when the blocks reach the octets of the raw frames, at most
64 KiB and a header of at most 146 octets per block. One more frame, alignment and slack come on top."""


@inline_kernel
def find_sending(
    settings: EngineSettings, segment: Segment, now_ns: int, flows: FlowTable, slot: int, is_small: bool
) -> Sending:
    """Return how blocks of a connection travel (``blocks.Sending``); ``is_small``: in datagrams that any path takes."""
    in_udp = int(settings.in_udp and flows[slot, flow_table.PEER_WAYS] & TAKES_UDP)
    longest = path.datagram_max(flows, slot, min(settings.mtu[0], MTU_MAX), now_ns)
    if is_small and not settings.per_segment:
        longest = min(longest, path.SMALL)
    if segment.gso_size:
        # No frame is larger than the host's own segments: TCP knows what the peer and the path can take.
        longest = min(longest, segment.payload_at - vnet.VNET_LEN - ETHERNET_LEN + segment.gso_size)
    mac_len = offload.MAC_LEN if is_on(settings.tx_mac) else 0
    nonce = flows[slot, flow_table.PEER_NONCE]
    codec_id = codec_for(settings.codec_id, flows[slot, flow_table.PEER_CODECS])
    return Sending(codec_id, longest - (DATAGRAM_OVERHEAD if in_udp else 0), in_udp, nonce, mac_len)


@inline_kernel
def pack(
    settings: EngineSettings,
    sending: Sending,
    frame: Uint8Array,
    segment: Segment,
    flows: FlowTable,
    slot: int,
    counters: Counters,
    room: Room,
) -> int:
    """Fill wire frames with the segment's blocks; return how many, or 0 if the segment should leave plain.

    Args:
        frame: uint8, with the segment, whose payload is whole floats.
        room: ``blocks.Room``: wire frames and where each one is.
    """
    payload_len, gso_size = segment.payload_len, segment.gso_size
    pieces = (payload_len + gso_size - 1) // gso_size if gso_size else 1
    raw_len = payload_len + pieces * (segment.payload_at - vnet.VNET_LEN)
    before = DATAGRAM_OVERHEAD if sending.in_udp else 0
    classes = counters[Counter.TX_CLASS_0 : Counter.TX_CLASS_32 + 1]
    before0, before8, before16, before32 = classes[0], classes[1], classes[2], classes[3]
    blocks = wire_len = wire_at = done = 0
    while done < payload_len:
        left = payload_len - done
        octets = min(gso_size, left) if settings.per_segment and gso_size else left
        piece = Piece(done, octets, blocks)
        taken, span = emit_block(settings, sending, frame, segment, piece, classes, room.wire, wire_at + before)
        if sending.in_udp:
            span = wrap(frame, segment, room.wire, wire_at, span, blocks)
        wire_len += span - vnet.VNET_LEN
        if (
            taken == 0
            or wire_len >= raw_len
            or (settings.per_segment and taken < octets)  # one frame per MSS, or none
            or (blocks == MAX_WIRE_FRAMES - 1 and taken < left)
        ):
            # The floats leave plain, so they are not counted as compressed.
            classes[0], classes[1], classes[2], classes[3] = before0, before8, before16, before32
            return 0
        path.watch(flows, slot, advance(segment.seq, done), taken, span - vnet.VNET_LEN - ETHERNET_LEN)
        room.spans[blocks, 0] = wire_at
        room.spans[blocks, 1] = span
        blocks += 1
        wire_at += (span + CACHE_LINE - 1) & ~(CACHE_LINE - 1)
        done += taken
    return blocks


@inline_kernel
def account(
    segment: Segment,
    sending: Sending,
    flows: FlowTable,
    slot: int,
    counters: Counters,
    spans: Int64Array,
    blocks: int,
) -> None:
    """Count one compressed segment, for the NIC and for its connection."""
    raw_octets = segment.payload_len
    wire_octets = 0
    for block in range(blocks):
        wire_octets += spans[block, 1] - vnet.VNET_LEN
    headers_len = segment.payload_at - vnet.VNET_LEN + offload.OVERHEAD + sending.mac_len
    headers_len += DATAGRAM_OVERHEAD if sending.in_udp else 0
    payload_octets = wire_octets - blocks * headers_len
    counters[Counter.TX_SEGMENTS] += 1
    counters[Counter.TX_RAW_OCTETS] += raw_octets
    counters[Counter.TX_PAYLOAD_OCTETS] += payload_octets
    counters[Counter.TX_BLOCKS] += blocks
    flows[slot, flow_table.SEGMENTS] += 1
    flows[slot, flow_table.RAW_OCTETS] += raw_octets
    flows[slot, flow_table.PAYLOAD_OCTETS] += payload_octets
    flows[slot, flow_table.WIRE_OCTETS] += wire_octets
    flows[slot, flow_table.BLOCKS] += blocks
