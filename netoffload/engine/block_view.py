"""A block in a frame from the wire: where its parts are, and whether it is valid.

:func:`find_block` reads every field of the headers once; :func:`check` says whether they may be trusted.
"""

from __future__ import annotations

from typing import NamedTuple

from netoffload.codec.kernels import LANES, is_known
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be16, be32, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import u8
from netoffload.config import BOUND_K_MAX, BOUND_K_MIN
from netoffload.engine import network
from netoffload.engine.authentication import has_mac, is_on
from netoffload.engine.blocks import block_crc
from netoffload.engine.counters import Counter
from netoffload.engine.network import IP_AT
from netoffload.wire import offload, tcp


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
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
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
def check(mac: Int64Array, frame: Uint8Array, block: BlockView, nonce: int) -> int:
    """Return the counter that says why to drop this block, or 0; no field is trusted before CRC and MAC are right."""
    ip_len, comp_at, block_len = block.ip_len, block.comp_at, block.block_len
    if network.is_fragment(frame, ip_len) or not network.is_summed_right(frame, ip_len):
        return Counter.DROP_BAD_HEADER.value  # the CRC covers the addresses alone
    if block_len < offload.OVERHEAD + tcp.TCP_MIN_LEN:
        return Counter.DROP_RUNT.value
    told = be32(frame, comp_at + offload.CRC)
    if block_crc(frame, comp_at, ip_len, block_len) ^ nonce != told:
        return Counter.DROP_BAD_CRC.value
    if is_on(mac):
        put_be32(frame, comp_at + offload.CRC, told)
        addresses_len = network.addresses_len(ip_len)
        at, covered = comp_at - addresses_len, addresses_len + block_len
        if not block.has_mac or not has_mac(mac, frame, at, covered, comp_at + block_len):
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
