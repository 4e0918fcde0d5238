"""One block: where a segment's parts are, and how a piece of its payload becomes a frame of IPComp."""

from __future__ import annotations

from typing import NamedTuple

from netoffload.codec.kernels import LANES, encode_fit
from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array
from netoffload.compiled.fields import put_be16, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import copy_octets, u8
from netoffload.engine import network
from netoffload.engine.authentication import put_mac
from netoffload.engine.network import IP_AT
from netoffload.engine.sums import crc32c
from netoffload.wire import offload, tcp, vnet


class EngineSettings(NamedTuple):
    """The engine's settings; only the MTU may change while it runs.

    Attributes:
        codec_id: codec of the blocks that this NIC makes; a peer that lacks it gets a codec with the same values.
        bound_k: their error bound is 2**-bound_k.
        mtu: int64[1], the wire's MTU at present, octets.
        per_segment: 1 for one frame per MSS, 0 for coalesced packing.
        in_udp: 1 for blocks in UDP to peers that take it, 0 for IPComp always.
        bundles: 1 if the kernel cuts bundles of UDP datagrams apart.
        tag: ToS or traffic class of tagged segments, its two ECN bits 0.
        tag_mask: the bits that must equal the tag's; 0: every segment is tagged.
        ports: int64[n, 2], first and last port of ranges; a tagged connection has a port in one of them. Empty: any.
        trust: 1 if the operator promises that tagged connections carry float32, 0 if their sockets must (``promises``).
        ways: the flags in the capability word (``wire.capability``).
        tx_mac: words of the ``authentication.Authenticator`` that signs blocks.
        rx_mac: words of the ``authentication.Authenticator`` that checks blocks.
    """

    codec_id: int
    bound_k: int
    mtu: Int64Array
    per_segment: int
    in_udp: int
    bundles: int
    tag: int
    tag_mask: int
    ports: Int64Array
    trust: int
    ways: int
    tx_mac: Int64Array
    rx_mac: Int64Array


class Segment(NamedTuple):
    """Where the parts of a host's frame with one TCP segment are, found once per frame.

    Attributes:
        ip_len: octets of the network header, 20 for IPv4 and 40 for IPv6.
        seq: sequence number of the payload's first octet.
        gso_size: MSS of a TSO frame in whole floats; 0 where the frame is one segment.
    """

    ip_len: int
    tcp_at: int
    payload_at: int
    payload_len: int
    seq: int
    gso_size: int
    flags: int


class Sending(NamedTuple):
    """How blocks of one connection travel.

    Attributes:
        codec_id: codec of the blocks, with the values of the NIC's own codec.
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
        octets: the most octets that the block may hold, whole floats.
        number: the block's number in its segment, from 0.
    """

    done: int
    octets: int
    number: int


class Room(NamedTuple):
    """What ``transmit`` writes, and where it takes random numbers from.

    Attributes:
        wire: uint8[transmit.WIRE_BUFFER_LEN] for the wire frames, each with its own virtio-net header.
        spans: int64[pack.MAX_WIRE_FRAMES, 2]: start and length of each wire frame in ``wire``. For a bundle
            (``encapsulation.is_bundle``), start and length of each of its pieces.
        random: int64[1 + transmit.RANDOM_WORDS]: how many are used, then random words of 32 bits.
        agenda: int64[AGENDA_FIELDS] of ``lent``.
        questions: int64[QUESTIONS_LEN] of ``promises``.
    """

    wire: Uint8Array
    spans: Int64Array
    random: Int64Array
    agenda: Int64Array
    questions: Int64Array


@inline_kernel
def proof_of(nonce: int, seq: int) -> int:
    """Return 16 bits that only the path of a connection can know, for the unused checksum of a block's TCP header.

    A router's error about the block quotes them (``router_errors``).

    Args:
        nonce: what the connection's handshake brought from the peer, 32 bits.
        seq: sequence number of the block's first octet; only its low 32 bits count.
    """
    return (((seq ^ nonce) & 0xFFFFFFFF) * 0x1E3779B1 >> 16) & 0xFFFF


@inline_kernel
def emit_block(
    settings: EngineSettings,
    sending: Sending,
    frame: Uint8Array,
    segment: Segment,
    piece: Piece,
    classes: Int64Array,
    wire: Uint8Array,
    wire_at: int,
) -> tuple[int, int]:
    """Write one frame of IPComp at ``wire_at``, of at most ``sending.datagram_max`` octets from the network header on.

    ``classes``, int64[4], counts its floats. Returns (payload octets in it, frame length).
    """
    ip_len = segment.ip_len
    tcp_len = segment.payload_at - segment.tcp_at
    comp_at = wire_at + segment.tcp_at
    header_at = comp_at + offload.TCP_HEADER
    capacity = sending.datagram_max - ip_len - offload.OVERHEAD - tcp_len - sending.mac_len
    half_count, half_len, floats, bursts_len = _encode_halves(
        sending.codec_id,
        settings.bound_k,
        frame,
        segment.payload_at + piece.done,
        piece.octets // 4,
        Stretch(wire, header_at + tcp_len, capacity),
        classes,
    )
    taken = 4 * floats
    block_len = offload.OVERHEAD + tcp_len + bursts_len
    datagram_len = ip_len + block_len + sending.mac_len

    copy_octets(frame, vnet.VNET_LEN, wire, wire_at + vnet.VNET_LEN, segment.tcp_at - vnet.VNET_LEN)
    for octet in range(vnet.VNET_LEN):
        wire[wire_at + octet] = 0
    network.put_datagram(wire, wire_at + IP_AT, ip_len, datagram_len, piece.number, offload.PROTO_IPCOMP)
    copy_octets(frame, segment.tcp_at, wire, header_at, tcp_len)
    put_be32(wire, header_at + tcp.SEQ, segment.seq + piece.done)
    put_be16(wire, header_at + tcp.CHECKSUM, proof_of(sending.nonce, segment.seq + piece.done))
    if piece.done + taken < segment.payload_len:
        wire[header_at + tcp.FLAGS] = u8(wire, header_at + tcp.FLAGS) & ~(tcp.FIN | tcp.PSH)
    put_be16(wire, comp_at + offload.HALF_BURSTS, half_count // LANES)
    put_be16(wire, comp_at + offload.HALF_LEN, half_len)
    put_be16(wire, comp_at + offload.PAYLOAD_LEN, taken)
    put_be16(wire, comp_at + offload.GSO_SIZE, segment.gso_size)
    _seal(settings, sending, wire, comp_at, ip_len, block_len)
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
    wire, bursts_at, capacity = room.octets, room.at, room.length
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
def _seal(
    settings: EngineSettings, sending: Sending, wire: Uint8Array, comp_at: int, ip_len: int, block_len: int
) -> None:
    """Write the IPComp header, the constant fields of the block header, the CRC over the whole block, and the MAC."""
    wire[comp_at + offload.NEXT_HEADER] = offload.IPCOMP_NEXT_TCP
    wire[comp_at + offload.IPCOMP_FLAGS] = 0
    put_be16(wire, comp_at + offload.CPI, offload.CPI_OFFLOAD)
    wire[comp_at + offload.VERSION_CODEC] = offload.BLOCK_VERSION << 4 | sending.codec_id
    wire[comp_at + offload.BOUND_K] = settings.bound_k
    wire[comp_at + offload.HEAD_TAIL] = 0
    wire[comp_at + offload.FLAGS] = offload.HAS_MAC if sending.mac_len else 0
    put_be32(wire, comp_at + offload.CRC, block_crc(wire, comp_at, ip_len, block_len) ^ sending.nonce)
    if sending.mac_len:
        addresses_len = network.addresses_len(ip_len)
        put_mac(settings.tx_mac, wire, comp_at - addresses_len, addresses_len + block_len, comp_at + block_len)


@inline_kernel
def block_crc(octets: Uint8Array, comp_at: int, ip_len: int, block_len: int) -> int:
    """Return the CRC of the block at ``comp_at``; its CRC field is overwritten.

    While the CRC is computed, its field holds protocol and length. The addresses end where the block starts, so the
    pseudo-header and the block are one run of octets.
    """
    put_be32(octets, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
    addresses_len = network.addresses_len(ip_len)
    return crc32c(octets, comp_at - addresses_len, addresses_len + block_len, 0)
