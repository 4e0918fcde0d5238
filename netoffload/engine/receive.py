"""Wire to host: check a block, decode it, and rebuild the segment it was cut from.

A block takes three steps. :func:`sender_of` finds its connection, and trusts nothing before the CRC is right.
:func:`note_block` writes what the peer says into the table: how far its stream has come, its acknowledgement.
:func:`take` decodes the block behind the segment being rebuilt. If it does not continue that segment
(:func:`continues`), the caller hands over the segment first. All of them work on the headers as ``find_block`` found
them. A frame that is no block crosses, and :func:`note_frame` writes what it says into the table: a SYN, an
acknowledgement, the report of a router.

Only the two ``note`` functions write fields that the transmit side reads, so a NIC with two threads needs its lock for
that step alone. All are inlined into ``nic.from_wire``, because calls with all these arrays for every block would take
a fifth of the receiving side's time.

So one segment of up to 64 KiB reaches the host as one frame with ``NEEDS_CSUM`` and the sender's gso_size, whatever the
number of its wire frames: a card with receive offload would deliver the same frame. The caller hands over the pending
segment before any frame that crosses unchanged, and whenever the wire is empty. So nothing is reordered and nothing
waits.

A block is decoded only on a connection whose handshake this NIC has seen, and only if its CRC is combined with the
nonce that the NIC sent in it.

Blocks continue a segment when the connection, the acknowledgement, the window and all options are equal octet by octet
and the sequence number follows on: the rules of generic receive offload. A block with FIN or PSH is the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.codec.kernels import Middle, decode_halves
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be16, be32, put_be16, put_be32
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import copy_octets, store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import forms, handshake, network, orphans, path, plain, probation, router_errors
from netoffload.engine.block_view import check
from netoffload.engine.counters import Counter
from netoffload.engine.flows import NOT_FOUND, key_of, reversed_key
from netoffload.engine.network import IP_AT
from netoffload.engine.options import NO_OPTION, find_timestamps
from netoffload.engine.sequence import advance, distance, is_before
from netoffload.wire import ethernet, tcp, vnet

if TYPE_CHECKING:
    from netoffload.engine.block_view import BlockView
    from netoffload.engine.counters import Counters
    from netoffload.engine.flows import FlowTable

# Fields of the pending segment, int64[PENDING_FIELDS].
PENDING_LEN: Final = 0
"""Octets in the host buffer with virtio-net header; 0: nothing pending."""
PENDING_PAYLOAD: Final = 1
PENDING_NEXT_SEQ: Final = 2
PENDING_GSO: Final = 3
PENDING_IP_LEN: Final = 4
PENDING_FIELDS: Final = 5

HOST_SEGMENT_LEN: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN + network.DATAGRAM_LEN_MAX + 128
"""Room for one rebuilt segment and the whole burst that the decoder may write at its end."""

_FLAGS_OF_LAST: Final = tcp.FIN | tcp.PSH


@inline_kernel
def sender_of(mac: Int64Array, frame: Uint8Array, block: BlockView, flows: FlowTable, counters: Counters) -> int:
    """Return the slot of a block's connection; ``NOT_FOUND``: the block is dropped, and counted.

    Args:
        frame: uint8, virtio-net header and frame, with DECODE_SLACK octets of room behind.
    """
    slot = flow_table.find(flows, reversed_key(key_of(frame, block.ip_len, block.tcp_at)))
    if slot == NOT_FOUND or flows[slot, flow_table.STATE] == flow_table.ORPHAN:
        counters[Counter.DROP_UNKNOWN_FLOW] += 1
        return NOT_FOUND
    reason = check(mac, frame, block, flows[slot, flow_table.OWN_NONCE])
    if reason != 0:
        counters[reason] += 1
        return NOT_FOUND
    return slot


@inline_kernel
def note_block(
    frame: Uint8Array, block: BlockView, slot: int, now_ns: int, flows: FlowTable, counters: Counters
) -> None:
    """Write what a block's TCP header says into the table; its acknowledgement may be changed."""
    _note_arrival(block.seq, block.flags, block.raw_len, flows, slot)
    _heed(frame, block.tcp_at, now_ns, flows, slot, counters, True)


@inline_kernel
def note_frame(
    ways: int,
    frame: Uint8Array,
    length: int,
    ip_len: int,
    slot: int,
    now_ns: int,
    flows: FlowTable,
    counters: Counters,
) -> int:
    """Write what a frame that crosses says into the table; return its length, which may have changed; -1: it ends here.

    Args:
        frame: uint8; a capability word is taken out, the acknowledgement may be changed.
    """
    if not network.is_tcp(frame, length, ip_len):
        left = router_errors.translate(frame, length, ip_len, now_ns, flows, counters)
        counters[Counter.RX_BYPASS] += int(left != router_errors.ENDS)
        return int(left)
    counters[Counter.RX_BYPASS] += 1
    tcp_at = IP_AT + ip_len
    flags = u8(frame, tcp_at + tcp.FLAGS)
    if flags & tcp.SYN:
        shorter = handshake.accept(frame, ip_len, length, ways, now_ns, flows)
        counters[Counter.RX_OFFERS] += int(shorter != length)
        return int(shorter)
    if slot != NOT_FOUND and plain.has_right_sum(frame, ip_len):
        if flows[slot, flow_table.STATE] == flow_table.ORPHAN:
            if flags & tcp.ACK_FLAG:
                orphans.hear(flows, slot, be32(frame, tcp_at + tcp.ACK))
            return length
        payload_len = network.get_datagram_len(frame, ip_len) - ip_len - (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
        _note_arrival(be32(frame, tcp_at + tcp.SEQ), flags, payload_len, flows, slot)
        _heed(frame, tcp_at, now_ns, flows, slot, counters, False)
    return length


@inline_kernel
def _note_arrival(seq: int, flags: int, payload_len: int, flows: FlowTable, slot: int) -> None:
    """Note how far the peer's stream has come, and whether the segment ends it."""
    if flags & tcp.RST:
        # The host's TCP takes no other RST (RFC 5961, 3.2), so a forged one must not end the connection here.
        if seq == flows[slot, flow_table.RX_NEXT_SEQ] or seq == flows[slot, flow_table.HOST_ACK]:
            flows[slot, flow_table.RX_IS_CLOSED] = 1
            flow_table.close(flows, slot)
        return
    end_seq = advance(seq, payload_len + (flags & tcp.FIN))
    if is_before(flows[slot, flow_table.RX_NEXT_SEQ], end_seq):
        flows[slot, flow_table.RX_NEXT_SEQ] = end_seq
    if flags & tcp.FIN:
        flows[slot, flow_table.RX_IS_CLOSED] = 1


@inline_kernel
def _heed(
    frame: Uint8Array, tcp_at: int, now_ns: int, flows: FlowTable, slot: int, counters: Counters, is_block: bool
) -> None:
    """Take the acknowledgement of a segment, and replace it by the one for the host."""
    if u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG == 0:
        return
    ack = be32(frame, tcp_at + tcp.ACK)
    una, next_seq = flows[slot, flow_table.UNA], flows[slot, flow_table.NEXT_SEQ]
    if flows[slot, flow_table.STATE] == flow_table.OPENING and distance(una, ack) >= 0 and distance(ack, next_seq) >= 0:
        flows[slot, flow_table.STATE] = flow_table.OPEN
    window = be16(frame, tcp_at + tcp.WINDOW)
    told = forms.acknowledge(flows, slot, ack, window)
    if flows[slot, flow_table.UNA] != una:
        flows[slot, flow_table.UNA_SINCE_NS] = now_ns
    probation.note_progress(flows, slot)
    path.note_progress(flows, slot)
    if told != ack:
        counters[Counter.RX_ACKS_MOVED] += 1
        window = forms.window_behind(flows, slot, ack, told, window)
        if is_block:
            put_be32(frame, tcp_at + tcp.ACK, told)
            put_be16(frame, tcp_at + tcp.WINDOW, window)
        else:
            plain.replace_u16(frame, tcp_at, tcp.WINDOW, window)
            plain.replace_u16(frame, tcp_at, tcp.ACK, told >> 16)
            plain.replace_u16(frame, tcp_at, tcp.ACK + 2, told & 0xFFFF)
    is_repeated = is_before(una, flows[slot, flow_table.REPEATED_END]) and flows[slot, flow_table.FORM] != forms.EXACT
    if is_before(ack, told) or (told != una and is_repeated):
        _put_echo(frame, tcp_at, flows[slot, flow_table.HOST_TSVAL], is_block)


@inline_kernel
def _put_echo(frame: Uint8Array, tcp_at: int, tsval: int, is_block: bool) -> None:
    """Let an acknowledgement echo the time of the host's latest segment.

    An acknowledgement of lent octets, or one that follows a repetition, may echo the time of the last octet that came
    in order (RFC 7323, 4.3). The NIC makes both more frequent: the host repeats the two octets of a cut float, and the
    peer has had them for long. The host's TCP would take the length of a loss for a round trip, and wait for longer
    after every loss. Without an echo it would take no measurement, and its timeout would stay doubled.
    """
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    at = find_timestamps(frame, tcp_at, tcp_len)
    if tsval == 0 or at <= NO_OPTION or (at - tcp_at) & 1:
        return
    if is_block:
        put_be32(frame, at + tcp.TSECR, tsval)
    else:
        plain.replace_u16(frame, tcp_at, at + tcp.TSECR - tcp_at, tsval >> 16)
        plain.replace_u16(frame, tcp_at, at + tcp.TSECR + 2 - tcp_at, tsval & 0xFFFF)


@inline_kernel
def continues(frame: Uint8Array, block: BlockView, pending: Int64Array, host: Uint8Array) -> bool:
    """Whether a good block belongs right behind the pending segment, or nothing is pending."""
    if pending[PENDING_LEN] == 0:
        return True
    ip_len, tcp_len, host_tcp_at = block.ip_len, block.tcp_len, IP_AT + block.ip_len
    if (
        ip_len != pending[PENDING_IP_LEN]
        or block.seq != pending[PENDING_NEXT_SEQ]
        or block.gso_size != pending[PENDING_GSO]
        or tcp_len != (u8(host, host_tcp_at + tcp.DATA_OFFSET) >> 4) * 4
        or ip_len + tcp_len + pending[PENDING_PAYLOAD] + block.raw_len > network.DATAGRAM_LEN_MAX
        or not network.is_same_path(frame, host, ip_len)
    ):
        return False
    for offset in range(tcp_len):
        same = u8(frame, block.tcp_at + offset) == u8(host, host_tcp_at + offset)
        varies = tcp.SEQ <= offset < tcp.ACK or offset == tcp.FLAGS or tcp.CHECKSUM <= offset < tcp.URGENT
        if not same and not varies:
            return False
    return (block.flags ^ u8(host, host_tcp_at + tcp.FLAGS)) & ~_FLAGS_OF_LAST == 0


@inline_kernel
def take(
    frame: Uint8Array,
    block: BlockView,
    slot: int,
    flows: FlowTable,
    counters: Counters,
    pending: Int64Array,
    host: Uint8Array,
) -> bool:
    """Decode a block behind the pending segment, or begin a segment; return whether the segment ends with the block.

    A block whose tags and length contradict each other is dropped.
    """
    begins = pending[PENDING_LEN] == 0
    if begins:
        _start(frame, block, pending, host)
    if not _append(frame, block, pending, host):
        if begins:
            pending[PENDING_LEN] = 0
        counters[Counter.DROP_MALFORMED_PAYLOAD] += 1
        return False
    _account(block, flows, counters, slot)
    flags_at = IP_AT + block.ip_len + tcp.FLAGS
    host[flags_at] = u8(host, flags_at) | block.flags
    return block.flags & _FLAGS_OF_LAST != 0 or block.gso_size == 0


@inline_kernel
def _start(frame: Uint8Array, block: BlockView, pending: Int64Array, host: Uint8Array) -> None:
    """Begin a segment with the headers of its first block."""
    host_tcp_at = IP_AT + block.ip_len
    copy_octets(frame, vnet.VNET_LEN, host, vnet.VNET_LEN, host_tcp_at - vnet.VNET_LEN)
    copy_octets(frame, block.tcp_at, host, host_tcp_at, block.tcp_len)
    pending[PENDING_LEN] = host_tcp_at + block.tcp_len
    pending[PENDING_PAYLOAD] = 0
    pending[PENDING_NEXT_SEQ] = block.seq
    pending[PENDING_GSO] = block.gso_size
    pending[PENDING_IP_LEN] = block.ip_len


@inline_kernel
def _append(frame: Uint8Array, block: BlockView, pending: Int64Array, host: Uint8Array) -> bool:
    """Decode the block's payload behind the pending segment; False if tags and length contradict each other."""
    head, tail, raw_len = block.head, block.tail, block.raw_len
    head_at = block.tcp_at + block.tcp_len
    bursts_at = head_at + head
    tail_at = bursts_at + block.bursts_len
    target_at = pending[PENDING_LEN]
    floats = (raw_len - head - tail) // 4
    read = decode_halves(
        block.codec_id,
        frame,
        bursts_at,
        block.bursts_len,
        floats,
        Middle(block.half_len, block.half_count),
        block.bound_k,
        host,
        target_at + head,
    )
    if read != block.bursts_len:
        return False
    for octet in range(head):
        host[target_at + octet] = frame[head_at + octet]
    for octet in range(tail):
        host[target_at + raw_len - tail + octet] = frame[tail_at + octet]
    pending[PENDING_LEN] += raw_len
    pending[PENDING_PAYLOAD] += raw_len
    pending[PENDING_NEXT_SEQ] = (pending[PENDING_NEXT_SEQ] + raw_len) & 0xFFFFFFFF
    return True


@inline_kernel
def _account(block: BlockView, flows: FlowTable, counters: Counters, slot: int) -> None:
    payload_octets = block.head + block.bursts_len + block.tail
    counters[Counter.RX_BLOCKS] += 1
    counters[Counter.RX_RAW_OCTETS] += block.raw_len
    counters[Counter.RX_PAYLOAD_OCTETS] += payload_octets
    flows[slot, flow_table.RX_RAW_OCTETS] += block.raw_len
    flows[slot, flow_table.RX_PAYLOAD_OCTETS] += payload_octets
    flows[slot, flow_table.RX_BLOCKS] += 1
    flows[slot, flow_table.RX_SEGMENTS] += 1
    if block.flags & tcp.FIN:
        flows[slot, flow_table.RX_IS_CLOSED] = 1


@kernel
def finish(counters: Counters, pending: Int64Array, host: Uint8Array) -> int:
    """Complete the headers of the pending segment and return its length in ``host``; 0 where nothing is pending.

    The TCP checksum field gets the sum of the pseudo-header, and the virtio-net header leaves the rest to the kernel
    (Virtio 1.2, 5.1.6.2): no octet of the payload is summed here.
    """
    length = pending[PENDING_LEN]
    if length == 0:
        return 0
    payload = pending[PENDING_PAYLOAD]
    ip_len = pending[PENDING_IP_LEN]
    tcp_at = IP_AT + ip_len
    network.put_datagram(host, IP_AT, ip_len, length - IP_AT, 0, tcp.PROTO_TCP)
    put_be16(host, tcp_at + tcp.CHECKSUM, network.pseudo_sum(host, IP_AT, ip_len, tcp.PROTO_TCP, length - tcp_at))
    is_large = pending[PENDING_GSO] != 0 and payload > pending[PENDING_GSO]
    host[vnet.VNET_FLAGS] = vnet.NEEDS_CSUM
    host[vnet.GSO_TYPE] = network.gso_type(ip_len) if is_large else vnet.GSO_NONE
    store_u16(host, vnet.HDR_LEN, length - payload - vnet.VNET_LEN)
    store_u16(host, vnet.VNET_GSO_SIZE, pending[PENDING_GSO] if is_large else 0)
    store_u16(host, vnet.CSUM_START, tcp_at - vnet.VNET_LEN)
    store_u16(host, vnet.CSUM_OFFSET, tcp.CHECKSUM)
    counters[Counter.RX_SEGMENTS] += 1
    pending[PENDING_LEN] = 0
    return int(length)
