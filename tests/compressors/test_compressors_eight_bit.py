"""The 8-bit types: their tables number by number, the nearest number, and the payloads that they refuse."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.eight_bit import EightBit
from netoffload.compressors.tables import MIDDLE_CUT, TYPES, magnitudes, table_of, tree_number
from netoffload.errors import CodecError
from tests.compressors.oracles import changed, encoded, gradient, octets_exact

EVERY_TYPE = pytest.mark.parametrize("kind", TYPES)

COMPRESSORS = (
    EightBit("dynamic"),
    EightBit("dynamic", bucket=64),
    EightBit("linear"),
    EightBit("linear", bucket=1),
    EightBit("static", norm="offset"),
    EightBit("mantissa", norm="offset", offset=1),
    EightBit("static", norm="max", bucket=100),
    EightBit("dynamic", norm="offset", offset=-1),
)
EVERY = pytest.mark.parametrize("compressor", COMPRESSORS, ids=[compressor.spec for compressor in COMPRESSORS])


def cuts(bits: int, low: Fraction = Fraction("0.1"), high: Fraction = Fraction(1)) -> list[Fraction]:
    """The cuts of (low, high) after ``bits`` bisections, in order; the whole interval's first cut is at 0.45."""
    cut = Fraction("0.45") if high - low == Fraction("0.9") else (low + high) / 2
    return [*cuts(bits - 1, low, cut), *cuts(bits - 1, cut, high)] if bits else [cut]


def test_the_trees_are_cuts_of_an_interval() -> None:
    assert [float(cut) for cut in cuts(2)] == [0.1875, 0.3625, 0.5875, 0.8625]
    dynamic = [Fraction(0), *(cut / 10 ** (6 - bits) for bits in range(7) for cut in cuts(bits))]
    assert magnitudes("dynamic") == dynamic == sorted(dynamic)
    assert magnitudes("static") == [cut / 10**exponent for exponent in range(8) for cut in cuts(4)]


def test_mantissa_and_linear_are_these_lists() -> None:
    assert magnitudes("mantissa")[:18] == [*range(16), 0, Fraction(1, 10)]
    assert magnitudes("mantissa")[-1] == Fraction("0.0000015")
    assert magnitudes("linear") == [Fraction(k, 127) for k in range(128)]


@pytest.mark.parametrize(
    ("value", "printed", "digits"), [(0.2345678, 0.236719, 6), (0.0000234, 0.000019, 6), (0.9999, 0.9914, 4)]
)
def test_the_papers_examples(value: float, printed: float, digits: int) -> None:
    """Section 3.1; the third is the largest number of the clusterNet program's table."""
    compressor = EightBit("dynamic", norm="offset")
    payload = encoded(compressor, np.array([value], np.float32))
    assert round(float(compressor.decode(payload, Layout.flat(1))[0]), digits) == printed


def test_the_papers_static_example_is_a_cut_on_the_way() -> None:
    assert tree_number(0b001, 3) == Fraction("0.23125")
    assert tree_number(0b001, 3, MIDDLE_CUT) != Fraction("0.23125")


def test_the_other_reading_misses_the_papers_examples() -> None:
    others = [float(number) for number in magnitudes("dynamic", MIDDLE_CUT)]
    assert not any(round(number, 6) in (0.236719, 0.000019) for number in others)


def test_bits_of_some_octets() -> None:
    """Sign, zeros, flag, tree: read off the docstring by hand."""
    values = table_of("dynamic").values
    assert values[0b0_0000000] == 0
    assert values[0b0_1_000000] == np.float32(float(tree_number(0, 6)))
    assert values[0b1_1_111111] == np.float32(-0.99140625)
    assert values[0b0_01_10000] == np.float32(float(tree_number(16, 5)) / 10)
    assert values[0b1_0000001] == np.float32(-0.45e-6)
    assert np.isnan(values[0b1_0000000])
    static = table_of("static", 1).values
    assert static[0b0_010_1111] == np.float32(float(tree_number(15, 4)) / 10)
    mantissa = table_of("mantissa").values
    assert mantissa[0b1_001_0011] == np.float32(-0.3)
    assert np.isnan(mantissa[0b0_001_1010])  # 10 x 10^-1, which is 1 x 10^0


@pytest.mark.slow
@EVERY_TYPE
@pytest.mark.parametrize("offset", [0, 1, -3])
def test_the_nearest_number_is_found_around_every_limit(kind: str, offset: int) -> None:
    table, compressor = table_of(kind, offset), EightBit(kind, norm="offset", offset=offset)
    limits = table.limits[: table.ranked.size - 1].view(np.float32)
    middles = (table.ranked[1:].astype(np.float64) + table.ranked[:-1]) / 2
    assert np.all(limits <= middles)
    assert np.all(np.nextafter(limits, np.float32(np.inf)) > middles)  # so a tie goes to the smaller number
    tiny = np.array([0, 1e-45, 1e-40, 1e-38, 3e38], np.float32)
    near = np.concatenate([limits, np.nextafter(limits, np.float32(np.inf)), table.ranked, tiny])
    values = np.concatenate([near, -near]).astype(np.float32)
    payload = encoded(compressor, values)
    assert np.array_equal(payload[HEADER_OCTETS:], octets_exact(values, table))
    decoded = compressor.decode(payload, Layout.flat(values.size))
    for value, number in zip(values.tolist()[::7], decoded.tolist()[::7], strict=True):
        distance = min(abs(Fraction(abs(value)) - Fraction(candidate)) for candidate in table.ranked.tolist())
        assert abs(Fraction(value) - Fraction(number)) == distance


@EVERY
def test_kernel_and_oracle_agree(compressor: EightBit) -> None:
    for count in (0, 1, 2, 63, 64, 65, 1023, 1024, 1025, 3000):
        layout = Layout((count // 3, 0, count - count // 3))
        values = gradient(count)
        values[::17] = 0
        values[1::29] = -0.0
        values[2::31] = 1e-40
        payload = encoded(compressor, values, layout)
        octets, scalers = payload[payload.size - count :], np.ones(1, np.float32)
        groups = np.array([0, count], np.int64)
        if compressor.norm == "max":
            groups = layout.groups(compressor.bucket)
            scalers = payload[HEADER_OCTETS : payload.size - count].copy().view(np.float32)
            assert scalers.tolist() == [np.abs(values[a:b]).max() for a, b in pairwise(groups)]
        decoded = compressor.decode(payload, layout)
        for first, end, scaler in zip(groups, groups[1:], scalers, strict=False):
            part = values[first:end] / (scaler if scaler else np.float32(1))
            assert np.array_equal(octets[first:end], octets_exact(part, compressor.table))
            wanted = compressor.table.values[octets[first:end]] * scaler
            assert decoded[first:end].tobytes() == wanted.tobytes()


def test_all_floats_of_a_cell_sample() -> None:
    """A dense walk over the bits, every type: the look-up is the search."""
    words = np.arange(0, 0x7F800000, 2_000_003 if JIT_DISABLED else 1_009, dtype=np.uint32)
    values = words.view(np.float32)
    for kind in TYPES:
        compressor = EightBit(kind, norm="offset")
        payload = encoded(compressor, values)
        assert np.array_equal(payload[HEADER_OCTETS:], octets_exact(values, compressor.table))


def test_zero_groups_and_the_largest_floats() -> None:
    compressor = EightBit("linear", bucket=2)
    values = np.array([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, -1e-45], np.float32)
    decoded = compressor.decode(encoded(compressor, values), Layout.flat(6))
    assert np.array_equal(decoded, values)
    assert not np.signbit(decoded[1])


@EVERY
def test_octets_of_no_number_are_refused(compressor: EightBit) -> None:
    payload = encoded(compressor, gradient(70))
    for octet in np.flatnonzero(np.isnan(compressor.table.values))[::5]:
        with pytest.raises(CodecError, match="octet 67"):
            compressor.decode(changed(payload, -3, bytes([octet])), Layout.flat(70))


@EVERY_TYPE
def test_every_octet_is_decoded_or_refused_and_made_again(kind: str) -> None:
    compressor = EightBit(kind, norm="offset")
    allowed = np.flatnonzero(~np.isnan(compressor.table.values)).astype(np.uint8)
    payload = np.concatenate([encoded(compressor, np.zeros(allowed.size, np.float32))[:HEADER_OCTETS], allowed])
    values = compressor.decode(payload, Layout.flat(allowed.size))
    assert np.array_equal(encoded(compressor, values), payload)
    assert {"dynamic": 255, "static": 256, "mantissa": 227, "linear": 255}[kind] == allowed.size
