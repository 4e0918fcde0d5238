"""Host to wire: what a frame of the host becomes.

The functions stand in the order in which a segment meets them. :func:`transmit` finds out what the frame is, and to
which connection it belongs. :func:`_send` handles segments of connections that the table knows. There
:func:`_open` decides whether rounding begins or ends, ``forms`` trims the segment to whole floats, and ``pack`` makes
blocks. With a lossless codec ``gain`` decides instead, and nothing is trimmed. A segment that blocks would not make
smaller leaves ``plain``.
"""

from typing import Final, NamedTuple

from netoffload.codec.kernels import codec_for, is_lossless
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import be32, put_be32, u8
from netoffload.engine import (
    flows,
    forms,
    gain,
    handshake,
    judgement,
    lent,
    network,
    orphans,
    path,
    plain,
    probation,
    promises,
)
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.encapsulation import is_block
from netoffload.engine.flows import NOT_FOUND, Flow
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import BLOCKS_ROOM, pack
from netoffload.engine.segment import (
    NO_OPTION,
    Segment,
    advance,
    distance,
    find_segment,
    find_timestamps,
    has_right_sum,
    has_signature,
    is_before,
)
from netoffload.engine.state import EngineSettings, NicState
from netoffload.wire import offload, tcp, vnet
from netoffload.wire.ethernet import ETHERNET_LEN

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
def transmit(nic: NicState, frame: Uint8Array, length: int, now_ns: int, wire: Uint8Array) -> int:
    """Take one frame from the host: ``nic.from_host`` without the lock."""
    settings, counters, spans = nic.settings, nic.counters, nic.spans
    counters[Counter.TX_HOST_FRAMES] += 1
    counters[Counter.TX_HOST_OCTETS] += length - vnet.VNET_LEN
    ip_len = network.find_ip_len(frame, length)
    if not network.is_tcp(frame, length, ip_len):
        if is_block(frame, length, ip_len):
            counters[Counter.DROP_HOST_BLOCK] += 1
            return 0
        counters[Counter.BYPASS_NOT_TCP] += 1
        return FORWARD
    key = flows.key_of(frame, ip_len, IP_AT + ip_len)
    is_tagged = network.get_tos(frame, ip_len) & settings.tag_mask == settings.tag & settings.tag_mask
    is_tagged = is_tagged and _is_of_ports(settings.ports, key.ports)
    if u8(frame, IP_AT + ip_len + tcp.FLAGS) & tcp.SYN:
        if is_tagged:
            spans[0, 0], spans[0, 1] = 0, handshake.offer(nic, frame, ip_len, now_ns, wire)
            if spans[0, 1] > 0:
                counters[Counter.TX_OFFERS] += 1
                return 1
            is_full = spans[0, 1] == handshake.NO_SLOT
            counters[Counter.BYPASS_NO_SLOT.value if is_full else Counter.BYPASS_SYN.value] += 1
            return FORWARD
        flows.forget(nic.flows, key)  # of an earlier connection: its slot must not round this one's octets
        counters[Counter.BYPASS_UNTAGGED] += 1
        return FORWARD
    slot = flows.find(nic.flows, key)
    segment = find_segment(frame, ip_len)
    if slot != NOT_FOUND and nic.flows[slot, flows.STATE] != flows.ORPHAN:
        promises.raise_question(nic, slot, is_tagged)
        return int(_send(nic, frame, segment, is_tagged, now_ns, nic.flows[slot], wire))
    reason = Counter.BYPASS_UNKNOWN_FLOW.value if segment.payload_len else Counter.BYPASS_NO_PAYLOAD.value
    counters[reason if is_tagged else Counter.BYPASS_UNTAGGED.value] += 1
    if slot == NOT_FOUND:
        # A host may have only its FIN left to repeat.
        if is_tagged and (segment.payload_len or segment.flags & tcp.FIN):
            orphans.adopt(nic.flows, key, segment, now_ns)
    elif orphans.is_stuck(segment, now_ns, nic.flows[slot]):
        spans[0, 0], spans[0, 1] = 0, orphans.reset(frame, segment, nic.flows[slot], wire)
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
def _send(
    nic: NicState, frame: Uint8Array, segment: Segment, is_tagged: bool, now_ns: int, flow: Flow, wire: Uint8Array
) -> int:
    """Send a segment of a known connection; the result is the one of :func:`transmit`."""
    settings, counters, spans = nic.settings, nic.counters, nic.spans
    if not has_right_sum(frame, segment.ip_len):  # nothing in its header is sure, and no receiver takes it
        counters[Counter.BYPASS_BAD_SUM] += 1
        flow[flows.BYPASSED] += segment.payload_len > 0
        return FORWARD
    sent = _note(frame, segment, now_ns, flow)
    plain.align_window(frame, segment, flow)
    reason = _refuse(settings, frame, segment, is_tagged, flow)
    reason = reason or _open(settings, frame, segment, is_tagged, sent, flow, nic, wire)
    is_zeros = reason == Counter.BYPASS_UNDECIDED.value and _is_zeros(frame, segment, flow)
    if reason != 0 and not is_zeros and not forms.needs_lead(flow, segment.seq):
        lent.note_segment(frame, segment, sent.again, now_ns, flow, nic.agenda)
        if reason == Counter.BYPASS_UNDECIDED.value and flow[flows.JUDGED + judgement.JUDGED_AGAIN]:
            reason = Counter.BYPASS_EXACT.value  # the flow counted as floats until it sent something else
        counters[reason] += 1
        flow[flows.BYPASSED] += segment.payload_len > 0
        return FORWARD
    # From here on the segment may leave with other octets than the host's: whole floats where they are rounded.
    source, part = frame, segment
    fitted = forms.fit(frame, segment, flow, sent.is_last and segment.flags & tcp.FIN != 0)
    lent.note_segment(frame, segment, sent.again, now_ns, flow, nic.agenda)
    is_rebuilt = fitted.keep != segment.payload_len or fitted.lead + fitted.trail > 0
    if is_rebuilt:
        source = wire[REBUILT_AT:]
        part = plain.rebuild(frame, segment, fitted, source)
        if part.payload_len == 0:
            counters[Counter.TX_HELD] += 1
            spans[0, 0], spans[0, 1] = REBUILT_AT, _hold(source, part, sent, flow)
            return 1
    first, end = plain.rounded_part(flow, part)
    has_block_flags = part.flags & ~offload.SEGMENT_FLAGS == 0
    is_whole = is_zeros or is_lossless(settings.codec_id) or end - first == part.payload_len
    if is_whole and is_tagged and part.payload_len > 0 and has_block_flags:
        if sent.again:
            path.note_again(flow, part, now_ns, counters)
        reason = Counter.BYPASS_PROBATION.value
        how = probation.choose(flow, part, sent.again, now_ns, counters)
        while how != probation.PLAIN:
            frames = pack(nic, source, part, flow, now_ns, how == probation.SMALL_BLOCKS, wire)
            if frames > 0:
                counters[Counter.TX_PROBES] += flow[flows.IS_PROBING]
                return frames
            # The headers of small blocks may cost more than the codec saves.
            how = probation.BLOCKS if how == probation.SMALL_BLOCKS else probation.PLAIN
            if how == probation.PLAIN:
                probation.note_no_gain(flow)
                gain.look_later(flow, part)
                reason = Counter.BYPASS_NO_GAIN.value
    elif reason == 0:
        reason = Counter.BYPASS_EXACT.value if has_block_flags else Counter.BYPASS_SPECIAL.value
        reason = reason if is_tagged else Counter.BYPASS_UNTAGGED.value
    counters[reason] += 1
    flow[flows.BYPASSED] += 1
    if end > first:
        plain.round_in_place(settings, source, part.payload_at + first, end - first, wire, nic.classes)
    fitting = plain.fit_path(part, path.datagram_max(flow, settings.mtu[0], now_ns))
    if end == first and not is_rebuilt and fitting.gso_size == part.gso_size:
        return FORWARD
    spans[0, 0], spans[0, 1] = REBUILT_AT, plain.finish_headers(source, fitting)
    return 1 if is_rebuilt else FORWARD


@inline_kernel
def _note(frame: Uint8Array, segment: Segment, now_ns: int, flow: Flow) -> Sent:
    """Note in its connection that a segment is about to be sent; return where it stands in the stream."""
    next_seq = flow[flows.NEXT_SEQ]
    end_seq = advance(segment.seq, segment.payload_len + (segment.flags & tcp.FIN))
    if is_before(next_seq, end_seq):
        if flow[flows.UNA] == next_seq:
            flow[flows.UNA_SINCE_NS] = now_ns
        flow[flows.NEXT_SEQ] = end_seq
    if segment.flags & tcp.ACK_FLAG:
        flow[flows.HOST_ACK] = be32(frame, segment.tcp_at + tcp.ACK)
    if flow[flows.FORM] != forms.EXACT:
        at = find_timestamps(frame, segment.tcp_at)
        flow[flows.HOST_TSVAL] = be32(frame, at + tcp.TSVAL) if at > NO_OPTION else 0
        if is_before(next_seq, segment.seq):
            if flow[flows.UNSEEN_FROM] == flow[flows.UNSEEN_END]:
                flow[flows.UNSEEN_FROM] = next_seq
            flow[flows.UNSEEN_END] = segment.seq
    flow[flows.LAST_SEEN_NS] = now_ns
    if segment.flags & tcp.FIN:
        flow[flows.STATE] = flows.CLOSED
    if segment.flags & tcp.RST:
        flows.close(flow)
    again = segment.payload_len > 0 and is_before(segment.seq, next_seq)
    if again:
        flow[flows.REPEATED_END] = flow[flows.NEXT_SEQ]
    is_last = not is_before(end_seq, flow[flows.NEXT_SEQ])
    return Sent(again, is_last, next_seq)


@inline_kernel
def _refuse(settings: EngineSettings, frame: Uint8Array, segment: Segment, is_tagged: bool, flow: Flow) -> int:
    """Return the counter that says why this segment must cross as it is; 0 if it need not."""
    if segment.payload_len == 0 and not (segment.flags & tcp.FIN and forms.ends_at_held(flow, segment.seq)):
        reason = Counter.BYPASS_NO_PAYLOAD.value
    elif codec_for(settings.codec_id, flow[flows.PEER_CODECS]) < 0:
        reason = Counter.BYPASS_PEER.value
    elif has_signature(frame, segment.tcp_at):
        reason = Counter.BYPASS_SPECIAL.value
    else:
        return 0
    return reason if is_tagged else Counter.BYPASS_UNTAGGED.value


@inline_kernel
def _end_rounding(frame: Uint8Array, new: Segment, may_round: bool, flow: Flow, counters: Counters) -> None:
    """Send new octets exact from now on if they may not be rounded any more, or if they cannot be floats."""
    if flow[flows.FORM] != forms.ROUNDED or new.payload_len <= 0:
        return
    if may_round:
        if not _is_implausible(frame, new, flow):
            return
        counters[Counter.TX_REJUDGED] += 1
    forms.end_at_new(flow, new.seq)
    judgement.judge_again(flow[flows.JUDGED :], new.seq)


@inline_kernel
def _look_at_unseen(frame: Uint8Array, segment: Segment, flow: Flow, counters: Counters) -> None:
    """Send octets that were lost on the way to this NIC exact when they come, if they cannot be floats.

    What the host sent behind them may have left rounded, and leaves exact when it is sent again.
    """
    unseen = _part_of(segment, flow[flows.UNSEEN_FROM], flow[flows.UNSEEN_END])
    if unseen.payload_len <= 0 or not forms.is_rounded(flow, unseen.seq) or not _is_implausible(frame, unseen, flow):
        return
    counters[Counter.TX_REJUDGED] += 1
    if flow[flows.FORM] == forms.ROUNDED:
        judgement.judge_again(flow[flows.JUDGED :], unseen.seq)
    forms.end_at_new(flow, unseen.seq)


@inline_kernel
def _part_of(segment: Segment, first_seq: int, end_seq: int) -> Segment:
    """Return the part of a segment between two numbers; its length is 0 or negative where there is none."""
    skip = max(distance(segment.seq, first_seq), 0)
    payload_len = min(distance(segment.seq, end_seq), segment.payload_len) - skip
    at, seq = segment.payload_at + skip, advance(segment.seq, skip)
    return Segment(segment.ip_len, segment.tcp_at, at, payload_len, seq, segment.gso_size, segment.flags)


@inline_kernel
def _is_implausible(frame: Uint8Array, new: Segment, flow: Flow) -> bool:
    """Whether new octets of a connection that sent floats so far cannot be floats."""
    cut = forms.cut_of(flow, new.seq)
    first = -cut & 3
    if cut and new.payload_len >= first:
        word, mask = forms.known(flow, advance(new.seq, -cut))
        for octet in range(first):
            word |= u8(frame, new.payload_at + octet) << 8 * (cut + octet)
        if mask == (1 << cut) - 1 and judgement.is_integer(word) and not judgement.is_neutral(word):
            return True
    return judgement.is_implausible(frame, new.payload_at + first, (new.payload_len - first) // 4)


@inline_kernel
def _open(
    settings: EngineSettings,
    frame: Uint8Array,
    segment: Segment,
    is_tagged: bool,
    sent: Sent,
    flow: Flow,
    nic: NicState,
    scratch: Uint8Array,
) -> int:
    """Decide whether the segment may become blocks: begin to round floats if that may be, or end it if it must be.

    Returns:
        0 if floats of the connection are rounded, also if only earlier ones are, or if a lossless codec may make the
        segment shorter; otherwise the counter that says why not.
    """
    counters, new = nic.counters, _part_of(segment, sent.next_seq, advance(segment.seq, segment.payload_len))
    rounds = not is_lossless(settings.codec_id)  # a NIC before this one, with another codec, may have begun it
    # Programs take an urgent octet out of the stream, and the floats behind it then lie at other places.
    is_in_place = segment.flags & tcp.URG == 0
    _end_rounding(frame, new, is_tagged and rounds and is_in_place, flow, counters)
    if sent.again:
        _look_at_unseen(frame, segment, flow, counters)
    if flow[flows.FORM] != forms.EXACT:
        return 0
    row = flow[flows.JUDGED :]
    if not is_tagged:
        return Counter.BYPASS_UNTAGGED.value
    if segment.payload_len == 0 or segment.flags & ~offload.SEGMENT_FLAGS:
        return Counter.BYPASS_SPECIAL.value
    if not rounds:
        may_pay = gain.may_pay(settings.codec_id, frame, segment, flow, nic.classes, scratch)
        return 0 if may_pay else Counter.BYPASS_NO_GAIN.value
    promise = flow[flows.PROMISE]
    if promise == promises.REFUSED or promise == promises.NO_SOCKET:
        return Counter.BYPASS_UNPROMISED.value
    if judgement.verdict(row) == judgement.UNDECIDED and new.payload_len > 0:
        judgement.weigh(row, frame, new.payload_at, new.payload_len, new.seq, forms.cut_of(flow, new.seq))
    if judgement.verdict(row) == judgement.NOT_FLOATS:
        return Counter.BYPASS_NOT_FLOATS.value
    if judgement.verdict(row) == judgement.UNDECIDED or promise < promises.BY_SOCKET:
        return Counter.BYPASS_UNDECIDED.value
    if sent.again:
        return Counter.BYPASS_EXACT.value  # some of these octets left exact before: rounding begins with new ones
    if _is_implausible(frame, new, flow):  # the verdict may come from its first words alone
        counters[Counter.TX_REJUDGED] += 1
        judgement.judge_again(row, new.seq)
        return Counter.BYPASS_EXACT.value
    forms.begin_rounding(flow, segment.seq)
    return 0


@inline_kernel
def _is_zeros(frame: Uint8Array, segment: Segment, flow: Flow) -> bool:
    """Whether a segment is nothing but the float 0, which is the same exact and rounded."""
    if (forms.cut_of(flow, segment.seq) | segment.payload_len) & 3:
        return False
    return judgement.is_all_zero(frame, segment.payload_at, segment.payload_len)


@inline_kernel
def _hold(source: Uint8Array, part: Segment, sent: Sent, flow: Flow) -> int:
    """Make a header of a segment whose octets are all held, with an octet that the peer has if an answer is needed.

    The host may wait for an acknowledgement of the held octets before it sends more (Nagle's algorithm, RFC 9293,
    3.7.4). Where the peer has everything else, nothing else would bring one. An old octet makes the peer acknowledge at
    once (RFC 1122, 4.2.3.6), and ``forms.acknowledge`` turns its answer into the one that the host waits for. A header
    without payload is not enough: Linux answers at most two of them a second (``net.ipv4.tcp_invalid_ratelimit``).
    """
    has_octets = flow[flows.UNA] != advance(flow[flows.ISN], 1)
    if sent.again or not sent.is_last or (has_octets and flow[flows.LENT_LEN] > 0):
        seq = advance(flow[flows.UNA], -1)
        put_be32(source, part.tcp_at + tcp.SEQ, seq)
        source[part.payload_at] = 0
        part = Segment(part.ip_len, part.tcp_at, part.payload_at, 1, seq, 0, part.flags)
    source[part.tcp_at + tcp.FLAGS] = part.flags & ~tcp.PSH
    return plain.finish_headers(source, part)
