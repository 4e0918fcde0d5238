"""Chunks: how float32 travels where ranks encode and decode by themselves (``Offload.INLINE``).

A stream is one chunk after the other, each of up to ``CODED_FLOATS`` floats::

    octets  0        4        8             12           16
            length   floats   CRC32C        CRC32C       payload: ``length`` octets
            (payload)         (payload)     (octets 0 to 11)

Fields are in network order. The payload is the codec's. One that would not be shorter than the floats is the floats
themselves, little-endian, after the codec's round trip: its length is four times the number of floats, which no other
payload has. So what arrives depends neither on how a stream is cut nor on what travels raw.

The header has a sum of its own, because a length cannot be believed before its payload is there: a receiver would
wait for octets that nobody sends. What a header says is checked against the room that there is. So damage is a
:class:`Fault`, and nothing is read or written past a buffer.

A :class:`Coding` is the memory of one connection, both directions. Whoever sends and whoever receives go on where
``state`` says, be it compiled (``coded_ring_loop``) or not (``coded_socket``).

This file is compiled into others, so ``netoffload.compiled.jit`` has it in the digest of its cache.
"""

from __future__ import annotations

import enum
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec.kernels import DECODE_SLACK, ENCODE_SLACK, LANES, decode, encode_fit, round_trip
from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.compiled.fields import be32, put_be32
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import copy_octets
from netoffload.engine.sums import crc32c

CODED_FLOATS: Final = 64 * 1024
"""Floats in a chunk, at most. With 8 Ki floats, coding takes 1.3 to 1.8 times as long; with 128 Ki, no less."""

HEADER_OCTETS: Final = 16
_FLOATS_AT: Final = 4
_PAYLOAD_CRC_AT: Final = 8
_HEADER_CRC_AT: Final = 12

# Coding.state, int64.
OUT_AT: Final = 0
"""Octets of the chunk under way that are sent."""
OUT_END: Final = 1
"""Its length with its header."""
OUT_FLOATS: Final = 2
"""Its floats; 0: none is under way."""
IN_AT: Final = 3
"""Octets of the chunk under way that are here."""
IN_END: Final = 4
"""Its length with its header, or that of the header as long as nothing else is known."""
IN_FLOATS: Final = 5
"""Its floats; 0: not known yet."""
SAVED_OCTETS: Final = 6
"""By which the chunks sent so far are shorter than their floats, headers included."""
CODED_NS: Final = 7
"""Spent on encoding and decoding so far."""
FAULT: Final = 8
"""A :class:`Fault`."""
_STATE_FIELDS: Final = 9


class Fault(enum.IntEnum):
    """What is wrong with a chunk that came."""

    NONE = 0
    HEADER = 1
    LENGTH = 2
    PAYLOAD = 3
    CODE = 4

    @property
    def words(self) -> str:
        """Say it, for an error."""
        return {
            Fault.HEADER: "the CRC32C of its header is wrong",
            Fault.LENGTH: "its length cannot be",
            Fault.PAYLOAD: "the CRC32C of its payload is wrong",
            Fault.CODE: "its payload is none of the codec's",
        }.get(self, "nothing")


_HEADER: Final = int(Fault.HEADER)
_LENGTH: Final = int(Fault.LENGTH)
_PAYLOAD: Final = int(Fault.PAYLOAD)
_CODE: Final = int(Fault.CODE)


class Coding(NamedTuple):
    """The memory of one connection.

    Attributes:
        codec_id: of the codec.
        bound_k: its bound.
        outgoing: uint8, the chunk under way to the peer.
        incoming: uint8, likewise from it.
        decoded: float32, what a chunk was decoded to that does not go where it belongs at once.
        state: int64[9]; see the constants.
        classes: int64[4], floats sent by the octets that they took (0, 1, 2, 4); the codecs without tags count none.
    """

    codec_id: int
    bound_k: int
    outgoing: Uint8Array
    incoming: Uint8Array
    decoded: Float32Array
    state: Int64Array
    classes: Int64Array


def make_coding(codec_id: int, bound_k: int) -> Coding:
    """Return memory to work in; the kernel gives it page by page when it is first touched."""
    payload = 4 * CODED_FLOATS
    state = np.zeros(_STATE_FIELDS, np.int64)
    state[IN_END] = HEADER_OCTETS
    return Coding(
        codec_id,
        bound_k,
        np.empty(HEADER_OCTETS + payload + ENCODE_SLACK, np.uint8),
        np.empty(HEADER_OCTETS + payload + DECODE_SLACK, np.uint8),
        np.empty(CODED_FLOATS + LANES, np.float32),
        state,
        np.zeros(4, np.int64),
    )


@kernel
def pack(coding: Coding, source: Uint8Array, at: int, count: int) -> None:
    """Make the next chunk to send of ``count`` floats, 1 to ``CODED_FLOATS``, at octet ``at`` of ``source``."""
    octets, state = coding.outgoing, coding.state
    fitting, length = encode_fit(
        coding.codec_id, source, at, count, coding.bound_k, octets, HEADER_OCTETS, 4 * count - 1, coding.classes
    )
    if fitting < count:
        length = 4 * count
        copy_octets(source, at, octets, HEADER_OCTETS, length)
        words = octets[HEADER_OCTETS : HEADER_OCTETS + length].view(np.uint32)
        round_trip(coding.codec_id, words, coding.bound_k, words)
    put_be32(octets, 0, length)
    put_be32(octets, _FLOATS_AT, count)
    put_be32(octets, _PAYLOAD_CRC_AT, crc32c(octets, HEADER_OCTETS, length, 0))
    put_be32(octets, _HEADER_CRC_AT, crc32c(octets, 0, _HEADER_CRC_AT, 0))
    state[OUT_AT], state[OUT_END], state[OUT_FLOATS] = 0, HEADER_OCTETS + length, count


@inline_kernel
def count_sent(coding: Coding, octets: Any) -> Any:
    """Note that ``octets`` of the chunk were sent; return its floats if it is all, else 0."""
    state = coding.state
    state[OUT_AT] += octets
    if state[OUT_AT] < state[OUT_END]:
        return 0
    floats = state[OUT_FLOATS]
    state[OUT_FLOATS] = 0
    state[SAVED_OCTETS] += 4 * floats - state[OUT_END]
    return floats


@kernel
def count_received(coding: Coding, octets: Any, room: Any) -> Any:
    """Note that ``octets`` more of the chunk are here.

    Args:
        coding: of the connection.
        octets: at most as many as ``IN_END - IN_AT``.
        room: floats that may come, at most.

    Returns:
        The floats of the chunk, if it is whole: :func:`unpack` comes next. Else 0. Negative: ``FAULT`` says why.
    """
    octets_in, state = coding.incoming, coding.state
    state[IN_AT] += octets
    if state[IN_AT] < state[IN_END]:
        return 0
    if state[IN_FLOATS]:
        return state[IN_FLOATS]
    if be32(octets_in, _HEADER_CRC_AT) != crc32c(octets_in, 0, _HEADER_CRC_AT, 0):
        state[FAULT] = _HEADER
        return -1
    length, floats = be32(octets_in, 0), be32(octets_in, _FLOATS_AT)
    if not (0 < length <= 4 * floats and floats <= min(room, CODED_FLOATS)):
        state[FAULT] = _LENGTH
        return -1
    state[IN_END], state[IN_FLOATS] = HEADER_OCTETS + length, floats
    return 0


@kernel
def unpack(coding: Coding, target: Uint8Array, at: int) -> bool:
    """Decode the chunk that is whole to octet ``at`` of ``target``; False: ``FAULT`` says why not.

    ``target`` has room for the chunk's floats, rounded up to a whole burst.
    """
    octets, state = coding.incoming, coding.state
    floats, length = state[IN_FLOATS], state[IN_END] - HEADER_OCTETS
    if be32(octets, _PAYLOAD_CRC_AT) != crc32c(octets, HEADER_OCTETS, length, 0):
        state[FAULT] = _PAYLOAD
        return False
    if length == 4 * floats:
        copy_octets(octets, HEADER_OCTETS, target, at, length)
    elif decode(coding.codec_id, octets, HEADER_OCTETS, length, floats, coding.bound_k, target, at) != length:
        state[FAULT] = _CODE
        return False
    state[IN_AT], state[IN_END], state[IN_FLOATS] = 0, HEADER_OCTETS, 0
    return True
