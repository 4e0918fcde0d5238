"""The codec ``exact``: every bit comes back, the octets are the oracle's, and what is no payload is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import bursts, get, kernels
from netoffload.codec.exact import LOOK
from netoffload.codec.kernels import usable_kernels
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import CodecId
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint16Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import CodecError
from tests.shared.example_counts import examples

CANARY = 0xA5
EXACT = get("exact")
every_variant = pytest.mark.parametrize("variant", usable_kernels())


def encode(variant: str, values: Float32Array, capacity: int | None = None, offset: int = 0) -> tuple[int, Uint8Array]:
    """Return how many floats fit, and their payload; nothing is written where the contract forbids it."""
    capacity = 5 * values.size + 8 if capacity is None else capacity
    source = np.concatenate([np.zeros(offset, np.uint8), values.view(np.uint8)])
    target = np.full(16 + capacity + bursts.ENCODE_SLACK + 16, CANARY, np.uint8)
    classes = np.zeros(4, np.int64)
    made = kernels.kernels_of(CodecId.EXACT, variant)
    count, length = made.encode(source, offset, values.size, 10, target, 16, capacity, classes)
    assert length <= capacity
    assert classes.sum() == count
    assert (target[:16] == CANARY).all()
    assert (target[-16:] == CANARY).all()
    return count, target[16 : 16 + length].copy()


def decode(variant: str, payload: Uint8Array, count: int) -> tuple[int, bytes]:
    """Return the status, and the floats' octets; nothing is written beyond the last burst."""
    padded = np.concatenate([payload, np.full(bursts.DECODE_SLACK, CANARY, np.uint8)])
    room = 32 * -(-count // 8)
    target = np.full(16 + room + 16, CANARY, np.uint8)
    made = kernels.kernels_of(CodecId.EXACT, variant)
    read = int(made.decode(padded, 0, payload.size, count, 10, target, 16))
    assert (target[:16] == CANARY).all()
    assert (target[16 + room :] == CANARY).all()
    return read, target[16 : 16 + 4 * count].tobytes()


def check(variant: str, values: Float32Array) -> Uint8Array:
    """Check octets and values, and return the payload."""
    count, payload = encode(variant, values)
    assert count == values.size
    assert payload.tobytes() == EXACT.oracle.encode(values, 10).tobytes()
    assert decode(variant, payload, count) == (payload.size, values.tobytes())
    assert EXACT.oracle.decode(payload, count, 10).tobytes() == values.tobytes()
    return payload


def halves_of(count: int, seed: int = 1) -> Uint16Array:
    """Return bf16 like a gradient's."""
    words = np.random.default_rng(seed).normal(0, 0.002, count).astype(np.float32).view(np.uint32)
    return (words >> 16).astype(np.uint16)


def test_groups_by_hand() -> None:
    values = np.array([1.0, -1.5, 0.0, 0.5, 2.0**-60], np.float32)
    # The largest exponent is 127, distances 0, 0, 1, 60 in one plane: 60 escapes, and so does 1, which is all ones.
    planes = bytes([0b1100]) + bytes([126, 67])
    rests = bytes([0, 0, 0]) + bytes([1, 0, 0x80]) + bytes(3) + bytes(3)
    # All low halves are 0, so a rest is one octet.
    narrow = bytes([0x80 | 1 << 4 | 1 << 3 | 1, 127, 0b11011]) + planes + bytes([0x00, 0x81, 0x00, 0x00])
    assert EXACT.encode(values, 10).tobytes() == narrow
    assert len(rests) == 12
    wide = np.array([1.0, np.float32(1 + 2.0**-23)], np.float32)
    assert EXACT.encode(wide, 10).tobytes() == bytes([0x80, 127, 0, 0, 0, 2, 0, 0])
    assert EXACT.encode(np.zeros(65, np.float32), 10).tobytes() == b"\0\0"
    raw = np.array([0x3F800001, 0x00123456], np.uint32).view(np.float32)
    assert EXACT.encode(raw, 10).tobytes() == b"\x40" + raw.tobytes()
    pairs = np.array([0x3F80, 0xBF81], np.uint16).view(np.float32)
    assert EXACT.encode(pairs, 10).tobytes() == bytes([0x80 | 2 << 4, 127, 0, 3])


@every_variant
def test_every_kind_of_float_comes_back(variant: str) -> None:
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
def test_every_width_is_the_shortest_somewhere(variant: str, width: int) -> None:
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
def test_all_bf16_patterns_come_back(variant: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    near = every.reshape(2, -1, 8).transpose(1, 2, 0).reshape(-1)  # both signs side by side, one exponent at a time
    for halves in (near,) if JIT_DISABLED else (near, near[::-1].copy(), np.roll(near, 37)):
        payload = EXACT.encode(halves.view(np.float32), 10)
        assert payload.size < 0.65 * halves.nbytes
        count, made = encode(variant, halves.view(np.float32))
        assert made.tobytes() == payload.tobytes()
        assert decode(variant, made, count) == (made.size, halves.tobytes())
        wide = (halves.astype(np.uint32) << 16).view(np.float32)
        count, made = encode(variant, wide)
        assert made.size < 0.35 * wide.nbytes
        assert decode(variant, made, count) == (made.size, wide.tobytes())
    check(variant, np.random.default_rng(1).permutation(every).view(np.float32)[:4096])


@every_variant
def test_the_type_of_values_is_chosen_anew(variant: str) -> None:
    floats = np.random.default_rng(3).normal(0, 1, LOOK).astype(np.float32)
    pairs = halves_of(2 * LOOK).view(np.float32)
    payload = check(variant, np.concatenate([floats, pairs, floats[:300], pairs]))
    assert payload[0] >> 4 == 0x8
    first = EXACT.encode(floats, 10).size
    assert payload[first] >> 4 == 0xA
    assert payload[first + EXACT.encode(pairs, 10).size] >> 4 == 0x8


@every_variant
def test_a_payload_that_would_grow_is_one_octet_longer_per_group(variant: str) -> None:
    noise = np.random.default_rng(5).integers(0, 1 << 32, 1000, np.uint32).view(np.float32)
    assert check(variant, noise).size == 4000 + 16


def values_of(words: list[int], kind: str) -> Float32Array:
    made = np.array(words, np.uint32)
    high = made & np.uint32(0xFFFF0000)
    return {"float32": made, "narrow": high, "bf16": high | made >> 16}[kind].view(np.float32)


near = st.integers(0, 2**27 - 1).map(lambda low: 0x38000000 + low)
some_words = st.lists(st.one_of(st.just(0), near, near, near, st.integers(0, 2**32 - 1)), max_size=150)


@every_variant
@settings(max_examples=examples(300))
@given(
    words=some_words,
    kind=st.sampled_from(["float32", "narrow", "bf16"]),
    room=st.integers(0, 700),
    offset=st.integers(0, 3),
)
def test_what_fits_is_a_prefix_of_whole_bursts(
    variant: str, words: list[int], kind: str, room: int, offset: int
) -> None:
    values = values_of(words, kind)
    count, payload = encode(variant, values, room, offset)
    assert count == values.size or count % 8 == 0
    assert decode(variant, payload, count) == (payload.size, values[:count].tobytes())
    if count < min(GROUP, values.size):
        return  # the type was chosen from 64 words, some of which did not fit
    assert payload.tobytes() == EXACT.oracle.encode(values[:count], 10).tobytes()
    assert count == values.size or EXACT.oracle.encode(values[: count + 8], 10).size > room


@every_variant
@pytest.mark.parametrize("kind", ["float32", "bf16"])
def test_a_group_that_does_not_fit_is_cut_where_the_room_ends(variant: str, kind: str) -> None:
    floats = np.random.default_rng(2).normal(0, 1, 200).astype(np.float32)
    values = floats if kind == "float32" else halves_of(400).view(np.float32)
    seen = set()
    for room in range(0, 700, 3):
        count, payload = encode(variant, values, room)
        seen.add(count)
        assert decode(variant, payload, count) == (payload.size, values[:count].tobytes())
        assert count == 200 or encode(variant, values[: count + 8])[1].size > room
    assert seen == {*range(0, 200, 8), 200}


@every_variant
@settings(max_examples=examples(500))
@given(octets=st.binary(max_size=120), head=st.integers(0, 255), count=st.integers(0, 130))
def test_random_payloads_are_read_as_the_oracle_reads_them(variant: str, octets: bytes, head: int, count: int) -> None:
    payload = np.frombuffer(bytes([head]) + octets, np.uint8)
    read, values = decode(variant, payload, count)
    if read == bursts.MALFORMED:
        with pytest.raises(CodecError):
            EXACT.oracle.decode(payload, count, 10)
    else:
        assert EXACT.oracle.decode(payload[:read], count, 10).tobytes() == values


@every_variant
@pytest.mark.parametrize(
    ("payload", "count"),
    [
        ("", 1),
        ("c0", 1),  # no such kind
        ("10", 1),  # no such type of a group of zeros
        ("08", 1),  # a mask of a group of zeros
        ("41 00000000", 1),  # a width of a raw group
        ("40 000000", 1),
        ("b0 7f 00 00", 1),  # no such type
        ("87 7f" + "00" * 300, 64),  # no such width
        ("88 7f 00", 1),  # a mask without a bit
        ("80 7f 0000", 1),  # a rest of two octets
        ("90 7f", 1),
        ("91 7f 01 05", 1),  # an escape without its rest
        ("a1 7f", 1),  # no plane
    ],
)
def test_what_is_no_payload_is_refused(variant: str, payload: str, count: int) -> None:
    octets = np.frombuffer(bytes.fromhex(payload), np.uint8)
    assert decode(variant, octets, count)[0] == bursts.MALFORMED
    with pytest.raises(CodecError):
        EXACT.oracle.decode(octets, count, 10)


@every_variant
def test_halves_are_payloads_of_their_own(variant: str) -> None:
    values = np.random.default_rng(9).normal(0, 1, 300).astype(np.float32)
    made = kernels.kernels_of(CodecId.EXACT, variant)
    for half in (0, 8, 72, 128, 296):
        first, second = EXACT.encode(values[:half], 10), EXACT.encode(values[half:], 10)
        padded = np.concatenate([first, second, np.zeros(bursts.DECODE_SLACK, np.uint8)])
        target = np.zeros(1216, np.uint8)
        length = first.size + second.size
        middle = bursts.Middle(first.size, half)
        assert made.decode_halves(padded, 0, length, 300, middle, 10, target, 0) == length
        assert target[:1200].tobytes() == values.tobytes()
        wrong = bursts.Middle(first.size + 1, half)
        assert made.decode_halves(padded, 0, length, 300, wrong, 10, target, 0) == bursts.MALFORMED
