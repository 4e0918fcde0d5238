"""Wire to host: check a block, decode it, and rebuild the segment it was cut from.

A block takes three steps. :func:`sender_of` finds its connection, and trusts nothing before the CRC is right.
:func:`note_block` writes what the peer says into the table: how far its stream has come, its acknowledgement.
:func:`take` decodes the block behind the segment being rebuilt. If it does not continue that segment
(:func:`continues`), the caller hands over the segment first. All of them work on the headers as :func:`find_block` read
them once; :func:`check` says whether they may be trusted. A frame that is no block crosses, and :func:`note_frame`
writes what it says into the table: a SYN, an acknowledgement, the report of a router.

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

from typing import Final, NamedTuple

from netoffload.codec.kernels import LANES, Middle, decode_halves, is_known
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import be16, be32, copy_octets, put_be32, u8
from netoffload.config import BOUND_K_MAX, BOUND_K_MIN
from netoffload.engine import flows, forms, handshake, network, orphans, path, plain, probation, router_errors
from netoffload.engine.authentication import has_mac, is_on
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.flows import NOT_FOUND, Flow
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import block_crc
from netoffload.engine.segment import (
    NO_OPTION,
    Segment,
    advance,
    distance,
    find_segment,
    find_timestamps,
    get_tcp_len,
    has_right_sum,
    is_before,
    replace_u16,
    replace_u32,
)
from netoffload.engine.state import NicState
from netoffload.wire import ethernet, offload, tcp, vnet

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


class BlockView(NamedTuple):
    """What the headers of a block say, and where its parts are in its frame.

    Attributes:
        block_len: octets from the IPComp header to the end of the payload, without a MAC.
        has_mac: not 0 if a MAC follows.
        head: raw octets before the encoded floats.
        bursts_len: octets of the encoded floats.
        tail: raw octets behind the encoded floats.
        raw_len: payload octets that the block decodes to.
        half_len: octets of the encoded floats in the first half.
        half_count: floats in the first half.
        seq: sequence number of the first octet that it decodes to.
    """

    ip_len: int
    comp_at: int
    tcp_at: int
    tcp_len: int
    block_len: int
    has_mac: int
    codec_id: int
    bound_k: int
    head: int
    bursts_len: int
    tail: int
    raw_len: int
    half_len: int
    half_count: int
    gso_size: int
    seq: int
    flags: int


@inline_kernel
def is_ours(frame: Uint8Array, length: int, ip_len: int) -> bool:
    """Whether this is an IPComp datagram with the CPI of blocks; every other frame belongs to the host."""
    return (
        ip_len != 0
        and length >= IP_AT + ip_len + offload.IPCOMP_LEN
        and network.get_protocol(frame, ip_len) == offload.PROTO_IPCOMP
        and be16(frame, IP_AT + ip_len + offload.CPI) == offload.CPI_OFFLOAD
    )


@inline_kernel
def is_runt(frame: Uint8Array, length: int, ip_len: int) -> bool:
    """Whether a block's frame is shorter than it says, or than the headers of a block."""
    datagram_len = network.get_datagram_len(frame, ip_len)
    return IP_AT + datagram_len > length or datagram_len - ip_len < offload.OVERHEAD + tcp.TCP_MIN_LEN


@inline_kernel
def find_block(frame: Uint8Array, ip_len: int) -> BlockView:
    """Return the block of a frame that is no runt; nothing in it is to be trusted before :func:`check`."""
    comp_at = IP_AT + ip_len
    tcp_at = comp_at + offload.TCP_HEADER
    tcp_len = get_tcp_len(frame, tcp_at)
    has_mac = u8(frame, comp_at + offload.FLAGS) & offload.HAS_MAC
    block_len = network.get_datagram_len(frame, ip_len) - ip_len - (offload.MAC_LEN if has_mac else 0)
    head_tail = u8(frame, comp_at + offload.HEAD_TAIL)
    head, tail = head_tail >> 4, head_tail & 15
    return BlockView(
        ip_len,
        comp_at,
        tcp_at,
        tcp_len,
        block_len,
        has_mac,
        u8(frame, comp_at + offload.VERSION_CODEC) & 15,
        u8(frame, comp_at + offload.BOUND_K),
        head,
        block_len - offload.OVERHEAD - tcp_len - head - tail,
        tail,
        be16(frame, comp_at + offload.PAYLOAD_LEN),
        be16(frame, comp_at + offload.HALF_LEN),
        LANES * be16(frame, comp_at + offload.HALF_BURSTS),
        be16(frame, comp_at + offload.GSO_SIZE),
        be32(frame, tcp_at + tcp.SEQ),
        u8(frame, tcp_at + tcp.FLAGS),
    )


@inline_kernel
def sender_of(nic: NicState, frame: Uint8Array, block: BlockView) -> int:
    """Return the slot of a block's connection; ``NOT_FOUND``: the block is dropped, and counted."""
    slot = flows.find(nic.flows, flows.reversed_key(flows.key_of(frame, block.ip_len, block.tcp_at)))
    reason = Counter.DROP_UNKNOWN_FLOW.value
    if slot != NOT_FOUND and nic.flows[slot, flows.STATE] != flows.ORPHAN:
        reason = check(nic.settings.mac_key, frame, block, nic.flows[slot, flows.OWN_NONCE])
    if reason != 0:
        nic.counters[reason] += 1
        return NOT_FOUND
    return slot


@inline_kernel
def check(mac_key: Int64Array, frame: Uint8Array, block: BlockView, nonce: int) -> int:
    """Return the counter that says why to drop this block, or 0; no field is trusted before CRC and MAC are right."""
    ip_len, comp_at, block_len = block.ip_len, block.comp_at, block.block_len
    if network.is_fragment(frame, ip_len) or not network.is_summed_right(frame, ip_len):
        return Counter.DROP_BAD_HEADER.value  # the CRC covers the addresses alone
    if block_len < offload.OVERHEAD + tcp.TCP_MIN_LEN:
        return Counter.DROP_RUNT.value
    told = be32(frame, comp_at + offload.CRC)
    if block_crc(frame, comp_at, ip_len, block_len) ^ nonce != told:
        return Counter.DROP_BAD_CRC.value
    if is_on(mac_key):
        put_be32(frame, comp_at + offload.CRC, told)
        addresses_len = network.addresses_len(ip_len)
        at, covered = comp_at - addresses_len, addresses_len + block_len
        if not block.has_mac or not has_mac(mac_key, frame, at, covered, comp_at + block_len):
            return Counter.DROP_BAD_MAC.value
    elif block.has_mac:
        return Counter.DROP_BAD_VERSION.value
    if (
        u8(frame, comp_at + offload.NEXT_HEADER) != offload.IPCOMP_NEXT_TCP
        or u8(frame, comp_at + offload.VERSION_CODEC) >> 4 != offload.BLOCK_VERSION
        or u8(frame, comp_at + offload.IPCOMP_FLAGS) | (u8(frame, comp_at + offload.FLAGS) & ~offload.HAS_MAC)
    ):
        return Counter.DROP_BAD_VERSION.value
    if not is_known(block.codec_id) or not BOUND_K_MIN <= block.bound_k <= BOUND_K_MAX:
        return Counter.DROP_UNKNOWN_CODEC.value
    has_room = tcp.TCP_MIN_LEN <= block.tcp_len <= block_len - offload.OVERHEAD
    if not has_room or block.flags & ~offload.SEGMENT_FLAGS:
        return Counter.DROP_BAD_HEADER.value
    floats_len = block.raw_len - block.head - block.tail
    if (
        block.raw_len == 0
        or block.head > 3
        or block.tail > 3
        or floats_len < 4 * block.half_count
        or floats_len & 3
        or block.bursts_len < block.half_len
        or ip_len + block.tcp_len + block.raw_len > network.DATAGRAM_LEN_MAX
    ):
        return Counter.DROP_BAD_LENGTHS.value
    return 0


@inline_kernel
def note_block(nic: NicState, frame: Uint8Array, block: BlockView, flow: Flow, now_ns: int) -> None:
    """Write what a block's TCP header says into the table; its acknowledgement may be changed."""
    _note_arrival(block.seq, block.flags, block.raw_len, flow)
    _heed(frame, block.tcp_at, now_ns, flow, nic.counters)


@inline_kernel
def note_frame(nic: NicState, frame: Uint8Array, length: int, ip_len: int, slot: int, now_ns: int) -> int:
    """Write what a frame that crosses says into the table; return its length, which may have changed; -1: it ends here.

    A capability word is taken out, the acknowledgement may be changed. ``slot`` may be ``NOT_FOUND``.
    """
    if not network.is_tcp(frame, length, ip_len):
        left = router_errors.translate(nic, frame, length, ip_len, now_ns)
        nic.counters[Counter.RX_BYPASS] += int(left != router_errors.ENDS)
        return int(left)
    nic.counters[Counter.RX_BYPASS] += 1
    segment = find_segment(frame, ip_len)
    if segment.flags & tcp.SYN:
        shorter = handshake.accept(nic, frame, length, ip_len, now_ns)
        nic.counters[Counter.RX_OFFERS] += int(shorter != length)
        return int(shorter)
    if slot != NOT_FOUND and has_right_sum(frame, ip_len):
        flow = nic.flows[slot]
        if flow[flows.STATE] != flows.ORPHAN:
            _note_arrival(segment.seq, segment.flags, segment.payload_len, flow)
            _heed(frame, segment.tcp_at, now_ns, flow, nic.counters)
        elif segment.flags & tcp.ACK_FLAG:
            orphans.hear(flow, be32(frame, segment.tcp_at + tcp.ACK))
    return length


@inline_kernel
def _note_arrival(seq: int, flags: int, payload_len: int, flow: Flow) -> None:
    """Note how far the peer's stream has come, and whether the segment ends it."""
    if flags & tcp.RST:
        # The host's TCP takes no other RST (RFC 5961, 3.2), so a forged one must not end the connection here.
        if seq == flow[flows.RX_NEXT_SEQ] or seq == flow[flows.HOST_ACK]:
            flow[flows.RX_IS_CLOSED] = 1
            flows.close(flow)
        return
    end_seq = advance(seq, payload_len + (flags & tcp.FIN))
    if is_before(flow[flows.RX_NEXT_SEQ], end_seq):
        flow[flows.RX_NEXT_SEQ] = end_seq
    if flags & tcp.FIN:
        flow[flows.RX_IS_CLOSED] = 1


@inline_kernel
def _heed(frame: Uint8Array, tcp_at: int, now_ns: int, flow: Flow, counters: Counters) -> None:
    """Take the acknowledgement of a segment or block, and replace it by the one for the host.

    A block's TCP checksum, which this changes too, is made anew with the segment.
    """
    if u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG == 0:
        return
    ack = be32(frame, tcp_at + tcp.ACK)
    una, next_seq = flow[flows.UNA], flow[flows.NEXT_SEQ]
    if flow[flows.STATE] == flows.OPENING and distance(una, ack) >= 0 and distance(ack, next_seq) >= 0:
        flow[flows.STATE] = flows.OPEN
    window = be16(frame, tcp_at + tcp.WINDOW)
    told = forms.acknowledge(flow, ack, window)
    if flow[flows.UNA] != una:
        flow[flows.UNA_SINCE_NS] = now_ns
    probation.note_progress(flow)
    path.note_progress(flow)
    if told != ack:
        counters[Counter.RX_ACKS_MOVED] += 1
        window = forms.window_behind(flow, ack, told, window)
        replace_u16(frame, tcp_at, tcp.WINDOW, window)
        replace_u32(frame, tcp_at, tcp.ACK, told)
    is_repeated = is_before(una, flow[flows.REPEATED_END]) and flow[flows.FORM] != forms.EXACT
    if is_before(ack, told) or (told != una and is_repeated):
        _put_echo(frame, tcp_at, flow[flows.HOST_TSVAL])
    if not is_before(flow[flows.UNA], flow[flows.REPEATED_END]):
        flow[flows.REPEATED_END] = flow[flows.UNA]  # numbers further apart than 2**31 cannot be compared


@inline_kernel
def _put_echo(frame: Uint8Array, tcp_at: int, tsval: int) -> None:
    """Let an acknowledgement echo the time of the host's latest segment.

    An acknowledgement of lent octets, or one that follows a repetition, may echo the time of the last octet that came
    in order (RFC 7323, 4.3). The NIC makes both more frequent: the host repeats the two octets of a cut float, and the
    peer has had them for long. The host's TCP would take the length of a loss for a round trip, and wait for longer
    after every loss. Without an echo it would take no measurement, and its timeout would stay doubled.
    """
    at = find_timestamps(frame, tcp_at)
    if tsval != 0 and at != NO_OPTION and (at - tcp_at) & 1 == 0:
        replace_u32(frame, tcp_at, at + tcp.TSECR - tcp_at, tsval)


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
        or tcp_len != get_tcp_len(host, host_tcp_at)
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
def take(nic: NicState, frame: Uint8Array, block: BlockView, flow: Flow, host: Uint8Array) -> bool:
    """Decode a block behind the pending segment, or begin a segment; return whether the segment ends with the block.

    A block whose tags and length contradict each other is dropped.
    """
    pending, counters = nic.pending, nic.counters
    begins = pending[PENDING_LEN] == 0
    if begins:
        _start(frame, block, pending, host)
    if not _append(frame, block, pending, host):
        if begins:
            pending[PENDING_LEN] = 0
        counters[Counter.DROP_MALFORMED_PAYLOAD] += 1
        return False
    payload_octets = block.head + block.bursts_len + block.tail
    counters[Counter.RX_BLOCKS] += 1
    counters[Counter.RX_RAW_OCTETS] += block.raw_len
    counters[Counter.RX_PAYLOAD_OCTETS] += payload_octets
    flow[flows.RX_RAW_OCTETS] += block.raw_len
    flow[flows.RX_PAYLOAD_OCTETS] += payload_octets
    flow[flows.RX_BLOCKS] += 1
    flow[flows.RX_SEGMENTS] += int(begins)
    if block.flags & tcp.FIN:
        flow[flows.RX_IS_CLOSED] = 1
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


@kernel
def finish(counters: Counters, pending: Int64Array, host: Uint8Array) -> int:
    """Complete the headers of the pending segment and return its length in ``host``; 0 where nothing is pending."""
    length, payload_len, ip_len = pending[PENDING_LEN], pending[PENDING_PAYLOAD], pending[PENDING_IP_LEN]
    if length == 0:
        return 0
    host[vnet.GSO_TYPE] = vnet.GSO_NONE
    segment = Segment(ip_len, IP_AT + ip_len, length - payload_len, payload_len, 0, pending[PENDING_GSO], 0)
    plain.finish_headers(host, segment)
    counters[Counter.RX_SEGMENTS] += 1
    pending[PENDING_LEN] = 0
    return int(length)
