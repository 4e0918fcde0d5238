"""Host to wire: which segments are compressed, and how one segment becomes blocks.

The functions stand in the order in which a segment meets them: :func:`transmit` decides, :func:`_classify` says why
not, :func:`_pack` fills wire frames, :func:`_emit_block` writes one.

A TSO segment of up to 64 KiB comes in as one frame. *Coalesced* packing encodes as many floats as fit into one wire
frame of MTU size, then goes on with the next; at ratio r there are r times fewer frames. *Per-segment* packing makes
one frame of every MSS-sized piece, as the paper's NIC does. Sequence numbers say where each block belongs, so a lost
one costs only itself. If the blocks together are not smaller than the raw frames, the segment passes unchanged.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.kernels import ENCODE_SLACK, encode_fit
from netoffload.codec.octets import copy_octets, load_u16, store_u32, u8
from netoffload.config import TOS_COMPRESS
from netoffload.engine import flows as flow_table
from netoffload.engine import handshake
from netoffload.engine.counters import Counter
from netoffload.engine.fields import be16, be32, put_be16, put_be32, put_ipv4_lengths
from netoffload.engine.flows import NOT_FOUND, addresses_and_ports
from netoffload.engine.handshake import IP_AT, TCP_AT
from netoffload.engine.options import NO_OPTION, find_option
from netoffload.engine.sums import crc32c
from netoffload.wire import ethernet, ipv4, offload, tcp, vnet

FORWARD: Final = -1
"""Result of :func:`transmit`: the frame crosses as it is."""

MAX_WIRE_FRAMES: Final = 256
"""Frames one segment may become; one that would need more (an MSS below 256 octets) crosses raw. Coalesced on an
MTU of 576 with every float incompressible it is 133."""

_COMP_AT: Final = TCP_AT
_BLOCK_TCP_AT: Final = _COMP_AT + offload.TCP_HEADER

_ALIGN: Final = 64

MTU_MAX: Final = 9000
"""The largest wire frame that is made, whatever the wire would take."""

WIRE_BUFFER_LEN: Final = 4 * 65536 + MTU_MAX + MAX_WIRE_FRAMES * (_ALIGN + ENCODE_SLACK)
"""Room for the blocks of one segment: they stop when together they reach the raw frames' octets, which are at
most 64 KiB and a header of at most 114 octets per block; one more frame, alignment and slack come on top."""

HOST_BUFFER_LEN: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN + 65536 + 64
"""The largest frame a device gives (64 KiB GSO), and slack for vector loads."""

_PLAIN_FLAGS: Final = tcp.ACK_FLAG | tcp.PSH | tcp.FIN


class TransmitSettings(NamedTuple):
    """What the engine is told once.

    Attributes:
        codec_id: codec of the blocks this NIC makes.
        bound_k: their error bound is 2**-bound_k.
        mtu: largest IP datagram on the wire, octets.
        per_segment: 1 for one frame per MSS, 0 for coalesced packing.
    """

    codec_id: int
    bound_k: int
    mtu: int
    per_segment: int


@kernel
def transmit(
    settings: TransmitSettings,
    frame: Any,
    length: int,
    now_ns: int,
    flows: Any,
    counters: Any,
    wire: Any,
    spans: Any,
) -> int:
    """Take one frame from the host; return how many wire frames it became, or ``FORWARD``.

    Args:
        settings: see :class:`TransmitSettings`.
        frame: uint8, virtio-net header and frame; nothing of it is changed.
        length: octets in ``frame``.
        now_ns: the time, for the flow table.
        flows: the transmit flow table.
        counters: int64, indexed by :class:`Counter`.
        wire: uint8[WIRE_BUFFER_LEN] for the wire frames, each with its own virtio-net header.
        spans: int64[MAX_WIRE_FRAMES, 2]: start and length of each wire frame in ``wire``.
    """
    counters[Counter.TX_HOST_FRAMES] += 1
    counters[Counter.TX_HOST_OCTETS] += length - vnet.VNET_LEN
    reason = _classify(frame, length)
    if reason == Counter.BYPASS_SYN.value:
        spans[0, 0] = 0
        spans[0, 1] = handshake.offer(frame, length, flows, now_ns, wire)
        counters[reason if spans[0, 1] == 0 else Counter.TX_OFFERS.value] += 1
        return 1 if spans[0, 1] else FORWARD
    if reason == Counter.BYPASS_UNTAGGED.value and u8(frame, TCP_AT + tcp.FLAGS) & tcp.SYN:
        src, dst, ports = addresses_and_ports(frame, TCP_AT)
        flow_table.learn(flows, src, dst, ports, be32(frame, TCP_AT + tcp.SEQ), now_ns)
    slot = NOT_FOUND
    if reason == 0:
        slot, reason = _admit(settings, frame, now_ns, flows, counters)
    if reason != 0:
        counters[reason] += 1
        return FORWARD
    blocks = _pack(settings, frame, flows[slot, flow_table.ISN], counters, wire, spans)
    if blocks == 0:
        counters[Counter.BYPASS_NO_GAIN] += 1
        flows[slot, flow_table.BYPASSED] += 1
        return FORWARD
    _account(frame, flows, slot, counters, spans, blocks)
    return int(blocks)


@inline_kernel
def _classify(frame: Any, length: Any) -> Any:
    """Return the counter of the reason why this frame crosses as it is, or 0."""
    if length < TCP_AT + tcp.TCP_MIN_LEN or be16(frame, vnet.VNET_LEN + ethernet.ETHERTYPE) != ethernet.ETHERTYPE_IPV4:
        return Counter.BYPASS_NOT_TCP4.value
    if u8(frame, IP_AT) != 0x45 or u8(frame, IP_AT + ipv4.PROTOCOL) != ipv4.PROTO_TCP:
        return Counter.BYPASS_NOT_TCP4.value
    total_len = be16(frame, IP_AT + ipv4.TOTAL_LEN)
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    if (
        be16(frame, IP_AT + ipv4.FRAGMENT) & ipv4.FRAGMENT_MASK
        or tcp_len < tcp.TCP_MIN_LEN
        or total_len > length - IP_AT
        or total_len < ipv4.IPV4_MIN_LEN + tcp_len
    ):
        return Counter.BYPASS_NOT_TCP4.value
    flags = u8(frame, TCP_AT + tcp.FLAGS)
    tagged = (u8(frame, IP_AT + ipv4.TOS) & 0xFC) == TOS_COMPRESS
    if not tagged:
        return Counter.BYPASS_UNTAGGED.value
    if flags & tcp.SYN:
        return Counter.BYPASS_SYN.value
    if total_len == ipv4.IPV4_MIN_LEN + tcp_len:
        return Counter.BYPASS_NO_PAYLOAD.value
    if flags & ~_PLAIN_FLAGS or _has_signature(frame, tcp_len):
        return Counter.BYPASS_SPECIAL.value
    return 0


@inline_kernel
def _admit(settings: Any, frame: Any, now_ns: Any, flows: Any, counters: Any) -> Any:
    """Return the flow's slot and 0 if its peer decodes what we make, else the counter of the reason why not."""
    src, dst, ports = addresses_and_ports(frame, TCP_AT)
    slot = flow_table.find(flows, src, dst, ports)
    if slot == NOT_FOUND or flows[slot, flow_table.ISN] == flow_table.ISN_NOT_SEEN:
        return slot, Counter.BYPASS_UNKNOWN_FLOW.value
    flows[slot, flow_table.LAST_SEEN_NS] = now_ns
    if u8(frame, TCP_AT + tcp.FLAGS) & tcp.FIN:
        flows[slot, flow_table.IS_CLOSED] = 1
    if flows[slot, flow_table.IS_RAW]:
        flows[slot, flow_table.BYPASSED] += 1
        return slot, Counter.BYPASS_FELL_BACK.value
    if flows[slot, flow_table.PEER_CODECS] >> settings.codec_id & 1 == 0:
        flows[slot, flow_table.BYPASSED] += 1
        return slot, Counter.BYPASS_PEER.value
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    seq = be32(frame, TCP_AT + tcp.SEQ)
    end_seq = seq + be16(frame, IP_AT + ipv4.TOTAL_LEN) - ipv4.IPV4_MIN_LEN - tcp_len
    if flow_table.is_stuck(flows, slot, seq, end_seq):
        counters[Counter.TX_FALLBACKS] += 1
        return slot, Counter.BYPASS_FELL_BACK.value
    return slot, 0


@inline_kernel
def _has_signature(frame: Any, tcp_len: Any) -> Any:
    """Whether an option signs the payload (TCP-MD5, TCP-AO), or the options cannot be read."""
    return (
        find_option(frame, TCP_AT, tcp_len, tcp.OPTION_MD5) != NO_OPTION
        or find_option(frame, TCP_AT, tcp_len, tcp.OPTION_AO) != NO_OPTION
    )


@inline_kernel
def _pack(settings: Any, frame: Any, isn: Any, counters: Any, wire: Any, spans: Any) -> Any:
    """Fill wire frames with the segment's blocks; return how many, or 0 if it had better cross as it is."""
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    payload_at = TCP_AT + tcp_len
    payload_len = be16(frame, IP_AT + ipv4.TOTAL_LEN) - ipv4.IPV4_MIN_LEN - tcp_len
    gso_size = _gso_size(frame)
    pieces = (payload_len + gso_size - 1) // gso_size if gso_size else 1
    raw_len = payload_len + pieces * (payload_at - vnet.VNET_LEN)
    first_octet = be32(frame, TCP_AT + tcp.SEQ) - isn - 1
    classes = counters[Counter.TX_CLASS_0 : Counter.TX_CLASS_32 + 1]
    before0, before8, before16, before32 = classes[0], classes[1], classes[2], classes[3]
    blocks = 0
    wire_len = 0
    wire_at = 0
    done = 0
    while done < payload_len:
        left = payload_len - done
        piece = min(left, gso_size) if settings.per_segment and gso_size else left
        taken, span = _emit_block(
            settings, frame, payload_at, done, piece, left, first_octet, gso_size, blocks, classes, wire, wire_at
        )
        wire_len += span - vnet.VNET_LEN
        is_last = taken == left
        if (
            taken == 0
            or wire_len >= raw_len
            or (settings.per_segment and taken < piece)
            or (blocks == MAX_WIRE_FRAMES - 1 and not is_last)
        ):
            classes[0], classes[1], classes[2], classes[3] = before0, before8, before16, before32
            return 0
        spans[blocks, 0] = wire_at
        spans[blocks, 1] = span
        blocks += 1
        wire_at += (span + _ALIGN - 1) & ~(_ALIGN - 1)
        done += taken
    return blocks


@inline_kernel
def _gso_size(frame: Any) -> Any:
    """Return the MSS of a TSO frame; 0 where the frame is one segment."""
    if u8(frame, vnet.GSO_TYPE) == vnet.GSO_NONE:
        return 0
    return load_u16(frame, vnet.VNET_GSO_SIZE)


@inline_kernel
def _emit_block(
    settings: Any,
    frame: Any,
    payload_at: Any,
    done: Any,
    piece: Any,
    left: Any,
    first_octet: Any,
    gso_size: Any,
    index: Any,
    classes: Any,
    wire: Any,
    wire_at: Any,
) -> Any:
    """Write one wire frame for the payload from ``done`` on; return (payload octets in it, frame length)."""
    tcp_len = payload_at - TCP_AT
    head = min(-(first_octet + done) & 3, piece)
    floats = (piece - head) // 4
    tail = piece - head - 4 * floats
    body_at = wire_at + _BLOCK_TCP_AT + tcp_len
    # No frame is larger than the host's own segments: what the peer or the path cannot take, TCP has found out.
    datagram_max = min(settings.mtu, MTU_MAX)
    if gso_size:
        datagram_max = min(datagram_max, ipv4.IPV4_MIN_LEN + tcp_len + gso_size)
    capacity = datagram_max - ipv4.IPV4_MIN_LEN - offload.OVERHEAD - tcp_len - head - tail
    source_at = payload_at + done
    for octet in range(head):
        wire[body_at + octet] = frame[source_at + octet]
    encoded, bursts_len = encode_fit(
        settings.codec_id, frame, source_at + head, floats, settings.bound_k, wire, body_at + head, capacity, classes
    )
    if encoded < floats:
        tail = 0  # the rest follows in the next frame
    taken = head + 4 * encoded + tail
    for octet in range(tail):
        wire[body_at + head + bursts_len + octet] = frame[source_at + taken - tail + octet]
    block_len = offload.OVERHEAD + tcp_len + head + bursts_len + tail

    copy_octets(frame, vnet.VNET_LEN, wire, wire_at + vnet.VNET_LEN, IP_AT + ipv4.IPV4_MIN_LEN - vnet.VNET_LEN)
    for octet in range(vnet.VNET_LEN):
        wire[wire_at + octet] = 0
    ident = be16(frame, IP_AT + ipv4.IDENT) + index
    put_ipv4_lengths(wire, wire_at + IP_AT, ipv4.IPV4_MIN_LEN + block_len, ident, offload.PROTO_IPCOMP)
    copy_octets(frame, TCP_AT, wire, wire_at + _BLOCK_TCP_AT, tcp_len)
    put_be32(wire, wire_at + _BLOCK_TCP_AT + tcp.SEQ, be32(frame, TCP_AT + tcp.SEQ) + done)
    put_be16(wire, wire_at + _BLOCK_TCP_AT + tcp.CHECKSUM, 0)
    if taken < left:
        flags_at = wire_at + _BLOCK_TCP_AT + tcp.FLAGS
        wire[flags_at] = u8(wire, flags_at) & ~(tcp.FIN | tcp.PSH)
    _emit_block_header(settings, wire, wire_at + _COMP_AT, head << 4 | tail, taken, gso_size, block_len)
    return taken, _COMP_AT + block_len


@inline_kernel
def _emit_block_header(
    settings: Any, wire: Any, comp_at: Any, head_tail: Any, taken: Any, gso_size: Any, block_len: Any
) -> None:
    """Write IPComp and block header before a TCP header and payload that are in place, and the CRC over all."""
    wire[comp_at + offload.NEXT_HEADER] = offload.IPCOMP_NEXT_TCP
    wire[comp_at + offload.IPCOMP_FLAGS] = 0
    put_be16(wire, comp_at + offload.CPI, offload.CPI_OFFLOAD)
    wire[comp_at + offload.VERSION_CODEC] = offload.BLOCK_VERSION << 4 | settings.codec_id
    wire[comp_at + offload.BOUND_K] = settings.bound_k
    wire[comp_at + offload.HEAD_TAIL] = head_tail
    wire[comp_at + offload.FLAGS] = 0
    put_be16(wire, comp_at + offload.PAYLOAD_LEN, taken)
    put_be16(wire, comp_at + offload.GSO_SIZE, gso_size)
    store_u32(wire, comp_at + offload.RESERVED, 0)
    put_be32(wire, comp_at + offload.CRC, block_crc(wire, comp_at, block_len))


@inline_kernel
def block_crc(octets: Any, comp_at: Any, block_len: Any) -> Any:
    """Return the CRC of the block at ``comp_at``; its CRC field is overwritten.

    The field holds protocol and length meanwhile, and the addresses end where the block starts, so pseudo-header and
    block are one run of octets.
    """
    put_be32(octets, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
    return crc32c(octets, comp_at - 8, block_len + 8, 0)


@inline_kernel
def _account(frame: Any, flows: Any, slot: Any, counters: Any, spans: Any, blocks: Any) -> None:
    """Count one compressed segment, in all and for its flow."""
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    raw_octets = be16(frame, IP_AT + ipv4.TOTAL_LEN) - ipv4.IPV4_MIN_LEN - tcp_len
    payload_octets = 0
    for block in range(blocks):
        payload_octets += spans[block, 1] - _BLOCK_TCP_AT - tcp_len
    counters[Counter.TX_SEGMENTS] += 1
    counters[Counter.TX_RAW_OCTETS] += raw_octets
    counters[Counter.TX_PAYLOAD_OCTETS] += payload_octets
    counters[Counter.TX_BLOCKS] += blocks
    flows[slot, flow_table.SEGMENTS] += 1
    flows[slot, flow_table.RAW_OCTETS] += raw_octets
    flows[slot, flow_table.PAYLOAD_OCTETS] += payload_octets
    flows[slot, flow_table.BLOCKS] += blocks
