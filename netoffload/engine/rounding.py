"""What crosses raw because blocks would not make it smaller carries the codec's values all the same.

A receiver then gets the same floats however TCP cuts the stream: whether a segment of a few floats travels alone, or
is sent again together with others in one that is worth a block.

The payload may only be changed while its checksum is still to be filled in by whoever does that last, and only where
nobody will cut a float of it: octets of both forms in one float are what must never be (see ``transmit``).
"""

from __future__ import annotations

from typing import Any, Final

from netoffload.codec.jit import inline_kernel
from netoffload.codec.kernels import decode, encode_fit
from netoffload.codec.octets import copy_octets, u8
from netoffload.engine.counters import Counter
from netoffload.wire import vnet

_FLOATS: Final = 1024
"""Rounded at a time; a multiple of a burst."""

_DECODED_AT: Final = 3 * 4 * _FLOATS // 2
"""Behind the encoded floats, which take at most 34 octets per 32, and their slack."""


@inline_kernel
def may_be_rounded(frame: Any, segment: Any, first_octet: Any) -> Any:
    """Whether floats of this segment may be changed in place.

    Args:
        frame: uint8, virtio-net header and frame.
        segment: its ``transmit.Segment``.
        first_octet: of its payload, counted from the first octet of the stream.
    """
    is_whole = segment.gso_size == 0 or segment.gso_size >= segment.payload_len
    cuts_between_floats = (segment.gso_size | first_octet) & 3 == 0
    return u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM != 0 and (is_whole or cuts_between_floats)


@inline_kernel
def round_in_place(
    codec_id: Any, bound_k: Any, frame: Any, segment: Any, first_octet: Any, scratch: Any, counters: Any
) -> None:
    """Replace every whole float of the segment by what the codec makes of it.

    Args:
        codec_id: a :class:`~netoffload.codec.kernels.CodecId`.
        bound_k: the error bound is 2**-bound_k.
        frame: uint8, virtio-net header and frame.
        segment: its ``transmit.Segment``.
        first_octet: of its payload, counted from the first octet of the stream.
        scratch: uint8[WIRE_BUFFER_LEN].
        counters: int64, indexed by :class:`Counter`; not changed, since these floats are not compressed.
    """
    classes = counters[Counter.TX_CLASS_0 : Counter.TX_CLASS_32 + 1]
    before0, before8, before16, before32 = classes[0], classes[1], classes[2], classes[3]
    head = min(-first_octet & 3, segment.payload_len)
    left = (segment.payload_len - head) // 4
    at = segment.payload_at + head
    while left > 0:
        floats = min(left, _FLOATS)
        _, octets = encode_fit(codec_id, frame, at, floats, bound_k, scratch, 0, 8 * _FLOATS, classes)
        decode(codec_id, scratch, 0, octets, floats, bound_k, scratch, _DECODED_AT)
        copy_octets(scratch, _DECODED_AT, frame, at, 4 * floats)
        at += 4 * floats
        left -= floats
    classes[0], classes[1], classes[2], classes[3] = before0, before8, before16, before32
