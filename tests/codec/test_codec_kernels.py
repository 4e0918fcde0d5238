"""Every kernel against the slow oracle, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import plain, reference
from netoffload.codec.jit import JIT_DISABLED
from netoffload.codec.kernels import KERNEL
from netoffload.errors import CodecError

Float32Array = npt.NDArray[np.float32]
Uint8Array = npt.NDArray[np.uint8]

CANARY = 0xA5
BOUNDS = (1, 2, 7, 10, 15, 16) if JIT_DISABLED else tuple(range(1, 17))


def _variants() -> Iterator[ModuleType]:
    yield plain
    if KERNEL == "avx512":
        from netoffload.codec import avx512

        yield avx512


VARIANTS = list(_variants())
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda module: module.__name__.rpartition(".")[2])


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


def encode(variant: ModuleType, values: Float32Array, bound_k: int) -> Uint8Array:
    """Encode everything; canaries stand before and behind what the contract lets a kernel write."""
    capacity = -(-values.size // 8) * plain.MAX_BURST_PAYLOAD
    target = np.full(16 + capacity + plain.ENCODE_SLACK + 16, CANARY, np.uint8)
    classes = np.zeros(4, np.int64)
    count, length = variant.encode_fit(values.view(np.uint8), 0, values.size, bound_k, target, 16, capacity, classes)
    assert count == values.size
    assert classes.sum() == values.size
    tags, _ = reference.compress(values, bound_k)
    assert classes.tolist() == np.bincount(tags, minlength=4).tolist()
    assert (target[:16] == CANARY).all()
    assert (target[-16:] == CANARY).all()
    return target[16 : 16 + length].copy()


def decode(variant: ModuleType, payload: Uint8Array, count: int) -> Float32Array:
    """Decode ``count`` floats; canaries stand around the target."""
    padded = np.concatenate([payload, np.full(plain.DECODE_SLACK, CANARY, np.uint8)])
    assert plain.payload_len(padded, 0, payload.size, count) == payload.size
    room = 4 * 8 * -(-count // 8)
    target = np.full(16 + room + 16, CANARY, np.uint8)
    assert variant.decode(padded, 0, count, target, 16) == payload.size
    assert (target[:16] == CANARY).all()
    assert (target[16 + room :] == CANARY).all()
    return target[16 : 16 + 4 * count].view(np.float32)


def same_bits(left: Float32Array, right: Float32Array) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


@every_variant
@pytest.mark.parametrize("bound_k", BOUNDS)
def test_every_exponent_is_bit_exact(variant: ModuleType, bound_k: int) -> None:
    values = np.concatenate([every_exponent(bound_k), special_values()])
    payload = encode(variant, values, bound_k)
    assert payload.size == _expected_len(values, bound_k)
    wanted = reference.round_trip(values, bound_k)
    assert same_bits(decode(variant, payload, values.size), wanted)
    target = np.empty(values.size, np.uint32)
    plain.round_trip(values.view(np.uint32), bound_k, target)
    assert same_bits(target.view(np.float32), wanted)


def _expected_len(values: Float32Array, bound_k: int) -> int:
    tags, _ = reference.compress(values, bound_k)
    return 2 * -(-values.size // 8) + int(np.array(reference.TAG_OCTETS)[tags].sum())


@every_variant
@pytest.mark.parametrize("bound_k", [6, 8, 10])
def test_payload_octets_equal_the_oracles(variant: ModuleType, bound_k: int) -> None:
    rng = np.random.default_rng(bound_k)
    values = np.concatenate(
        [special_values(), *(rng.normal(0, scale, 500).astype(np.float32) for scale in (1e-3, 1e-2, 1e-1, 10))]
    )
    for part in (values, values[:0], values[:1], values[:7], values[:8], values[:9]):
        payload = encode(variant, part, bound_k)
        assert np.array_equal(payload, reference.encode(part, bound_k))
        assert same_bits(decode(variant, payload, part.size), reference.decode(payload, part.size, bound_k))


@every_variant
@settings(deadline=None, max_examples=20 if JIT_DISABLED else 200)
@given(
    words=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    bound_k=st.integers(1, 16),
    capacity=st.integers(0, 400),
    offset=st.integers(0, 3),
)
def test_what_fits_is_a_prefix_of_whole_bursts(
    variant: ModuleType, words: list[int], bound_k: int, capacity: int, offset: int
) -> None:
    values = np.array(words, np.uint32).view(np.float32)
    source = np.concatenate([np.zeros(offset, np.uint8), values.view(np.uint8)])
    target = np.full(capacity + plain.ENCODE_SLACK + 16, CANARY, np.uint8)
    classes = np.zeros(4, np.int64)
    count, length = variant.encode_fit(source, offset, values.size, bound_k, target, 0, capacity, classes)
    assert length <= capacity
    assert count == values.size or count % 8 == 0
    assert classes.sum() == count
    assert np.array_equal(target[:length], reference.encode(values[:count], bound_k))
    assert count == values.size or reference.encode(values[: count + 8], bound_k).size > capacity
    assert (target[-16:] == CANARY).all()


@settings(deadline=None, max_examples=50 if JIT_DISABLED else 500)
@given(octets=st.binary(max_size=120), count=st.integers(0, 60))
def test_random_payloads_are_measured_like_the_oracle_reads_them(octets: bytes, count: int) -> None:
    payload = np.frombuffer(octets, np.uint8)
    padded = np.concatenate([payload, np.zeros(plain.DECODE_SLACK, np.uint8)])
    measured = plain.payload_len(padded, 0, payload.size, count)
    if measured == plain.MALFORMED:
        with pytest.raises(CodecError):
            reference.decode(payload, count, 10)
    else:
        assert reference.decode(payload[:measured], count, 10).size == count


def test_this_cpus_kernel_is_the_one_tested() -> None:
    assert KERNEL in [module.__name__.rpartition(".")[2] for module in VARIANTS]
