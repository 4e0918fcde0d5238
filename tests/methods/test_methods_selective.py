"""Layers that stay exact, scales that all ranks share, sums of which each rank gets a part; threads are the ranks."""

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
from netoffload.transport.rendezvous.agreement import Precision

SIZES = (64, 8, 200)
LAYOUT = Layout(SIZES)
WORKERS = 2
STEPS = 5
QUANTISE = Precision("bounded", 10).quantiser()


def gradients(rank: int, size: float) -> list[Float32Array]:
    rng = np.random.default_rng(rank)
    return [rng.normal(0, size, LAYOUT.count).astype(np.float32) for _ in range(STEPS)]


def sums(
    name: str, selection: Selection, size: float, *, error_feedback: bool = False, stop: int = 0
) -> list[tuple[list[Float32Array], dict[int, float]]]:
    """Every worker's sums, and its scales; after ``stop`` steps another reducer goes on with what one remembers."""
    spec = parse(name, batch=25)

    def one_rank(exchange: Exchange) -> tuple[list[Float32Array], dict[int, float]]:
        member = Member(exchange, QUANTISE, LAYOUT, error_feedback=error_feedback)
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
        member = Member(exchange, QUANTISE, LAYOUT, error_feedback=True)
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


RANKS = 3
ROW = (600, 1, 300)  # layers of a rank's row
OF_ROWS = Layout(ROW * RANKS)
OWNERS = tuple(rank for rank in range(RANKS) for _ in ROW)
BUCKET = tuple(range(len(OWNERS)))
MANY = 60
QUANTISE_PACKED = Precision("packed", 10).quantiser()


def gradient(rank: int, step: int, size: float) -> Float32Array:
    """Small noise around a direction that does not change: what is left unsent adds up."""
    noise = np.random.default_rng([rank, step]).normal(0, size, OF_ROWS.count)
    return (noise + np.random.default_rng(9).normal(0, size / 20, OF_ROWS.count)).astype(np.float32)


def parts(name: str, selection: Selection, steps: int, size: float, **member: bool) -> list[tuple[Float32Array, int]]:
    """Each rank's part of the sum over some steps, and the octets that it sent; halfway another reducer goes on."""
    spec = parse(name, batch=1)

    def one_rank(exchange: Exchange) -> tuple[Float32Array, int]:
        own = Member(exchange, QUANTISE_PACKED, OF_ROWS, owners=OWNERS, **member)  # type: ignore[arg-type]
        reducer, row = SelectiveReducer(spec, own, selection), slice(exchange.rank * 901, (exchange.rank + 1) * 901)
        total = np.zeros(901, np.float32)
        octets = 0
        for step in range(steps):
            if step == steps // 2:
                memory, octets = reducer.memory(), reducer.sent.octets + reducer.sent.tagged_octets
                reducer = SelectiveReducer(spec, own, selection)
                reducer.remember(memory)
            total += reducer.reduce(gradient(exchange.rank, step, size), BUCKET)[row]
        return total, octets + reducer.sent.octets + reducer.sent.tagged_octets

    return run_ranks(RANKS, one_rank, codec=codec.get("packed"), bound_k=10)


def truth_of_rows(steps: int, size: float) -> Float32Array:
    every = [gradient(rank, step, size).astype(np.float64) for step in range(steps) for rank in range(RANKS)]
    total: Float32Array = np.add.reduce(every).astype(np.float32)
    return total


def auto(name: str) -> Selection:
    return Selection(frozenset({1, 4, 7}), "auto", auto_rms(parse(name, batch=1), "packed"))


@pytest.mark.parametrize("name", ["inc", "inc+c", "packed", "fp16", "qsgd:levels=127", "8bit-dynamic"])
def test_each_rank_gets_its_part_of_the_sum_of_gradients_of_any_size(name: str) -> None:
    for size in (1e-6, 3.0):
        found = parts(name, auto(name), 2, size)
        whole = truth_of_rows(2, size)
        for rank, (part, octets) in enumerate(found):
            right = whole[rank * 901 : (rank + 1) * 901]
            error = np.linalg.norm(part - right) / np.linalg.norm(right)
            assert error < (1e-6 if name == "inc" else 0.15)
            assert part[600] == pytest.approx(right[600], rel=1e-5)  # a layer that travels exact
            vectors = 2 * 2 / 3 * OF_ROWS.count * 4
            assert octets == pytest.approx(vectors, rel=0.01) if name in ("inc", "inc+c") else octets < 0.7 * vectors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inc+c", "packed"])
def test_error_feedback_brings_later_what_was_left_unsent(name: str) -> None:
    selection, size = Selection(scale=2.0**-4), 0.05
    whole = truth_of_rows(MANY, size)
    errors = [
        sum(float(np.linalg.norm(part - whole[rank * 901 :][:901])) for rank, (part, _) in enumerate(found))
        for found in (parts(name, selection, MANY, size, error_feedback=fed) for fed in (False, True))
    ]
    assert errors[1] < errors[0] / 2
