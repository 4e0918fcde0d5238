"""The 8-bit types: their tables number by number, the nearest number, and the payloads that they refuse."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout, registry
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.eight_bit import EightBit
from netoffload.compressors.tables import MIDDLE_CUT, TYPES, magnitudes, table_of, tree_number
from netoffload.errors import CodecError, UsageError
from tests.compressors.oracles import octets_exact

EVERY_TYPE = pytest.mark.parametrize("kind", TYPES)
LARGE = 2_003 if JIT_DISABLED else 1_000_003

# fmt: off
TREE = (
    # 0 bits
    0.45,
    # 1 bits
    0.275, 0.725,
    # 2 bits
    0.1875, 0.3625, 0.5875, 0.8625,
    # 3 bits
    0.14375, 0.23125, 0.31875, 0.40625, 0.51875, 0.65625, 0.79375, 0.93125,
    # 4 bits
    0.121875, 0.165625, 0.209375, 0.253125, 0.296875, 0.340625, 0.384375, 0.428125, 0.484375,
    0.553125, 0.621875, 0.690625, 0.759375, 0.828125, 0.896875, 0.965625,
    # 5 bits
    0.1109375, 0.1328125, 0.1546875, 0.1765625, 0.1984375, 0.2203125, 0.2421875, 0.2640625, 0.2859375,
    0.3078125, 0.3296875, 0.3515625, 0.3734375, 0.3953125, 0.4171875, 0.4390625, 0.4671875, 0.5015625,
    0.5359375, 0.5703125, 0.6046875, 0.6390625, 0.6734375, 0.7078125, 0.7421875, 0.7765625, 0.8109375,
    0.8453125, 0.8796875, 0.9140625, 0.9484375, 0.9828125,
    # 6 bits
    0.10546875, 0.11640625, 0.12734375, 0.13828125, 0.14921875, 0.16015625, 0.17109375, 0.18203125, 0.19296875,
    0.20390625, 0.21484375, 0.22578125, 0.23671875, 0.24765625, 0.25859375, 0.26953125, 0.28046875, 0.29140625,
    0.30234375, 0.31328125, 0.32421875, 0.33515625, 0.34609375, 0.35703125, 0.36796875, 0.37890625, 0.38984375,
    0.40078125, 0.41171875, 0.42265625, 0.43359375, 0.44453125, 0.45859375, 0.47578125, 0.49296875, 0.51015625,
    0.52734375, 0.54453125, 0.56171875, 0.57890625, 0.59609375, 0.61328125, 0.63046875, 0.64765625, 0.66484375,
    0.68203125, 0.69921875, 0.71640625, 0.73359375, 0.75078125, 0.76796875, 0.78515625, 0.80234375, 0.81953125,
    0.83671875, 0.85390625, 0.87109375, 0.88828125, 0.90546875, 0.92265625, 0.93984375, 0.95703125, 0.97421875,
    0.99140625,
)
# fmt: on
"""Every number of the bisection tree of (0.1, 1) with its first cut at 0.45, by depth."""

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


def gradient(count: int, seed: int = 1) -> Float32Array:
    return np.random.default_rng([seed, count]).standard_normal(count, np.float32) * np.float32(0.01)


def exact(decimal: str) -> Fraction:
    return Fraction(decimal)


def test_the_dynamic_tree_is_this_list() -> None:
    tree = [Fraction(str(number)) for number in TREE]
    assert len(tree) == 127
    wanted = [Fraction(0)]
    for bits in range(7):
        wanted += [number / 10 ** (6 - bits) for number in tree[(1 << bits) - 1 : (2 << bits) - 1]]
    assert magnitudes("dynamic") == wanted
    assert magnitudes("dynamic") == sorted(magnitudes("dynamic"))


def test_the_static_tree_is_this_list() -> None:
    leaves = [Fraction(str(number)) for number in TREE[15:31]]
    assert magnitudes("static") == [leaf / 10**exponent for exponent in range(8) for leaf in leaves]


def test_mantissa_and_linear_are_these_lists() -> None:
    assert magnitudes("mantissa")[:18] == [*range(16), 0, Fraction(1, 10)]
    assert magnitudes("mantissa")[-1] == exact("0.0000015")
    assert magnitudes("linear") == [Fraction(k, 127) for k in range(128)]


@pytest.mark.parametrize(
    ("value", "printed", "digits"), [(0.2345678, 0.236719, 6), (0.0000234, 0.000019, 6), (0.9999, 0.9914, 4)]
)
def test_the_papers_examples(value: float, printed: float, digits: int) -> None:
    """Section 3.1; the third is the largest number of the clusterNet program's table."""
    compressor, layout = EightBit("dynamic", norm="offset"), Layout.flat(1)
    payload = compressor.encode(np.array([value], np.float32), compressor.make_state(layout))
    assert round(float(compressor.decode(payload, layout)[0]), digits) == printed


def test_the_papers_static_example_is_a_cut_on_the_way() -> None:
    assert tree_number(0b001, 3) == exact("0.23125")
    assert tree_number(0b001, 3, MIDDLE_CUT) != exact("0.23125")


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
    layout = Layout.flat(values.size)
    payload = compressor.encode(values, compressor.make_state(layout))
    assert np.array_equal(payload[HEADER_OCTETS:], octets_exact(values, table))
    decoded = compressor.decode(payload, layout)
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
        payload = compressor.encode(values, compressor.make_state(layout))
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
    layout = Layout.flat(values.size)
    for kind in TYPES:
        compressor = EightBit(kind, norm="offset")
        payload = compressor.encode(values, compressor.make_state(layout))
        assert np.array_equal(payload[HEADER_OCTETS:], octets_exact(values, compressor.table))


@EVERY
def test_size_is_known_before(compressor: EightBit) -> None:
    for count in (*range(0, 1001, 50 if JIT_DISABLED else 1), LARGE):
        state = compressor.make_state(Layout.flat(count))
        values = gradient(count)
        assert compressor.wire_size(values, state) == compressor.encode(values, state).size


def test_zero_groups_and_the_largest_floats() -> None:
    compressor, layout = EightBit("linear", bucket=2), Layout.flat(6)
    values = np.array([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, -1e-45], np.float32)
    payload = compressor.encode(values, compressor.make_state(layout))
    decoded = compressor.decode(payload, layout)
    assert np.array_equal(decoded, values)
    assert not np.signbit(decoded[1])


@EVERY
def test_what_no_encoder_makes_is_refused(compressor: EightBit) -> None:
    layout = Layout.flat(70)
    payload = compressor.encode(gradient(70), compressor.make_state(layout))
    for wrong in (payload[:-1].copy(), np.append(payload, np.uint8(0)), payload[:5].copy()):
        with pytest.raises(CodecError):
            compressor.decode(wrong, layout)
    if compressor.norm == "max":
        for scaler in (-1.0, np.nan, np.inf, -0.0):
            broken = payload.copy()
            broken[HEADER_OCTETS : HEADER_OCTETS + 4] = np.array([scaler], np.float32).view(np.uint8)
            with pytest.raises(CodecError, match="scaler"):
                compressor.decode(broken, layout)
    forbidden = np.flatnonzero(np.isnan(compressor.table.values))
    for octet in forbidden[::5]:
        broken = payload.copy()
        broken[-3] = octet
        with pytest.raises(CodecError, match="octet 67"):
            compressor.decode(broken, layout)
    others = [other for other in COMPRESSORS if other.flags != compressor.flags]
    for other in others:
        with pytest.raises(CodecError):
            other.decode(payload, layout)


@EVERY_TYPE
def test_every_octet_is_decoded_or_refused_and_made_again(kind: str) -> None:
    compressor = EightBit(kind, norm="offset")
    allowed = np.flatnonzero(~np.isnan(compressor.table.values)).astype(np.uint8)
    layout = Layout.flat(allowed.size)
    head = compressor.encode(np.zeros(allowed.size, np.float32), compressor.make_state(layout))[:HEADER_OCTETS]
    payload = np.concatenate([head, allowed])
    values = compressor.decode(payload, layout)
    assert np.array_equal(compressor.encode(values, compressor.make_state(layout)), payload)
    assert {"dynamic": 255, "static": 256, "mantissa": 227, "linear": 255}[kind] == allowed.size


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "tree"},
        {"norm": "l2"},
        {"bucket": -1},
        {"norm": "offset", "bucket": 5},
        {"offset": 1},
        {"norm": "offset", "offset": 16},
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        registry.get("8bit", **parameters)


@pytest.mark.parametrize("kind", TYPES)
def test_the_papers_names(kind: str) -> None:
    compressor = registry.parse(f"8bit-{kind}")
    assert isinstance(compressor, EightBit)
    assert compressor.type == kind
    assert compressor.norm == ("max" if kind in ("dynamic", "linear") else "offset")
    assert registry.parse(compressor.spec) == compressor
