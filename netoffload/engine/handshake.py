"""How the NICs negotiate while a tagged connection is made: each tells the other which codecs it decodes.

::

    host A            NIC A                            NIC B             host B
      SYN  ─────────►  + word ────────────────────────►  - word ─────────►
                       slot, nonce of A                  row of a candidate: codecs and nonce of A
      ◄─────────────── - word ◄──────────────────────── + word  ◄──────── SYN/ACK
                       codecs and nonce of B             slot, nonce of B

The word is the capability word of ``netoffload.wire.capability``. A SYN/ACK carries a word only if the SYN had one. The
NIC takes the word only from a SYN whose checksum is right or still to be filled in. To take the word out, it sums the
header anew, which would make a damaged SYN look sound.

**Who may change what.** A SYN from the wire changes no slot before the host answers it. A SYN/ACK from the wire counts
only with the acknowledgement number that the slot waits for. So an attacker who cannot see a connection's sequence
numbers cannot change its slot.

**Paths that drop options.** A host that gets no answer sends its SYN again. After :data:`OFFERS_MAX` SYNs with the word
the next ones leave without it, and the connection stays raw. A SYN with a signature (MD5, AO), with payload (TCP Fast
Open), or without room for the option crosses as it is.

**MSS and window.** In a SYN with the word the NICs round the MSS option and the window down to whole floats. The MSS of
a SYN/ACK is limited to the host's own. So TCP cuts the stream between floats if the application writes whole floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.codec_specs import ALL_CODECS
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be16, be32, put_be16, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import copy_octets, load_u16, store_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import network
from netoffload.engine.flows import NOT_FOUND, key_of, reversed_key
from netoffload.engine.network import IP_AT
from netoffload.engine.options import NO_OPTION, find_option, has_signature
from netoffload.engine.sums import ones_sum
from netoffload.wire import capability, tcp, vnet
from netoffload.wire.offload import BLOCK_VERSION

if TYPE_CHECKING:
    from netoffload.engine.blocks import Room
    from netoffload.engine.flows import FlowKey, FlowTable

OFFERS_MAX: Final = 2
"""A lost SYN is sent again after 1 s, then 2, then 4 (RFC 6298): where options are dropped, connecting takes 3 s."""

NO_SLOT: Final = -1
"""Result of :func:`offer`: the table is full."""

NO_SHIFT: Final = -1
_FULL: Final = -2
_SHIFT_MAX: Final = 14
_MSS_MIN: Final = 8


@inline_kernel
def offer(frame: Uint8Array, ip_len: int, ways: int, flows: FlowTable, now_ns: int, room: Room) -> int:
    """Note a tagged SYN from the host; if it may carry the word, write it with the word into ``room.wire``.

    Returns:
        The length of the frame in ``room.wire``; 0 where the SYN crosses as it is, ``NO_SLOT`` if the table is full.
    """
    tcp_at = IP_AT + ip_len
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    key = key_of(frame, ip_len, tcp_at)
    if (
        has_signature(frame, tcp_at, tcp_len)
        or tcp_len + capability.OPTION_LEN > tcp.TCP_MAX_LEN
        or network.get_datagram_len(frame, ip_len) != ip_len + tcp_len  # TCP Fast Open
    ):
        flow_table.forget(flows, key)
        return 0
    slot = _learn(frame, tcp_at, key, flows, now_ns, room.random)
    if slot < 0:
        return NO_SLOT if slot == _FULL else 0
    flows[slot, flow_table.SYNS_SENT] += 1
    if flows[slot, flow_table.SYNS_SENT] > OFFERS_MAX:
        return 0  # something on the path may drop SYNs with the word
    _write(frame, ip_len, tcp_len, ways, flows[slot, flow_table.OWN_NONCE], room.wire)
    return tcp_at + tcp_len + capability.OPTION_LEN


@inline_kernel
def _learn(frame: Uint8Array, tcp_at: int, key: FlowKey, flows: FlowTable, now_ns: int, random: Int64Array) -> int:
    """Return the slot of the connection that a SYN or SYN/ACK of the host begins.

    ``NOT_FOUND``: a SYN/ACK to a peer that sent no word. ``_FULL``: there is no slot.
    """
    isn = be32(frame, tcp_at + tcp.SEQ)
    is_answer = u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG != 0
    peer_isn = (be32(frame, tcp_at + tcp.ACK) - 1) & 0xFFFFFFFF
    slot = flow_table.find(flows, key)
    if (
        slot != NOT_FOUND
        and flows[slot, flow_table.ISN] == isn
        and flows[slot, flow_table.STATE] != flow_table.CLOSED
        and (not is_answer or flows[slot, flow_table.PEER_ISN] == peer_isn)
    ):
        return slot  # sent again
    candidate = flow_table.find_candidate(flows, key)
    if is_answer and (
        candidate == NOT_FOUND
        or flows[candidate, flow_table.PEER_ISN] != peer_isn
        or flows[candidate, flow_table.PEER_CODECS] == 0
    ):
        flow_table.forget(flows, key)
        return NOT_FOUND
    slot = flow_table.make_slot(flows, key, now_ns)
    if slot == NOT_FOUND:
        return _FULL
    flow_table.begin(flows, slot, isn)
    flows[slot, flow_table.OWN_NONCE] = random[1 + random[0] % (random.size - 1)]
    random[0] += 1
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    flows[slot, flow_table.OWN_MSS] = _read_mss(frame, tcp_at, tcp_len)
    flows[slot, flow_table.WINDOW_SHIFT] = _read_shift(frame, tcp_at, tcp_len)
    if is_answer:
        _adopt(flows, slot, candidate, flows[candidate, flow_table.WINDOW_SHIFT])
    return slot


@inline_kernel
def _adopt(flows: FlowTable, slot: int, candidate: int, peer_shift: int) -> None:
    """Copy what a candidate's row says about the sender of its SYN; window scaling holds if both ends offer it."""
    for field in (flow_table.PEER_ISN, flow_table.PEER_CODECS, flow_table.PEER_WAYS, flow_table.PEER_NONCE):
        flows[slot, field] = flows[candidate, field]
    flows[candidate, flow_table.LAST_SEEN_NS] = 0  # the host has answered this SYN, so it gives way first
    _await(flows, slot)
    _settle_shift(flows, slot, peer_shift)


@inline_kernel
def _await(flows: FlowTable, slot: int) -> None:
    """Note what the host waits for: the octet behind the peer's SYN."""
    first = (flows[slot, flow_table.PEER_ISN] + 1) & 0xFFFFFFFF
    flows[slot, flow_table.HOST_ACK] = flows[slot, flow_table.RX_NEXT_SEQ] = first


@inline_kernel
def _settle_shift(flows: FlowTable, slot: int, peer_shift: int) -> None:
    own = flows[slot, flow_table.WINDOW_SHIFT]
    scales = own != NO_SHIFT and peer_shift != NO_SHIFT
    flows[slot, flow_table.WINDOW_SHIFT] = min(own, _SHIFT_MAX) if scales else 0
    flows[slot, flow_table.PEER_SHIFT] = min(peer_shift, _SHIFT_MAX) if scales else 0


@inline_kernel
def _read_shift(frame: Uint8Array, tcp_at: int, tcp_len: int) -> int:
    """Return the window scale that a SYN offers, or ``NO_SHIFT``."""
    at = find_option(frame, tcp_at, tcp_len, tcp.OPTION_WINDOW_SCALE)
    return u8(frame, at + 2) if at > NO_OPTION and u8(frame, at + 1) == tcp.OPTION_WINDOW_SCALE_LEN else NO_SHIFT


@inline_kernel
def _read_mss(frame: Uint8Array, tcp_at: int, tcp_len: int) -> int:
    """Return the MSS of a SYN; 0 if it has no MSS option."""
    at = find_option(frame, tcp_at, tcp_len, tcp.OPTION_MSS)
    return be16(frame, at + 2) if at > NO_OPTION and u8(frame, at + 1) == tcp.OPTION_MSS_LEN else 0


@inline_kernel
def _limit_mss(frame: Uint8Array, tcp_at: int, tcp_len: int, most: int) -> None:
    """Round the MSS of a SYN down to whole floats, and to ``most`` where that is not 0."""
    at = find_option(frame, tcp_at, tcp_len, tcp.OPTION_MSS)
    mss = _read_mss(frame, tcp_at, tcp_len)
    if most > 0:
        mss = min(mss, most)
    if mss >= _MSS_MIN:
        put_be16(frame, at + 2, mss & ~3)


@inline_kernel
def _write(frame: Uint8Array, ip_len: int, tcp_len: int, ways: int, nonce: int, wire: Uint8Array) -> None:
    """Write the host's SYN with the word behind its options into ``wire``."""
    tcp_at = IP_AT + ip_len
    copy_octets(frame, 0, wire, 0, tcp_at + tcp_len)
    at = tcp_at + tcp_len
    end_at = find_option(wire, tcp_at, tcp_len, tcp.OPTION_END)
    for padding in range(end_at if end_at > NO_OPTION else at, at):
        wire[padding] = tcp.OPTION_NOP  # an end of the list here would hide the word
    wire[at] = capability.OPTION_EXPERIMENT
    wire[at + 1] = capability.OPTION_LEN
    put_be16(wire, at + capability.EXID_AT, capability.EXID)
    wire[at + capability.VERSION_AT] = BLOCK_VERSION
    wire[at + capability.WAYS_AT] = ways
    put_be16(wire, at + capability.CODECS_AT, ALL_CODECS)
    put_be32(wire, at + capability.NONCE_AT, nonce)
    _limit_mss(wire, tcp_at, tcp_len, 0)
    put_be16(wire, tcp_at + tcp.WINDOW, be16(wire, tcp_at + tcp.WINDOW) & ~3)
    _put_lengths(wire, ip_len, tcp_len + capability.OPTION_LEN)


@inline_kernel
def accept(frame: Uint8Array, ip_len: int, length: int, ways: int, now_ns: int, flows: FlowTable) -> int:
    """Note what a SYN from the wire says about its sender, and take the word out of it.

    Returns:
        The length of the frame, shorter if there was a word.
    """
    tcp_at = IP_AT + ip_len
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    if not _is_sound(frame, ip_len, tcp_len):
        return length
    at = _find_word(frame, ip_len, tcp_len)
    key = reversed_key(key_of(frame, ip_len, tcp_at))
    most = 0
    if u8(frame, tcp_at + tcp.FLAGS) & tcp.ACK_FLAG:
        slot = flow_table.find(flows, key)
        if slot != NOT_FOUND:
            most = flows[slot, flow_table.OWN_MSS]
            _take_answer(frame, tcp_at, tcp_len, at, ways, flows, slot)
    else:
        _take_offer(frame, tcp_at, tcp_len, at, ways, now_ns, flows, key)
    if at == NO_OPTION:
        return length
    _limit_mss(frame, tcp_at, tcp_len, most)
    end = tcp_at + tcp_len
    for octet in range(at + capability.OPTION_LEN, end):
        frame[octet - capability.OPTION_LEN] = frame[octet]
    _put_lengths(frame, ip_len, tcp_len - capability.OPTION_LEN)
    return tcp_at + tcp_len - capability.OPTION_LEN


@inline_kernel
def _take_offer(
    frame: Uint8Array, tcp_at: int, tcp_len: int, word_at: int, ways: int, now_ns: int, flows: FlowTable, key: FlowKey
) -> None:
    """Keep what a SYN says until the host answers it; a repeated SYN without the word does not revoke the word."""
    peer_isn = be32(frame, tcp_at + tcp.SEQ)
    row = flow_table.find_candidate(flows, key)
    if word_at == NO_OPTION and (row == NOT_FOUND or flows[row, flow_table.PEER_ISN] == peer_isn):
        return
    row = flow_table.make_candidate(flows, key, now_ns)
    flows[row, flow_table.PEER_ISN] = peer_isn
    flows[row, flow_table.WINDOW_SHIFT] = _read_shift(frame, tcp_at, tcp_len)
    if word_at != NO_OPTION:
        _read_word(frame, word_at, ways, flows, row)


@inline_kernel
def _take_answer(
    frame: Uint8Array, tcp_at: int, tcp_len: int, word_at: int, ways: int, flows: FlowTable, slot: int
) -> None:
    """Take the word of a SYN/ACK that answers the host's SYN; a later SYN/ACK changes nothing."""
    asked = (flows[slot, flow_table.ISN] + 1) & 0xFFFFFFFF
    if flows[slot, flow_table.STATE] != flow_table.OPENING or be32(frame, tcp_at + tcp.ACK) != asked:
        return
    flows[slot, flow_table.STATE] = flow_table.OPEN
    flows[slot, flow_table.PEER_ISN] = be32(frame, tcp_at + tcp.SEQ)
    _await(flows, slot)
    _settle_shift(flows, slot, _read_shift(frame, tcp_at, tcp_len))
    if word_at != NO_OPTION:
        _read_word(frame, word_at, ways, flows, slot)


@inline_kernel
def _read_word(frame: Uint8Array, at: int, ways: int, flows: FlowTable, row: int) -> None:
    """Note what a word says. A NIC with a key and a NIC without one do not understand each other's blocks."""
    differ = (u8(frame, at + capability.WAYS_AT) ^ ways) & capability.WANTS_MAC
    if u8(frame, at + capability.VERSION_AT) == BLOCK_VERSION and not differ:
        flows[row, flow_table.PEER_CODECS] = be16(frame, at + capability.CODECS_AT)
        flows[row, flow_table.PEER_WAYS] = u8(frame, at + capability.WAYS_AT)
        flows[row, flow_table.PEER_NONCE] = be32(frame, at + capability.NONCE_AT)


@inline_kernel
def _is_sound(frame: Uint8Array, ip_len: int, tcp_len: int) -> bool:
    """Whether the checksums of a SYN are right, as far as the NIC can tell; a damaged SYN must not reach the table."""
    if not network.is_summed_right(frame, ip_len):
        return False
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM or network.get_datagram_len(frame, ip_len) != ip_len + tcp_len:
        return True  # filled in later; or a SYN with payload, which keeps its word, so the host checks the sum
    return network.is_tcp_summed_right(frame, ip_len, tcp_len)


@inline_kernel
def _find_word(frame: Uint8Array, ip_len: int, tcp_len: int) -> int:
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
def _put_lengths(frame: Uint8Array, ip_len: int, tcp_len: int) -> None:
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
