"""Layers that stay exact, and scales that all ranks share, with threads as ranks."""

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.methods import (
    Bucket,
    ChangeAveraging,
    GradientReducer,
    Member,
    Outer,
    Selection,
    SelectiveReducer,
    method_for,
    parse,
)
from netoffload.methods.scales import auto_rms

SIZES = (64, 8, 200)
LAYOUT = Layout(SIZES)
WORKERS = 2
STEPS = 5


def quantise(values: Float32Array) -> None:
    codec.get("bounded").round_trip(values, 10, out=values)


def gradients(rank: int, size: float) -> list[Float32Array]:
    rng = np.random.default_rng(rank)
    return [rng.normal(0, size, LAYOUT.count).astype(np.float32) for _ in range(STEPS)]


def sums(
    name: str, selection: Selection, size: float, *, error_feedback: bool = False, stop: int = 0
) -> list[tuple[list[Float32Array], dict[int, float]]]:
    """Every worker's sums, and its scales; after ``stop`` steps another reducer goes on with what one remembers."""
    spec = parse(name, batch=25)

    def one_rank(exchange: Exchange) -> tuple[list[Float32Array], dict[int, float]]:
        member = Member(exchange, quantise, LAYOUT, error_feedback=error_feedback)
        reducer, found = SelectiveReducer(spec, member, selection), []
        for step, gradient in enumerate(gradients(exchange.rank, size)):
            if stop and step == stop:
                memory = reducer.memory()
                reducer = SelectiveReducer(spec, member, selection)
                reducer.remember(memory)
            pieces: list[Bucket] = [(2,), (0, 1)] if step % 2 else []
            found.append(reducer.reduce(gradient, None, exact=step == 0, pieces=pieces))
        return found, reducer.scales()

    return run_ranks(WORKERS, one_rank, codec=codec.get("bounded"), bound_k=10)


def truth(size: float) -> list[Float32Array]:
    return [first + second for first, second in zip(gradients(0, size), gradients(1, size), strict=True)]


@pytest.mark.parametrize("name", ["inc+c", "bounded"])
def test_values_of_any_size_survive_in_their_scale(name: str) -> None:
    size = 1e-6
    spec = parse(name, batch=25)
    assert all(not total.any() for total in sums(name, Selection(), size)[0][0][1:])  # all below the bound
    selection = Selection(frozenset({1}), "auto", auto_rms(spec, "bounded"))
    (found, scales), (others, other_scales) = sums(name, selection, size)
    assert scales == other_scales
    assert scales.keys() == {0, 2}
    assert all(np.log2(scale) % 1 == 0 for scale in scales.values())
    assert 2**-8 < size * scales[2] < 2**-5
    for total, other, right in zip(found, others, truth(size), strict=True):
        np.testing.assert_array_equal(total, other)
        np.testing.assert_allclose(total, right, atol=size / 4)
        np.testing.assert_array_equal(total[64:72], right[64:72])


@pytest.mark.parametrize("name", ["inc+c", "bounded", "qsgd", "qsgd:via=ring", "fp16", "wgt:threshold=0.01"])
def test_another_reducer_goes_on_with_what_one_remembers(name: str) -> None:
    selection = Selection(scale="auto", auto_rms=auto_rms(parse(name, batch=25), "bounded"))
    whole = sums(name, selection, 0.02, error_feedback=":via" not in name)
    resumed = sums(name, selection, 0.02, error_feedback=":via" not in name, stop=3)
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1] == other[1]


@pytest.mark.parametrize("name", ["inc+c", "bounded"])
def test_what_is_left_unsent_arrives_later_also_in_another_scale(name: str) -> None:
    spec, steps = parse(name, batch=25), 40

    def one_rank(exchange: Exchange) -> Float32Array:
        member = Member(exchange, quantise, LAYOUT, error_feedback=True)
        reducer = SelectiveReducer(spec, member, Selection(scale=2.0**-6))
        total = np.zeros(LAYOUT.count, np.float32)
        for step in range(steps):
            if step == steps // 2:
                memory = reducer.memory()
                reducer = SelectiveReducer(spec, member, Selection(scale=1.0))
                reducer.remember(memory)
            total += reducer.reduce(np.full(LAYOUT.count, 0.0003, np.float32))
        return total

    for total in run_ranks(WORKERS, one_rank, codec=codec.get("bounded"), bound_k=10):
        np.testing.assert_allclose(total, WORKERS * steps * 0.0003, atol=0.004)


def test_an_outer_optimizer_is_nesterov_on_the_mean_change() -> None:
    outer = Outer(learning_rate=0.5, momentum=0.8)

    def one_rank(exchange: Exchange) -> list[float]:
        member = Member(exchange, layout=Layout((4,)))
        exact = method_for(parse("inc", batch=1), member)
        assert isinstance(exact, GradientReducer)
        method = ChangeAveraging(parse("pqasgd:p=1,levels=127", batch=1), member, exact, outer)
        weights, seen = np.zeros(4, np.float32), []
        for _ in range(3):

            def update(_: Float32Array) -> None:
                weights[:] += 1 + exchange.rank

            method.step(np.empty(0, np.float32), weights, update)
            seen.append(float(weights[0]))
        return seen

    # The mean change is 1.5; v = 0.8 v + 1.5, the weights go 0.5 (1.5 + 0.8 v).
    expected, weight, velocity = [], 0.0, 0.0
    for _ in range(3):
        velocity = 0.8 * velocity + 1.5
        weight += 0.5 * (1.5 + 0.8 * velocity)
        expected.append(weight)
    for seen in run_ranks(WORKERS, one_rank):
        np.testing.assert_allclose(seen, expected, rtol=1e-6)
