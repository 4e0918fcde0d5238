"""WGT, BGT and QGT: their algorithms to the bit; no value is lost, and damaged payloads are refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compressors import Layout, registry, sparse
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.compressors.thresholds import Bgt, Qgt, Threshold, Wgt, rounded_threshold
from netoffload.errors import CodecError, UsageError
from tests.compressors.oracles import changed, encoded, gradient, index_exact, sent_exact, sent_octets_exact
from tests.shared.example_counts import examples

METHODS = (Wgt, Bgt, Qgt)
EVERY = pytest.mark.parametrize("method", METHODS)


def special(threshold: float) -> Float32Array:
    """Around every limit of the methods, both signs."""
    unit = rounded_threshold(threshold)
    multiples = np.array([0.5, 1, 2, 3, 126, 127, 128, 255, 256, 4000], np.float32) * unit
    near = np.concatenate([np.nextafter(multiples, np.float32(side)) for side in (0, 1e9)])
    tiny = np.array([0.0, 1e-45, 1e-40, 1.17549435e-38, 3e-38], np.float32)
    values = np.concatenate([multiples, near, tiny]).astype(np.float32)
    return np.concatenate([values, -values])


def dense_thresholds(compressor: Threshold, layout: Layout) -> Float32Array:
    """T of every value."""
    thresholds = compressor.thresholds(layout)
    return np.repeat(thresholds, layout.sizes if thresholds.size > 1 else layout.count)


def payload_exact(compressor: Threshold, values: Float32Array, layout: Layout) -> bytes:
    """The body of a payload as the oracles make it."""
    units = dense_thresholds(compressor, layout).tolist()
    sent = [sent_exact(compressor.method_id, v, t) for v, t in zip(values.tolist(), units, strict=True)]
    index = index_exact([number != 0 for number in sent])
    return compressor.thresholds(layout).tobytes() + index + sent_octets_exact(compressor.method_id, sent, units)


@pytest.mark.covering(1)
@EVERY
@pytest.mark.parametrize("threshold", [0.0003, 0.01, 0.02, 0.028, 10.0])
def test_payload_and_values_are_the_oracles(method: type[Threshold], threshold: float) -> None:
    """From all sent to nothing sent, by bitmap and by gaps, over lengths with every remainder of 8."""
    compressor = method(threshold)
    for count in (0, 1, 2, 7, 8, 9, 63, 64, 65, 1000, 1001):
        layout = Layout.flat(count)
        values = gradient(count)
        values[: special(threshold).size] = special(threshold)[:count]
        payload = encoded(compressor, values)
        assert payload[HEADER_OCTETS:].tobytes() == payload_exact(compressor, values, layout)
        units = dense_thresholds(compressor, layout)
        wanted = [
            float(sent_exact(compressor.method_id, v, t)) for v, t in zip(values.tolist(), units.tolist(), strict=True)
        ]
        assert compressor.decode(payload, layout).tobytes() == np.array(wanted, np.float32).tobytes()


@EVERY
@settings(max_examples=examples(60))
@given(data=st.data())
def test_gradient_and_residual_are_sent_and_residual(method: type[Threshold], data: st.DataObject) -> None:
    """As real numbers, step after step, for whatever is below 4096 T; of WGT for everything."""
    threshold = data.draw(st.floats(1e-6, 1.0))
    compressor = method(threshold)
    most = float(np.float32(3e38)) if method is Wgt else 2000 * float(rounded_threshold(threshold))
    numbers = st.floats(-most, most, width=32)
    count = data.draw(st.integers(0, 20))
    layout = Layout.flat(count)
    state = compressor.make_state(layout)
    for step in range(3):
        values = np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)), np.float32)
        if method is not Wgt and step:
            values = np.clip(values, -threshold, threshold)  # what is left stays below 4096 T
        assert state.residual is not None
        before = values + state.residual
        if not np.isfinite(before).all():
            return
        sent = compressor.decode(compressor.encode(values, state), layout)
        for given_value, sent_value, left in zip(before, sent, state.residual, strict=True):
            assert Fraction(float(given_value)) == Fraction(float(sent_value)) + Fraction(float(left))
    assert state.step == 3


def test_beyond_4096_thresholds_the_residual_is_the_nearest_float() -> None:
    compressor = Bgt(0.001)
    values = np.array([12345.678, -3e30], np.float32)
    state = compressor.make_state(Layout.flat(2))
    compressor.encode(values, state)
    assert state.residual is not None
    unit = Fraction(float(rounded_threshold(0.001)))
    for value, left, sign in zip(values.tolist(), state.residual.tolist(), (1, -1), strict=True):
        exact = Fraction(value) - sign * unit
        assert abs(Fraction(left) - exact) <= abs(Fraction(value)) / 2**24


def test_sizes_are_those_announced() -> None:
    """k of n values: 4, 1 or 1/8 octet each, and an index of k octets or n / 8."""
    values = np.zeros(8000, np.float32)
    values[::80] = 1
    parameters = HEADER_OCTETS + 4 + sparse.INDEX_HEADER.size
    for method, octets in ((Wgt, 400), (Bgt, 13), (Qgt, 100)):
        assert encoded(method(0.5), values).size == parameters + 100 + octets
    values[:] = 1
    for method, octets in ((Wgt, 32000), (Bgt, 1000), (Qgt, 8000)):
        assert encoded(method(0.5), values).size == parameters + 1000 + octets


@EVERY
def test_every_layer_has_its_threshold(method: type[Threshold]) -> None:
    layout = Layout((100, 0, 57))
    compressor = method(layers="0.001/5/0.02")
    values = gradient(157)
    state = compressor.make_state(layout)
    payload = compressor.encode(values, state)
    assert payload[HEADER_OCTETS:].tobytes() == payload_exact(compressor, values, layout)
    sent = compressor.decode(payload, layout)
    assert state.residual is not None
    assert np.array_equal(sent + state.residual, values)
    units = dense_thresholds(compressor, layout)
    assert np.array_equal(sent != 0, np.abs(values) >= units)
    assert registry.parse(compressor.spec) == compressor


def test_a_layout_with_another_number_of_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="2 thresholds for 1 layers"):
        Bgt(layers="0.1/0.2").make_state(Layout.flat(5))


@EVERY
@pytest.mark.parametrize("threshold", [0.01, 0.025])  # a bitmap, gaps
def test_what_no_encoder_makes_is_refused(method: type[Threshold], threshold: float) -> None:
    compressor, layout = method(threshold), Layout.flat(301)
    payload = encoded(compressor, gradient(301))
    with pytest.raises(CodecError, match="thresholds"):
        method(0.0101).decode(payload, layout)
    for at, octet in (
        (HEADER_OCTETS + 4, 2),  # a form that is none
        (HEADER_OCTETS + 5, int(payload[HEADER_OCTETS + 5]) + 1),  # one value more
        (HEADER_OCTETS + 6, 9),  # more values than there are
    ):
        with pytest.raises(CodecError):
            compressor.decode(changed(payload, at, bytes([octet])), layout)


def broken_index(form: int, sent: int, index: bytes, values: bytes) -> Uint8Array:
    """A QGT payload of 20 values with a hand-made index."""
    head = encoded(Qgt(0.5), np.zeros(20, np.float32))[: HEADER_OCTETS + 4].tobytes()
    return np.frombuffer(head + sparse.INDEX_HEADER.pack(form, sent) + index + values, np.uint8)


@pytest.mark.parametrize(
    ("form", "sent", "index", "values", "is_right"),
    [
        (sparse.GAPS, 2, b"\x00\x12", b"\x01\x81", True),
        (sparse.BITMAP, 2, b"\x01\x00\x08", b"\x01\x81", True),
        (sparse.GAPS, 2, b"\x00\x13", b"\x01\x81", False),  # beyond the last value
        (sparse.GAPS, 2, b"\x00\x92\x00", b"\x01\x81", False),  # a gap spelt longer than it must be
        (sparse.GAPS, 1, b"\x80\x80\x80\x80\x80\x01", b"\x01", False),  # a gap without end
        (sparse.GAPS, 2, b"\x00\x80", b"\x01\x81", False),  # the last gap is cut
        (sparse.BITMAP, 2, b"\x01\x00\x18", b"\x01\x81", False),  # a bit too many, behind the last value
        (sparse.BITMAP, 2, b"\x01\x00\x10", b"\x01\x81", False),  # a bit behind the last value
        (sparse.BITMAP, 2, b"\x01\x00\x0c", b"\x01\x81", False),  # three bits for two values
        (sparse.GAPS, 2, b"\x00\x12", b"\x01\x80", False),  # no multiple at all
    ],
)
def test_indices_and_octets_one_by_one(form: int, sent: int, index: bytes, values: bytes, is_right: bool) -> None:
    payload = broken_index(form, sent, index, values)
    if is_right:
        assert np.flatnonzero(Qgt(0.5).decode(payload, Layout.flat(20))).tolist() == [0, 19]
    else:
        with pytest.raises(CodecError):
            Qgt(0.5).decode(payload, Layout.flat(20))


@pytest.mark.parametrize("wrong", [0.4, np.nan, np.inf])
def test_a_whole_gradient_below_its_threshold_or_not_finite_is_refused(wrong: float) -> None:
    payload = encoded(Wgt(0.5), np.array([0, 1, 0, 2], np.float32))
    with pytest.raises(CodecError):
        Wgt(0.5).decode(changed(payload, -4, np.float32(wrong).tobytes()), Layout.flat(4))


def test_a_sign_behind_the_last_value_is_refused() -> None:
    payload = encoded(Bgt(0.5), np.array([0, 1, 0, -2], np.float32))
    with pytest.raises(CodecError):
        Bgt(0.5).decode(changed(payload, -1, bytes([payload[-1] | 4])), Layout.flat(4))
