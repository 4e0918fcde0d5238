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

from typing import Final

from netoffload.codec_specs import ALL_CODECS
from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be16, be32, copy_octets, load_u16, put_be16, put_be32, store_u16, u8
from netoffload.engine import flows, network
from netoffload.engine.flows import NOT_FOUND, Flow, FlowKey
from netoffload.engine.network import IP_AT
from netoffload.engine.segment import (
    NO_OPTION,
    Segment,
    find_option,
    find_segment,
    find_sized_option,
    has_signature,
)
from netoffload.engine.state import NicState
from netoffload.engine.sums import ones_sum
from netoffload.wire import capability, tcp, vnet
from netoffload.wire.offload import BLOCK_VERSION

OFFERS_MAX: Final = 2
"""A lost SYN is sent again after 1 s, then 2, then 4 (RFC 6298): where options are dropped, connecting takes 3 s."""

NO_SLOT: Final = -2
"""Result of :func:`offer`: the table is full."""

NO_SHIFT: Final = -1
_SHIFT_MAX: Final = 14
_MSS_MIN: Final = 8


@inline_kernel
def offer(nic: NicState, frame: Uint8Array, ip_len: int, now_ns: int, wire: Uint8Array) -> int:
    """Note a tagged SYN from the host; if it may carry the word, write it with the word into ``wire``.

    Returns:
        The length of the frame in ``wire``; 0 where the SYN crosses as it is, ``NO_SLOT`` if the table is full.
    """
    syn = find_segment(frame, ip_len)
    key = flows.key_of(frame, ip_len, syn.tcp_at)
    if (
        has_signature(frame, syn.tcp_at)
        or syn.payload_at - syn.tcp_at + capability.OPTION_LEN > tcp.TCP_MAX_LEN
        or syn.payload_len > 0  # TCP Fast Open
    ):
        flows.forget(nic.flows, key)
        return 0
    slot = _learn(nic, frame, syn, key, now_ns)
    if slot < 0:
        return NO_SLOT if slot == NO_SLOT else 0
    flow = nic.flows[slot]
    flow[flows.SYNS_SENT] += 1
    if flow[flows.SYNS_SENT] > OFFERS_MAX:
        return 0  # something on the path may drop SYNs with the word
    _write(frame, syn, nic.settings.ways, flow[flows.OWN_NONCE], wire)
    return syn.payload_at + capability.OPTION_LEN


@inline_kernel
def _learn(nic: NicState, frame: Uint8Array, syn: Segment, key: FlowKey, now_ns: int) -> int:
    """Return the slot of the connection that a SYN or SYN/ACK of the host begins.

    ``NOT_FOUND``: a SYN/ACK to a peer that sent no word. ``NO_SLOT``: the table is full.
    """
    table, random = nic.flows, nic.random
    is_answer = syn.flags & tcp.ACK_FLAG != 0
    peer_isn = (be32(frame, syn.tcp_at + tcp.ACK) - 1) & 0xFFFFFFFF
    slot = flows.find(table, key)
    if (
        slot != NOT_FOUND
        and table[slot, flows.ISN] == syn.seq
        and table[slot, flows.STATE] != flows.CLOSED
        and (not is_answer or table[slot, flows.PEER_ISN] == peer_isn)
    ):
        return slot  # sent again
    candidate = flows.find(table, key, flows.CANDIDATES_AT)
    if is_answer and (
        candidate == NOT_FOUND
        or table[candidate, flows.PEER_ISN] != peer_isn
        or table[candidate, flows.PEER_CODECS] == 0
    ):
        flows.forget(table, key)
        return NOT_FOUND
    slot = flows.make_slot(table, key, now_ns)
    if slot == NOT_FOUND:
        return NO_SLOT
    flow = table[slot]
    flows.begin(flow, syn.seq)
    flow[flows.OWN_NONCE] = random[1 + random[0] % (random.size - 1)]
    random[0] += 1
    mss_at = _find_mss(frame, syn.tcp_at)
    flow[flows.OWN_MSS] = 0 if mss_at == NO_OPTION else be16(frame, mss_at)
    flow[flows.WINDOW_SHIFT] = _read_shift(frame, syn.tcp_at)
    if is_answer:
        _adopt(flow, table[candidate])
    return slot


@inline_kernel
def _adopt(flow: Flow, candidate: Flow) -> None:
    """Copy what a candidate's row says about the sender of its SYN."""
    for field in (flows.PEER_ISN, flows.PEER_CODECS, flows.PEER_WAYS, flows.PEER_NONCE):
        flow[field] = candidate[field]
    candidate[flows.LAST_SEEN_NS] = 0  # the host has answered this SYN, so it gives way first
    _complete(flow, candidate[flows.WINDOW_SHIFT])


@inline_kernel
def _complete(flow: Flow, peer_shift: int) -> None:
    """Note that the host waits for the octet behind the peer's SYN; window scaling holds if both ends offer it."""
    first = (flow[flows.PEER_ISN] + 1) & 0xFFFFFFFF
    flow[flows.HOST_ACK] = flow[flows.RX_NEXT_SEQ] = first
    own = flow[flows.WINDOW_SHIFT]
    scales = own != NO_SHIFT and peer_shift != NO_SHIFT
    flow[flows.WINDOW_SHIFT] = min(own, _SHIFT_MAX) if scales else 0
    flow[flows.PEER_SHIFT] = min(peer_shift, _SHIFT_MAX) if scales else 0


@inline_kernel
def _read_shift(frame: Uint8Array, tcp_at: int) -> int:
    """Return the window scale that a SYN offers, or ``NO_SHIFT``."""
    at = find_sized_option(frame, tcp_at, tcp.OPTION_WINDOW_SCALE, tcp.OPTION_WINDOW_SCALE_LEN)
    return NO_SHIFT if at == NO_OPTION else u8(frame, at + 2)


@inline_kernel
def _find_mss(frame: Uint8Array, tcp_at: int) -> int:
    """Return where the value of a SYN's MSS option is, or ``NO_OPTION``."""
    at = find_sized_option(frame, tcp_at, tcp.OPTION_MSS, tcp.OPTION_MSS_LEN)
    return NO_OPTION if at == NO_OPTION else at + 2


@inline_kernel
def _limit_mss(frame: Uint8Array, tcp_at: int, most: int) -> None:
    """Round the MSS of a SYN down to whole floats, and to ``most`` where that is not 0."""
    at = _find_mss(frame, tcp_at)
    if at == NO_OPTION:
        return
    mss = be16(frame, at)
    if most > 0:
        mss = min(mss, most)
    if mss >= _MSS_MIN:
        put_be16(frame, at, mss & ~3)


@inline_kernel
def _write(frame: Uint8Array, syn: Segment, ways: int, nonce: int, wire: Uint8Array) -> None:
    """Write the host's SYN with the word behind its options into ``wire``."""
    tcp_at, at = syn.tcp_at, syn.payload_at
    copy_octets(frame, 0, wire, 0, at)
    end_at = find_option(wire, tcp_at, tcp.OPTION_END)
    for padding in range(end_at if end_at > NO_OPTION else at, at):
        wire[padding] = tcp.OPTION_NOP  # an end of the list here would hide the word
    wire[at] = capability.OPTION_EXPERIMENT
    wire[at + 1] = capability.OPTION_LEN
    put_be16(wire, at + capability.EXID_AT, capability.EXID)
    wire[at + capability.VERSION_AT] = BLOCK_VERSION
    wire[at + capability.WAYS_AT] = ways
    put_be16(wire, at + capability.CODECS_AT, ALL_CODECS)
    put_be32(wire, at + capability.NONCE_AT, nonce)
    _limit_mss(wire, tcp_at, 0)
    put_be16(wire, tcp_at + tcp.WINDOW, be16(wire, tcp_at + tcp.WINDOW) & ~3)
    _put_lengths(wire, syn.ip_len, at - tcp_at + capability.OPTION_LEN)


@inline_kernel
def accept(nic: NicState, frame: Uint8Array, length: int, ip_len: int, now_ns: int) -> int:
    """Note what a SYN from the wire says about its sender, and take the word out of it.

    Returns:
        The length of the frame, shorter if there was a word.
    """
    syn = find_segment(frame, ip_len)
    if not _is_sound(frame, syn):
        return length
    word_at = _find_word(frame, syn)
    key = flows.reversed_key(flows.key_of(frame, ip_len, syn.tcp_at))
    most = 0
    if syn.flags & tcp.ACK_FLAG:
        slot = flows.find(nic.flows, key)
        if slot != NOT_FOUND:
            most = nic.flows[slot, flows.OWN_MSS]
            _take_answer(frame, syn, word_at, nic.settings.ways, nic.flows[slot])
    else:
        _take_offer(nic, frame, syn, word_at, now_ns, key)
    if word_at == NO_OPTION:
        return length
    _limit_mss(frame, syn.tcp_at, most)
    for at in range(word_at + capability.OPTION_LEN, syn.payload_at):
        frame[at - capability.OPTION_LEN] = frame[at]
    _put_lengths(frame, ip_len, syn.payload_at - syn.tcp_at - capability.OPTION_LEN)
    return syn.payload_at - capability.OPTION_LEN


@inline_kernel
def _take_offer(nic: NicState, frame: Uint8Array, syn: Segment, word_at: int, now_ns: int, key: FlowKey) -> None:
    """Keep what a SYN says until the host answers it; a repeated SYN without the word does not revoke the word."""
    table = nic.flows
    row = flows.find(table, key, flows.CANDIDATES_AT)
    if word_at == NO_OPTION and (row == NOT_FOUND or table[row, flows.PEER_ISN] == syn.seq):
        return
    candidate = table[flows.make_slot(table, key, now_ns, flows.CANDIDATES_AT)]
    candidate[flows.PEER_ISN] = syn.seq
    candidate[flows.WINDOW_SHIFT] = _read_shift(frame, syn.tcp_at)
    _read_word(frame, word_at, nic.settings.ways, candidate)


@inline_kernel
def _take_answer(frame: Uint8Array, syn: Segment, word_at: int, ways: int, flow: Flow) -> None:
    """Take the word of a SYN/ACK that answers the host's SYN; a later SYN/ACK changes nothing."""
    expected = (flow[flows.ISN] + 1) & 0xFFFFFFFF
    if flow[flows.STATE] != flows.OPENING or be32(frame, syn.tcp_at + tcp.ACK) != expected:
        return
    flow[flows.STATE] = flows.OPEN
    flow[flows.PEER_ISN] = syn.seq
    _complete(flow, _read_shift(frame, syn.tcp_at))
    _read_word(frame, word_at, ways, flow)


@inline_kernel
def _read_word(frame: Uint8Array, at: int, ways: int, flow: Flow) -> None:
    """Note what a word says. A NIC with a key and a NIC without one do not understand each other's blocks."""
    differ = (u8(frame, at + capability.WAYS_AT) ^ ways) & capability.WANTS_MAC
    if at != NO_OPTION and u8(frame, at + capability.VERSION_AT) == BLOCK_VERSION and not differ:
        flow[flows.PEER_CODECS] = be16(frame, at + capability.CODECS_AT)
        flow[flows.PEER_WAYS] = u8(frame, at + capability.WAYS_AT)
        flow[flows.PEER_NONCE] = be32(frame, at + capability.NONCE_AT)


@inline_kernel
def _is_sound(frame: Uint8Array, syn: Segment) -> bool:
    """Whether the checksums of a SYN are right, as far as the NIC can tell; a damaged SYN must not reach the table."""
    if not network.is_summed_right(frame, syn.ip_len):
        return False
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM or syn.payload_len > 0:
        return True  # filled in later; or a SYN with payload, which keeps its word, so the host checks the sum
    return network.is_tcp_summed_right(frame, syn.ip_len, syn.payload_at - syn.tcp_at)


@inline_kernel
def _find_word(frame: Uint8Array, syn: Segment) -> int:
    """Return where the capability word is, or ``NO_OPTION``; only in a SYN without payload."""
    at = find_sized_option(frame, syn.tcp_at, capability.OPTION_EXPERIMENT, capability.OPTION_LEN)
    is_word = syn.payload_len == 0 and be16(frame, at + capability.EXID_AT) == capability.EXID
    return at if is_word else NO_OPTION


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
