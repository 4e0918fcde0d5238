"""What the NICs say to each other while a tagged connection is made.

::

    host A            NIC A                            NIC B             host B
      SYN  ─────────►  + word ────────────────────────►  - word ─────────►
                                                         A decodes: noted for B → A
      ◄─────────────── - word ◄──────────────────────── + word  ◄──────── SYN/ACK
      A → B: B decodes, noted

The word is in ``netoffload.wire.capability``. A SYN/ACK carries it only as an answer to one. Every SYN overwrites what
was noted, so a retransmitted SYN that lost its option on the way says "cannot decode", and the flow stays raw.
The MSS option of a SYN that gets the word is rounded down to whole floats, so that TCP itself cuts between floats what
an application writes as floats. A word is only believed if the SYN's checksum is right or still to be filled in: taking
it out sums the header anew, and would make a damaged SYN look sound.

A SYN with payload (TCP Fast Open), or without room for the option, crosses as it is.
"""

from __future__ import annotations

from typing import Any

from netoffload.codec.jit import inline_kernel
from netoffload.codec.octets import copy_octets, load_u16, store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import network
from netoffload.engine.fields import be16, be32, put_be16
from netoffload.engine.flows import NOT_FOUND, key_of, reversed_key
from netoffload.engine.network import IP_AT
from netoffload.engine.options import NO_OPTION, find_option
from netoffload.engine.sums import ones_sum
from netoffload.wire import capability, tcp, vnet
from netoffload.wire.offload import BLOCK_VERSION


@inline_kernel
def offer(frame: Any, ip_len: Any, flows: Any, now_ns: Any, wire: Any) -> Any:
    """Learn a SYN from the host; if it is tagged and may carry the word, write it with the word into ``wire``.

    Returns:
        The length of the frame in ``wire``; 0 where the SYN crosses as it is.
    """
    tcp_at = IP_AT + ip_len
    key = key_of(frame, ip_len, tcp_at)
    is_answer = u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG
    isn = be32(frame, tcp_at + tcp.SEQ)
    slot = flow_table.find(flows, key)
    if is_answer and slot != NOT_FOUND and flows[slot, flow_table.ISN] == flow_table.ISN_NOT_SEEN:
        flow_table.begin(flows, slot, isn)
    else:
        slot = flow_table.learn(flows, key, isn, now_ns)
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    if (
        (is_answer and flows[slot, flow_table.PEER_CODECS] == 0)
        or tcp_len + capability.OPTION_LEN > tcp.TCP_MAX_LEN
        or network.get_datagram_len(frame, ip_len) != ip_len + tcp_len
    ):
        return 0
    copy_octets(frame, 0, wire, 0, tcp_at + tcp_len)
    at = tcp_at + tcp_len
    end_at = find_option(wire, tcp_at, tcp_len, tcp.OPTION_END)
    for padding in range(end_at if end_at > NO_OPTION else at, at):
        wire[padding] = tcp.OPTION_NOP  # what follows the end of the list, nobody would read
    wire[at] = capability.OPTION_EXPERIMENT
    wire[at + 1] = capability.OPTION_LEN
    put_be16(wire, at + capability.EXID_AT, capability.EXID)
    wire[at + capability.VERSION_AT] = BLOCK_VERSION
    wire[at + capability.WAYS_AT] = capability.TAKES_UDP
    put_be16(wire, at + capability.CODECS_AT, capability.ALL_CODECS)
    mss_at = find_option(wire, tcp_at, tcp_len, tcp.OPTION_MSS)
    if mss_at > NO_OPTION and u8(wire, mss_at + 1) == tcp.OPTION_MSS_LEN and be16(wire, mss_at + 2) > 4:
        put_be16(wire, mss_at + 2, be16(wire, mss_at + 2) & ~3)
    _put_lengths(wire, ip_len, tcp_len + capability.OPTION_LEN)
    return tcp_at + tcp_len + capability.OPTION_LEN


@inline_kernel
def accept(frame: Any, ip_len: Any, length: Any, flows: Any, now_ns: Any) -> Any:
    """Note what a SYN from the wire says about its sender, and take the word out of it.

    Returns:
        The length of the frame, shorter if there was a word.
    """
    tcp_at = IP_AT + ip_len
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    if not _is_sound(frame, ip_len, tcp_len):
        return length
    at = _find_word(frame, ip_len, tcp_len)
    codecs = takes_udp = 0
    if at != NO_OPTION and u8(frame, at + capability.VERSION_AT) == BLOCK_VERSION:
        codecs = be16(frame, at + capability.CODECS_AT)
        takes_udp = u8(frame, at + capability.WAYS_AT) & capability.TAKES_UDP
    key = reversed_key(key_of(frame, ip_len, tcp_at))
    slot = flow_table.find(flows, key)
    peer_isn = be32(frame, tcp_at + tcp.SEQ)
    if u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG == 0 and (codecs or slot != NOT_FOUND):
        if slot == NOT_FOUND or flows[slot, flow_table.PEER_ISN] != peer_isn:
            slot = flow_table.learn(flows, key, flow_table.ISN_NOT_SEEN, now_ns)
        flows[slot, flow_table.PEER_ISN] = peer_isn
    if slot != NOT_FOUND:
        flows[slot, flow_table.PEER_CODECS] = codecs
        flows[slot, flow_table.PEER_TAKES_UDP] = takes_udp
    if at == NO_OPTION:
        return length
    end = tcp_at + tcp_len
    for octet in range(at + capability.OPTION_LEN, end):
        frame[octet - capability.OPTION_LEN] = frame[octet]
    _put_lengths(frame, ip_len, tcp_len - capability.OPTION_LEN)
    return tcp_at + tcp_len - capability.OPTION_LEN


@inline_kernel
def _is_sound(frame: Any, ip_len: Any, tcp_len: Any) -> Any:
    """Whether the sums of a SYN are right, as far as they can be told: nothing that follows from it may be wrong."""
    if not network.is_summed_right(frame, ip_len):
        return False
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM or network.get_datagram_len(frame, ip_len) != ip_len + tcp_len:
        return True  # filled in later; or with payload, which is for the host to sum, and nothing is taken out
    total = network.pseudo_sum(frame, IP_AT, ip_len, tcp.PROTO_TCP, tcp_len)
    swapped = (total >> 8) | (total & 0xFF) << 8
    return (swapped + ones_sum(frame, IP_AT + ip_len, tcp_len)) % 0xFFFF == 0


@inline_kernel
def _find_word(frame: Any, ip_len: Any, tcp_len: Any) -> Any:
    """Return where the capability word is, or ``NO_OPTION``; only in a SYN without payload."""
    if network.get_datagram_len(frame, ip_len) != ip_len + tcp_len:
        return NO_OPTION
    at = find_option(frame, IP_AT + ip_len, tcp_len, capability.OPTION_EXPERIMENT)
    if (
        at > NO_OPTION
        and u8(frame, at + 1) == capability.OPTION_LEN
        and be16(frame, at + capability.EXID_AT) == capability.EXID
    ):
        return at
    return NO_OPTION


@inline_kernel
def _put_lengths(frame: Any, ip_len: Any, tcp_len: Any) -> None:
    """Set every length and sum of a SYN without payload whose options have changed."""
    tcp_at = IP_AT + ip_len
    frame[tcp_at + tcp.DATA_OFFSET] = tcp_len // 4 << 4 | (u8(frame, tcp_at + tcp.DATA_OFFSET) & 0x0F)
    network.put_datagram(frame, IP_AT, ip_len, ip_len + tcp_len, 0, tcp.PROTO_TCP)
    put_be16(frame, tcp_at + tcp.CHECKSUM, network.pseudo_sum(frame, IP_AT, ip_len, tcp.PROTO_TCP, tcp_len))
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        if load_u16(frame, vnet.HDR_LEN):
            store_u16(frame, vnet.HDR_LEN, tcp_at + tcp_len - vnet.VNET_LEN)
    else:
        store_u16(frame, tcp_at + tcp.CHECKSUM, ones_sum(frame, tcp_at, tcp_len) ^ 0xFFFF)
