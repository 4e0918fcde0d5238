"""Host to wire: what a frame of the host becomes.

The functions stand in the order in which a segment meets them. :func:`transmit` finds out what the frame is, and to
which connection it belongs. :func:`_send` handles segments of connections that the table knows. There
:func:`_open` decides whether rounding begins or ends, ``forms`` trims the segment to whole floats, and ``pack`` makes
blocks. A segment that blocks would not make smaller leaves ``plain``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from netoffload.codec.kernels import codec_for
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be32, put_be32
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u16, u8
from netoffload.engine import flows as flow_table
from netoffload.engine import forms, handshake, judgement, lent, network, orphans, path, plain, probation, promises
from netoffload.engine.blocks import Room, Segment
from netoffload.engine.counters import Counter
from netoffload.engine.encapsulation import bundle, is_block
from netoffload.engine.flows import NOT_FOUND, key_of
from netoffload.engine.network import IP_AT
from netoffload.engine.options import NO_OPTION, find_timestamps, has_signature
from netoffload.engine.pack import BLOCKS_ROOM, account, find_sending, pack
from netoffload.engine.sequence import advance, distance, is_before
from netoffload.wire import offload, tcp, vnet
from netoffload.wire.ethernet import ETHERNET_LEN

if TYPE_CHECKING:
    from netoffload.engine.blocks import EngineSettings, Sending
    from netoffload.engine.counters import Counters
    from netoffload.engine.flows import FlowKey, FlowTable

FORWARD: Final = -1
"""Result of :func:`transmit`: the frame crosses, as it lies in its buffer."""

HOST_BUFFER_LEN: Final = vnet.VNET_LEN + ETHERNET_LEN + 65536 + 64
"""The largest frame a device gives (64 KiB GSO), and slack for vector loads."""

REBUILT_AT: Final = BLOCKS_ROOM + 64 & ~63
"""Where in the room for wire frames a segment is rebuilt if it does not begin and end between floats."""

WIRE_BUFFER_LEN: Final = REBUILT_AT + HOST_BUFFER_LEN + 64
"""Room for the blocks of one segment, and for the segment itself."""

RANDOM_WORDS: Final = 64
"""A word per handshake; the caller draws new words when half of them are used."""


class Known(NamedTuple):
    """The slot of a segment's connection, and whether this segment is tagged."""

    slot: int
    is_tagged: bool


class Sent(NamedTuple):
    """Where a segment stands in its stream.

    Attributes:
        is_last: no octet behind it was sent.
        next_seq: where the stream ended before.
    """

    again: bool
    is_last: bool
    next_seq: int


@kernel
def transmit(
    settings: EngineSettings,
    frame: Uint8Array,
    length: int,
    now_ns: int,
    flows: FlowTable,
    counters: Counters,
    room: Room,
) -> int:
    """Take one frame from the host; return how many wire frames it became (0: it was dropped), or ``FORWARD``.

    Args:
        frame: uint8, virtio-net header and frame; changed where floats are rounded in a plain segment.
    """
    counters[Counter.TX_HOST_FRAMES] += 1
    counters[Counter.TX_HOST_OCTETS] += length - vnet.VNET_LEN
    ip_len = network.find_ip_len(frame, length)
    if not network.is_tcp(frame, length, ip_len):
        if is_block(frame, length, ip_len):
            counters[Counter.DROP_HOST_BLOCK] += 1
            return 0
        counters[Counter.BYPASS_NOT_TCP] += 1
        return FORWARD
    key = key_of(frame, ip_len, IP_AT + ip_len)
    is_tagged = network.get_tos(frame, ip_len) & settings.tag_mask == settings.tag & settings.tag_mask
    is_tagged = is_tagged and _is_of_ports(settings.ports, key.ports)
    flags = u8(frame, IP_AT + ip_len + tcp.FLAGS)
    if flags & tcp.SYN:
        if is_tagged:
            room.spans[0, 0] = 0
            room.spans[0, 1] = handshake.offer(frame, ip_len, settings.ways, flows, now_ns, room)
            if room.spans[0, 1] > 0:
                counters[Counter.TX_OFFERS] += 1
                return 1
            is_full = room.spans[0, 1] == handshake.NO_SLOT
            counters[Counter.BYPASS_NO_SLOT.value if is_full else Counter.BYPASS_SYN.value] += 1
            return FORWARD
        flow_table.forget(flows, key)  # of an earlier connection: its slot must not round this one's octets
        counters[Counter.BYPASS_UNTAGGED] += 1
        return FORWARD
    slot = flow_table.find(flows, key)
    segment = _find_segment(frame, ip_len)
    if slot == NOT_FOUND or flows[slot, flow_table.STATE] == flow_table.ORPHAN:
        return int(_cross_unknown(frame, segment, key, Known(slot, is_tagged), now_ns, flows, counters, room))
    return int(_send(settings, frame, segment, Known(slot, is_tagged), now_ns, flows, counters, room))


@inline_kernel
def _cross_unknown(
    frame: Uint8Array,
    segment: Segment,
    key: FlowKey,
    known: Known,
    now_ns: int,
    flows: FlowTable,
    counters: Counters,
    room: Room,
) -> int:
    """Let a segment of a connection cross whose handshake was not seen, or end the connection (``orphans``)."""
    reason = Counter.BYPASS_UNKNOWN_FLOW.value if segment.payload_len else Counter.BYPASS_NO_PAYLOAD.value
    counters[reason if known.is_tagged else Counter.BYPASS_UNTAGGED.value] += 1
    if known.slot == NOT_FOUND:
        if known.is_tagged and segment.payload_len:
            orphans.adopt(flows, key, segment, now_ns)
    elif orphans.is_stuck(segment, now_ns, flows, known.slot):
        room.spans[0, 0] = 0
        room.spans[0, 1] = orphans.reset(frame, segment, flows, known.slot, room.wire)
        counters[Counter.TX_RESETS] += 1
        return 1
    return FORWARD


@inline_kernel
def _is_of_ports(ranges: Int64Array, ports: int) -> bool:
    """Whether one of two ports is in a range, or there are no ranges."""
    for index in range(ranges.shape[0]):
        first, last = ranges[index, 0], ranges[index, 1]
        if first <= ports >> 16 <= last or first <= ports & 0xFFFF <= last:
            return True
    return ranges.shape[0] == 0


@inline_kernel
def _find_segment(frame: Uint8Array, ip_len: int) -> Segment:
    """Return the :class:`~netoffload.engine.blocks.Segment` of a TCP frame."""
    tcp_at = IP_AT + ip_len
    tcp_len = (u8(frame, tcp_at + tcp.DATA_OFFSET) >> 4) * 4
    payload_len = network.get_datagram_len(frame, ip_len) - ip_len - tcp_len
    # Whole floats, so that neither blocks nor the kernel cut one where the host's MSS is odd.
    gso_size = 0 if u8(frame, vnet.GSO_TYPE) == vnet.GSO_NONE else load_u16(frame, vnet.VNET_GSO_SIZE) & ~3
    seq, flags = be32(frame, tcp_at + tcp.SEQ), u8(frame, tcp_at + tcp.FLAGS)
    return Segment(ip_len, tcp_at, tcp_at + tcp_len, payload_len, seq, gso_size, flags)


@inline_kernel
def _send(
    settings: EngineSettings,
    frame: Uint8Array,
    segment: Segment,
    known: Known,
    now_ns: int,
    flows: FlowTable,
    counters: Counters,
    room: Room,
) -> int:
    """Send a segment of a known connection; the result is the one of :func:`transmit`."""
    slot = known.slot
    sent = _note(frame, segment, now_ns, flows, slot)
    promises.raise_question(settings, known.is_tagged, flows, slot, room.questions)
    plain.align_window(frame, segment, flows, slot)
    reason = _refuse(settings, frame, segment, known, flows) or _open(frame, segment, known, sent, flows, counters)
    is_zeros = reason == Counter.BYPASS_UNDECIDED.value and _is_zeros(frame, segment, flows, slot)
    if reason != 0 and not is_zeros and not forms.needs_lead(flows, slot, segment.seq):
        lent.note_segment(frame, segment, sent.again, now_ns, flows, slot, room.agenda)
        counters[reason] += 1
        flows[slot, flow_table.BYPASSED] += segment.payload_len > 0
        return FORWARD
    # From here on the segment may leave with other octets than the host's: whole floats where they are rounded.
    source, part = frame, segment
    fitted = forms.fit(frame, segment, flows, slot, sent.is_last, segment.flags & tcp.FIN != 0)
    lent.note_segment(frame, segment, sent.again, now_ns, flows, slot, room.agenda)
    is_rebuilt = fitted.keep != segment.payload_len or fitted.lead + fitted.trail > 0
    if is_rebuilt:
        source = room.wire[REBUILT_AT:]
        part = plain.rebuild(frame, segment, fitted, source)
        if part.payload_len == 0:
            counters[Counter.TX_HELD] += 1
            return _send_nothing(source, part, sent, flows, slot, room)
    first, end = plain.rounded_part(flows, slot, part)
    if (is_zeros or end - first == part.payload_len) and _may_be_block(part, known):
        if sent.again:
            path.note_again(flows, slot, part, now_ns, counters)
        reason = Counter.BYPASS_PROBATION.value
        how = probation.choose(flows, slot, part, sent.again, now_ns, counters)
        while how != probation.PLAIN:
            sending = find_sending(settings, part, now_ns, flows, slot, how == probation.SMALL_BLOCKS)
            frames = _send_blocks(settings, sending, source, part, flows, slot, counters, room)
            if frames > 0:
                return frames
            # The headers of small blocks may cost more than the codec saves.
            how = probation.BLOCKS if how == probation.SMALL_BLOCKS else probation.PLAIN
            if how == probation.PLAIN:
                probation.note_no_gain(flows, slot, counters)
                reason = Counter.BYPASS_NO_GAIN.value
    elif reason == 0:
        reason = _why_plain(part, known)
    counters[reason] += 1
    flows[slot, flow_table.BYPASSED] += 1
    if end > first:
        plain.round_in_place(settings, source, part.payload_at + first, end - first, room.wire, counters)
    fitting = plain.fit_path(part, path.datagram_max(flows, slot, settings.mtu[0], now_ns))
    if end == first and not is_rebuilt and fitting.gso_size == part.gso_size:
        return FORWARD
    room.spans[0, 0], room.spans[0, 1] = REBUILT_AT, plain.finish_headers(source, fitting)
    return 1 if is_rebuilt else FORWARD


@inline_kernel
def _note(frame: Uint8Array, segment: Segment, now_ns: int, flows: FlowTable, slot: int) -> Sent:
    """Note in its connection that a segment is about to be sent; return where it stands in the stream."""
    next_seq = flows[slot, flow_table.NEXT_SEQ]
    end_seq = advance(segment.seq, segment.payload_len + (segment.flags & tcp.FIN))
    if is_before(next_seq, end_seq):
        if flows[slot, flow_table.UNA] == next_seq:
            flows[slot, flow_table.UNA_SINCE_NS] = now_ns
        flows[slot, flow_table.NEXT_SEQ] = end_seq
    if segment.flags & tcp.ACK_FLAG:
        flows[slot, flow_table.HOST_ACK] = be32(frame, segment.tcp_at + tcp.ACK)
    if flows[slot, flow_table.FORM] != forms.EXACT:
        at = find_timestamps(frame, segment.tcp_at, segment.payload_at - segment.tcp_at)
        flows[slot, flow_table.HOST_TSVAL] = be32(frame, at + tcp.TSVAL) if at > NO_OPTION else 0
    flows[slot, flow_table.LAST_SEEN_NS] = now_ns
    if segment.flags & tcp.FIN:
        flows[slot, flow_table.STATE] = flow_table.CLOSED
    if segment.flags & tcp.RST:
        flow_table.close(flows, slot)
    again = segment.payload_len > 0 and is_before(segment.seq, next_seq)
    if again:
        flows[slot, flow_table.REPEATED_END] = flows[slot, flow_table.NEXT_SEQ]
    is_last = not is_before(end_seq, flows[slot, flow_table.NEXT_SEQ])
    return Sent(again, is_last, next_seq)


@inline_kernel
def _refuse(settings: EngineSettings, frame: Uint8Array, segment: Segment, known: Known, flows: FlowTable) -> int:
    """Return the counter that says why this segment must cross as it is; 0 if it need not."""
    if segment.payload_len == 0 and not (
        segment.flags & tcp.FIN and forms.ends_at_held(flows, known.slot, segment.seq)
    ):
        reason = Counter.BYPASS_NO_PAYLOAD.value
    elif codec_for(settings.codec_id, flows[known.slot, flow_table.PEER_CODECS]) < 0:
        reason = Counter.BYPASS_PEER.value
    elif has_signature(frame, segment.tcp_at, segment.payload_at - segment.tcp_at):
        reason = Counter.BYPASS_SPECIAL.value
    elif not plain.has_right_sum(frame, segment.ip_len):
        return Counter.BYPASS_BAD_SUM.value
    else:
        return 0
    return reason if known.is_tagged else Counter.BYPASS_UNTAGGED.value


@inline_kernel
def _end_rounding(
    frame: Uint8Array, segment: Segment, known: Known, sent: Sent, flows: FlowTable, counters: Counters
) -> None:
    """Send new octets exact from now on if the program took its tag off, or if they cannot be floats."""
    slot = known.slot
    new = _new_part(segment, sent)
    if flows[slot, flow_table.FORM] != forms.ROUNDED or new.payload_len <= 0:
        return
    if known.is_tagged:
        if not _is_implausible(frame, new, flows, slot):
            return
        counters[Counter.TX_REJUDGED] += 1
    forms.end_at_new(flows, slot, new.seq)
    judgement.judge_again(flows[slot, flow_table.JUDGED :], new.seq)


@inline_kernel
def _new_part(segment: Segment, sent: Sent) -> Segment:
    """Return the part of a segment that was never sent; its length is 0 or negative where there is none."""
    skip = max(distance(segment.seq, sent.next_seq), 0)
    return Segment(
        segment.ip_len,
        segment.tcp_at,
        segment.payload_at + skip,
        segment.payload_len - skip,
        advance(segment.seq, skip),
        segment.gso_size,
        segment.flags,
    )


@inline_kernel
def _is_implausible(frame: Uint8Array, new: Segment, flows: FlowTable, slot: int) -> bool:
    """Whether new octets of a connection that sent floats so far cannot be floats."""
    cut = forms.cut_of(flows, slot, new.seq)
    first = -cut & 3
    if cut and new.payload_len >= first:
        word, mask = forms.known(flows, slot, advance(new.seq, -cut))
        for octet in range(first):
            word |= u8(frame, new.payload_at + octet) << 8 * (cut + octet)
        if mask == (1 << cut) - 1 and judgement.is_integer(word) and not judgement.is_neutral(word):
            return True
    return judgement.is_implausible(frame, new.payload_at + first, (new.payload_len - first) // 4)


@inline_kernel
def _open(
    frame: Uint8Array,
    segment: Segment,
    known: Known,
    sent: Sent,
    flows: FlowTable,
    counters: Counters,
) -> int:
    """Begin to round floats with this segment if it may, or end it if it must.

    Returns:
        0 if floats of the connection are rounded, also if only earlier ones are; otherwise the counter that says why
        they are not.
    """
    slot = known.slot
    _end_rounding(frame, segment, known, sent, flows, counters)
    if flows[slot, flow_table.FORM] != forms.EXACT:
        return 0
    row = flows[slot, flow_table.JUDGED :]
    if not known.is_tagged:
        return Counter.BYPASS_UNTAGGED.value
    if segment.payload_len == 0 or segment.flags & ~offload.SEGMENT_FLAGS:
        return Counter.BYPASS_SPECIAL.value
    promise = flows[slot, flow_table.PROMISE]
    if promise == promises.REFUSED or promise == promises.NO_SOCKET:
        return Counter.BYPASS_UNPROMISED.value
    new = _new_part(segment, sent)
    if judgement.verdict(row) == judgement.UNDECIDED and new.payload_len > 0:
        judgement.weigh(row, frame, new.payload_at, new.payload_len, new.seq, forms.cut_of(flows, slot, new.seq))
    if judgement.verdict(row) == judgement.NOT_FLOATS:
        return Counter.BYPASS_NOT_FLOATS.value
    if judgement.verdict(row) == judgement.UNDECIDED or promise < promises.BY_SOCKET:
        return Counter.BYPASS_UNDECIDED.value
    if sent.again:
        return Counter.BYPASS_EXACT.value  # some of these octets left exact before: rounding begins with new ones
    forms.begin_rounding(flows, slot, segment.seq)
    return 0


@inline_kernel
def _is_zeros(frame: Uint8Array, segment: Segment, flows: FlowTable, slot: int) -> bool:
    """Whether a segment is nothing but the float 0, which is the same exact and rounded."""
    if (forms.cut_of(flows, slot, segment.seq) | segment.payload_len) & 3:
        return False
    return judgement.is_all_zero(frame, segment.payload_at, segment.payload_len)


@inline_kernel
def _send_nothing(source: Uint8Array, part: Segment, sent: Sent, flows: FlowTable, slot: int, room: Room) -> int:
    """Send the header of a segment whose octets are all held, with an octet that the peer has if an answer is needed.

    The host may wait for an acknowledgement of the held octets before it sends more (Nagle's algorithm, RFC 9293,
    3.7.4). Where the peer has everything else, nothing else would bring one. An old octet makes the peer acknowledge at
    once (RFC 1122, 4.2.3.6), and ``forms.acknowledge`` turns its answer into the one that the host waits for. A header
    without payload is not enough: Linux answers at most two of them a second (``net.ipv4.tcp_invalid_ratelimit``).
    """
    has_octets = flows[slot, flow_table.UNA] != advance(flows[slot, flow_table.ISN], 1)
    if sent.again or not sent.is_last or (has_octets and flows[slot, flow_table.LENT_LEN] > 0):
        seq = advance(flows[slot, flow_table.UNA], -1)
        put_be32(source, part.tcp_at + tcp.SEQ, seq)
        source[part.payload_at] = 0
        part = Segment(part.ip_len, part.tcp_at, part.payload_at, 1, seq, 0, part.flags)
    source[part.tcp_at + tcp.FLAGS] = part.flags & ~tcp.PSH
    room.spans[0, 0], room.spans[0, 1] = REBUILT_AT, plain.finish_headers(source, part)
    return 1


@inline_kernel
def _may_be_block(part: Segment, known: Known) -> bool:
    return known.is_tagged and part.payload_len > 0 and part.flags & ~offload.SEGMENT_FLAGS == 0


@inline_kernel
def _why_plain(part: Segment, known: Known) -> int:
    if not known.is_tagged:
        return Counter.BYPASS_UNTAGGED.value
    if part.flags & ~offload.SEGMENT_FLAGS:
        return Counter.BYPASS_SPECIAL.value
    return Counter.BYPASS_EXACT.value


@inline_kernel
def _send_blocks(
    settings: EngineSettings,
    sending: Sending,
    source: Uint8Array,
    part: Segment,
    flows: FlowTable,
    slot: int,
    counters: Counters,
    room: Room,
) -> int:
    """Make blocks of a segment; return the number of wire frames, 0 if blocks would not be smaller."""
    blocks = pack(settings, sending, source, part, flows, slot, counters, room)
    if blocks == 0:
        return 0
    account(part, sending, flows, slot, counters, room.spans, blocks)
    if sending.in_udp and settings.bundles:
        padding = bundle(room.wire, room.spans, blocks, part.ip_len)
        flows[slot, flow_table.WIRE_OCTETS] += max(padding, 0)
    return blocks
