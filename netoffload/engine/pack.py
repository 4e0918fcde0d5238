"""One segment becomes blocks.

A TSO segment of up to 64 KiB comes in as one frame. *Coalesced* packing encodes as many floats as fit into one wire
frame, then goes on with the next; at ratio r there are r times fewer frames. *Per-segment* packing makes one frame of
every MSS-sized piece, as the paper's NIC does. Sequence numbers say where each block belongs, so a lost block costs
only itself. Where the blocks together are not smaller than the raw frames, the segment leaves plain. A segment
of a lossless codec may begin and end inside words, whose octets its blocks carry raw.
"""

from typing import Final, NamedTuple

from netoffload.codec.kernels import ENCODE_SLACK, LANES, codec_for, encode_fit
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import copy_octets, put_be16, put_be32, u8
from netoffload.engine import flows, gain, network, path
from netoffload.engine.authentication import is_on, put_mac
from netoffload.engine.counters import Counter
from netoffload.engine.encapsulation import bundle, wrap
from netoffload.engine.flows import Flow
from netoffload.engine.network import IP_AT
from netoffload.engine.segment import Segment, advance
from netoffload.engine.state import EngineSettings, NicState
from netoffload.engine.sums import crc32c
from netoffload.wire import offload, tcp, vnet
from netoffload.wire.capability import TAKES_UDP
from netoffload.wire.encapsulation import DATAGRAM_OVERHEAD
from netoffload.wire.ethernet import ETHERNET_LEN

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


class Sending(NamedTuple):
    """How blocks of one connection travel.

    Attributes:
        codec_id: codec of the blocks, with the values of the NIC's own codec.
        datagram_max: octets of a frame of IPComp at most, from the network header on.
        nonce: what the peer expects in the CRC.
        mac_len: octets of the MAC behind every block, 0 or 16.
    """

    codec_id: int
    datagram_max: int
    in_udp: int
    nonce: int
    mac_len: int


class Piece(NamedTuple):
    """The part of a segment's payload that one block is made from.

    Attributes:
        done: octets of the payload before this part.
        octets: the most octets that the block may hold.
        head: how many of them belong to no word, and travel raw before the words, 0..3.
        number: the block's number in its segment, from 0.
    """

    done: int
    octets: int
    head: int
    number: int


@inline_kernel
def _find_sending(settings: EngineSettings, segment: Segment, now_ns: int, flow: Flow, is_small: bool) -> Sending:
    in_udp = int(settings.in_udp and flow[flows.PEER_WAYS] & TAKES_UDP)
    longest = path.datagram_max(flow, min(settings.mtu[0], MTU_MAX), now_ns)
    if is_small and not settings.per_segment:
        longest = min(longest, path.SMALL)
    if segment.gso_size:
        # No frame is larger than the host's own segments: TCP knows what the peer and the path can take.
        longest = min(longest, segment.payload_at - vnet.VNET_LEN - ETHERNET_LEN + segment.gso_size)
    mac_len = offload.MAC_LEN if is_on(settings.mac_key) else 0
    codec_id = codec_for(settings.codec_id, flow[flows.PEER_CODECS])
    datagram_max = longest - (DATAGRAM_OVERHEAD if in_udp else 0)
    return Sending(codec_id, datagram_max, in_udp, flow[flows.PEER_NONCE], mac_len)


@inline_kernel
def pack(
    nic: NicState, frame: Uint8Array, segment: Segment, flow: Flow, now_ns: int, is_small: bool, wire: Uint8Array
) -> int:
    """Fill wire frames with the segment's blocks; return how many, or 0 if the segment should leave plain.

    Args:
        frame: uint8, with the segment, whose payload is whole floats if the codec rounds.
        is_small: in datagrams that any path takes.
        wire: uint8[BLOCKS_ROOM] for the wire frames, each with its own virtio-net header.
    """
    settings, counters, spans = nic.settings, nic.counters, nic.spans
    sending = _find_sending(settings, segment, now_ns, flow, is_small)
    payload_len, gso_size = segment.payload_len, segment.gso_size
    pieces = (payload_len + gso_size - 1) // gso_size if gso_size else 1
    header_len = segment.payload_at - vnet.VNET_LEN
    raw_len = payload_len + pieces * header_len
    before = DATAGRAM_OVERHEAD if sending.in_udp else 0
    classes = nic.classes
    for width in range(4):
        classes[width] = 0
    head = gain.head_of(sending.codec_id, segment, flow)
    blocks = wire_len = wire_at = done = 0
    while done < payload_len:
        left = payload_len - done
        octets = min(gso_size, left) if settings.per_segment and gso_size else left
        piece = Piece(done, octets, min(head - done & 3, octets), blocks)
        taken, span = _emit_block(settings, sending, frame, segment, piece, classes, wire, wire_at + before)
        if sending.in_udp:
            span = wrap(frame, segment, wire, wire_at, span, blocks)
        wire_len += span - vnet.VNET_LEN
        if (
            taken == 0
            or wire_len >= raw_len
            or (settings.per_segment and taken < octets)  # one frame per MSS, or none
            or (blocks == MAX_WIRE_FRAMES - 1 and taken < left)
        ):
            return 0
        path.watch(flow, advance(segment.seq, done), taken, span - vnet.VNET_LEN - ETHERNET_LEN)
        spans[blocks, 0] = wire_at
        spans[blocks, 1] = span
        blocks += 1
        wire_at += (span + CACHE_LINE - 1) & ~(CACHE_LINE - 1)
        done += taken
    if not is_small:
        gain.note_blocks(flow, segment, raw_len, wire_len)
    payload_octets = wire_len - blocks * (header_len + offload.OVERHEAD + sending.mac_len + before)
    for width in range(4):
        counters[Counter.TX_CLASS_0 + width] += classes[width]
    counters[Counter.TX_SEGMENTS] += 1
    counters[Counter.TX_RAW_OCTETS] += payload_len
    counters[Counter.TX_PAYLOAD_OCTETS] += payload_octets
    counters[Counter.TX_BLOCKS] += blocks
    flow[flows.SEGMENTS] += 1
    flow[flows.RAW_OCTETS] += payload_len
    flow[flows.PAYLOAD_OCTETS] += payload_octets
    flow[flows.WIRE_OCTETS] += wire_len
    flow[flows.BLOCKS] += blocks
    if sending.in_udp and settings.bundles:
        flow[flows.WIRE_OCTETS] += max(bundle(wire, spans, blocks, segment.ip_len), 0)
    return blocks


@inline_kernel
def proof_of(nonce: int, seq: int) -> int:
    """Return 16 bits that only the path of a connection can know, for the unused checksum of a block's TCP header.

    A router's error about the block quotes them (``router_errors``). ``nonce`` is the peer's, from the handshake;
    ``seq`` is the number of the block's first octet, of which the low 32 bits count.
    """
    return (((seq ^ nonce) & 0xFFFFFFFF) * 0x1E3779B1 >> 16) & 0xFFFF


@inline_kernel
def _emit_block(
    settings: EngineSettings,
    sending: Sending,
    frame: Uint8Array,
    segment: Segment,
    piece: Piece,
    classes: Int64Array,
    wire: Uint8Array,
    wire_at: int,
) -> tuple[int, int]:
    """Write one frame of IPComp at ``wire_at``; return its payload octets, and the frame's length.

    ``classes``, int64[4], counts its floats.
    """
    ip_len = segment.ip_len
    tcp_len = segment.payload_at - segment.tcp_at
    comp_at = wire_at + segment.tcp_at
    header_at = comp_at + offload.TCP_HEADER
    head, floats = piece.head, (piece.octets - piece.head) // 4
    tail = piece.octets - head - 4 * floats
    source_at, payload_at = segment.payload_at + piece.done, header_at + tcp_len
    capacity = sending.datagram_max - ip_len - offload.OVERHEAD - tcp_len - sending.mac_len - head - tail
    half_count, half_len, encoded, bursts_len = _encode_halves(
        sending.codec_id,
        settings.bound_k,
        frame,
        source_at + head,
        floats,
        Stretch(wire, payload_at + head, capacity),
        classes,
    )
    tail = tail if encoded == floats else 0
    taken = head + 4 * encoded + tail
    for octet in range(head):
        wire[payload_at + octet] = frame[source_at + octet]
    for octet in range(tail):
        wire[payload_at + head + bursts_len + octet] = frame[source_at + taken - tail + octet]
    block_len = offload.OVERHEAD + tcp_len + head + bursts_len + tail

    copy_octets(frame, vnet.VNET_LEN, wire, wire_at + vnet.VNET_LEN, segment.tcp_at - vnet.VNET_LEN)
    for octet in range(vnet.VNET_LEN):
        wire[wire_at + octet] = 0
    datagram_len = ip_len + block_len + sending.mac_len
    network.put_datagram(wire, wire_at + IP_AT, ip_len, datagram_len, piece.number, offload.PROTO_IPCOMP)

    copy_octets(frame, segment.tcp_at, wire, header_at, tcp_len)
    put_be32(wire, header_at + tcp.SEQ, segment.seq + piece.done)
    put_be16(wire, header_at + tcp.CHECKSUM, proof_of(sending.nonce, segment.seq + piece.done))
    if piece.done + taken < segment.payload_len:
        wire[header_at + tcp.FLAGS] = u8(wire, header_at + tcp.FLAGS) & ~(tcp.FIN | tcp.PSH)

    wire[comp_at + offload.NEXT_HEADER] = offload.IPCOMP_NEXT_TCP
    wire[comp_at + offload.IPCOMP_FLAGS] = 0
    put_be16(wire, comp_at + offload.CPI, offload.CPI_OFFLOAD)
    wire[comp_at + offload.VERSION_CODEC] = offload.BLOCK_VERSION << 4 | sending.codec_id
    wire[comp_at + offload.BOUND_K] = settings.bound_k
    wire[comp_at + offload.HEAD_TAIL] = head << 4 | tail
    wire[comp_at + offload.FLAGS] = offload.HAS_MAC if sending.mac_len else 0
    put_be16(wire, comp_at + offload.PAYLOAD_LEN, taken)
    put_be16(wire, comp_at + offload.GSO_SIZE, segment.gso_size)
    put_be16(wire, comp_at + offload.HALF_BURSTS, half_count // LANES)
    put_be16(wire, comp_at + offload.HALF_LEN, half_len)
    put_be32(wire, comp_at + offload.CRC, block_crc(wire, comp_at, ip_len, block_len) ^ sending.nonce)
    if sending.mac_len:
        addresses_len = network.addresses_len(ip_len)
        put_mac(settings.mac_key, wire, comp_at - addresses_len, addresses_len + block_len, comp_at + block_len)
    return taken, segment.tcp_at + block_len + sending.mac_len


@inline_kernel
def _encode_halves(
    codec_id: int,
    bound_k: int,
    frame: Uint8Array,
    source_at: int,
    floats: int,
    room: Stretch,
    classes: Int64Array,
) -> tuple[int, int, int, int]:
    """Encode as many floats as fit; return floats and octets of the first half, then floats and octets of the whole.

    The first half ends where half the floats are encoded or half the room is full. If the room ends the block, that is
    the middle of its octets; otherwise it is the middle of its floats.
    """
    wire, at, capacity = room.octets, room.at, room.length
    half = floats // 2 // LANES * LANES
    half_count, half_len = encode_fit(codec_id, frame, source_at, half, bound_k, wire, at, capacity // 2, classes)
    source_at, left, at, capacity = source_at + 4 * half_count, floats - half_count, at + half_len, capacity - half_len
    rest, rest_len = encode_fit(codec_id, frame, source_at, left, bound_k, wire, at, capacity, classes)
    return half_count, half_len, half_count + rest, half_len + rest_len


@inline_kernel
def block_crc(octets: Uint8Array, comp_at: int, ip_len: int, block_len: int) -> int:
    """Return the CRC of the block at ``comp_at``; its CRC field is overwritten.

    While the CRC is computed, its field holds protocol and length. The addresses end where the block starts, so the
    pseudo-header and the block are one run of octets.
    """
    put_be32(octets, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
    addresses_len = network.addresses_len(ip_len)
    return crc32c(octets, comp_at - addresses_len, addresses_len + block_len, 0)
