"""16-bit floats: the float32 sum of a ring, rounded once; NaN, infinities, zeros and subnormals among them."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import Half, Operation, allreduce_halves, reduce_scatter_halves
from netoffload.collectives.inprocess import InProcessExchange, run_ranks
from netoffload.collectives.reference import reduce_scatter, ring_sum
from netoffload.collectives.schedule import consecutive
from netoffload.compiled.arrays import Float32Array, Uint16Array

SIZES = (1, 2, 3, 4, 5)
COUNTS = (0, 1, 2, 7, 1000, 200_001)
ENDS = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)


def as_float32(half: Half, bits: int) -> float:
    octets = struct.pack("<H", bits)
    return struct.unpack("<e", octets)[0] if half is Half.FLOAT16 else struct.unpack("<f", b"\0\0" + octets)[0]  # type: ignore[no-any-return]


def every(half: Half) -> Float32Array:
    return np.array([as_float32(half, bits) for bits in range(1 << 16)], np.float32)


def rounded(half: Half, values: Float32Array) -> Float32Array:
    """The nearest value of a type, by a search among all of them; of two, the one whose last bit is 0."""
    numbers = every(half)[:0x7C00] if half is Half.FLOAT16 else every(half)[:0x7F80]
    limit = float(numbers[-1]) + float(numbers[-1] - numbers[-2])  # where the next number would be
    known = np.append(numbers.astype(np.float64), limit)
    size = np.minimum(np.abs(values.astype(np.float64)), limit)
    size[np.isnan(size)] = 0
    above = np.searchsorted(known, size).clip(1)
    to_upper, to_lower = known[above] - size, size - known[above - 1]
    nearest = np.where((to_upper < to_lower) | ((to_upper == to_lower) & (above % 2 == 0)), above, above - 1)
    known[-1] = np.inf
    return np.where(np.isnan(values), np.nan, np.copysign(known[nearest], values)).astype(np.float32)


def assert_same(values: Float32Array, expected: Float32Array) -> None:
    np.testing.assert_array_equal(np.signbit(values[~np.isnan(values)]), np.signbit(expected[~np.isnan(expected)]))
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("half", Half)
def test_every_value_comes_back_and_every_float32_between_becomes_the_nearest(half: Half) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    wide = half.widened(bits)
    np.testing.assert_array_equal(wide, every(half))
    is_nan = np.isnan(wide)
    np.testing.assert_array_equal(half.narrowed(wide)[~is_nan], bits[~is_nan])
    words = (bits.astype(np.uint32)[:, None] << 16 | ENDS).reshape(-1)
    with np.errstate(all="ignore"):
        above = np.nextafter(wide[:-1], np.float32(np.inf))
        edges = np.concatenate([wide[:-1], above, (wide[:-1] + wide[1:]) / 2])
        for values in (words.view(np.float32), edges):
            assert_same(half.widened(half.narrowed(values)), rounded(half, values))


def halves_of(half: Half, rank: int, count: int) -> Uint16Array:
    """Gradients, every ninth replaced by any 16 bits: NaN and infinities among them, and the largest number."""
    random = np.random.default_rng([rank, count])
    halves = half.narrowed(random.normal(0, 0.05, count).astype(np.float32))
    halves[::9] = random.integers(0, 1 << 16, halves[::9].size)
    halves[1::9] = 0x8000  # -0.0
    halves[2::9] = half.narrowed(np.array([60_000], np.float32))  # whose sums are too large for float16
    return halves


def outcome(half: Half, vectors: Sequence[Uint16Array], operation: Operation, divisor: int) -> Float32Array:
    total = ring_sum([half.widened(one) for one in vectors], operation=operation)
    with np.errstate(invalid="ignore"):
        return rounded(half, total / np.float32(divisor))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "exact"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("half", Half)
def test_an_allreduce_is_the_rings_sum_rounded_once(size: int, half: Half, name: str) -> None:
    cases = [(count, Operation.SUM, divisor) for count, divisor in zip(COUNTS, (1, 3, 1, 3, 1, 3), strict=True)]
    cases += [(COUNTS[-2], operation, 1) for operation in Operation]

    def body(exchange: InProcessExchange) -> list[Uint16Array]:
        found = []
        for count, operation, divisor in cases:
            values = halves_of(half, exchange.rank, count)
            allreduce_halves(exchange, values, half, tagged=bool(name), operation=operation, divisor=divisor)
            found.append(values)
        return found

    results = run_ranks(size, body, codec=codec.get(name) if name else None, bound_k=10)
    for (count, operation, divisor), *found in zip(cases, *results, strict=True):
        assert [one.tobytes() for one in found] == [found[0].tobytes()] * size
        vectors = [halves_of(half, rank, count) for rank in range(size)]
        assert_same(half.widened(found[0]), outcome(half, vectors, operation, divisor))


@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("counts", [[5, 0, 300, 1], [0, 0, 0], [7, 7], [70_001, 3, 1, 140_000, 2], [9]])
def test_a_reduce_scatter_leaves_parts_of_any_length_in_float32(half: Half, counts: list[int]) -> None:
    spans, size = consecutive(counts), len(counts)
    vectors = [halves_of(half, rank, sum(counts)) for rank in range(size)]

    def body(exchange: InProcessExchange) -> Float32Array:
        return reduce_scatter_halves(exchange, vectors[exchange.rank], spans, half, tagged=False, divisor=size)

    expected = reduce_scatter([half.widened(one) for one in vectors], spans)
    for own, part in zip(run_ranks(size, body), expected, strict=True):
        assert_same(own, part / np.float32(size))
