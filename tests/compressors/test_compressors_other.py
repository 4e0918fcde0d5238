"""fp16, bf16, the NIC's truncations by their papers' names, and general libraries as compressors."""

import numpy as np
import pytest

from netoffload.compiled.halves import narrow_bf16, narrow_fp16
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout, libraries, registry
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.libraries import General
from netoffload.compressors.nic import OVERFLOWS, Half
from netoffload.errors import CodecError, UsageError
from netoffload.lab.bench.compressors import specs
from tests.compressors.oracles import changed, encoded, gradient, halves_exact

HALVES = (Half("fp16"), Half("bf16"))
EVERY_HALF = pytest.mark.parametrize("compressor", HALVES, ids=["fp16", "bf16"])
LIBRARIES = [General(library) for library in libraries.available()]
EVERY_LIBRARY = pytest.mark.parametrize("compressor", LIBRARIES, ids=libraries.available())
LARGE = 2_003 if JIT_DISABLED else 1_000_003


@EVERY_HALF
def test_every_exponent_rounds_as_the_oracle(compressor: Half) -> None:
    """A walk over all bits, and around every half and every middle between two of fp16."""
    words = np.arange(0, OVERFLOWS[compressor.format], 1_000_003 if JIT_DISABLED else 997, dtype=np.uint32)
    halves = np.arange(0, 0x7C00, 37 if JIT_DISABLED else 1, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / np.float32(2)
    near = np.concatenate(
        [halves, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))]
    )
    values = np.concatenate([words.view(np.float32), near, -near]).astype(np.float32)
    payload = encoded(compressor, values)
    wanted = halves_exact(values, compressor.format)
    assert np.array_equal(payload[HEADER_OCTETS:].view(np.uint16), wanted)


@pytest.mark.parametrize("sign", [0, 0x8000])
def test_what_is_too_large_becomes_infinite_and_a_nan_stays_one(sign: int) -> None:
    words = np.array([0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0x7F800001, 0x7FFFFFFF], np.uint32)
    words |= np.uint32(sign << 16)
    narrowed = np.empty((2, words.size), np.uint16)
    narrow_fp16(words, narrowed[0])
    narrow_bf16(words, narrowed[1])
    assert [half ^ sign for half in narrowed[0]] == [0x7BFF, 0x7C00, 0x7C00, 0x7C00, 0x7C00, 0x7E00, 0x7FFF]
    assert [half ^ sign for half in narrowed[1]] == [0x4780, 0x4780, 0x7F7F, 0x7F80, 0x7F80, 0x7FC0, 0x7FFF]


@EVERY_HALF
def test_every_half_is_decoded_exactly_or_refused(compressor: Half) -> None:
    bits = np.arange(0, 65536, 61 if JIT_DISABLED else 1, dtype=np.uint16)
    as_fp16 = bits.view(np.float16).astype(np.float32)
    wanted = as_fp16 if compressor.format == "fp16" else (bits.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(wanted)
    layout = Layout.flat(int(finite.sum()))
    payload = np.concatenate([encoded(compressor, np.zeros(layout.count, np.float32))[:8], bits[finite].view(np.uint8)])
    values = compressor.decode(payload, layout)
    assert values.tobytes() == wanted[finite].tobytes()
    assert np.array_equal(encoded(compressor, values), payload)
    for bad in bits[~finite][:: 7 if JIT_DISABLED else 101]:
        with pytest.raises(CodecError, match=f"value {layout.count - 2} "):
            compressor.decode(changed(payload, -4, bad.tobytes()), layout)


@pytest.mark.parametrize(("name", "smallest"), [("fp16", 65520.0), ("bf16", (2 - 2.0**-8) * 2.0**127)])
def test_what_would_become_infinite_is_refused(name: str, smallest: float) -> None:
    compressor = Half(name)
    below = np.nextafter(np.float32(smallest), np.float32(0))
    assert compressor.decode(encoded(compressor, np.array([0, -below], np.float32)), Layout.flat(2))[1] <= -65504
    values = np.array([0, 1, -np.float32(smallest)], np.float32)
    state = compressor.make_state(Layout.flat(3))
    with pytest.raises(UsageError, match="value 2"):
        compressor.encode(values, state)
    with pytest.raises(UsageError):
        compressor.wire_size(values, state)
    assert state.step == 0


@pytest.mark.parametrize("spec", ["fp16", "bf16", "16b-T", "22b-T", "24b-T", *libraries.available()])
def test_values_come_back_within_their_bound(spec: str) -> None:
    compressor = registry.parse("zstd" if spec == "zstd-1" else spec)
    bound = {"fp16": 2.0**-11, "bf16": 2.0**-8, "16b-T": 2.0**-7, "22b-T": 0.5, "24b-T": 1.0}.get(spec, 0)
    for count in (*range(8), 1000, LARGE):
        values = gradient(count)
        decoded = compressor.decode(encoded(compressor, values), Layout.flat(count))
        if bound or spec == "zfp":
            assert np.all(np.abs(decoded - values) <= (bound * np.abs(values) + 6e-8 if bound else 2 * 2.0**-10))
        else:
            assert decoded.tobytes() == values.tobytes()


def test_lossless_libraries_refuse_values_that_are_not_finite() -> None:
    for compressor in LIBRARIES:
        if compressor.library == "zfp":
            continue
        stream = libraries.compress(compressor.library, np.array([1, np.nan], np.float32), 10)
        payload = np.concatenate([encoded(compressor, np.zeros(2, np.float32))[:HEADER_OCTETS], stream])
        with pytest.raises(CodecError, match="finite"):
            compressor.decode(payload, Layout.flat(2))


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "available", lambda: [])
    with pytest.raises(UsageError, match="pip install"):
        General("lz4")
    assert not any(spec.startswith("general") for spec in specs())  # so that a bench of all runs
