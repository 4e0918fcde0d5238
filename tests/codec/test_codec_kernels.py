"""Every kernel against the slow oracle, to the bit."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import bursts, get, kernels
from netoffload.codec.kernels import usable_kernels
from netoffload.codec.reference import Oracle
from netoffload.codec_specs import Made
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.jit import JIT_DISABLED, compiled_with
from netoffload.errors import CodecError
from tests.fuzz import floats
from tests.shared.example_counts import examples

CANARY = 0xA5
SCALES = st.sampled_from([0.0, 1e-3, 1e-2, 1e-1, 10.0])
"""Standard deviations; together they have lanes of every class."""
BOUNDS = (1, 2, 7, 10, 15, 16) if JIT_DISABLED else tuple(range(1, 17))


@dataclass(frozen=True)
class Variant:
    """The kernels of one codec with tags or masks, in one variant."""

    codec: str
    kernel: str

    @property
    def oracle(self) -> Oracle:
        """The codec's slow definition."""
        return get(self.codec).oracle

    @property
    def kernels(self) -> kernels.Kernels:
        """Its kernels."""
        return kernels.kernels_of(get(self.codec).codec_id, self.kernel)

    def unit8(self, bound_k: int) -> np.float32:
        """Return what decoding wants to know of a bound."""
        return np.float32(self.kernels.decoding(bound_k))

    def decode(self, payload: Uint8Array, available: int, count: int, bound_k: int, target: Uint8Array, at: int) -> int:
        """``decode`` of a payload that starts at 0."""
        return int(self.kernels.decode(payload, 0, available, count, self.unit8(bound_k), target, at))

    def decode_halves(
        self, payload: Uint8Array, half_len: int, half_count: int, count: int, bound_k: int, target: Uint8Array
    ) -> int:
        """``decode_halves`` of a payload that starts at 0, with the slack behind it, to a target from 16 on."""
        available = payload.size - bursts.DECODE_SLACK
        middle = bursts.Middle(half_len, half_count)
        unit8 = self.unit8(bound_k)
        return int(self.kernels.decode_halves(payload, 0, available, count, middle, unit8, target, 16))


CODECS = ("inceptionn", "bounded", "packed")
VARIANTS = [Variant(codec, kernel) for codec in CODECS for kernel in usable_kernels()]
every_variant = pytest.mark.parametrize(
    "variant", VARIANTS, ids=[f"{variant.codec}-{variant.kernel}" for variant in VARIANTS]
)


def special_values() -> Float32Array:
    """Return zeros, subnormals, infinities, NaNs of both signs, and every edge between two classes."""
    tiny = np.finfo(np.float32).smallest_subnormal
    edges = np.concatenate([2.0 ** -np.arange(0, 20), [1.0 - 2**-24, 2.0, 3e38]]).astype(np.float32)
    around = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 9)]).astype(np.float32)
    odd = np.array([0.0, tiny, 1e-39, np.inf, np.nan], np.float32)
    payload_nans = np.array([0x7F800001, 0x7FC12345, 0x7FFFFFFF], np.uint32).view(np.float32)
    positive = np.concatenate([around, odd, payload_nans])
    return np.concatenate([positive, (positive.view(np.uint32) | np.uint32(1 << 31)).view(np.float32)])


def every_exponent(seed: int) -> Float32Array:
    """Return every sign and exponent with a dense set of mantissas: low and high runs, single bits, random ones."""
    random = np.random.default_rng(seed).integers(0, 1 << 23, 4 if JIT_DISABLED else 256)
    bits = 1 << np.arange(23)
    runs = np.arange(1 if JIT_DISABLED else 256)
    mantissas = np.unique(np.concatenate([runs, (1 << 23) - 1 - runs, bits, bits - 1, random])).astype(np.uint32)
    exponents = np.arange(0, 256, 8 if JIT_DISABLED else 1, dtype=np.uint32)
    words = exponents[:, None, None] << 23 | np.arange(2, dtype=np.uint32)[None, :, None] << 31 | mantissas
    return words.reshape(-1).view(np.float32)


def tags_of(variant: Variant, values: Float32Array, bound_k: int) -> Uint8Array:
    assert variant.oracle.compress is not None
    return variant.oracle.compress(values, bound_k)[0]


def encode(variant: Variant, values: Float32Array, bound_k: int) -> Uint8Array:
    """Encode everything; canaries stand before and behind what the contract lets a kernel write."""
    capacity = -(-values.size // 8) * bursts.MAX_BURST_PAYLOAD
    target = np.full(16 + capacity + bursts.ENCODE_SLACK + 16, CANARY, np.uint8)
    classes = np.zeros(4, np.int64)
    count, length = variant.kernels.encode(
        values.view(np.uint8), 0, values.size, bound_k, target, 16, capacity, classes
    )
    assert count == values.size
    assert classes.tolist() == np.bincount(tags_of(variant, values, bound_k), minlength=4).tolist()
    assert (target[:16] == CANARY).all()
    assert (target[-16:] == CANARY).all()
    return target[16 : 16 + length].copy()


def decode(variant: Variant, payload: Uint8Array, count: int, bound_k: int) -> Float32Array:
    """Decode ``count`` floats; canaries stand around the target."""
    padded = np.concatenate([payload, np.full(bursts.DECODE_SLACK, CANARY, np.uint8)])
    room = 4 * 8 * -(-count // 8)
    target = np.full(16 + room + 16, CANARY, np.uint8)
    assert variant.decode(padded, payload.size, count, bound_k, target, 16) == payload.size
    assert (target[:16] == CANARY).all()
    assert (target[16 + room :] == CANARY).all()
    return target[16 : 16 + 4 * count].view(np.float32)


def same_bits(left: Float32Array, right: Float32Array) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


@pytest.mark.covering(1)
@every_variant
@pytest.mark.parametrize("bound_k", BOUNDS)
def test_every_exponent_is_bit_exact(variant: Variant, bound_k: int) -> None:
    values = np.concatenate([every_exponent(bound_k), special_values()])
    payload = encode(variant, values, bound_k)
    assert variant.oracle.compress is not None
    pack = floats.packed_groups if variant.codec == "packed" else floats.packed
    assert np.array_equal(payload, pack(*variant.oracle.compress(values, bound_k)))
    wanted = variant.oracle.round_trip(values, bound_k)
    assert same_bits(decode(variant, payload, values.size, bound_k), wanted)
    target = np.empty(values.size, np.uint32)
    variant.kernels.round_trip(values.view(np.uint32), bound_k, target)
    assert same_bits(target.view(np.float32), wanted)


@every_variant
@pytest.mark.parametrize("bound_k", [1, 6, 8, 10, 16])
def test_payload_octets_equal_the_oracles(variant: Variant, bound_k: int) -> None:
    rng = np.random.default_rng(bound_k)
    values = np.concatenate(
        [special_values(), *(rng.normal(0, scale, 500).astype(np.float32) for scale in (1e-3, 1e-2, 1e-1, 10))]
    )
    values[rng.random(values.size) < 0.5] = 0
    for size in (values.size, 0, 1, 7, 8, 9, 63, 64, 65, 127):
        part = values[:size]
        payload = encode(variant, part, bound_k)
        assert np.array_equal(payload, variant.oracle.encode(part, bound_k))
        wanted = variant.oracle.decode(payload, part.size, bound_k)
        assert same_bits(decode(variant, payload, part.size, bound_k), wanted)


@every_variant
@settings(max_examples=examples(200))
@given(
    words=st.lists(st.one_of(st.just(0), st.integers(0, 2**32 - 1)), max_size=150),
    bound_k=st.integers(1, 16),
    capacity=st.integers(0, 800),
    offset=st.integers(0, 3),
)
def test_what_fits_is_a_prefix_of_whole_bursts(
    variant: Variant, words: list[int], bound_k: int, capacity: int, offset: int
) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    source = np.concatenate([np.zeros(offset, np.uint8), values.view(np.uint8)])
    target = np.full(capacity + bursts.ENCODE_SLACK + 16, CANARY, np.uint8)
    classes = np.zeros(4, np.int64)
    count, length = variant.kernels.encode(source, offset, values.size, bound_k, target, 0, capacity, classes)
    assert length <= capacity
    assert count == values.size or count % 8 == 0
    assert classes.sum() == count
    assert np.array_equal(target[:length], variant.oracle.encode(values[:count], bound_k))
    assert count == values.size or variant.oracle.encode(values[: count + 8], bound_k).size > capacity
    assert (target[-16:] == CANARY).all()


@every_variant
def test_what_does_not_fit_is_written_into_the_slack_alone(variant: Variant) -> None:
    values = np.full(16, -2.5, np.float32)
    for capacity in range(0, 69):
        target = np.full(capacity + bursts.ENCODE_SLACK + 64, CANARY, np.uint8)
        count, _ = variant.kernels.encode(values.view(np.uint8), 0, 16, 10, target, 0, capacity, np.zeros(4, np.int64))
        assert count == sum(variant.oracle.encode(values[:lanes], 10).size <= capacity for lanes in (8, 16)) * 8
        assert (target[capacity + bursts.ENCODE_SLACK :] == CANARY).all()


PACKED = [variant for variant in VARIANTS if variant.codec == "packed"]
every_packed = pytest.mark.parametrize("variant", PACKED, ids=[variant.kernel for variant in PACKED])


@every_packed
@pytest.mark.parametrize(
    ("floats", "there", "runs"),
    [
        (1, [], "0000"),
        (64 * 256, [], "00ff"),
        (64 * 256 + 1, [], "00ff 0000"),
        (64 * 600 + 5, [], "00ff 00ff 0058"),
        (64 * 300, [64 * 256], "00ff 01 01 11 002a"),
        (64 * 258 + 9, [0, 64 * 258 + 8], "01 01 11 00ff 0000 02 01 11"),
    ],
)
def test_runs_of_empty_groups(variant: Variant, floats: int, there: list[int], runs: str) -> None:
    values = np.zeros(floats, np.float32)
    values[there] = 2 * 2.0**-9
    payload = encode(variant, values, 10)
    assert payload.tobytes() == bytes.fromhex(runs)
    assert same_bits(decode(variant, payload, floats, 10), values)
    assert same_bits(variant.oracle.decode(payload, floats, 10), values)


@every_packed
def test_empty_bursts_of_a_group_that_does_not_fit_lengthen_the_run_before_it(variant: Variant) -> None:
    values = np.zeros(128, np.float32)
    values[[64 + 24, 64 + 40]] = 0.1
    target = np.full(2 + bursts.ENCODE_SLACK, CANARY, np.uint8)
    for capacity, count in ((1, 0), (2, 88), (5, 88), (6, 104), (8, 128)):
        done, length = variant.kernels.encode(
            values.view(np.uint8), 0, 128, 10, target, 0, capacity, np.zeros(4, np.int64)
        )
        assert (done, target[:length].tobytes()) == (count, variant.oracle.encode(values[:count], 10).tobytes())


@every_packed
@pytest.mark.parametrize(
    ("payload", "count"),
    [
        ("0001", 64),  # a run longer than the payload
        ("0000 0000", 128),  # two runs that could be one
        ("00fe 0000", 64 * 256),
        ("00", 64),
        ("01 01", 64),  # no fields
        ("01 01 00", 64),  # a field of one bit, well formed
        ("01 01 10", 64),  # what fills up the octet is not 0
        ("01 01 01", 64),  # two bits, of which one is enough
        ("01 01 07 7f", 64),
        ("01 01 07 80", 64),  # eight bits, well formed
        ("01 01 0f 80", 64),
        ("01 01 07 ff 34", 64),  # half an escape
        ("01 02 00", 1),  # a lane beyond the last float
        ("03 01 00", 64),  # a burst without lanes
    ],
)
def test_what_no_encoder_makes_is_refused(variant: Variant, payload: str, count: int) -> None:
    octets = np.frombuffer(bytes.fromhex(payload), np.uint8)
    padded = np.concatenate([octets, np.full(bursts.DECODE_SLACK, CANARY, np.uint8)])
    target = np.zeros(32 * -(-count // 8), np.uint8)
    read = variant.decode(padded, octets.size, count, 10, target, 0)
    try:
        wanted = variant.oracle.decode(octets, count, 10)
    except CodecError:
        assert read == bursts.MALFORMED
    else:
        assert payload in ("01 01 00", "01 01 07 80")
        assert read == octets.size
        assert same_bits(target.view(np.float32), wanted)


@every_packed
def test_a_run_may_follow_a_run_in_the_other_half(variant: Variant) -> None:
    payload = np.frombuffer(bytes([0, 1, 0, 0]) + bytes(bursts.DECODE_SLACK), np.uint8)
    target = np.full(16 + 4 * 192, CANARY, np.uint8)
    assert variant.decode_halves(payload, 2, 128, 192, 10, target) == 4
    assert not target[16:].any()
    assert variant.decode_halves(payload, 2, 64, 192, 10, target) == bursts.MALFORMED


@pytest.mark.slow
@every_variant
@settings(max_examples=examples(500))
@given(octets=st.binary(max_size=120), count=st.integers(0, 130))
def test_random_payloads_are_read_as_the_oracle_reads_them(variant: Variant, octets: bytes, count: int) -> None:
    payload = np.frombuffer(octets, np.uint8)
    padded = np.concatenate([payload, np.full(bursts.DECODE_SLACK, 0xFF, np.uint8)])
    room = 4 * 8 * -(-count // 8)
    target = np.full(16 + room + 16, CANARY, np.uint8)
    read = variant.decode(padded, payload.size, count, 10, target, 16)
    assert (target[:16] == CANARY).all()
    assert (target[16 + room :] == CANARY).all()
    if read == bursts.MALFORMED:
        with pytest.raises(CodecError):
            variant.oracle.decode(payload, count, 10)
    else:
        wanted = variant.oracle.decode(payload[:read], count, 10)
        assert same_bits(target[16 : 16 + 4 * count].view(np.float32), wanted)


@pytest.mark.slow
@every_variant
@settings(max_examples=examples(500))
@given(octets=st.binary(max_size=120), count=st.integers(0, 150), half=st.integers(0, 150), data=st.data())
def test_halves_are_read_as_the_oracle_reads_each(
    variant: Variant, octets: bytes, count: int, half: int, data: st.DataObject
) -> None:
    half_count = min(half, count) // 8 * 8
    bound_k = data.draw(st.integers(1, 16))
    values = np.random.default_rng(len(octets)).normal(0, data.draw(SCALES), count).astype(np.float32)
    first = variant.oracle.encode(values[:half_count], bound_k)
    second = data.draw(
        st.sampled_from([np.frombuffer(octets, np.uint8), variant.oracle.encode(values[half_count:], bound_k)])
    )
    payload = np.concatenate([first, second])
    half_len = data.draw(st.one_of(st.just(first.size), st.integers(0, payload.size)))
    padded = np.concatenate([payload, np.full(bursts.DECODE_SLACK, 0xFF, np.uint8)])
    target = np.full(16 + 32 * -(-count // 8) + 16, CANARY, np.uint8)
    read = variant.decode_halves(padded, half_len, half_count, count, bound_k, target)
    assert (target[:16] == CANARY).all()
    assert (target[-16:] == CANARY).all()
    try:
        parts = [
            variant.oracle.decode(payload[:half_len], half_count, bound_k),
            variant.oracle.decode(
                payload[half_len : payload.size if read == bursts.MALFORMED else read], count - half_count, bound_k
            ),
        ]
    except CodecError:
        assert read == bursts.MALFORMED
    else:
        assert read != bursts.MALFORMED
        assert same_bits(target[16 : 16 + 4 * count].view(np.float32), np.concatenate(parts))


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "truncate16", "truncate22", "truncate24"])
@settings(max_examples=examples(200))
@given(words=st.lists(st.integers(0, 2**32 - 1), max_size=40), data=st.data())
def test_codecs_without_tags_equal_their_oracles(codec: str, words: list[int], data: st.DataObject) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    chosen = get(codec)
    payload = chosen.encode(values, 10)
    assert np.array_equal(payload, chosen.oracle.encode(values, 10))
    wanted = chosen.oracle.round_trip(values, 10)
    assert same_bits(chosen.decode(payload, values.size, 10), wanted)
    assert same_bits(chosen.oracle.decode(payload, values.size, 10), wanted)
    assert same_bits(chosen.round_trip(values, 10), wanted)
    wrong = data.draw(st.integers(0, 100).filter(lambda length: length != payload.size))
    with pytest.raises(CodecError):
        chosen.decode(np.zeros(wrong, np.uint8), values.size, 10)


@pytest.mark.slow  # it compiles one
def test_kernels_are_made_of_the_arithmetic_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernel", compiled_with)  # never taken from the cache
    form = Made(12, lambda word, k: (word >> 20) ^ k, lambda code, k: (code ^ k) << 20)
    made = kernels._fixed_kernels("of_this_test", form)
    values = np.random.default_rng(4).normal(0, 1, 37).astype(np.float32)
    payload = np.full(400, CANARY, np.uint8)
    target = np.zeros(160, np.uint8)
    assert made.encode(values.view(np.uint8), 0, 37, 10, payload, 0, 300, np.zeros(4, np.int64)) == (37, 5 * 12)
    codes = [int(word) >> 20 ^ 10 for word in values.view(np.uint32)[:8]]
    first_burst = sum(code << 12 * lane for lane, code in enumerate(codes)).to_bytes(12, "little")
    assert payload[:12].tobytes() == first_burst
    assert made.decode(payload, 0, 60, 37, 10, target, 0) == 60
    wanted = (values.view(np.uint32) >> 20 << 20).tobytes()
    assert target[: 4 * 37].tobytes() == wanted
    assert made.decode_halves(payload, 0, 60, 37, bursts.Middle(24, 16), 10, target, 0) == 60
    assert made.decode_halves(payload, 0, 60, 37, bursts.Middle(20, 16), 10, target, 0) == bursts.MALFORMED
    assert made.decode(payload, 0, 59, 37, 10, target, 0) == bursts.MALFORMED
    words = values.view(np.uint32).copy()
    made.round_trip(words, 10, words)
    assert words.tobytes() == wanted
