"""Layouts, states that are saved and restored, error feedback, and methods by name."""

import warnings
import zlib
from typing import Any

import numpy as np
import pytest

from netoffload.compressors import Layout, State, registry
from netoffload.compressors.eight_bit import EightBit
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.errors import UsageError
from netoffload.lab.bench.compressors import specs

LAYOUT = Layout((60, 0, 41))
RANDOM = np.random.default_rng(3)


def gradient() -> np.ndarray:
    return RANDOM.normal(0, 0.01, LAYOUT.count).astype(np.float32)


def test_a_layout_knows_its_offsets_and_groups() -> None:
    assert (LAYOUT.offsets, LAYOUT.count) == ((0, 60, 60, 101), 101)
    assert LAYOUT.groups().tolist() == [0, 60, 101]
    assert LAYOUT.groups(25).tolist() == [0, 25, 50, 60, 85, 101]
    assert Layout(()).groups(4).tolist() == Layout((0,)).groups().tolist() == [0]
    assert Layout.flat(7) == Layout((7,))
    for sizes in ((-1, 3), (2**32,)):
        with pytest.raises(UsageError, match="layers must have"):
            Layout(sizes)


@pytest.mark.parametrize("wrong", [1.5, "1", None, True])
def test_lengths_seeds_and_ranks_are_whole_numbers(wrong: Any) -> None:
    compressor = registry.get("terngrad")
    for make in (
        lambda: Layout((3, wrong)),
        lambda: compressor.make_state(LAYOUT, seed=wrong),
        lambda: compressor.make_state(LAYOUT, rank=wrong),
    ):
        with pytest.raises(UsageError, match=r"give a whole number"):
            make()


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_numpys_numbers_are_seeds_and_ranks(kind: Any) -> None:
    compressor, values = registry.get("terngrad"), gradient()
    ours = compressor.make_state(Layout((kind(60), 0, 41)), seed=kind(3), rank=kind(5), error_feedback=True)
    plain = compressor.make_state(LAYOUT, seed=3, rank=5, error_feedback=True)
    with warnings.catch_warnings(action="error"):
        assert compressor.encode(values, ours).tobytes() == compressor.encode(values, plain).tobytes()
    assert ours.to_bytes() == plain.to_bytes()


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("terngrad", {"exempt": 1.0}, "terngrad: exempt is 1.0: give a whole number"),
        ("qsgd", {"levels": "7"}, "qsgd: levels is '7', which is not of type float"),
        ("qsgd", {"levels": True}, "qsgd: levels is True, which is not of type float"),
        ("qsgd", {"bucket": None}, "qsgd: bucket is None: give a whole number"),
        ("wgt", {"layers": [0.1, 0.2]}, r"wgt: layers is \[0.1, 0.2\], which is not of type str"),
        ("8bit", {"norm": "offset", "offset": 1.5}, "8bit: offset is 1.5: give a whole number"),
    ],
)
def test_a_parameter_of_another_type_is_refused(name: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.get(name, **parameters)


def test_parameters_may_be_numpys_numbers() -> None:
    ours = registry.get("qsgd", levels=np.float32(15), bucket=np.int64(64))
    assert ours == registry.parse("qsgd:levels=15,bucket=64")
    assert registry.parse(ours.spec) == ours


def test_headers_name_what_a_decoder_must_know() -> None:
    assert [registry.parse(f"nic:codec=packed,bound={bound}").flags for bound in (1, 10, 16)] == [0x70, 0x79, 0x7F]
    assert TernarySum(TernGrad(exempt=3), 4).flags == 3 << 1


MORE_SPECS = ("8bit:type=linear,bucket=32", "wgt:threshold=0.02", "bgt:threshold=0.02", "qgt:threshold=0.02")


@pytest.mark.parametrize("spec", [*specs(), *MORE_SPECS])
@pytest.mark.parametrize("error_feedback", [False, True])
def test_a_restored_state_goes_on_bit_for_bit(spec: str, error_feedback: bool) -> None:
    compressor = registry.parse(spec)
    state = compressor.make_state(LAYOUT, seed=2**40 + 1, rank=5, error_feedback=error_feedback)
    for _ in range(3):
        compressor.encode(gradient(), state)
    restored = State.from_bytes(state.to_bytes(), LAYOUT)
    assert (restored.step, restored.seed, restored.rank) == (3, 2**40 + 1, 5)
    for _ in range(3):
        values = gradient()
        assert compressor.encode(values, state).tobytes() == compressor.encode(values, restored).tobytes()
    assert state.to_bytes() == restored.to_bytes()


def with_crc(octets: bytes) -> bytes:
    return octets + zlib.crc32(octets).to_bytes(4, "little")


def test_a_state_that_is_not_ours_is_refused() -> None:
    octets = registry.get("terngrad").make_state(LAYOUT, error_feedback=True).to_bytes()
    for wrong, layout, says in (
        (b"", LAYOUT, "not a compressor's state"),
        (b"XXXX" + octets[4:], LAYOUT, "not a compressor's state"),
        (octets[:4] + b"\x09" + octets[5:], LAYOUT, "version 9"),
        (octets[:-9] + b"\x09" + octets[-8:], LAYOUT, "CRC-32"),
        (octets[:-20], LAYOUT, "CRC-32"),
        (with_crc(octets[:-12]), LAYOUT, "its length is wrong"),
        (with_crc(octets[:42]), LAYOUT, "other layers"),
        (octets, Layout((60, 41)), "other layers"),
        (octets, Layout((60, 1, 40)), "other layers"),
    ):
        with pytest.raises(UsageError, match=says):
            State.from_bytes(wrong, layout)


@pytest.mark.parametrize("spec", ["terngrad", "qsgd:norm=l2", "qsgd:coding=omega", "nic", *MORE_SPECS[:2]])
def test_error_feedback_keeps_what_was_not_sent(spec: str) -> None:
    compressor = registry.parse(spec)
    state = compressor.make_state(LAYOUT, error_feedback=True)
    for _ in range(20):
        values, residual = gradient(), state.residual
        assert residual is not None
        source = values + residual
        size = compressor.wire_size(values, state)
        payload = compressor.encode(values, state)
        assert payload.size == size
        decoded = compressor.decode(payload, LAYOUT)
        assert state.residual is not None
        assert state.residual.tobytes() == (source - decoded).tobytes()


def test_ranks_and_steps_round_differently_and_seeds_repeat() -> None:
    compressor, values = registry.get("terngrad"), gradient()
    state = compressor.make_state(LAYOUT, seed=1)
    first, second = (compressor.encode(values, state).tobytes() for _ in range(2))
    assert first != second
    assert compressor.encode(values, compressor.make_state(LAYOUT, seed=1)).tobytes() == first
    assert compressor.encode(values, compressor.make_state(LAYOUT, seed=1, rank=1)).tobytes() != first
    assert compressor.encode(values, compressor.make_state(LAYOUT, seed=2)).tobytes() != first
    with pytest.raises(UsageError, match="seed, rank and step"):
        compressor.make_state(LAYOUT, seed=-1)


@pytest.mark.parametrize("spec", specs())
def test_every_method_is_what_its_text_says(spec: str) -> None:
    compressor = registry.parse(spec)
    assert registry.parse(compressor.spec) == compressor
    assert compressor.name in registry.names()
    assert registry.get(compressor.name).spec == compressor.name


def test_papers_names_are_known() -> None:
    assert registry.parse("inceptionn:bound=8") == registry.get("nic", codec="inceptionn", bound=8)
    assert registry.get("bounded", bound=12).spec == "nic:codec=bounded,bound=12"
    assert registry.parse("8bit-dynamic") == EightBit("dynamic", "max")
    assert registry.parse("8bit-linear") == EightBit("linear", "max")
    assert registry.parse("8bit-static") == EightBit("static", "offset", offset=1)
    assert registry.parse("8bit-mantissa") == EightBit("mantissa", "offset", offset=1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("zip", "compressor 'zip' is unknown: choose from none"),
        ("qsgd:depth=3", "qsgd has no parameter 'depth': it takes levels, rule"),
        ("bf16:format=fp16", "bf16 is half with format=bf16: for another format write half"),
        ("none:x=1", "none has no parameter 'x': it takes none"),
        ("qsgd:levels", "'levels' is not parameter=value"),
        ("qsgd:levels=3,levels=4", "is given twice"),
        ("qsgd:bucket=many", "bucket='many' is not of type int"),
        ("qsgd:levels=0.5", "levels must be 1 to 32767"),
        ("qsgd:levels=nan", "levels must be 1 to 32767"),
        ("qsgd:norm=l1", "norm 'l1' is unknown: choose from l2, max"),
        ("qsgd:rule=all", "rule 'all' is unknown"),
        ("qsgd:coding=huffman", "coding 'huffman' is unknown"),
        ("qsgd:batch=0", "batch and period must be at least 1"),
        ("terngrad:clip_factor=-1", "clip_factor must be 0"),
        ("terngrad:clip_factor=nan", "clip_factor must be 0"),
        ("terngrad:bucket=-1", "bucket must be 0"),
        ("terngrad:packing=base5", "packing 'base5' is unknown: choose from base3, bits"),
        ("terngrad:exempt=128", "exempt must be 0 to 127"),
        ("nic:codec=zip", "codec 'zip' is unknown"),
        ("nic:bound=17", "bound"),
        ("zfp:bound=0", "bound 0 is outside|needs zfpy"),
        ("general:library=gzip", "library 'gzip' is unknown"),
        ("half:format=fp8", "format 'fp8' is unknown"),
        ("8bit:type=tree", "8-bit type 'tree' is unknown"),
        ("8bit:norm=l2", "norm 'l2' is unknown"),
        ("8bit:bucket=-1", "bucket -1 must be 0 or more"),
        ("8bit:norm=offset,bucket=5", "bucket 5 must be 0 or more, and 0 with norm=offset"),
        ("8bit:offset=1", "offset 1 must be -15 to 15, and 0 with norm=max"),
        ("8bit:norm=offset,offset=16", "offset 16 must be -15 to 15"),
        ("chunked-topk:k=0,chunk=8", "k must be 1 to chunk"),
        ("chunked-topk:k=9,chunk=8", "k must be 1 to chunk"),
        ("chunked-topk:k=1,chunk=65537", "chunk at most 65536"),
        ("chunked-topk:decay=1.5", "decay must be 0 to 1"),
        ("chunked-topk:decay=-1", "decay must be 0 to 1"),
        ("wgt:threshold=0", "threshold 0.0 must be between"),
        ("wgt:threshold=-1", "threshold -1.0 must be between"),
        ("wgt:threshold=nan", "threshold nan must be between"),
        ("qgt:layers=0.1/x", "layers='0.1/x' is not NUMBER/NUMBER"),
    ],
)
def test_a_wrong_text_says_what_is_wrong(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.parse(spec)


def test_no_two_methods_share_a_name_or_a_number() -> None:
    assert len(registry.names()) == len({method.method_id for method in registry.METHODS}) == len(registry.METHODS)
