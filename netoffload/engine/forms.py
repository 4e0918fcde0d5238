"""In which form a float crosses: with its own bits, or as the codec makes it; every transmission has the same form.

If one transmission of a float were exact and another one rounded, TCP could put the float together from octets of both.
So a connection has one interval of its stream in which floats are *rounded*: every transmission of them has the codec's
values, in a block or in a plain segment. Outside the interval floats are *exact* and always leave plain::

    exact ........ ROUNDED_FROM ═══ rounded ═══ EXACT_FROM ........ exact
                   │                            │
                   the verdict "floats"         the application stopped inside a float,
                                                or took its tag off, or sent something else than floats,
                                                or sent urgent data

The state is ``EXACT`` without such an interval, ``ROUNDED`` while it has no end, and ``CLOSING`` when it has one. When
the peer has acknowledged all of a closed interval, nobody sends it again, and the next new octets begin another one.
Acknowledged floats are not sent again, so ``ROUNDED_FROM`` moves along with the acknowledgements.

**Cut floats.** A segment may end inside a rounded float: at an odd MSS, at the edge of an odd window, or where the
application paused. The NIC knows only some octets of the float and cannot round it. It *holds* them (``HELD``) and
sends the segment up to the float's edge. The next segment brings the rest, and leaves from that edge on. The held
octets also complete the float when TCP sends only a part of it again. So rounded floats always leave whole, and the
peer acknowledges whole floats.

**Lent octets.** TCP may wait for an acknowledgement of held octets before it sends the rest. So once the peer has
acknowledged everything before a held float, the NIC *lends* the held octets: the next acknowledgement to the host
covers them. The NIC keeps them (``LENT_...``) until the peer has them, in a table that outlives the NIC's process. It
lends the first octets of a float also where the rest is on its way. Otherwise the host would repeat, after a loss, the
one to three octets that its segment has behind the float's edge, and wait for a time-out for each such piece.

**The end of the stream.** The application may stop inside a float, whose rest never comes. Then a FIN takes the held
octets along, or ``lent`` sends them. No octet of this float was sent before, so the interval ends before the float and
its octets leave exact.
"""

from typing import Final, NamedTuple

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import u8
from netoffload.engine import flows
from netoffload.engine.flows import Flow
from netoffload.engine.segment import Segment, advance, distance, is_before

EXACT: Final = 0
ROUNDED: Final = 1
CLOSING: Final = 2

# Fields of a held float.
_SEQ: Final = 0
_WORD: Final = 1
_MASK: Final = 2
_CUT: Final = 3
_NOWHERE: Final = -1

WHOLE: Final = 15
"""The mask of a float of which all four octets are known."""

# Values of DUE_NS; any other value is a time.
NOT_TOLD: Final = 0
"""The host has no acknowledgement of the lent octets yet, so it sends them again by itself."""
TOLD: Final = -1
"""The host has just received an acknowledgement of the lent octets."""
HAS_MORE: Final = -2
"""The host has the acknowledgement and has more to send, but the peer's window is closed."""


class Fit(NamedTuple):
    """Which octets leave instead of a segment's payload: ``lead``, then ``keep``, then ``trail``.

    Attributes:
        lead: held octets that leave before the payload, 0..3.
        lead_word: the float that they belong to, little-endian.
        skip: octets at the beginning of the payload that do not leave, 0..3.
        keep: octets of the payload behind them that leave.
        trail: held octets that leave behind the payload, 0..3.
        trail_word: the float that they belong to.
    """

    lead: int
    lead_word: int
    skip: int
    keep: int
    trail: int
    trail_word: int


@inline_kernel
def is_rounded(flow: Flow, seq: int) -> bool:
    """Whether the float that begins at ``seq`` is sent as the codec makes it."""
    form = flow[flows.FORM]
    if form == EXACT or is_before(seq, flow[flows.ROUNDED_FROM]):
        return False
    return form == ROUNDED or is_before(seq, flow[flows.EXACT_FROM])


@inline_kernel
def cut_of(flow: Flow, seq: int) -> int:
    """Return how many octets into a float ``seq`` is, 0..3; floats are counted from the first octet after the SYN."""
    return (seq - flow[flows.ISN] - 1) & 3


@inline_kernel
def begin_rounding(flow: Flow, seq: int) -> None:
    """Round every float that begins at ``seq`` or behind."""
    flow[flows.ROUNDED_FROM] = advance(seq, -seq + flow[flows.ISN] + 1 & 3)
    flow[flows.FORM] = ROUNDED
    _hold_nothing(flow)


@inline_kernel
def end_rounding(flow: Flow, seq: int) -> None:
    """Send the float that begins at ``seq`` and all behind it exact; none of them may have been sent before."""
    flow[flows.EXACT_FROM] = seq
    flow[flows.FORM] = CLOSING
    _hold_nothing(flow)


@inline_kernel
def end_at_new(flow: Flow, seq: int) -> None:
    """Send everything from ``seq`` on exact, and also the float that it cuts; the octet at ``seq`` was never sent.

    The octets of this float that are held leave with the segment from ``seq`` on.
    """
    flow[flows.EXACT_FROM] = advance(seq, -cut_of(flow, seq))
    flow[flows.FORM] = CLOSING


@inline_kernel
def fit(frame: Uint8Array, segment: Segment, flow: Flow, is_end: bool) -> Fit:
    """Return which octets leave now, and hold the segment's octets that do not.

    ``is_end``: the segment ends the stream, so octets that would be held at its end leave exact.
    """
    seq, payload_len = segment.seq, segment.payload_len
    lead = skip = trail = lead_word = trail_word = 0
    keep = payload_len
    head = cut_of(flow, seq)
    if head:
        at = advance(seq, -head)
        own = min(4 - head, payload_len)
        word, mask = known(flow, at)
        has_lead = mask & ((1 << head) - 1) == (1 << head) - 1
        for octet in range(own):
            word |= u8(frame, segment.payload_at + octet) << 8 * (head + octet)
            mask |= 1 << head + octet
        if has_lead:
            lead, lead_word = head, word
        if is_rounded(flow, at):
            if not has_lead:
                skip = own
                keep -= own
            _remember(flow, at, word, mask, head)
            if head + payload_len < 4:
                if mask == WHOLE:
                    return Fit(lead, lead_word, skip, keep, 4 - head - payload_len, word)
                if has_lead and is_end:
                    end_rounding(flow, at)
                    return Fit(lead, lead_word, skip, keep, 0, 0)
                return Fit(0, 0, payload_len, 0, 0, 0)
    tail = (head + payload_len) & 3
    at = advance(seq, payload_len - tail)
    if tail and keep >= tail and is_rounded(flow, at):
        word, mask = known(flow, at)
        for octet in range(tail):
            word |= u8(frame, segment.payload_at + payload_len - tail + octet) << 8 * octet
            mask |= 1 << octet
        if mask == WHOLE:
            trail, trail_word = 4 - tail, word
        elif is_end:
            end_rounding(flow, at)
        else:
            _remember(flow, at, word, mask, tail)
            keep -= tail
    return Fit(lead, lead_word, skip, keep, trail, trail_word)


@inline_kernel
def _place_of(flow: Flow, at: int) -> int:
    """Return where octets of the float at ``at`` are held, or ``_NOWHERE``."""
    for place in range(flows.HELD, flows.FIELDS, flows.HELD_FIELDS):
        if flow[place + _MASK] and flow[place + _SEQ] == at:
            return place
    return _NOWHERE


@inline_kernel
def _hold_nothing(flow: Flow) -> None:
    for place in range(flows.HELD, flows.FIELDS, flows.HELD_FIELDS):
        flow[place + _MASK] = 0


@inline_kernel
def known(flow: Flow, at: int) -> tuple[int, int]:
    """Return the known octets of the float at ``at`` as a word, and a mask that says which ones they are."""
    word = mask = 0
    place = _place_of(flow, at)
    if place != _NOWHERE:
        word, mask = flow[place + _WORD], flow[place + _MASK]
    if flow[flows.LENT_LEN] > 0 and flow[flows.LENT_SEQ] == at:
        word |= flow[flows.LENT_WORD]
        mask |= (1 << flow[flows.LENT_LEN]) - 1
    return word, mask


@inline_kernel
def _remember(flow: Flow, at: int, word: int, mask: int, cut: int) -> None:
    """Hold the octets of a float that the host's segments cut behind its first ``cut`` octets.

    A whole float is held only if some of its octets are held already: TCP made it whole in this segment.
    """
    place = _place_of(flow, at)
    if place == _NOWHERE:
        if mask == WHOLE:
            return
        place = _find_place(flow)
    flow[place + _SEQ] = at
    flow[place + _WORD] = word
    flow[place + _MASK] = mask
    flow[place + _CUT] = cut


@inline_kernel
def _find_place(flow: Flow) -> int:
    """Return a free place, or that of the newest float but the one at the end of the stream.

    The rest of the float at the end is in the next segment, and the oldest floats are lent first.
    """
    best, newest = flows.HELD, -1
    for place in range(flows.HELD, flows.FIELDS, flows.HELD_FIELDS):
        if flow[place + _MASK] == 0:
            return place
        behind = distance(flow[flows.UNA], flow[place + _SEQ])
        is_end = is_before(flow[flows.NEXT_SEQ], advance(flow[place + _SEQ], 4))
        if behind > newest and not is_end:
            best, newest = place, behind
    return best


@inline_kernel
def keeps_octets(flow: Flow) -> bool:
    """Whether octets of a float are held or lent."""
    found = flow[flows.LENT_LEN]
    for place in range(flows.HELD, flows.FIELDS, flows.HELD_FIELDS):
        found |= flow[place + _MASK]
    return found != 0


@inline_kernel
def _note_window(flow: Flow, ack: int, window: int) -> None:
    edge = advance(ack, window << flow[flows.PEER_SHIFT])
    if flow[flows.WINDOW_EDGE] == flows.NO_EDGE or is_before(flow[flows.WINDOW_EDGE], edge):
        flow[flows.WINDOW_EDGE] = edge
        if flow[flows.DUE_NS] != NOT_TOLD and flow[flows.WAIT_NS] == 0:
            flow[flows.DUE_NS] = TOLD  # it may send more now


@inline_kernel
def fills_window(flow: Flow, end_seq: int) -> bool:
    """Whether the window ends at ``end_seq``: the host may send nothing behind it, so TCP made the cut there."""
    return flow[flows.WINDOW_EDGE] != flows.NO_EDGE and not is_before(end_seq, flow[flows.WINDOW_EDGE])


@inline_kernel
def ends_at_held(flow: Flow, seq: int) -> bool:
    """Whether octets that are held or lent end right before ``seq``: a FIN at ``seq`` must take them along."""
    cut = cut_of(flow, seq)
    if cut == 0:
        return False
    _, mask = known(flow, advance(seq, -cut))
    return mask == (1 << cut) - 1


@inline_kernel
def needs_lead(flow: Flow, seq: int) -> bool:
    """Whether a segment from ``seq`` on begins right behind lent octets, which the host keeps no copy of."""
    if flow[flows.LENT_LEN] == 0:
        return False
    return seq == advance(flow[flows.LENT_SEQ], flow[flows.LENT_LEN])


@inline_kernel
def acknowledge(flow: Flow, ack: int, window: int) -> int:
    """Take the peer's acknowledgement and window, as in the header; return the acknowledgement for the host.

    Where floats are rounded it is the edge of a whole float, or the end of the lent octets.
    """
    if distance(flow[flows.UNA], ack) < 0 or distance(ack, flow[flows.NEXT_SEQ]) < 0:
        return ack
    heard = ack
    cut = cut_of(flow, ack)
    if cut and ack != flow[flows.NEXT_SEQ] and is_rounded(flow, advance(ack, -cut)):
        ack = advance(ack, -cut)
    if is_before(ack, flow[flows.UNA]):
        ack = flow[flows.UNA]  # rounding down must not take an acknowledgement back
    flow[flows.UNA] = ack
    if not is_before(ack, flow[flows.UNSEEN_END]):
        flow[flows.UNSEEN_FROM] = flow[flows.UNSEEN_END] = ack
    _settle(flow, ack)
    if flow[flows.LENT_LEN] and not is_before(ack, advance(flow[flows.LENT_SEQ], flow[flows.LENT_LEN])):
        flow[flows.LENT_LEN] = flow[flows.DUE_NS] = flow[flows.WAIT_NS] = 0
    lend(flow)
    told = ack
    if flow[flows.LENT_LEN]:
        told = advance(flow[flows.LENT_SEQ], flow[flows.LENT_LEN])
        if flow[flows.DUE_NS] == NOT_TOLD:
            flow[flows.DUE_NS] = TOLD
    _note_window(flow, told, window_behind(flow, heard, told, window))
    return told


@inline_kernel
def window_behind(flow: Flow, ack: int, told: int, window: int) -> int:
    """Return the window for a header that acknowledges ``told``; the peer sent ``window`` with ``ack``.

    The window's edge stays in place: Linux drops a segment that ends behind its window (6.15), each time it is sent.
    """
    shift = flow[flows.PEER_SHIFT]
    return max((window << shift) - max(distance(ack, told), 0), 0) >> shift


@inline_kernel
def lend(flow: Flow) -> None:
    """Lend the held octets of the first float that the peer does not have; later segments may hold other floats."""
    una = flow[flows.UNA]
    lent_len = _count_lendable(flow, una)
    if lent_len > flow[flows.LENT_LEN]:
        flow[flows.LENT_SEQ] = una
        flow[flows.LENT_WORD] = flow[_place_of(flow, una) + _WORD]
        flow[flows.LENT_LEN] = lent_len
        flow[flows.DUE_NS] = flow[flows.WAIT_NS] = 0


@inline_kernel
def _count_lendable(flow: Flow, una: int) -> int:
    """Return how many octets from ``una`` on the host has sent in a segment that ends inside the float, 0..3."""
    place = _place_of(flow, una)
    if place == _NOWHERE:
        return 0
    mask = flow[place + _MASK]
    if mask == WHOLE:
        return flow[place + _CUT]
    return 1 if mask == 1 else 2 if mask == 3 else 3 if mask == 7 else 0


@inline_kernel
def _settle(flow: Flow, una: int) -> None:
    """Forget held octets and intervals that the peer has acknowledged."""
    if flow[flows.FORM] == EXACT:
        return
    for place in range(flows.HELD, flows.FIELDS, flows.HELD_FIELDS):
        if not is_before(una, advance(flow[place + _SEQ], 4)):
            flow[place + _MASK] = 0  # in 4 GiB another float has this number
    # Nobody sends a closed interval again once it is acknowledged, so new octets may begin another one.
    if flow[flows.FORM] == CLOSING and not is_before(una, flow[flows.EXACT_FROM]):
        flow[flows.FORM] = EXACT
        _hold_nothing(flow)
    elif is_before(flow[flows.ROUNDED_FROM], una):
        flow[flows.ROUNDED_FROM] = una
