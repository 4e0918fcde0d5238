"""Every kernel against the slow oracle, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import bursts, get, kernels
from netoffload.codec.kernels import usable_kernels
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import Made
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.jit import JIT_DISABLED, compiled_with
from netoffload.errors import CodecError
from tests.codec.variants import CANARY, Variant
from tests.shared.example_counts import examples

SCALES = st.sampled_from([0.0, 1e-3, 1e-2, 1e-1, 10.0])
"""Standard deviations; together they have lanes of every class."""
BOUNDS = (1, 2, 7, 10, 15, 16) if JIT_DISABLED else tuple(range(1, 17))
VARIANTS = [Variant(codec, kernel) for kernel in usable_kernels() for codec in ("inceptionn", "bounded", "packed")]
EXACT = [Variant("exact", kernel) for kernel in usable_kernels()]
every_tagged = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_variant = pytest.mark.parametrize("variant", [*VARIANTS, *EXACT], ids=str)


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


def same_bits(left: Float32Array, right: Float32Array) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


@pytest.mark.slow
@pytest.mark.covering(1)
@every_tagged
@pytest.mark.parametrize("bound_k", BOUNDS)
def test_every_exponent_is_bit_exact(variant: Variant, bound_k: int) -> None:
    values = np.concatenate([every_exponent(bound_k), special_values()])
    payload = variant.encode_all(values, bound_k)
    some = values[::61]
    assert np.array_equal(variant.encode_all(some, bound_k), variant.oracle.encode(some, bound_k))
    wanted = variant.oracle.round_trip(values, bound_k)
    assert variant.decode(payload, values.size, bound_k) == (payload.size, wanted.tobytes())
    target = np.empty(values.size, np.uint32)
    variant.kernels.round_trip(values.view(np.uint32), bound_k, target)
    assert target.tobytes() == wanted.tobytes()


@every_tagged
@pytest.mark.parametrize("bound_k", [1, 6, 8, 10, 16])
def test_payload_octets_equal_the_oracles(variant: Variant, bound_k: int) -> None:
    rng = np.random.default_rng(bound_k)
    scaled = (rng.normal(0, scale, 500).astype(np.float32) for scale in (1e-3, 1e-2, 1e-1, 10))
    values = np.concatenate([special_values(), *scaled])
    values[rng.random(values.size) < 0.5] = 0
    for size in (values.size, 0, 1, 7, 8, 9, 63, 64, 65, 127):
        payload = variant.encode_all(values[:size], bound_k)
        assert np.array_equal(payload, variant.oracle.encode(values[:size], bound_k))
        wanted = variant.oracle.decode(payload, size, bound_k)
        assert variant.decode(payload, size, bound_k) == (payload.size, wanted.tobytes())


near = st.integers(0, 2**27 - 1).map(lambda low: 0x38000000 + low)
"""Words of floats from 2^-15 to 2."""


@pytest.mark.slow
@every_variant
@settings(max_examples=examples(150))
@given(
    words=st.lists(st.one_of(st.just(0), near, near, st.integers(0, 2**32 - 1)), max_size=150),
    kind=st.sampled_from(["float32", "narrow", "bf16"]),
    bound_k=st.integers(1, 16),
    capacity=st.integers(0, 800),
    offset=st.integers(0, 3),
)
def test_what_fits_is_a_prefix_of_whole_bursts(
    variant: Variant, words: list[int], kind: str, bound_k: int, capacity: int, offset: int
) -> None:
    made = np.array(words, np.uint32)
    high = made & np.uint32(0xFFFF0000)
    values = {"float32": made, "narrow": high, "bf16": high | made >> 16}[kind].view(np.float32)
    count, payload = variant.encode(values, bound_k, capacity, offset)
    assert count == values.size or count % 8 == 0
    wanted = variant.oracle.round_trip(values[:count], bound_k)
    assert variant.decode(payload, count, bound_k) == (payload.size, wanted.tobytes())
    if variant in EXACT and count < min(GROUP, values.size):
        return  # the type was chosen from 64 words, some of which did not fit
    assert np.array_equal(payload, variant.oracle.encode(values[:count], bound_k))
    assert count == values.size or variant.oracle.encode(values[: count + 8], bound_k).size > capacity


PACKED = [variant for variant in VARIANTS if variant.codec == "packed"]
every_packed = pytest.mark.parametrize("variant", PACKED, ids=str)


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
    payload = variant.encode_all(values)
    assert payload.tobytes() == bytes.fromhex(runs)
    assert variant.decode(payload, floats) == (payload.size, values.tobytes())
    assert same_bits(variant.oracle.decode(payload, floats, 10), values)


@every_packed
def test_empty_bursts_of_a_group_that_does_not_fit_lengthen_the_run_before_it(variant: Variant) -> None:
    values = np.zeros(128, np.float32)
    values[[64 + 24, 64 + 40]] = 0.1
    for capacity, count in ((1, 0), (2, 88), (5, 88), (6, 104), (8, 128)):
        done, payload = variant.encode(values, capacity=capacity)
        assert (done, payload.tobytes()) == (count, variant.oracle.encode(values[:count], 10).tobytes())


@pytest.mark.parametrize("kernel", usable_kernels())
@pytest.mark.parametrize(
    ("codec", "payload", "count"),
    [
        ("packed", "0001", 64),  # a run longer than the payload
        ("packed", "0000 0000", 128),  # two runs that could be one
        ("packed", "00fe 0000", 64 * 256),
        ("packed", "00", 64),
        ("packed", "01 01", 64),  # no fields
        ("packed", "01 01 10", 64),  # what fills up the octet is not 0
        ("packed", "01 01 01", 64),  # two bits, of which one is enough
        ("packed", "01 01 07 7f", 64),
        ("packed", "01 01 0f 80", 64),
        ("packed", "01 01 07 ff 34", 64),  # half an escape
        ("packed", "01 02 00", 1),  # a lane beyond the last float
        ("packed", "03 01 00", 64),  # a burst without lanes
        ("exact", "", 1),
        ("exact", "c0", 1),  # no such kind
        ("exact", "10", 1),  # no such type of a group of zeros
        ("exact", "08", 1),  # a mask of a group of zeros
        ("exact", "41 00000000", 1),  # a width of a raw group
        ("exact", "40 000000", 1),
        ("exact", "b0 7f 00 00", 1),  # no such type
        ("exact", "87 7f" + "00" * 300, 64),  # no such width
        ("exact", "88 7f 00", 1),  # a mask without a bit
        ("exact", "80 7f 0000", 1),  # a rest of two octets
        ("exact", "90 7f", 1),
        ("exact", "91 7f 01 05", 1),  # an escape without its rest
        ("exact", "a1 7f", 1),  # no plane
    ],
)
def test_what_no_encoder_makes_is_refused(kernel: str, codec: str, payload: str, count: int) -> None:
    octets = np.frombuffer(bytes.fromhex(payload), np.uint8)
    assert Variant(codec, kernel).decode(octets, count)[0] == bursts.MALFORMED
    with pytest.raises(CodecError):
        get(codec).oracle.decode(octets, count, 10)


@every_packed
def test_a_run_may_follow_a_run_in_the_other_half(variant: Variant) -> None:
    payload = np.array([0, 1, 0, 0], np.uint8)
    assert variant.decode(payload, 192, middle=(2, 128)) == (4, bytes(4 * 192))
    assert variant.decode(payload, 192, middle=(2, 64))[0] == bursts.MALFORMED


@pytest.mark.slow
@every_variant
@settings(max_examples=examples(500))
@given(octets=st.binary(max_size=121), count=st.integers(0, 130))
def test_random_payloads_are_read_as_the_oracle_reads_them(variant: Variant, octets: bytes, count: int) -> None:
    payload = np.frombuffer(octets, np.uint8)
    read, got = variant.decode(payload, count)
    if read == bursts.MALFORMED:
        with pytest.raises(CodecError):
            variant.oracle.decode(payload, count, 10)
    else:
        assert variant.oracle.decode(payload[:read], count, 10).tobytes() == got


@pytest.mark.slow
@every_variant
@settings(max_examples=examples(200))
@given(octets=st.binary(max_size=120), count=st.integers(0, 150), half=st.integers(0, 150), data=st.data())
def test_halves_are_read_as_the_oracle_reads_each(
    variant: Variant, octets: bytes, count: int, half: int, data: st.DataObject
) -> None:
    half_count, bound_k = min(half, count) // 8 * 8, data.draw(st.integers(1, 16))
    values = np.random.default_rng(len(octets)).normal(0, data.draw(SCALES), count).astype(np.float32)
    first, rest = (variant.oracle.encode(part, bound_k) for part in (values[:half_count], values[half_count:]))
    second = data.draw(st.sampled_from([np.frombuffer(octets, np.uint8), rest]))
    payload = np.concatenate([first, second])
    half_len = data.draw(st.one_of(st.just(first.size), st.integers(0, payload.size)))
    read, got = variant.decode(payload, count, bound_k, (half_len, half_count))
    end = payload.size if read == bursts.MALFORMED else read
    try:
        parts = [
            variant.oracle.decode(payload[:half_len], half_count, bound_k),
            variant.oracle.decode(payload[half_len:end], count - half_count, bound_k),
        ]
    except CodecError:
        assert read == bursts.MALFORMED
    else:
        assert read != bursts.MALFORMED
        assert got == np.concatenate(parts).tobytes()


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
    code_bits = payload.size // max(-(-values.size // 8), 1)  # of one float, or octets of one burst
    if used := values.size % 8 * code_bits:
        bit = data.draw(st.integers(used, 8 * code_bits - 1))
        payload[payload.size - code_bits + bit // 8] |= 1 << bit % 8
        for decode in (chosen.decode, chosen.oracle.decode):
            with pytest.raises(CodecError):
                decode(payload, values.size, 10)


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
