"""Wire to host: check a block, decode it, and rebuild the segment it was cut from.

:func:`receive` looks at one frame. A frame that is no block of ours crosses as it is. A good block is decoded behind
the segment being rebuilt (:class:`Pending`) if it continues that segment, else it starts a new one; ``FLUSH_FIRST``
tells the caller to hand over what is there and to come again. One segment of up to 64 KiB thus reaches the host as one
frame with
``NEEDS_CSUM`` and the sender's gso_size, however many wire frames it took: the host's stack sees what its own card
would have given it. The caller hands over the pending segment before any frame that crosses unchanged, and whenever the
wire is empty, so nothing is reordered and nothing waits.

Blocks continue a segment when the flow, the acknowledgement, the window and all options are equal octet by octet and
the sequence number follows on: the rules of generic receive offload. A block with FIN or PSH is the last one.
"""

from __future__ import annotations

from typing import Any, Final

from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.kernels import decode, is_known
from netoffload.codec.octets import copy_octets, store_u16, u8
from netoffload.config import BOUND_K_MAX, BOUND_K_MIN
from netoffload.engine import flows as flow_table
from netoffload.engine import handshake
from netoffload.engine.counters import Counter
from netoffload.engine.fields import be16, be32, pseudo_sum, put_be16, put_be32, put_ipv4_lengths
from netoffload.engine.flows import addresses_and_ports
from netoffload.engine.handshake import IP_AT, TCP_AT
from netoffload.engine.transmit import FORWARD, block_crc
from netoffload.wire import ethernet, ipv4, offload, tcp, vnet

DROPPED: Final = 0
MERGED: Final = 1
MERGED_LAST: Final = 2
"""The block ended its segment: hand it over now."""
FLUSH_FIRST: Final = 3
FORWARD_SHORTER: Final = 4
"""The frame crosses without the capability word that was taken out of it: OPTION_LEN octets less."""

__all__ = ["DROPPED", "FLUSH_FIRST", "FORWARD", "FORWARD_SHORTER", "MERGED", "MERGED_LAST", "finish", "receive"]

# Fields of the pending segment, int64[PENDING_FIELDS].
PENDING_LEN: Final = 0
"""Octets in the host buffer with virtio-net header; 0: nothing pending."""
PENDING_PAYLOAD: Final = 1
PENDING_NEXT_SEQ: Final = 2
PENDING_GSO: Final = 3
PENDING_FIELDS: Final = 4

MAX_SEGMENT: Final = 65535
"""IPv4's total length has 16 bits."""

HOST_SEGMENT_LEN: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN + MAX_SEGMENT + 128
"""Room for one rebuilt segment and the whole burst that the decoder may write at its end."""

_BLOCK_TCP_AT: Final = TCP_AT + offload.TCP_HEADER
_FLAGS_OF_LAST: Final = tcp.FIN | tcp.PSH


@kernel
def receive(
    frame: Any, length: int, now_ns: int, tx_flows: Any, flows: Any, counters: Any, pending: Any, host: Any
) -> int:
    """Take one frame from the wire; return ``FORWARD``, ``FORWARD_SHORTER``, ``DROPPED``, ``MERGED``, ``MERGED_LAST``
    or ``FLUSH_FIRST``.

    Args:
        frame: uint8, virtio-net header and frame, with DECODE_SLACK octets of room behind ``length``.
        length: octets in ``frame``.
        now_ns: the time, for the flow table.
        tx_flows: the transmit flow table, which notes what a peer's SYN says.
        flows: the receive flow table.
        counters: int64, indexed by :class:`Counter`.
        pending: int64[PENDING_FIELDS], the segment being rebuilt.
        host: uint8[HOST_SEGMENT_LEN], its octets.
    """
    if length < IP_AT + ipv4.IPV4_MIN_LEN + offload.IPCOMP_LEN or not _is_ours(frame):
        counters[Counter.RX_BYPASS] += 1
        if is_syn(frame, length) and handshake.accept(frame, length, tx_flows, now_ns) != length:
            counters[Counter.RX_OFFERS] += 1
            return FORWARD_SHORTER
        return FORWARD
    reason = _check(frame, length)
    if reason != 0:
        counters[reason] += 1
        return DROPPED
    tcp_len = (u8(frame, _BLOCK_TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    raw_len = be16(frame, TCP_AT + offload.PAYLOAD_LEN)
    begins = pending[PENDING_LEN] == 0
    if begins:
        _start(frame, tcp_len, pending, host)
    elif not _continues(frame, tcp_len, raw_len, pending, host):
        return FLUSH_FIRST
    if not _append(frame, tcp_len, raw_len, pending, host):
        if begins:
            pending[PENDING_LEN] = 0
        counters[Counter.DROP_MALFORMED_PAYLOAD] += 1
        return DROPPED
    _account(frame, tcp_len, raw_len, now_ns, flows, counters)
    flags = u8(frame, _BLOCK_TCP_AT + tcp.FLAGS)
    host[TCP_AT + tcp.FLAGS] = u8(host, TCP_AT + tcp.FLAGS) | flags
    return MERGED_LAST if flags & _FLAGS_OF_LAST or pending[PENDING_GSO] == 0 else MERGED


@inline_kernel
def is_syn(frame: Any, length: Any) -> Any:
    """Whether this is a whole TCP segment with SYN, over IPv4 without options; its ToS does not matter."""
    if (
        length < TCP_AT + tcp.TCP_MIN_LEN
        or be16(frame, vnet.VNET_LEN + ethernet.ETHERTYPE) != ethernet.ETHERTYPE_IPV4
        or u8(frame, IP_AT) != 0x45
        or u8(frame, IP_AT + ipv4.PROTOCOL) != ipv4.PROTO_TCP
        or be16(frame, IP_AT + ipv4.FRAGMENT) & ipv4.FRAGMENT_MASK
        or u8(frame, TCP_AT + tcp.FLAGS) & tcp.SYN == 0
    ):
        return False
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    total_len = be16(frame, IP_AT + ipv4.TOTAL_LEN)
    return tcp.TCP_MIN_LEN <= tcp_len <= total_len - ipv4.IPV4_MIN_LEN and total_len <= length - IP_AT


@inline_kernel
def _is_ours(frame: Any) -> Any:
    """Whether this is an IPComp datagram with our CPI; every other frame belongs to the host."""
    ihl = (u8(frame, IP_AT) & 15) * 4
    return (
        be16(frame, vnet.VNET_LEN + ethernet.ETHERTYPE) == ethernet.ETHERTYPE_IPV4
        and u8(frame, IP_AT) >> 4 == 4
        and u8(frame, IP_AT + ipv4.PROTOCOL) == offload.PROTO_IPCOMP
        and ihl == ipv4.IPV4_MIN_LEN
        and be16(frame, TCP_AT + offload.CPI) == offload.CPI_OFFLOAD
    )


@inline_kernel
def _check(frame: Any, length: Any) -> Any:
    """Return the counter of the reason to drop this block, or 0; nothing is trusted before the CRC."""
    total_len = be16(frame, IP_AT + ipv4.TOTAL_LEN)
    block_len = total_len - ipv4.IPV4_MIN_LEN
    if total_len > length - IP_AT or block_len < offload.OVERHEAD + tcp.TCP_MIN_LEN:
        return Counter.DROP_RUNT.value
    if be16(frame, IP_AT + ipv4.FRAGMENT) & ipv4.FRAGMENT_MASK:
        return Counter.DROP_BAD_HEADER.value
    told = be32(frame, TCP_AT + offload.CRC)
    computed = block_crc(frame, TCP_AT, block_len)
    put_be32(frame, TCP_AT + offload.CRC, told)  # the caller may come again with the same frame
    if computed != told:
        return Counter.DROP_BAD_CRC.value
    if (
        u8(frame, TCP_AT + offload.NEXT_HEADER) != offload.IPCOMP_NEXT_TCP
        or u8(frame, TCP_AT + offload.VERSION_CODEC) >> 4 != offload.BLOCK_VERSION
        or u8(frame, TCP_AT + offload.IPCOMP_FLAGS) | u8(frame, TCP_AT + offload.FLAGS)
        or be32(frame, TCP_AT + offload.RESERVED) != 0
    ):
        return Counter.DROP_BAD_VERSION.value
    bound_k = u8(frame, TCP_AT + offload.BOUND_K)
    codec_id = u8(frame, TCP_AT + offload.VERSION_CODEC) & 15
    if not is_known(codec_id) or not BOUND_K_MIN <= bound_k <= BOUND_K_MAX:
        return Counter.DROP_UNKNOWN_CODEC.value
    return _check_lengths(frame, block_len)


@inline_kernel
def _check_lengths(frame: Any, block_len: Any) -> Any:
    """The part of :func:`_check` that looks behind the block header."""
    tcp_len = (u8(frame, _BLOCK_TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    if tcp_len < tcp.TCP_MIN_LEN or offload.OVERHEAD + tcp_len > block_len:
        return Counter.DROP_BAD_HEADER.value
    raw_len = be16(frame, TCP_AT + offload.PAYLOAD_LEN)
    head = u8(frame, TCP_AT + offload.HEAD_TAIL) >> 4
    tail = u8(frame, TCP_AT + offload.HEAD_TAIL) & 15
    floats_len = raw_len - head - tail
    bursts_len = block_len - offload.OVERHEAD - tcp_len - head - tail
    if (
        raw_len == 0
        or head > 3
        or tail > 3
        or floats_len < 0
        or floats_len & 3
        or bursts_len < 0
        or ipv4.IPV4_MIN_LEN + tcp_len + raw_len > MAX_SEGMENT
    ):
        return Counter.DROP_BAD_LENGTHS.value
    return 0


@inline_kernel
def _continues(frame: Any, tcp_len: Any, raw_len: Any, pending: Any, host: Any) -> Any:
    """Whether the block belongs right behind the pending segment."""
    if (
        be32(frame, _BLOCK_TCP_AT + tcp.SEQ) != pending[PENDING_NEXT_SEQ]
        or be16(frame, TCP_AT + offload.GSO_SIZE) != pending[PENDING_GSO]
        or tcp_len != (u8(host, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
        or ipv4.IPV4_MIN_LEN + tcp_len + pending[PENDING_PAYLOAD] + raw_len > MAX_SEGMENT
    ):
        return False
    for at in range(IP_AT + ipv4.SRC, IP_AT + ipv4.IPV4_MIN_LEN):
        if u8(frame, at) != u8(host, at):
            return False
    if u8(frame, IP_AT + ipv4.TOS) != u8(host, IP_AT + ipv4.TOS) or u8(frame, IP_AT + ipv4.TTL) != u8(
        host, IP_AT + ipv4.TTL
    ):
        return False
    for offset in range(tcp_len):
        same = u8(frame, _BLOCK_TCP_AT + offset) == u8(host, TCP_AT + offset)
        varies = tcp.SEQ <= offset < tcp.ACK or offset == tcp.FLAGS or tcp.CHECKSUM <= offset < tcp.URGENT
        if not same and not varies:
            return False
    return True


@inline_kernel
def _start(frame: Any, tcp_len: Any, pending: Any, host: Any) -> None:
    """Begin a segment with the headers of its first block."""
    copy_octets(frame, vnet.VNET_LEN, host, vnet.VNET_LEN, TCP_AT - vnet.VNET_LEN)
    copy_octets(frame, _BLOCK_TCP_AT, host, TCP_AT, tcp_len)
    pending[PENDING_LEN] = TCP_AT + tcp_len
    pending[PENDING_PAYLOAD] = 0
    pending[PENDING_NEXT_SEQ] = be32(frame, _BLOCK_TCP_AT + tcp.SEQ)
    pending[PENDING_GSO] = be16(frame, TCP_AT + offload.GSO_SIZE)


@inline_kernel
def _append(frame: Any, tcp_len: Any, raw_len: Any, pending: Any, host: Any) -> Any:
    """Decode the block's payload behind what is pending; False if tags and length contradict each other."""
    head = u8(frame, TCP_AT + offload.HEAD_TAIL) >> 4
    tail = u8(frame, TCP_AT + offload.HEAD_TAIL) & 15
    source_at = _BLOCK_TCP_AT + tcp_len
    target_at = pending[PENDING_LEN]
    floats = (raw_len - head - tail) // 4
    bursts_len = be16(frame, IP_AT + ipv4.TOTAL_LEN) - ipv4.IPV4_MIN_LEN - offload.OVERHEAD - tcp_len - head - tail
    codec_id = u8(frame, TCP_AT + offload.VERSION_CODEC) & 15
    bound_k = u8(frame, TCP_AT + offload.BOUND_K)
    bursts_at = source_at + head
    if decode(codec_id, frame, bursts_at, bursts_len, floats, bound_k, host, target_at + head) != bursts_len:
        return False
    for octet in range(head):
        host[target_at + octet] = frame[source_at + octet]
    for octet in range(tail):
        host[target_at + raw_len - tail + octet] = frame[bursts_at + bursts_len + octet]
    pending[PENDING_LEN] += raw_len
    pending[PENDING_PAYLOAD] += raw_len
    pending[PENDING_NEXT_SEQ] = (pending[PENDING_NEXT_SEQ] + raw_len) & 0xFFFFFFFF
    return True


@inline_kernel
def _account(frame: Any, tcp_len: Any, raw_len: Any, now_ns: Any, flows: Any, counters: Any) -> None:
    payload_octets = be16(frame, IP_AT + ipv4.TOTAL_LEN) - ipv4.IPV4_MIN_LEN - offload.OVERHEAD - tcp_len
    counters[Counter.RX_BLOCKS] += 1
    counters[Counter.RX_RAW_OCTETS] += raw_len
    counters[Counter.RX_PAYLOAD_OCTETS] += payload_octets
    src, dst, ports = addresses_and_ports(frame, _BLOCK_TCP_AT)
    slot = flow_table.learn(flows, src, dst, ports, 0, now_ns)
    flows[slot, flow_table.LAST_SEEN_NS] = now_ns
    flows[slot, flow_table.RAW_OCTETS] += raw_len
    flows[slot, flow_table.PAYLOAD_OCTETS] += payload_octets
    flows[slot, flow_table.BLOCKS] += 1
    flows[slot, flow_table.SEGMENTS] += 1


@kernel
def finish(counters: Any, pending: Any, host: Any) -> int:
    """Complete the headers of the pending segment and return its length in ``host``; 0 where nothing is pending.

    The TCP checksum field gets the sum of the pseudo-header and the virtio-net header says where the rest belongs
    (Virtio 1.2, 5.1.6.2): no octet of the payload is summed here.
    """
    length = pending[PENDING_LEN]
    if length == 0:
        return 0
    payload = pending[PENDING_PAYLOAD]
    total_len = length - IP_AT
    segment_len = total_len - ipv4.IPV4_MIN_LEN
    put_ipv4_lengths(host, IP_AT, total_len, be16(host, IP_AT + ipv4.IDENT), ipv4.PROTO_TCP)
    put_be16(host, TCP_AT + tcp.CHECKSUM, pseudo_sum(host, IP_AT, ipv4.PROTO_TCP, segment_len))
    is_large = pending[PENDING_GSO] != 0 and payload > pending[PENDING_GSO]
    host[vnet.VNET_FLAGS] = vnet.NEEDS_CSUM
    host[vnet.GSO_TYPE] = vnet.GSO_TCPV4 if is_large else vnet.GSO_NONE
    store_u16(host, vnet.HDR_LEN, length - payload - vnet.VNET_LEN)
    store_u16(host, vnet.VNET_GSO_SIZE, pending[PENDING_GSO] if is_large else 0)
    store_u16(host, vnet.CSUM_START, TCP_AT - vnet.VNET_LEN)
    store_u16(host, vnet.CSUM_OFFSET, tcp.CHECKSUM)
    counters[Counter.RX_SEGMENTS] += 1
    pending[PENDING_LEN] = 0
    return int(length)
