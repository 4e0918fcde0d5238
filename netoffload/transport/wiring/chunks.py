"""Chunks: how float32 travels where ranks encode and decode by themselves (``Offload.INLINE``).

A stream is one chunk after the other, each of up to ``CODED_FLOATS`` floats::

    octets  0        4        8             12           16
            length   floats   CRC32C        CRC32C       payload: ``length`` octets
            (payload)         (payload)     (octets 0 to 11)

Fields are in network order. The codec makes the payload. If that would not be shorter than the floats, the payload is
the floats themselves, little-endian, after the codec's round trip. Then its length is four times the number of floats,
which no other payload has. So the values that arrive depend neither on how a stream is cut nor on what travels raw.

The header has its own checksum, because a receiver must trust the length before the payload comes: with a wrong length
it would wait for octets that the peer never sends. The receiver also checks that the chunk fits into its buffer. So a
damaged chunk gives a :class:`Fault`, and nothing is read or written past a buffer.

A :class:`Coding` holds the buffers of one connection, for both directions. Compiled code (``ring_loop``) and
Python (``coded_socket``) both go on where its ``state`` says.

This file is compiled into others, so ``netoffload.compiled.jit`` has it in the digest of its cache.
"""

import enum
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec.kernels import DECODE_SLACK, ENCODE_SLACK, LANES, decode, encode_fit, round_trip
from netoffload.compiled.arrays import Float32Array, Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import be32, copy_octets, put_be32
from netoffload.engine.sums import crc32c

CODED_FLOATS: Final = 64 * 1024
"""Floats in a chunk, at most. With 8 Ki floats, coding takes 1.3 to 1.8 times as long; with 128 Ki, no less."""

HEADER_OCTETS: Final = 16
_FLOATS_AT: Final = 4
_PAYLOAD_CRC_AT: Final = 8
_HEADER_CRC_AT: Final = 12

# Coding.state, int64.
OUT_AT: Final = 0  # octets already sent of the outgoing chunk
OUT_END: Final = 1  # length of the outgoing chunk with its header
OUT_FLOATS: Final = 2  # floats of the outgoing chunk; 0: there is none
IN_AT: Final = 3  # octets already received of the incoming chunk
IN_END: Final = 4  # length of the incoming chunk with its header; the header's length until that is complete
IN_FLOATS: Final = 5  # floats of the incoming chunk; 0: not known yet
SAVED_OCTETS: Final = 6  # octets saved so far: those of the floats sent, less those of their chunks with headers
CODED_NS: Final = 7  # time spent on encoding and decoding so far
FAULT: Final = 8  # a `Fault`
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
        """The fault in words, for an error message."""
        return {
            Fault.HEADER: "the CRC32C of its header is wrong",
            Fault.LENGTH: "its length is impossible",
            Fault.PAYLOAD: "the CRC32C of its payload is wrong",
            Fault.CODE: "the codec cannot decode its payload",
        }.get(self, "nothing")


_HEADER: Final = int(Fault.HEADER)
_LENGTH: Final = int(Fault.LENGTH)
_PAYLOAD: Final = int(Fault.PAYLOAD)
_CODE: Final = int(Fault.CODE)


class Coding(NamedTuple):
    """The buffers and the state of one connection."""

    codec_id: int  # number of the codec
    bound_k: int
    outgoing: Uint8Array  # uint8, the outgoing chunk
    incoming: Uint8Array  # uint8, the incoming chunk
    decoded: Float32Array  # float32, a decoded chunk that is not decoded directly into its vector
    state: Int64Array  # int64[9]; see the constants
    # Int64[4], floats sent, by the octets that each took (0, 1, 2, 4); codecs without tags count none.
    classes: Int64Array


def make_coding(codec_id: int, bound_k: int) -> Coding:
    """Return new buffers; the operating system provides their pages when they are first touched."""
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
    """Make the outgoing chunk from ``count`` floats, 1 to ``CODED_FLOATS``, at octet ``at`` of ``source``."""
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
    """Note that ``octets`` of the chunk were sent; return its floats if it has left completely, else 0."""
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
    """Note that ``octets`` more of the chunk have come, at most ``IN_END - IN_AT``.

    Return the floats of the chunk, at most ``room``, if it is whole (call :func:`unpack` next), else 0. Negative:
    ``FAULT`` says why.
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
    """Decode a whole chunk to octet ``at`` of ``target``; False: ``FAULT`` says why not.

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
