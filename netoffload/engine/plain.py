"""Plain segments: TCP segments that leave as TCP, with the codec's values where floats are rounded.

A segment leaves plain if its blocks would not be smaller, if its connection is on probation, or if it carries a flag
that no block may have. A receiver gets the same floats as from a block (``forms``).

A payload may be changed only if its checksum is right, or still to be filled in (``segment.has_right_sum``). After a
change the checksum is marked as still to be filled in (``NEEDS_CSUM``).
"""

from typing import Final

from netoffload.codec.kernels import MALFORMED, decode, encode_fit
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be16, be32, copy_octets, put_be16, put_be32, u8
from netoffload.engine import flows, forms, network
from netoffload.engine.flows import Flow
from netoffload.engine.forms import Fit
from netoffload.engine.network import IP_AT
from netoffload.engine.segment import Segment, advance, distance, replace_u16
from netoffload.engine.state import EngineSettings
from netoffload.wire import tcp, vnet

_FLOATS: Final = 1024
"""Floats that are rounded at a time; a multiple of a burst."""

_DECODED_AT: Final = 3 * 4 * _FLOATS // 2
"""Where decoded floats lie: behind the encoded ones, which take at most 34 octets per 32, and their slack."""

GSO_SIZE_MIN: Final = 64
"""A frame of one segment is cut only into segments of at least this length."""


@inline_kernel
def rebuild(frame: Uint8Array, segment: Segment, fitted: Fit, target: Uint8Array) -> Segment:
    """Write the segment that goes out instead of ``segment`` into ``target``; return where its parts are.

    ``target`` has 8 octets more than the frame.
    """
    payload_at = segment.payload_at
    copy_octets(frame, 0, target, 0, payload_at)
    at = payload_at
    for octet in range(fitted.lead):
        target[at + octet] = fitted.lead_word >> 8 * octet & 0xFF
    at += fitted.lead
    copy_octets(frame, payload_at + fitted.skip, target, at, fitted.keep)
    at += fitted.keep
    for octet in range(fitted.trail):
        target[at + octet] = fitted.trail_word >> 8 * (4 - fitted.trail + octet) & 0xFF
    payload_len = at + fitted.trail - payload_at
    seq = advance(segment.seq, fitted.skip - fitted.lead)
    put_be32(target, segment.tcp_at + tcp.SEQ, seq)
    gso_size = segment.gso_size
    if gso_size == 0 and payload_len > segment.payload_len >= GSO_SIZE_MIN:
        gso_size = segment.payload_len & ~3  # a frame must not become longer than the host's own
    flags = segment.flags
    if segment.flags & tcp.URG:
        urgent = be16(target, segment.tcp_at + tcp.URGENT) + fitted.lead - fitted.skip
        put_be16(target, segment.tcp_at + tcp.URGENT, max(urgent, 0))
    return Segment(segment.ip_len, segment.tcp_at, payload_at, payload_len, seq, gso_size, flags)


@inline_kernel
def fit_path(segment: Segment, most: int) -> Segment:
    """Return the segment with a smaller ``gso_size`` if its datagrams would be longer than ``most`` octets.

    The host's route may allow longer datagrams than the wire: blocks of such a segment fit, the plain segment does not.
    """
    room = most - (segment.payload_at - IP_AT)
    longest = segment.payload_len if segment.gso_size == 0 else min(segment.gso_size, segment.payload_len)
    if longest <= room or room < GSO_SIZE_MIN or segment.flags & tcp.URG:
        return segment
    at = segment.payload_at
    return Segment(segment.ip_len, segment.tcp_at, at, segment.payload_len, segment.seq, room & ~3, segment.flags)


@inline_kernel
def finish_headers(frame: Uint8Array, segment: Segment) -> int:
    """Set all lengths of a segment whose payload has changed; return the length of the frame.

    The checksum field gets the sum of the pseudo-header, and the virtio-net header leaves the rest to the kernel
    (Virtio 1.2, 5.1.6.2): no octet of the payload is summed here.
    """
    ip_len, tcp_at = segment.ip_len, segment.tcp_at
    end = segment.payload_at + segment.payload_len
    network.put_datagram(frame, IP_AT, ip_len, end - IP_AT, 0, tcp.PROTO_TCP)
    pseudo = network.pseudo_sum(frame, IP_AT, ip_len, tcp.PROTO_TCP, end - tcp_at)
    put_be16(frame, tcp_at + tcp.CHECKSUM, pseudo)
    is_large = 0 < segment.gso_size < segment.payload_len
    gso_type = u8(frame, vnet.GSO_TYPE)
    if not is_large:
        gso_type = vnet.GSO_NONE
    elif gso_type == vnet.GSO_NONE:
        gso_type = network.gso_type(ip_len)
    gso_size = segment.gso_size if is_large else 0
    network.put_offload(frame, 0, tcp_at, segment.payload_at - tcp_at, tcp.CHECKSUM, gso_type, gso_size)
    return end


@inline_kernel
def rounded_part(flow: Flow, segment: Segment) -> tuple[int, int]:
    """Return the first octet of a segment's payload that is rounded and the end of that part; 0 and 0 without one."""
    if flow[flows.FORM] == forms.EXACT:
        return 0, 0
    first = max(distance(segment.seq, flow[flows.ROUNDED_FROM]), 0)
    end = segment.payload_len
    if flow[flows.FORM] == forms.CLOSING:
        end = min(distance(segment.seq, flow[flows.EXACT_FROM]), end)
    return (first, end) if first < end else (0, 0)


@inline_kernel
def round_in_place(
    settings: EngineSettings, frame: Uint8Array, first_at: int, octets: int, scratch: Uint8Array, classes: Int64Array
) -> None:
    """Replace the floats from ``first_at`` on by the codec's values.

    ``scratch`` is uint8[3 * 4 * _FLOATS], ``classes`` int64[4] for counts that nobody wants.
    """
    codec_id, bound_k = settings.codec_id, settings.bound_k
    left, at = octets // 4, first_at
    while left > 0:
        floats = min(left, _FLOATS)
        _, encoded = encode_fit(codec_id, frame, at, floats, bound_k, scratch, 0, 8 * _FLOATS, classes)
        if decode(codec_id, scratch, 0, encoded, floats, bound_k, scratch, _DECODED_AT) == MALFORMED:
            break  # no such codec
        copy_octets(scratch, _DECODED_AT, frame, at, 4 * floats)
        at += 4 * floats
        left -= floats


@inline_kernel
def align_window(frame: Uint8Array, segment: Segment, flow: Flow) -> None:
    """Round the window that the host offers down to whole floats, so that its peer does not cut a float at the edge.

    With a scale of 2 or more a window has whole floats already, so it is left as it is.
    """
    shift = flow[flows.WINDOW_SHIFT]
    if shift > 1 or flow[flows.PEER_CODECS] == 0 or segment.flags & tcp.ACK_FLAG == 0:
        return
    at = segment.tcp_at + tcp.WINDOW
    window = be16(frame, at)
    edge = be32(frame, segment.tcp_at + tcp.ACK) + (window << shift) - flow[flows.PEER_ISN] - 1
    smaller = max(window - ((edge & 3) >> shift), 0)
    if smaller != window:
        replace_u16(frame, segment.tcp_at, tcp.WINDOW, smaller)
