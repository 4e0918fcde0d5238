"""What the NICs say to each other while a tagged connection is made.

::

    host A            NIC A                            NIC B             host B
      SYN  ─────────►  + word ────────────────────────►  - word ─────────►
                                                         A decodes: noted for B → A
      ◄─────────────── - word ◄──────────────────────── + word  ◄──────── SYN/ACK
      A → B: B decodes, noted

The word is in ``netoffload.wire.capability``. A SYN/ACK carries it only as an answer to one. Every SYN overwrites what
was noted, so a retransmitted SYN that lost its option on the way says "cannot decode", and the flow stays raw.
A SYN with payload (TCP Fast Open), or without room for the option, crosses as it is.
"""

from __future__ import annotations

from typing import Any, Final

from netoffload.codec.jit import inline_kernel
from netoffload.codec.octets import copy_octets, load_u16, store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine.fields import be16, be32, pseudo_sum, put_be16, put_ipv4_lengths
from netoffload.engine.flows import NOT_FOUND, addresses_and_ports
from netoffload.engine.options import NO_OPTION, find_option
from netoffload.engine.sums import ones_sum
from netoffload.wire import capability, ethernet, ipv4, tcp, vnet
from netoffload.wire.offload import BLOCK_VERSION

IP_AT: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN
TCP_AT: Final = IP_AT + ipv4.IPV4_MIN_LEN
"""Where the TCP header starts in a frame with virtio-net header; IPv4 options bypass, so this is fixed."""


@inline_kernel
def offer(frame: Any, length: Any, flows: Any, now_ns: Any, wire: Any) -> Any:
    """Learn a SYN from the host; if it is tagged and may carry the word, write it with the word into ``wire``.

    Returns:
        The length of the frame in ``wire``; 0 where the SYN crosses as it is.
    """
    src, dst, ports = addresses_and_ports(frame, TCP_AT)
    is_answer = u8(frame, TCP_AT + tcp.FLAGS) & tcp.ACK_FLAG
    isn = be32(frame, TCP_AT + tcp.SEQ)
    slot = flow_table.find(flows, src, dst, ports)
    if is_answer and slot != NOT_FOUND and flows[slot, flow_table.ISN] == flow_table.ISN_NOT_SEEN:
        flow_table.begin(flows, slot, isn)
    else:
        slot = flow_table.learn(flows, src, dst, ports, isn, now_ns)
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    total_len = be16(frame, IP_AT + ipv4.TOTAL_LEN)
    if (
        (is_answer and flows[slot, flow_table.PEER_CODECS] == 0)
        or tcp_len + capability.OPTION_LEN > tcp.TCP_MAX_LEN
        or total_len != ipv4.IPV4_MIN_LEN + tcp_len
    ):
        return 0
    copy_octets(frame, 0, wire, 0, TCP_AT + tcp_len)
    at = TCP_AT + tcp_len
    wire[at] = capability.OPTION_EXPERIMENT
    wire[at + 1] = capability.OPTION_LEN
    put_be16(wire, at + capability.EXID_AT, capability.EXID)
    wire[at + capability.VERSION_AT] = BLOCK_VERSION
    wire[at + capability.VERSION_AT + 1] = 0
    put_be16(wire, at + capability.CODECS_AT, capability.ALL_CODECS)
    _put_lengths(wire, tcp_len + capability.OPTION_LEN)
    return TCP_AT + tcp_len + capability.OPTION_LEN


@inline_kernel
def accept(frame: Any, length: Any, flows: Any, now_ns: Any) -> Any:
    """Note what a SYN from the wire says about its sender, and take the word out of it.

    Returns:
        The length of the frame, shorter if there was a word.
    """
    src, dst, ports = addresses_and_ports(frame, TCP_AT)
    tcp_len = (u8(frame, TCP_AT + tcp.DATA_OFFSET) >> 4) * 4
    at = _find_word(frame, tcp_len)
    if at != NO_OPTION and not _is_whole(frame, tcp_len):
        return length  # taking the word out would make the checksum right again: the host shall see that it is not
    codecs = 0
    if at != NO_OPTION and u8(frame, at + capability.VERSION_AT) == BLOCK_VERSION:
        codecs = be16(frame, at + capability.CODECS_AT)
    back_ports = (ports & 0xFFFF) << 16 | ports >> 16
    slot = flow_table.find(flows, dst, src, back_ports)
    peer_isn = be32(frame, TCP_AT + tcp.SEQ)
    if u8(frame, TCP_AT + tcp.FLAGS) & tcp.ACK_FLAG == 0 and (codecs or slot != NOT_FOUND):
        if slot == NOT_FOUND or flows[slot, flow_table.PEER_ISN] != peer_isn:
            slot = flow_table.learn(flows, dst, src, back_ports, flow_table.ISN_NOT_SEEN, now_ns)
        flows[slot, flow_table.PEER_ISN] = peer_isn
    if slot != NOT_FOUND:
        flows[slot, flow_table.PEER_CODECS] = codecs
    if at == NO_OPTION:
        return length
    end = TCP_AT + tcp_len
    for octet in range(at + capability.OPTION_LEN, end):
        frame[octet - capability.OPTION_LEN] = frame[octet]
    _put_lengths(frame, tcp_len - capability.OPTION_LEN)
    return TCP_AT + tcp_len - capability.OPTION_LEN


@inline_kernel
def _find_word(frame: Any, tcp_len: Any) -> Any:
    """Return where the capability word is, or ``NO_OPTION``; only in a SYN without payload."""
    if be16(frame, IP_AT + ipv4.TOTAL_LEN) != ipv4.IPV4_MIN_LEN + tcp_len:
        return NO_OPTION
    at = find_option(frame, TCP_AT, tcp_len, capability.OPTION_EXPERIMENT)
    if (
        at > NO_OPTION
        and u8(frame, at + 1) == capability.OPTION_LEN
        and be16(frame, at + capability.EXID_AT) == capability.EXID
    ):
        return at
    return NO_OPTION


@inline_kernel
def _is_whole(frame: Any, tcp_len: Any) -> Any:
    """Whether the checksum of a segment without payload is right, or still to be filled in."""
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        return True
    pseudo = pseudo_sum(frame, IP_AT, ipv4.PROTO_TCP, tcp_len)
    total = ones_sum(frame, TCP_AT, tcp_len) + ((pseudo >> 8) | (pseudo & 0xFF) << 8)
    return (total & 0xFFFF) + (total >> 16) == 0xFFFF


@inline_kernel
def _put_lengths(frame: Any, tcp_len: Any) -> None:
    """Set every length and sum of a SYN without payload whose options have changed."""
    frame[TCP_AT + tcp.DATA_OFFSET] = tcp_len // 4 << 4 | (u8(frame, TCP_AT + tcp.DATA_OFFSET) & 0x0F)
    ident = be16(frame, IP_AT + ipv4.IDENT)
    put_ipv4_lengths(frame, IP_AT, ipv4.IPV4_MIN_LEN + tcp_len, ident, ipv4.PROTO_TCP)
    put_be16(frame, TCP_AT + tcp.CHECKSUM, pseudo_sum(frame, IP_AT, ipv4.PROTO_TCP, tcp_len))
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        if load_u16(frame, vnet.HDR_LEN):
            store_u16(frame, vnet.HDR_LEN, TCP_AT + tcp_len - vnet.VNET_LEN)
    else:
        store_u16(frame, TCP_AT + tcp.CHECKSUM, ones_sum(frame, TCP_AT, tcp_len) ^ 0xFFFF)
