"""Host to wire: which segments are compressed, and how one segment becomes blocks.

The functions stand in the order in which a segment meets them: :func:`transmit` decides, :func:`_classify` says why
not, :func:`_pack` fills wire frames; ``blocks`` writes one.

A TSO segment of up to 64 KiB comes in as one frame. *Coalesced* packing encodes as many floats as fit into one wire
frame of MTU size, then goes on with the next; at ratio r there are r times fewer frames. *Per-segment* packing makes
one frame of every MSS-sized piece, as the paper's NIC does. Sequence numbers say where each block belongs, so a lost
one costs only itself. If the blocks together are not smaller than the raw frames, the segment crosses as it is, but
with the codec's values (``rounding``), so that what a receiver gets does not depend on how TCP cut the stream.
"""

from __future__ import annotations

from typing import Any, Final

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.kernels import ENCODE_SLACK
from netoffload.codec.octets import load_u16, u8
from netoffload.config import TOS_COMPRESS
from netoffload.engine import flows as flow_table
from netoffload.engine import handshake, network
from netoffload.engine.blocks import Segment, TransmitSettings, emit_block
from netoffload.engine.counters import Counter
from netoffload.engine.encapsulation import bundle, is_forged, wrap
from netoffload.engine.fields import be32
from netoffload.engine.flows import NOT_FOUND, key_of
from netoffload.engine.network import IP_AT
from netoffload.engine.options import NO_OPTION, find_option
from netoffload.engine.rounding import may_be_rounded, round_in_place
from netoffload.wire import offload, tcp, vnet
from netoffload.wire.encapsulation import DATAGRAM_OVERHEAD
from netoffload.wire.ethernet import ETHERNET_LEN

FORWARD: Final = -1
"""Result of :func:`transmit`: the frame crosses as it is."""

MAX_WIRE_FRAMES: Final = 256
"""Frames one segment may become; one that would need more (an MSS below 256 octets) crosses raw. Coalesced on an
MTU of 576 with every float incompressible it is 133."""

CACHE_LINE: Final = 64
"""What wire frames are aligned to, in octets."""

MTU_MAX: Final = 9000
"""The largest wire frame that is made, whatever the wire would take."""

WIRE_BUFFER_LEN: Final = 4 * 65536 + MTU_MAX + MAX_WIRE_FRAMES * (CACHE_LINE + ENCODE_SLACK)
"""Room for the blocks of one segment: they stop when together they reach the raw frames' octets, which are at
most 64 KiB and a header of at most 146 octets per block; one more frame, alignment and slack come on top."""

HOST_BUFFER_LEN: Final = vnet.VNET_LEN + ETHERNET_LEN + 65536 + 64
"""The largest frame a device gives (64 KiB GSO), and slack for vector loads."""


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
    """Take one frame from the host; return how many wire frames it became (0: it was dropped), or ``FORWARD``.

    Args:
        settings: see :class:`TransmitSettings`.
        frame: uint8, virtio-net header and frame; changed only where floats cross raw for want of gain (``rounding``).
        length: octets in ``frame``.
        now_ns: the time, for the flow table.
        flows: the transmit flow table.
        counters: int64, indexed by :class:`Counter`.
        wire: uint8[WIRE_BUFFER_LEN] for the wire frames, each with its own virtio-net header.
        spans: int64[MAX_WIRE_FRAMES, 2]: start and length of each wire frame in ``wire``; or of each piece of the only
            one, if it is a bundle (``encapsulation.is_bundle``).
    """
    counters[Counter.TX_HOST_FRAMES] += 1
    counters[Counter.TX_HOST_OCTETS] += length - vnet.VNET_LEN
    ip_len = network.find_ip_len(frame, length)
    reason = _classify(frame, length, ip_len)
    if reason == Counter.BYPASS_SYN.value:
        spans[0, 0] = 0
        spans[0, 1] = handshake.offer(frame, ip_len, flows, now_ns, wire)
        counters[reason if spans[0, 1] == 0 else Counter.TX_OFFERS.value] += 1
        return 1 if spans[0, 1] else FORWARD
    if reason in (Counter.BYPASS_UNTAGGED.value, Counter.BYPASS_NO_PAYLOAD.value):
        _note_end(frame, ip_len, flows)
    if reason != 0 and reason != Counter.BYPASS_SPECIAL.value:
        counters[reason] += 1
        return 0 if reason == Counter.DROP_HOST_BLOCK.value else FORWARD
    segment = _find_segment(frame, ip_len)
    slot, again = _note(frame, segment, now_ns, flows)
    if reason == 0:
        reason = _admit(settings, segment, flows, slot, again, counters)
    if reason != 0:
        counters[reason] += 1
        return FORWARD
    in_udp = settings.in_udp and flows[slot, flow_table.PEER_TAKES_UDP]
    blocks = _pack(settings, in_udp, frame, segment, flows[slot, flow_table.ISN], counters, wire, spans)
    if blocks == 0:
        counters[Counter.BYPASS_NO_GAIN] += 1
        flows[slot, flow_table.RETRIES] = 0  # no block of it was lost
        flows[slot, flow_table.BYPASSED] += 1
        first_octet = segment.seq - flows[slot, flow_table.ISN] - 1
        if may_be_rounded(frame, segment, first_octet):
            round_in_place(settings.codec_id, settings.bound_k, frame, segment, first_octet, wire, counters)
        return FORWARD
    _account(segment, in_udp, flows, slot, counters, spans, blocks)
    if in_udp and settings.bundles:
        padding = bundle(wire, spans, blocks, segment.ip_len)
        flows[slot, flow_table.WIRE_OCTETS] += max(padding, 0)
    return int(blocks)


@inline_kernel
def _classify(frame: Any, length: Any, ip_len: Any) -> Any:
    """Return the counter of the reason why this frame crosses as it is, or is dropped; or 0."""
    tcp_at = IP_AT + ip_len
    if ip_len == 0 or length < tcp_at + tcp.TCP_MIN_LEN or network.get_protocol(frame, ip_len) != tcp.PROTO_TCP:
        return Counter.DROP_HOST_BLOCK.value if is_forged(frame, length) else Counter.BYPASS_NOT_TCP.value
    datagram_len = network.get_datagram_len(frame, ip_len)
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    if (
        network.is_fragment(frame, ip_len)
        or tcp_len < tcp.TCP_MIN_LEN
        or datagram_len > length - IP_AT
        or datagram_len > network.DATAGRAM_LEN_MAX
        or datagram_len < ip_len + tcp_len
    ):
        return Counter.BYPASS_NOT_TCP.value
    flags = u8(frame, tcp_at + tcp.FLAGS)
    if network.get_tos(frame, ip_len) & 0xFC != TOS_COMPRESS:
        return Counter.BYPASS_UNTAGGED.value
    if flags & tcp.SYN:
        return Counter.BYPASS_SYN.value
    if datagram_len == ip_len + tcp_len:
        return Counter.BYPASS_NO_PAYLOAD.value
    if flags & ~offload.SEGMENT_FLAGS or _has_signature(frame, tcp_at, tcp_len):
        return Counter.BYPASS_SPECIAL.value
    return 0


@inline_kernel
def _note_end(frame: Any, ip_len: Any, flows: Any) -> None:
    """Note that a known flow is over: FIN or RST alone, or an untagged SYN with its addresses and ports.

    Only known flows: the host's untagged connections, however many, must not push the tagged ones out of the table.
    """
    ends = u8(frame, IP_AT + ip_len + tcp.FLAGS) & (tcp.FIN | tcp.RST | tcp.SYN)
    if ends:
        slot = flow_table.find(flows, key_of(frame, ip_len, IP_AT + ip_len))
        if slot != NOT_FOUND:
            flows[slot, flow_table.IS_CLOSED] = 1
            if ends & tcp.SYN:
                flows[slot, flow_table.PEER_CODECS] = 0


@inline_kernel
def _find_segment(frame: Any, ip_len: Any) -> Any:
    """Return the :class:`Segment` of a frame that was classified."""
    tcp_at = IP_AT + ip_len
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    payload_len = network.get_datagram_len(frame, ip_len) - ip_len - tcp_len
    gso_size = 0 if u8(frame, vnet.GSO_TYPE) == vnet.GSO_NONE else load_u16(frame, vnet.VNET_GSO_SIZE)
    return Segment(ip_len, tcp_at, tcp_at + tcp_len, payload_len, be32(frame, tcp_at + tcp.SEQ), gso_size)


@inline_kernel
def _note(frame: Any, segment: Any, now_ns: Any, flows: Any) -> Any:
    """Note in its flow that a segment with payload is about to be sent, whether compressed or not.

    Returns:
        The flow's slot, or ``NOT_FOUND`` where its SYN was not seen; whether some of the payload was sent before.
    """
    slot = flow_table.find(flows, key_of(frame, segment.ip_len, segment.tcp_at))
    if slot == NOT_FOUND or flows[slot, flow_table.ISN] == flow_table.ISN_NOT_SEEN:
        return NOT_FOUND, False
    flows[slot, flow_table.LAST_SEEN_NS] = now_ns
    if u8(frame, segment.tcp_at + tcp.FLAGS) & tcp.FIN:
        flows[slot, flow_table.IS_CLOSED] = 1
    if segment.gso_size & 3 and segment.gso_size < segment.payload_len:
        flows[slot, flow_table.HAS_CUT] = 1  # by whoever segments it, if it crosses raw
    return slot, flow_table.note_sent(flows, slot, segment.seq, segment.seq + segment.payload_len)


@inline_kernel
def _admit(settings: Any, segment: Any, flows: Any, slot: Any, again: Any, counters: Any) -> Any:
    """Return 0 if the flow's peer decodes what we make, else the counter of the reason why not to send it that."""
    if slot == NOT_FOUND:
        return Counter.BYPASS_UNKNOWN_FLOW.value
    reason = 0
    if flows[slot, flow_table.IS_RAW]:
        reason = Counter.BYPASS_FELL_BACK.value
    elif flows[slot, flow_table.PEER_CODECS] >> settings.codec_id & 1 == 0:
        reason = Counter.BYPASS_PEER.value
    elif again and flows[slot, flow_table.HAS_CUT]:
        # The peer may have some octets of a float as they were; it must not get the others as the codec makes them.
        reason = Counter.BYPASS_CUT_FLOAT.value
    elif flow_table.is_stuck(flows, slot, segment.seq, again):
        counters[Counter.TX_FALLBACKS] += 1
        reason = Counter.BYPASS_FELL_BACK.value
    if reason != 0:
        flows[slot, flow_table.BYPASSED] += 1
    return reason


@inline_kernel
def _has_signature(frame: Any, tcp_at: Any, tcp_len: Any) -> Any:
    """Whether an option signs the payload (TCP-MD5, TCP-AO), or the options cannot be read."""
    return (
        find_option(frame, tcp_at, tcp_len, tcp.OPTION_MD5) != NO_OPTION
        or find_option(frame, tcp_at, tcp_len, tcp.OPTION_AO) != NO_OPTION
    )


@inline_kernel
def _pack(settings: Any, in_udp: Any, frame: Any, segment: Any, isn: Any, counters: Any, wire: Any, spans: Any) -> Any:
    """Fill wire frames with the segment's blocks; return how many, or 0 if it had better cross as it is."""
    payload_len, gso_size = segment.payload_len, segment.gso_size
    headers_len = segment.payload_at - vnet.VNET_LEN
    pieces = (payload_len + gso_size - 1) // gso_size if gso_size else 1
    raw_len = payload_len + pieces * headers_len
    room = DATAGRAM_OVERHEAD if in_udp else 0
    datagram_max = min(settings.mtu, MTU_MAX) - room
    if gso_size:
        # No frame is larger than the host's own segments: what the peer or the path cannot take, TCP has found out.
        datagram_max = min(datagram_max, headers_len - ETHERNET_LEN + gso_size - room)
    first_octet = segment.seq - isn - 1
    classes = counters[Counter.TX_CLASS_0 : Counter.TX_CLASS_32 + 1]
    before0, before8, before16, before32 = classes[0], classes[1], classes[2], classes[3]
    blocks = wire_len = wire_at = done = 0
    while done < payload_len:
        left = payload_len - done
        piece = left
        if settings.per_segment and gso_size and gso_size < left:
            # Between floats, as everywhere: the two halves of one would be lost and sent again apart.
            piece = max(gso_size - (first_octet + done + gso_size & 3), 0)
        taken, span = emit_block(
            settings, datagram_max, frame, segment, done, piece, first_octet, blocks, classes, wire, wire_at + room
        )
        if in_udp:
            span = wrap(frame, segment, wire, wire_at, span, blocks)
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
        wire_at += (span + CACHE_LINE - 1) & ~(CACHE_LINE - 1)
        done += taken
    return blocks


@inline_kernel
def _account(segment: Any, in_udp: Any, flows: Any, slot: Any, counters: Any, spans: Any, blocks: Any) -> None:
    """Count one compressed segment, in all and for its flow."""
    raw_octets = segment.payload_len
    wire_octets = 0
    for block in range(blocks):
        wire_octets += spans[block, 1] - vnet.VNET_LEN
    headers_len = segment.payload_at - vnet.VNET_LEN + offload.OVERHEAD + (DATAGRAM_OVERHEAD if in_udp else 0)
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
