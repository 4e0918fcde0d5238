"""Chunks of ranks that compress by themselves: their form, and that damage never becomes a wrong value."""

import contextlib
import itertools
import socket
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload import codec
from netoffload.codec import CodecId
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError
from netoffload.transport.rendezvous.agreement import Quantiser
from netoffload.transport.wiring.chunks import CODED_FLOATS, HEADER_OCTETS, OUT_END, Coding, make_coding, pack
from netoffload.transport.wiring.coded_socket import CodedSocket
from netoffload.wire.checksum import crc32c
from tests.shared.guarded import guarded_octets

BOUND_K = 10
HEADER = struct.Struct("!IIII")
ROUNDED = Quantiser(CodecId.BOUNDED, BOUND_K)


def gradients(count: int, sigma: float = 0.01) -> Float32Array:
    values: Float32Array = np.random.default_rng(count).standard_normal(count, np.float32) * np.float32(sigma)
    return values


def packed(values: Float32Array, codec_id: CodecId = CodecId.BOUNDED) -> bytes:
    coding = make_coding(int(codec_id), BOUND_K)
    pack(coding, values.view(np.uint8), 0, values.size)
    return coding.outgoing[: coding.state[OUT_END]].tobytes()


def framed(length: int, floats: int, payload: bytes) -> bytes:
    """A chunk whose sums are right, whatever its header says."""
    fields = struct.pack("!III", length, floats, crc32c(payload))
    return fields + crc32c(fields).to_bytes(4, "big") + payload


def received(octets: bytes, count: int) -> Float32Array:
    """What a rank makes of a stream that brings these octets, in buffers that end where memory ends."""
    raw, end = socket.socketpair()
    with raw, CodedSocket.over(end, ROUNDED, 3) as coded:
        coded.coding = guarded(coded.coding.incoming.size)._replace(state=coded.coding.state)
        raw.sendall(octets)
        raw.shutdown(socket.SHUT_WR)
        values = np.full(count, -1, np.float32)
        got = 0
        while got < values.nbytes and (more := coded.recv_into(values.data.cast("B")[got:])):
            got += more
        return values[: got // 4]


def guarded(incoming_octets: int) -> Coding:
    """A coding whose memory, but for what is written by its own sender, has a page behind it that kills."""
    coding = make_coding(int(ROUNDED.codec_id), ROUNDED.bound_k)
    incoming = guarded_octets(incoming_octets)[-incoming_octets:]
    decoded = guarded_octets(coding.decoded.nbytes)[-coding.decoded.nbytes :].view(np.float32)
    return coding._replace(incoming=incoming, decoded=decoded)


@pytest.mark.parametrize("codec_id", CodecId)
@pytest.mark.parametrize("count", [1, 7, 8, 1000])
def test_a_chunk_is_a_header_and_what_the_codec_makes_of_the_floats(codec_id: CodecId, count: int) -> None:
    values, by = gradients(count), codec.CODECS[codec_id]
    octets = packed(values, codec_id)
    length, floats, payload_crc, header_crc = HEADER.unpack_from(octets)
    payload = octets[HEADER_OCTETS:]
    assert (length, floats) == (len(payload), count)
    assert (payload_crc, header_crc) == (crc32c(payload), crc32c(octets[:12]))
    coded = by.encode(values, BOUND_K).tobytes()
    assert payload == (coded if len(coded) < 4 * count else by.round_trip(values, BOUND_K).tobytes())


def test_floats_that_do_not_shrink_go_as_they_are_after_the_codecs_rounding() -> None:
    values = np.random.default_rng(1).uniform(1, 2, 1000).astype(np.float32)
    values[0] = 0.001
    octets = packed(values)
    assert octets[HEADER_OCTETS:] == codec.get("bounded").round_trip(values, BOUND_K).tobytes()
    np.testing.assert_array_equal(received(octets, 1000), codec.get("bounded").round_trip(values, BOUND_K))


@pytest.mark.parametrize("count", [1, 9, 1000, CODED_FLOATS, CODED_FLOATS + 1])
def test_a_stream_brings_the_codecs_values_however_it_is_cut(count: int) -> None:
    values, into = gradients(count), np.zeros(count, np.float32)
    rest, room = values.data.cast("B"), into.data.cast("B")
    here, there = (CodedSocket.over(one, ROUNDED, peer) for peer, one in enumerate(socket.socketpair()))
    with here, there:
        for piece in itertools.cycle([4, 4000, 10**9]):
            with contextlib.suppress(BlockingIOError):
                rest = rest[here.send(rest) :] if rest else rest
            with contextlib.suppress(BlockingIOError):
                room = room[there.recv_into(room[:piece]) :]
            if not rest and not room:
                break
        assert here.saved_octets > 0 or count < 9
        assert not there.has_rest
    np.testing.assert_array_equal(into, codec.get("bounded").round_trip(values, BOUND_K))


def test_every_octet_that_is_damaged_is_an_error() -> None:
    values = gradients(24)
    octets = packed(values)
    np.testing.assert_array_equal(received(octets, 24), codec.get("bounded").round_trip(values, BOUND_K))
    for at in range(len(octets)):
        damaged = bytearray(octets)
        damaged[at] ^= 1 << at % 8
        where = "header" if at < HEADER_OCTETS - 8 or 12 <= at < 16 else "(header|payload)"
        with pytest.raises(
            CollectiveError, match=f"a chunk from rank 3 is damaged: the CRC32C of its {where} is wrong"
        ):
            received(bytes(damaged), 24)


@pytest.mark.parametrize(
    ("length", "floats"), [(0, 0), (0, 8), (33, 8), (1, 0), (4 * CODED_FLOATS + 4, CODED_FLOATS + 1), (2**32 - 1, 8)]
)
def test_a_length_that_cannot_be_is_an_error(length: int, floats: int) -> None:
    with pytest.raises(CollectiveError, match="damaged: its length is impossible"):
        received(framed(length, floats, b""), 8)


@settings(max_examples=200)
@given(floats=st.integers(1, 40), payload=st.binary(min_size=1, max_size=160))
def test_no_payload_is_read_or_written_past_its_end(floats: int, payload: bytes) -> None:
    payload = payload[: 4 * floats]
    try:
        values = received(framed(len(payload), floats, payload), floats)
    except CollectiveError as error:
        assert "the codec cannot decode its payload" in str(error)
    else:
        assert values.size == floats


def test_a_stream_that_ends_in_a_chunk_brings_nothing_of_it() -> None:
    octets = packed(gradients(24))
    assert received(octets + octets[:-1], 48).size == 24
