"""One block: where a segment's parts are, how it is told, and how a piece of its payload becomes a frame of IPComp."""

from __future__ import annotations

from typing import Any, NamedTuple

from netoffload.codec.jit import inline_kernel
from netoffload.codec.kernels import LANES, encode_fit
from netoffload.codec.octets import copy_octets, u8
from netoffload.engine import network
from netoffload.engine.fields import put_be16, put_be32
from netoffload.engine.network import IP_AT
from netoffload.engine.sums import crc32c
from netoffload.wire import offload, tcp, vnet


class TransmitSettings(NamedTuple):
    """What the engine is told once.

    Attributes:
        codec_id: codec of the blocks this NIC makes.
        bound_k: their error bound is 2**-bound_k.
        mtu: largest IP datagram on the wire, octets.
        per_segment: 1 for one frame per MSS, 0 for coalesced packing.
        in_udp: 1 for blocks in UDP to peers that take it, 0 for IPComp always.
        bundles: 1 if the kernel cuts bundles of UDP datagrams apart.
    """

    codec_id: int
    bound_k: int
    mtu: int
    per_segment: int
    in_udp: int
    bundles: int


class Segment(NamedTuple):
    """Where things are in a frame from the host with one TCP segment, worked out once.

    Attributes:
        ip_len: octets of its network header, which says the family.
        tcp_at: where the TCP header starts.
        payload_at: where the payload starts.
        payload_len: octets of it.
        seq: sequence number of its first octet.
        gso_size: MSS of a TSO frame; 0 where the frame is one segment.
    """

    ip_len: int
    tcp_at: int
    payload_at: int
    payload_len: int
    seq: int
    gso_size: int


@inline_kernel
def emit_block(
    settings: Any,
    datagram_max: Any,
    frame: Any,
    segment: Any,
    done: Any,
    piece: Any,
    first_octet: Any,
    index: Any,
    classes: Any,
    wire: Any,
    wire_at: Any,
) -> Any:
    """Write one frame of IPComp, of at most ``datagram_max`` octets from the network header on, at ``wire_at``.

    It is the ``index``-th of its segment, holds at most ``piece`` octets of the payload from ``done`` on, whose first
    octet is the ``first_octet``-th of the stream; ``classes``, int64[4], counts its floats. Returns (payload octets in
    it, frame length).
    """
    ip_len = segment.ip_len
    tcp_len = segment.payload_at - segment.tcp_at
    head = min(-(first_octet + done) & 3, piece)
    floats = (piece - head) // 4
    tail = piece - head - 4 * floats
    comp_at = wire_at + segment.tcp_at
    body_at = comp_at + offload.TCP_HEADER + tcp_len
    capacity = datagram_max - ip_len - offload.OVERHEAD - tcp_len - head - tail
    source_at = segment.payload_at + done
    for octet in range(head):
        wire[body_at + octet] = frame[source_at + octet]
    half_count, half_len, encoded, bursts_len = _encode_halves(
        settings, frame, source_at + head, floats, wire, body_at + head, capacity, classes
    )
    if encoded < floats:
        tail = 0  # the rest follows in the next frame
    taken = head + 4 * encoded + tail
    for octet in range(tail):
        wire[body_at + head + bursts_len + octet] = frame[source_at + taken - tail + octet]
    block_len = offload.OVERHEAD + tcp_len + head + bursts_len + tail

    copy_octets(frame, vnet.VNET_LEN, wire, wire_at + vnet.VNET_LEN, segment.tcp_at - vnet.VNET_LEN)
    for octet in range(vnet.VNET_LEN):
        wire[wire_at + octet] = 0
    network.put_datagram(wire, wire_at + IP_AT, ip_len, ip_len + block_len, index, offload.PROTO_IPCOMP)
    header_at = comp_at + offload.TCP_HEADER
    copy_octets(frame, segment.tcp_at, wire, header_at, tcp_len)
    put_be32(wire, header_at + tcp.SEQ, segment.seq + done)
    put_be16(wire, header_at + tcp.CHECKSUM, 0)
    if done + taken < segment.payload_len:
        wire[header_at + tcp.FLAGS] = u8(wire, header_at + tcp.FLAGS) & ~(tcp.FIN | tcp.PSH)
    put_be16(wire, comp_at + offload.HALF_BURSTS, half_count // LANES)
    put_be16(wire, comp_at + offload.HALF_LEN, half_len)
    _emit_block_header(settings, wire, comp_at, ip_len, head << 4 | tail, taken, segment.gso_size, block_len)
    return taken, segment.tcp_at + block_len


@inline_kernel
def _encode_halves(
    settings: Any, frame: Any, source_at: Any, floats: Any, wire: Any, bursts_at: Any, capacity: Any, classes: Any
) -> Any:
    """Encode as many floats as fit; return how many are in the first half, its octets, and both for the whole.

    The middle has to be known beforehand: it is where half the floats are in or half the room is taken. Of a block that
    ends for want of room, that is the middle of its octets; of any other, of its floats.
    """
    codec_id, bound_k = settings.codec_id, settings.bound_k
    half_count, half_len = encode_fit(
        codec_id, frame, source_at, floats // 2 // LANES * LANES, bound_k, wire, bursts_at, capacity // 2, classes
    )
    rest_at = bursts_at + half_len
    rest, rest_len = encode_fit(
        codec_id,
        frame,
        source_at + 4 * half_count,
        floats - half_count,
        bound_k,
        wire,
        rest_at,
        capacity - half_len,
        classes,
    )
    return half_count, half_len, half_count + rest, half_len + rest_len


@inline_kernel
def _emit_block_header(
    settings: Any,
    wire: Any,
    comp_at: Any,
    ip_len: Any,
    head_tail: Any,
    taken: Any,
    gso_size: Any,
    block_len: Any,
) -> None:
    """Write IPComp and block header around the mark, before a TCP header and payload that are in place, and the CRC."""
    wire[comp_at + offload.NEXT_HEADER] = offload.IPCOMP_NEXT_TCP
    wire[comp_at + offload.IPCOMP_FLAGS] = 0
    put_be16(wire, comp_at + offload.CPI, offload.CPI_OFFLOAD)
    wire[comp_at + offload.VERSION_CODEC] = offload.BLOCK_VERSION << 4 | settings.codec_id
    wire[comp_at + offload.BOUND_K] = settings.bound_k
    wire[comp_at + offload.HEAD_TAIL] = head_tail
    wire[comp_at + offload.FLAGS] = 0
    put_be16(wire, comp_at + offload.PAYLOAD_LEN, taken)
    put_be16(wire, comp_at + offload.GSO_SIZE, gso_size)
    put_be32(wire, comp_at + offload.CRC, block_crc(wire, comp_at, ip_len, block_len))


@inline_kernel
def block_crc(octets: Any, comp_at: Any, ip_len: Any, block_len: Any) -> Any:
    """Return the CRC of the block at ``comp_at``; its CRC field is overwritten.

    The field holds protocol and length meanwhile, and the addresses end where the block starts, so pseudo-header and
    block are one run of octets.
    """
    put_be32(octets, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
    addresses_len = network.addresses_len(ip_len)
    return crc32c(octets, comp_at - addresses_len, addresses_len + block_len, 0)
