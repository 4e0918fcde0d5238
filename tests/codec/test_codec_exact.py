"""The codec ``exact``: every bit comes back, and the octets are the oracle's (more: ``test_codec_kernels``)."""

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.codec.exact import LOOK
from netoffload.codec.kernels import usable_kernels
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint16Array
from netoffload.compiled.jit import JIT_DISABLED
from tests.codec.variants import Variant

EXACT = get("exact")
every_variant = pytest.mark.parametrize("variant", [Variant("exact", kernel) for kernel in usable_kernels()], ids=str)


def check(variant: Variant, values: Float32Array) -> Uint8Array:
    """Check octets and values, and return the payload."""
    payload = variant.encode_all(values)
    assert payload.tobytes() == EXACT.oracle.encode(values, 10).tobytes()
    assert variant.decode(payload, values.size) == (payload.size, values.tobytes())
    assert EXACT.oracle.decode(payload, values.size, 10).tobytes() == values.tobytes()
    return payload


def halves_of(count: int, seed: int = 1) -> Uint16Array:
    """Return bf16 like a gradient's."""
    words = np.random.default_rng(seed).normal(0, 0.002, count).astype(np.float32).view(np.uint32)
    return (words >> 16).astype(np.uint16)


def test_groups_by_hand() -> None:
    values = np.array([1.0, -1.5, 0.0, 0.5, 2.0**-60], np.float32)
    # The largest exponent is 127, distances 0, 0, 1, 60 in one plane: 60 escapes, and so does 1, which is all ones.
    planes = bytes([0b1100]) + bytes([126, 67])
    # All low halves are 0, so a rest is one octet.
    narrow = bytes([0x80 | 1 << 4 | 1 << 3 | 1, 127, 0b11011]) + planes + bytes([0x00, 0x81, 0x00, 0x00])
    assert EXACT.encode(values, 10).tobytes() == narrow
    wide = np.array([1.0, np.float32(1 + 2.0**-23)], np.float32)
    assert EXACT.encode(wide, 10).tobytes() == bytes([0x80, 127, 0, 0, 0, 2, 0, 0])
    assert EXACT.encode(np.zeros(65, np.float32), 10).tobytes() == b"\0\0"
    raw = np.array([0x3F800001, 0x00123456], np.uint32).view(np.float32)
    assert EXACT.encode(raw, 10).tobytes() == b"\x40" + raw.tobytes()
    pairs = np.array([0x3F80, 0xBF81], np.uint16).view(np.float32)
    assert EXACT.encode(pairs, 10).tobytes() == bytes([0x80 | 2 << 4, 127, 0, 3])


@every_variant
def test_every_kind_of_float_comes_back(variant: Variant) -> None:
    rng = np.random.default_rng(7)
    odd = np.array(
        [0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x7FFFFFFF], np.uint32
    )
    scales = (1e-38, 1e-3, 1.0, 1e30)
    parts = [rng.normal(0, scale, 200).astype(np.float32).view(np.uint32) for scale in scales]
    words = np.concatenate([odd, *parts, rng.integers(0, 1 << 32, 200, np.uint32), np.tile(odd, 20)])
    for zeros in (0, 0.02, 0.5, 0.95):
        some = words.copy()
        some[rng.random(some.size) < zeros] = 0
        for low in (0xFFFFFFFF, 0xFFFF0000):
            values = (some & np.uint32(low)).view(np.float32)
            for size in (values.size, 0, 1, 7, 8, 9, 63, 64, 65, 127, 129):
                check(variant, values[:size])


@every_variant
@pytest.mark.parametrize("width", range(7))
def test_every_width_is_the_shortest_somewhere(variant: Variant, width: int) -> None:
    rng = np.random.default_rng(width)
    distances = rng.integers(0, max(2**width - 1, 1), 256)
    distances[::64] = 0  # each group's largest exponent
    distances[1::64] = 70 if width else 0
    for zeros in (0, 0.3):
        words = ((200 - distances) << 23).astype(np.uint32) | rng.integers(0, 1 << 23, 256, np.uint32)
        words[(rng.random(256) < zeros) & (np.arange(256) % 64 > 1)] = 0
        payload = check(variant, words.view(np.float32))
        assert payload[0] == 0x80 | bool(zeros) << 3 | width
        bf16 = np.concatenate([words, words])[:512].view(np.uint16)[1::2].copy()
        assert check(variant, bf16.view(np.float32))[0] == 0xA0 | bool(zeros) << 3 | width


@every_variant
def test_all_bf16_patterns_come_back(variant: Variant) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    near = every.reshape(2, -1, 8).transpose(1, 2, 0).reshape(-1)  # both signs side by side, one exponent at a time
    for halves in (near,) if JIT_DISABLED else (near, near[::-1].copy(), np.roll(near, 37)):
        payload = EXACT.encode(halves.view(np.float32), 10)
        assert payload.size < 0.65 * halves.nbytes
        count, made = variant.encode(halves.view(np.float32))
        assert made.tobytes() == payload.tobytes()
        assert variant.decode(made, count) == (made.size, halves.tobytes())
        wide = (halves.astype(np.uint32) << 16).view(np.float32)
        count, made = variant.encode(wide)
        assert made.size < 0.35 * wide.nbytes
        assert variant.decode(made, count) == (made.size, wide.tobytes())
    check(variant, np.random.default_rng(1).permutation(every).view(np.float32)[:4096])


@every_variant
def test_the_type_of_values_is_chosen_anew(variant: Variant) -> None:
    floats = np.random.default_rng(3).normal(0, 1, LOOK).astype(np.float32)
    pairs = halves_of(2 * LOOK).view(np.float32)
    payload = check(variant, np.concatenate([floats, pairs, floats[:300], pairs]))
    assert payload[0] >> 4 == 0x8
    first = EXACT.encode(floats, 10).size
    assert payload[first] >> 4 == 0xA
    assert payload[first + EXACT.encode(pairs, 10).size] >> 4 == 0x8


@every_variant
def test_a_payload_that_would_grow_is_one_octet_longer_per_group(variant: Variant) -> None:
    noise = np.random.default_rng(5).integers(0, 1 << 32, 1000, np.uint32).view(np.float32)
    assert check(variant, noise).size == 4000 + 16


@every_variant
@pytest.mark.parametrize("kind", ["float32", "bf16"])
def test_a_group_that_does_not_fit_is_cut_where_the_room_ends(variant: Variant, kind: str) -> None:
    floats = np.random.default_rng(2).normal(0, 1, 200).astype(np.float32)
    values = floats if kind == "float32" else halves_of(400).view(np.float32)
    seen = set()
    for room in range(0, 700, 3):
        count, payload = variant.encode(values, capacity=room)
        seen.add(count)
        assert variant.decode(payload, count) == (payload.size, values[:count].tobytes())
        assert count == 200 or variant.encode_all(values[: count + 8]).size > room
    assert seen == {*range(0, 200, 8), 200}
