"""Scaler sharing and the way back: the mean of N ternary gradients in 2 N + 1 levels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.compressors import Layout, registry
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.errors import CodecError, UsageError
from tests.compressors.oracles import damaged
from tests.shared.example_counts import examples

LAYOUT = Layout((300, 20, 0, 57))


def uploaded(uplink: TernGrad, workers: int, layout: Layout = LAYOUT) -> list[np.ndarray]:
    """Every worker's payload with the largest scalers of all."""
    gradients = [
        np.random.default_rng([7, rank]).normal(0, 0.01 * (1 + rank), layout.count).astype(np.float32)
        for rank in range(workers)
    ]
    states = [uplink.make_state(layout, seed=1, rank=rank) for rank in range(workers)]
    own = [uplink.scalers(values, state) for values, state in zip(gradients, states, strict=True)]
    shared = np.maximum.reduce(own)
    return [uplink.encode_shared(values, shared, state) for values, state in zip(gradients, states, strict=True)]


@pytest.mark.parametrize("spec", ["terngrad", "terngrad:packing=bits,bucket=50", "terngrad:exempt=2"])
@pytest.mark.parametrize("workers", [1, 2, 4, 15, 16])
def test_the_sum_is_the_mean_of_what_the_workers_sent(workers: int, spec: str) -> None:
    uplink = registry.parse(spec)
    assert isinstance(uplink, TernGrad)
    downlink = TernarySum(uplink, workers)
    payloads = uploaded(uplink, workers)
    mean = np.mean([uplink.decode(payload, LAYOUT) for payload in payloads], axis=0, dtype=np.float64)
    payload = downlink.encode(payloads, LAYOUT)
    assert np.allclose(downlink.decode(payload, LAYOUT), mean, rtol=1e-6, atol=1e-9)


def test_the_way_back_takes_the_bits_of_its_levels() -> None:
    layout, uplink = Layout((8000,)), TernGrad()
    payloads = [uplink.encode(np.ones(8000, np.float32), uplink.make_state(layout, rank=rank)) for rank in range(4)]
    assert [TernarySum(TernGrad(), workers).width for workers in (1, 2, 3, 4, 7, 8, 32767)] == [2, 3, 3, 4, 4, 5, 16]
    assert TernarySum(uplink, 4).encode(payloads, layout).size == 8 + 4 + 4000


def test_a_sum_of_every_level_comes_back() -> None:
    layout, uplink = Layout((3,)), TernGrad(clip_factor=0)
    for plus in range(5):
        values = [np.array([0.5, 0.0, 0.5 if rank < plus else -0.5], np.float32) for rank in range(4)]
        payloads = [uplink.encode(v, uplink.make_state(layout, rank=rank)) for rank, v in enumerate(values)]
        decoded = TernarySum(uplink, 4).decode(TernarySum(uplink, 4).encode(payloads, layout), layout)
        assert decoded.tolist() == [0.5, 0.0, (2 * plus - 4) / 4 * 0.5]


def test_scalers_that_are_not_shared_are_noticed() -> None:
    uplink, layout = TernGrad(), Layout((10,))
    payloads = [
        uplink.encode(np.arange(10, dtype=np.float32) * (rank + 1), uplink.make_state(layout)) for rank in range(2)
    ]
    with pytest.raises(CodecError, match="scalers of worker 1 are not those of worker 0"):
        TernarySum(uplink, 2).encode(payloads, layout)
    with pytest.raises(UsageError, match="3 workers cannot be made of 2 payloads"):
        TernarySum(uplink, 3).encode(payloads, layout)
    for workers in (0, 32768):
        with pytest.raises(UsageError, match="workers must be"):
            TernarySum(uplink, workers)


def test_wrong_scalers_from_outside_are_refused() -> None:
    uplink, layout = TernGrad(), Layout((5, 5))
    values, state = np.ones(10, np.float32), uplink.make_state(layout)
    for scalers in ([1.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(UsageError, match="scalers must be"):
            uplink.encode_shared(values, np.array(scalers, np.float32), state)
    with pytest.raises(UsageError, match="not finite"):
        uplink.encode_shared(values, np.array([1.0, np.inf], np.float32), state)
    assert state.step == 0


def test_values_above_a_scaler_from_outside_are_clipped() -> None:
    uplink, layout = TernGrad(), Layout((4,))
    values = np.array([3.0, -5.0, 1.0, 0.0], np.float32)
    state = uplink.make_state(layout, error_feedback=True)
    payload = uplink.encode_shared(values, np.array([1.0], np.float32), state)
    assert uplink.decode(payload, layout).tolist() == [1.0, -1.0, 1.0, 0.0]
    assert state.residual is not None
    assert state.residual.tolist() == [2.0, -4.0, 0.0, 0.0]
    payload = uplink.encode_shared(values, np.array([0.0], np.float32), uplink.make_state(layout))
    assert not uplink.decode(payload, layout).any()


@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_damaged_sum_is_refused_or_decodes_to_finite_values(data: st.DataObject) -> None:
    uplink, layout = TernGrad(exempt=1), Layout((23, 3))
    downlink = TernarySum(uplink, 3)
    payload = damaged(downlink.encode(uploaded(uplink, 3, layout), layout), 0, data)
    try:
        decoded = downlink.decode(payload, layout)
    except CodecError:
        return
    assert decoded.shape == (26,)
    assert np.isfinite(decoded).all()
