"""The papers' claims about TernGrad and QSGD, on numbers with fixed seeds."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout, registry
from netoffload.compressors.qsgd import Qsgd
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import UsageError
from netoffload.lab.bench.compressors import quality
from tests.compressors.promises import main, qsgd_bound

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="thousands of encodings")

REPEATS = 1500
RANDOM = np.random.default_rng(4)
VECTORS = {
    "gaussian": RANDOM.normal(0, 0.01, 600).astype(np.float32),
    "heavy": RANDOM.standard_t(2, 600).astype(np.float32),
    "one large": np.concatenate(([1.0], RANDOM.normal(0, 1e-3, 599))).astype(np.float32),
}


def fractions(compressor: TernGrad | Qsgd, values: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """(distance of two levels, probability of the upper one) of every value, in float64, from the papers' formulas."""
    bounds = layout.groups(compressor.bucket)
    units, upper = np.empty(values.size), np.empty(values.size)
    for first, last in pairwise(bounds):
        group = np.abs(values[first:last].astype(np.float64))
        l2 = isinstance(compressor, Qsgd) and compressor.norm == "l2"
        levels = 1.0
        if isinstance(compressor, Qsgd):
            levels = compressor.levels if compressor.rule == "given" else math.sqrt(last - first) / 2
        units[first:last] = (np.linalg.norm(group) if l2 else group.max()) / levels
        upper[first:last] = (group / units[first:last]) % 1
    return units, upper


@pytest.mark.slow
@pytest.mark.covering(1)
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize(
    "spec",
    [
        "terngrad:clip_factor=0",
        "terngrad:clip_factor=0,bucket=100",
        "qsgd:levels=3",
        "qsgd:levels=2.5,bucket=100",
        "qsgd:norm=l2,rule=n,bucket=0",
        "qsgd:norm=l2,levels=4,coding=gaps",
    ],
)
def test_the_mean_of_many_payloads_is_the_gradient(spec: str, name: str) -> None:
    compressor, values, layout = registry.parse(spec), VECTORS[name], Layout((400, 200))
    assert isinstance(compressor, TernGrad | Qsgd)
    state = compressor.make_state(layout, seed=12, rank=1)
    total = np.zeros(values.size)
    for _ in range(REPEATS):
        total += compressor.decode(compressor.encode(values, state), layout)
    error = (total / REPEATS - values) * np.sign(values)
    units, upper = fractions(compressor, values, layout)
    deviation = units * np.sqrt(upper * (1 - upper) / REPEATS)
    assert abs(error.sum()) < 4.5 * math.sqrt((deviation**2).sum())
    often = upper * (1 - upper) * REPEATS > 3  # rarer steps to another level are no normal distribution
    assert often.sum() > 50
    z = error[often] / deviation[often]
    assert np.abs(z).max() < 6
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2.5 / z.size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "heavy", "one large", "equal"])
@pytest.mark.parametrize("levels", [1, 4, 16, 64])
@pytest.mark.parametrize("count", [64, 1000, 30_000])
def test_variance_is_within_its_bound_and_as_calculated(count: int, levels: int, kind: str) -> None:
    random = np.random.default_rng(count)
    values = {
        "gaussian": random.normal(0, 0.1, count),
        "heavy": random.standard_t(1.5, count),
        "one large": np.concatenate(([1.0], random.normal(0, 1e-3, count - 1))),
        "equal": np.full(count, 0.3),
    }[kind].astype(np.float32)
    compressor, repeats = Qsgd(levels=levels, norm="l2", bucket=0), max(20, 60_000 // count)
    units, upper = fractions(compressor, values, Layout((count,)))
    energy = float((values.astype(np.float64) ** 2).sum())
    variance = upper * (1 - upper)
    expected = float((units**2 * variance).sum()) / energy
    # Of the mean of squared errors: fourth moment of a Bernoulli variable less its variance squared.
    fourth = variance * ((1 - upper) ** 3 + upper**3)
    deviation = math.sqrt((units**4 * (fourth - variance**2)).sum() / repeats) / energy
    assert abs(quality(compressor, values, repeats=repeats).variance_ratio - expected) < 5 * deviation + 1e-5
    assert expected <= min(count / (4 * levels**2), math.sqrt(count) / levels)


@pytest.mark.parametrize(
    ("spec", "bound"), [("rule=n", 1), ("rule=mn,batch=16", 1 / 16), ("rule=mpn,batch=16,period=8", 1 / 128)]
)
def test_the_rules_for_s_keep_q_where_convergence_needs_it(spec: str, bound: float) -> None:
    values = np.random.default_rng(8).standard_t(3, 40_000).astype(np.float32)
    compressor = registry.parse(f"qsgd:norm=l2,bucket=0,{spec}")
    assert bound / 4 < quality(compressor, values).variance_ratio <= bound


@pytest.mark.parametrize("batch", [256, 4_000_000, 2**30])
def test_the_bound_holds_for_any_number_of_levels(batch: int) -> None:
    # VGG-16's fc6 wants 81,097 levels; 2^15 are what a code holds.
    random = np.random.default_rng(batch)
    spread = random.normal(0, 0.01, 4096).astype(np.float32)
    dominated = np.concatenate(([1.0, -0.5], random.normal(0, 1e-4, 4094))).astype(np.float32)
    for values in (spread, dominated):
        check = qsgd_bound(values, batch=batch)
        assert check.levels == pytest.approx(math.sqrt(batch * 4096) / 2)
        assert check.holds, check


def test_quality_tells_bias_from_variance() -> None:
    values = np.random.default_rng(9).normal(0, 0.01, 20_000).astype(np.float32)
    random = quality(Qsgd(levels=2), values, repeats=20)
    assert random.bias is not None
    assert random.variance_ratio > 0.1
    assert random.bias < 0.1 * math.sqrt(random.variance_ratio)
    fixed = registry.parse("nic:codec=truncate16")
    deterministic = quality(fixed, values, repeats=3)
    error = fixed.decode(fixed.encode(values, fixed.make_state(Layout((20_000,)))), Layout((20_000,))) - values
    assert deterministic.bias == pytest.approx(math.sqrt(deterministic.variance_ratio), rel=1e-6)
    assert deterministic.mean_error == pytest.approx(np.abs(error).mean(), rel=1e-3)
    assert deterministic.max_error == pytest.approx(np.abs(error).max())
    assert quality(fixed, values, repeats=1).bias is None
    assert vars(quality(registry.get("none"), np.zeros(3, np.float32), repeats=2))["bias"] == 0


def test_quality_needs_something_to_measure() -> None:
    for values, repeats in ((np.zeros(0, np.float32), 1), (np.zeros(1, np.float32), 0)):
        with pytest.raises(UsageError, match="needs values and repeats"):
            quality(registry.get("none"), values, repeats=repeats)


def test_what_the_papers_promise_is_judged_for_as_long_as_one_likes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--draws", "1000", "--workers", "2", "--values", "20000"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["holds"]
    assert [mean["worker"] for mean in told["terngrad"]] == [0, 1, 2]
    assert 0 < told["qsgd"]["variance_ratio"] <= told["qsgd"]["bound"] == pytest.approx(1 / 256)
