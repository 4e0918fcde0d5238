"""Every method's payload has the oracle's octets and the promised size, and other payloads are refused."""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Compressor, Layout, State, libraries, registry
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.libraries import General
from netoffload.compressors.qsgd import NORMS, Qsgd
from netoffload.compressors.scalers import Scale
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import CodecError, NotFiniteError, UsageError
from tests.compressors.oracles import (
    changed,
    damaged,
    elias_exact,
    encoded,
    group_scalers_exact,
    levels_exact,
    pack_exact,
    pack_trits_exact,
    round_exact,
)
from tests.shared.example_counts import examples
from tests.shared.quick_cases import NIGHT

STOCHASTIC = (
    "terngrad",
    "terngrad:packing=bits,clip_factor=0",
    "terngrad:bucket=7,exempt=2",
    "qsgd",
    "qsgd:levels=5,bucket=7",
    "qsgd:levels=2.5,norm=l2,bucket=0",
    "qsgd:norm=l2,rule=n,bucket=33",
    "qsgd:norm=l2,rule=mpn,batch=64,period=8,bucket=0",
    "qsgd:levels=32767,bucket=0",
    "qsgd:coding=gamma,bucket=33",
    "qsgd:norm=l2,rule=mn,batch=25,coding=omega",
    "qsgd:norm=l2,levels=1,coding=gaps",
    "qsgd:norm=l2,rule=mn,batch=4000000000,bucket=0",
    "qsgd:norm=l2,rule=mn,batch=4000000000,bucket=33,coding=omega",
)
SPECS = (
    *("none", "chunked-topk:k=3,chunk=16", "nic", "nic:codec=bounded,bound=7", "nic:codec=truncate22", "fp16", "bf16"),
    *STOCHASTIC,
    *(f"{name}:threshold={threshold}" for name in ("wgt", "bgt", "qgt") for threshold in (0.002, 0.02, 0.03)),
    *("8bit-dynamic", "8bit-dynamic:bucket=64", "8bit-linear", "8bit-linear:bucket=1", "8bit:type=static,bucket=100"),
    *("8bit-static", "8bit-mantissa:offset=1", "8bit-dynamic:norm=offset,offset=-1"),
    *(General(library).spec for library in libraries.available()),
)
BY_SPEC = pytest.mark.parametrize("spec", SPECS)

RANDOM = np.random.default_rng(1)
INPUTS: dict[str, Any] = {
    "empty": [],
    "one": [-0.25],
    "zeros": [0.0] * 20,
    "minus zero": [-0.0, 0.5, -0.0, -0.25, 0.0],
    "subnormal": [1e-45, -3e-42, 1e-39, 0.0, -1e-45],
    "one subnormal": [1e-45],
    "huge": [1e38, -3e37, 2.0, 1e-30],
    "equal": [0.125] * 50,
    "gaussian": RANDOM.normal(0, 1e-3, 1003),
    "heavy": RANDOM.standard_t(1.5, 515),
}


def vector(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def layout_of(count: int) -> Layout:
    """Three layers and an empty one."""
    return Layout((count // 2, 0, count // 3, count - count // 2 - count // 3))


def made_exactly(compressor: Compressor, values: np.ndarray, state: State) -> tuple[bytes, np.ndarray]:
    """The payload, and what it stands for."""
    header = struct.pack("<BBBBI", 0xC7, 1, compressor.method_id, compressor.flags, values.size)
    if isinstance(compressor, TernGrad):
        sizes = state.layout.sizes
        ternary = Layout(sizes[: len(sizes) - compressor.exempt])
        bounds, coded, rest = ternary.groups(compressor.bucket), values[: ternary.count], values[ternary.count :]
        scalers = group_scalers_exact(coded, bounds, Scale.LARGEST, compressor.clip_factor)
        codes = round_exact(coded, bounds, scalers, np.ones_like(scalers), state.key())
        trits = np.where(codes > 0, codes - 1, 0)
        stream = pack_exact(codes, 2) if compressor.packing == "bits" else pack_trits_exact(trits)
        came_back = np.concatenate((levels_exact(codes, bounds, scalers, np.ones_like(scalers)), rest))
        return header + scalers.tobytes() + stream + rest.tobytes(), came_back
    assert isinstance(compressor, Qsgd)
    bounds = state.layout.groups(compressor.bucket)
    levels, scalers = compressor.levels_of(bounds), group_scalers_exact(values, bounds, NORMS[compressor.norm])
    rest = values.copy()  # without the values whose level does not fit a code
    for scaler, s, (first, last) in zip(scalers, levels, pairwise(bounds), strict=True):
        for at in range(first, last):
            if scaler > 0 and abs(values[at]) / scaler * s > 32767:
                rest[at] = 0
    large = np.flatnonzero(rest != values)
    codes = round_exact(rest, bounds, scalers, levels, state.key())
    came_back = levels_exact(codes, bounds, scalers, levels)
    came_back[large] = values[large]
    head = header + (levels[0] if levels.size else np.float32(0)).tobytes() + scalers.tobytes()
    if (levels > 32767).any():
        head += struct.pack("<I", large.size) + large.astype("<u4").tobytes() + values[large].tobytes()
    if compressor.coding != "fixed":
        return head + elias_exact(codes, compressor.coding), came_back
    tops = levels
    if compressor.norm == "l2":
        largest = group_scalers_exact(rest, bounds, Scale.LARGEST)
        tops = np.minimum(largest / np.where(scalers > 0, scalers, np.float32(1)) * levels, levels)
    widths = [int(np.ceil(max(top, 1))).bit_length() + 1 if c > 0 else 0 for top, c in zip(tops, scalers, strict=True)]
    streams = [pack_exact(codes[slice(*ends)], width) for ends, width in zip(pairwise(bounds), widths, strict=True)]
    return head + (bytes(widths) if compressor.norm == "l2" else b"") + b"".join(streams), came_back


@pytest.mark.slow
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("spec", STOCHASTIC)
def test_payload_and_values_are_the_oracles(spec: str, kind: str) -> None:
    compressor, values = registry.parse(spec), vector(INPUTS[kind])
    layout = layout_of(values.size)
    state = compressor.make_state(layout, seed=9, rank=3)
    state.step = 17
    before = values.tobytes()
    wanted, came_back = made_exactly(compressor, values, state)
    assert compressor.wire_size(values, state) == len(wanted)
    assert state.step == 17
    payload = compressor.encode(values, state)
    assert payload.dtype == np.uint8
    assert payload.tobytes() == wanted
    assert (state.step, values.tobytes()) == (18, before)
    assert compressor.decode(payload, layout).tobytes() == came_back.tobytes()


@pytest.mark.slow
@BY_SPEC
def test_wire_size_is_the_length_for_every_count(spec: str) -> None:
    compressor = registry.parse(spec)
    step = 125 if JIT_DISABLED else 50 if isinstance(compressor, General) else 1 if NIGHT else 3
    counts = (*range(0, 1001, step), *(() if JIT_DISABLED else (1_000_003,)))
    values = np.random.default_rng(2).normal(0, 0.02, max(counts)).astype(np.float32)
    for count in counts:
        state = compressor.make_state(layout_of(count))
        said = compressor.wire_size(values[:count], state)
        assert state.step == 0
        payload = compressor.encode(values[:count], state)
        assert payload.size == said
        assert compressor.decode(payload, state.layout).shape == (count,)


@BY_SPEC
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_nothing_changes(spec: str, bad: float) -> None:
    compressor = registry.parse(spec)
    values = np.random.default_rng(3).normal(0, 0.02, 40).astype(np.float32)
    state = compressor.make_state(layout_of(40), error_feedback=True)
    compressor.encode(values, state)
    before = state.to_bytes()
    values[[31, 37]] = bad
    for attempt in (compressor.encode, compressor.wire_size):
        with pytest.raises(UsageError, match="not finite: value 31 is"):
            attempt(values, state)
    assert state.to_bytes() == before


@BY_SPEC
def test_other_arrays_are_refused(spec: str) -> None:
    compressor = registry.parse(spec)
    state = compressor.make_state(Layout((4,)))
    for values in (np.zeros(4), np.zeros(5, np.float32), np.zeros(8, np.float32)[::2], np.zeros((2, 2), np.float32)):
        with pytest.raises(UsageError, match=r"contiguous float32\[4\]"):
            compressor.encode(values.astype(values.dtype, copy=False), state)
    not_arrays: Any = [0.0] * 4
    with pytest.raises(UsageError, match="not list"):
        compressor.encode(not_arrays, state)
    with pytest.raises(UsageError, match="not list"):
        compressor.decode(not_arrays, state.layout)
    octets: Any = (np.zeros(20, np.int8), np.zeros(40, np.uint8)[::2], np.zeros((4, 5), np.uint8))
    for payload in octets:
        with pytest.raises(UsageError, match="contiguous array of octets"):
            compressor.decode(payload, state.layout)


@BY_SPEC
def test_a_wrong_header_or_length_is_refused(spec: str) -> None:
    compressor = registry.parse(spec)
    layout = layout_of(50)
    payload = compressor.encode(np.full(50, 0.25, np.float32), compressor.make_state(layout))
    for octet in range(HEADER_OCTETS):
        wrong = payload.copy()
        wrong[octet] ^= 0x10
        with pytest.raises(CodecError):
            compressor.decode(wrong, layout)
    for cut in (*(payload[:length].copy() for length in range(payload.size)), np.append(payload, np.uint8(0))):
        with pytest.raises(CodecError):
            compressor.decode(cut, layout)
    with pytest.raises(CodecError, match="50 floats, the layout 49"):
        compressor.decode(payload, layout_of(49))
    for other in map(registry.parse, SPECS):
        if (other.method_id, other.flags) != (compressor.method_id, compressor.flags):
            with pytest.raises(CodecError):
                other.decode(payload, layout)


@BY_SPEC
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_damaged_payload_is_refused_or_decodes_to_finite_values(spec: str, data: st.DataObject) -> None:
    compressor = registry.parse(spec)
    count = data.draw(st.integers(0, 80))
    layout = layout_of(count)
    values = np.random.default_rng(count).normal(0, 0.02, count).astype(np.float32)
    payload = damaged(encoded(compressor, values, layout), HEADER_OCTETS, data)
    try:
        decoded = compressor.decode(payload, layout)
    except CodecError:
        return
    assert decoded.shape == (count,)
    assert np.isfinite(decoded).all()


def _octets(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


BAD_SCALERS = [_octets(scaler) for scaler in (np.inf, np.nan, -1.0, -0.0)]


@pytest.mark.parametrize(
    ("spec", "at", "wrong", "says"),
    [
        ("none", -4, [_octets(np.inf)], "not finite"),
        ("nic:codec=none", -4, [_octets(np.inf)], "not finite"),
        ("terngrad:exempt=1", -4, [_octets(np.inf)], "not finite"),
        ("terngrad", 8, BAD_SCALERS, "scaler"),
        ("qsgd", 12, BAD_SCALERS, "scaler"),
        ("qsgd:coding=omega", 12, BAD_SCALERS, "scaler"),
        *((f"8bit:{form}", 8, BAD_SCALERS, "scaler") for form in ("bucket=64", "type=linear,bucket=1", "type=static")),
        ("terngrad:clip_factor=0,packing=bits", 16, [b"\x01"], "sign without a level"),
        ("terngrad:clip_factor=0", 16, [b"\xf3"], "above 242"),
        ("qsgd:levels=5", 20, [b"\x0c"], "level that its s does not have"),
        ("qsgd:levels=5", 20, [b"\x01"], "sign without a level"),
        ("qsgd:norm=l2,levels=9", 20, [bytes([width]) for width in (0, 1, 17, 255)], "width"),
    ],
)
def test_what_no_encoder_sends_is_refused(spec: str, at: int, wrong: list[bytes], says: str) -> None:
    compressor, layout = registry.parse(spec), Layout((8, 8))
    payload = encoded(compressor, np.full(16, 0.25, np.float32), layout)
    for octets in wrong:
        with pytest.raises(CodecError, match=says):
            compressor.decode(changed(payload, at, octets), layout)


def test_a_decoder_with_another_s_refuses() -> None:
    layout = Layout((16,))
    payload = encoded(registry.parse("qsgd:levels=9"), np.full(16, 0.25, np.float32))
    with pytest.raises(CodecError, match="another number of levels"):
        registry.parse("qsgd:levels=8").decode(payload, layout)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # by NumPy, where nothing is compiled
def test_a_length_beyond_float32_is_refused() -> None:
    compressor = registry.parse("qsgd:norm=l2")
    with pytest.raises(NotFiniteError, match="length of the gradient"):
        compressor.encode(np.full(16, 3e38, np.float32), compressor.make_state(Layout((16,))))
    compressor = registry.parse("qsgd:levels=1.5")
    with pytest.raises(NotFiniteError, match="highest level"):
        compressor.encode(np.full(16, 3e38, np.float32), compressor.make_state(Layout((16,))))


def test_damaged_indices_of_large_values_are_refused() -> None:
    compressor = registry.parse("qsgd:norm=l2,rule=mn,batch=4000000000,bucket=0")
    layout = Layout((6,))
    payload = compressor.encode(vector([0, 3, 0, 4, 1e-6, 0]), compressor.make_state(layout))
    number = HEADER_OCTETS + 4 + 4
    assert payload[number : number + 12].view("<u4").tolist() == [2, 1, 3]
    for at, word in ((0, 2**30), (4, 3), (8, 6), (4, 4)):  # too many, out of order, outside, and in the others' place
        with pytest.raises(CodecError):
            compressor.decode(changed(payload, number + at, struct.pack("<I", word)), layout)
    with pytest.raises(UsageError, match="norm=max can have 32767"):
        registry.parse("qsgd:norm=max,rule=mn,batch=4000000000,bucket=0").make_state(layout)


@pytest.mark.parametrize("batch", [10**18, 10**400])
def test_more_levels_than_32_bits_count_are_refused(batch: int) -> None:
    few, many = (registry.parse(f"qsgd:norm=l2,rule=mn,bucket=0,batch={one}") for one in (10**15, batch))
    layout, values = Layout((1000,)), np.random.default_rng(1).standard_normal(1000, dtype=np.float32)
    assert few.decode(few.encode(values, few.make_state(layout)), layout).size == 1000
    with pytest.raises(UsageError, match="levels, at most 1073741824 can be"):
        many.make_state(layout)
