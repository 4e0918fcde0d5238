"""``chunked-topk``: its payloads to the bit, its residual, and what no encoder makes."""

import struct

import numpy as np
import pytest

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.chunked_topk import ChunkedTopK
from netoffload.errors import CodecError
from tests.compressors.oracles import changed, encoded, topk_exact

LAYOUT = Layout((300, 0, 1, 64, 7))


def drawn(seed: int) -> Float32Array:
    """Normal numbers, a few of them equal; some zeros and limits of float32."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(LAYOUT.count).astype(np.float32)
    values[random.integers(0, values.size, 60)] = np.float32(-1.5)
    values[random.integers(0, values.size, 60)] = random.choice([0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38], 60)
    return values


@pytest.mark.parametrize(("k", "chunk"), [(64, 4096), (1, 1), (1, 64), (3, 16), (16, 16), (15, 64), (1, 65536)])
def test_payload_and_values_are_the_oracles(k: int, chunk: int) -> None:
    method = ChunkedTopK(k, chunk)
    for values in (drawn(1), drawn(2), np.zeros(LAYOUT.count, np.float32), np.full(LAYOUT.count, -0.1, np.float32)):
        payload = encoded(method, values, LAYOUT)
        body, decoded = topk_exact(values, LAYOUT.groups(chunk).tolist(), k, chunk)
        assert payload[HEADER_OCTETS:].tobytes() == body
        assert method.decode(payload, LAYOUT).tobytes() == decoded.tobytes()


def test_a_chunk_of_4096_values_takes_84_octets() -> None:
    method, layout = ChunkedTopK(), Layout.flat(3 * 4096)
    state = method.make_state(layout)
    values = np.random.default_rng(1).standard_normal(layout.count, np.float32)
    assert method.wire_size(values, state) == method.encode(values, state).size == HEADER_OCTETS + 8 + 3 * 84


def test_what_stays_is_sent_later_and_fades() -> None:
    values = drawn(3) % np.float32(1)
    for decay in (1.0, 0.5):
        method = ChunkedTopK(5, 64, decay)
        state = method.make_state(LAYOUT, error_feedback=False)  # it is part of the method
        sent = method.decode(method.encode(values, state), LAYOUT)
        assert state.residual is not None
        np.testing.assert_array_equal(state.residual, np.float32(decay) * (values - sent))
    state = (method := ChunkedTopK(5, 64, 1.0)).make_state(LAYOUT)
    calls = 60
    total = sum(method.decode(method.encode(values, state), LAYOUT).astype(np.float64) for _ in range(calls))
    assert np.abs(total / calls - values).max() < 0.1


def test_what_no_encoder_makes_is_refused() -> None:
    method, layout = ChunkedTopK(2, 16), Layout.flat(16)
    values = np.zeros(16, np.float32)
    values[[3, 9]] = 1.0, -2.0
    payload = encoded(method, values)
    # k, chunk | levels 1 and 2 | codes 0 and 3, places 3 and 9: lower bits 3 and 1, steps 0 + 0 and 1 + 1
    assert payload[HEADER_OCTETS:].tobytes() == struct.pack("<IIHHH", 2, 16, 0x3F80, 0x4000, 0b101_001_011_11_00)
    stream = 12
    for at, octets, reason in (
        (0, struct.pack("<I", 3), "other parameters"),
        (8, b"\x01\x40", "level"),  # above the higher one
        (8, b"\x80\xbf", "level"),
        (10, b"\x80\x7f", "level"),
        (stream, struct.pack("<H", 0b011_011_011_11_00), "places"),  # place 3 twice
        (stream, struct.pack("<H", 0b011_001_011_11_00), "places"),  # place 1 after place 3
        (stream, struct.pack("<H", 0b111_001_011_11_00), "places"),
        (stream, struct.pack("<H", 0b001_001_011_11_00), "places"),
        (stream, struct.pack("<H", 0b1_101_001_011_11_00), "places"),  # a bit behind the end
    ):
        with pytest.raises(CodecError, match=reason):
            method.decode(changed(payload, HEADER_OCTETS + at, octets), layout)
    for wrong in (payload[:-1], np.append(payload, np.uint8(0))):
        with pytest.raises(CodecError, match="does not hold 16 floats"):
            method.decode(wrong, layout)
    short = Layout.flat(11)  # sends 2 of 11: two lower bits, three higher parts, so places up to 11
    payload = encoded(method, values[:11])
    with pytest.raises(CodecError, match="places"):
        method.decode(changed(payload, HEADER_OCTETS + stream, struct.pack("<H", 0b1001_11_11_11_00)), short)
