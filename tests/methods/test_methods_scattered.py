"""Sums of which each rank gets a part, with threads as ranks: beside the sum of all gradients."""

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.methods import Member, Selection, SelectiveReducer, parse
from netoffload.methods.scales import auto_rms

RANKS = 3
ROW = (600, 1, 300)
"""Layers of a rank's row."""
LAYOUT = Layout(ROW * RANKS)
OWNERS = tuple(rank for rank in range(RANKS) for _ in ROW)
BUCKET = tuple(range(len(OWNERS)))
BOUND = 10
STEPS = 60


def quantise(values: Float32Array) -> None:
    codec.get("packed").round_trip(values, BOUND, out=values)


def gradient(rank: int, step: int, size: float) -> Float32Array:
    """Small noise around a direction that does not change: what is left unsent adds up."""
    noise = np.random.default_rng([rank, step]).normal(0, size, LAYOUT.count)
    return (noise + np.random.default_rng(9).normal(0, size / 20, LAYOUT.count)).astype(np.float32)


def parts(name: str, selection: Selection, steps: int, size: float, **member: bool) -> list[tuple[Float32Array, int]]:
    """Each rank's part of the sum over some steps, and the octets that it sent; halfway another reducer goes on."""
    spec = parse(name, batch=1)

    def one_rank(exchange: Exchange) -> tuple[Float32Array, int]:
        own = Member(exchange, quantise, LAYOUT, owners=OWNERS, **member)  # type: ignore[arg-type]
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

    return run_ranks(RANKS, one_rank, codec=codec.get("packed"), bound_k=BOUND)


def truth(steps: int, size: float) -> Float32Array:
    every = [gradient(rank, step, size).astype(np.float64) for step in range(steps) for rank in range(RANKS)]
    total: Float32Array = np.add.reduce(every).astype(np.float32)
    return total


def auto(name: str) -> Selection:
    return Selection(frozenset({1, 4, 7}), "auto", auto_rms(parse(name, batch=1), "packed"))


@pytest.mark.parametrize("name", ["inc", "inc+c", "packed", "fp16", "qsgd:levels=127", "8bit-dynamic"])
def test_each_rank_gets_its_part_of_the_sum_of_gradients_of_any_size(name: str) -> None:
    for size in (1e-6, 3.0):
        found = parts(name, auto(name), 2, size)
        whole = truth(2, size)
        for rank, (part, octets) in enumerate(found):
            right = whole[rank * 901 : (rank + 1) * 901]
            error = np.linalg.norm(part - right) / np.linalg.norm(right)
            assert error < (1e-6 if name == "inc" else 0.15)
            assert part[600] == pytest.approx(right[600], rel=1e-5)  # a layer that travels exact
            vectors = 2 * 2 / 3 * LAYOUT.count * 4
            assert octets == pytest.approx(vectors, rel=0.01) if name in ("inc", "inc+c") else octets < 0.7 * vectors


@pytest.mark.parametrize("name", ["inc+c", "packed"])
def test_error_feedback_brings_later_what_was_left_unsent(name: str) -> None:
    selection, size = Selection(scale=2.0**-4), 0.05
    whole = truth(STEPS, size)
    errors = [
        sum(float(np.linalg.norm(part - whole[rank * 901 :][:901])) for rank, (part, _) in enumerate(found))
        for found in (parts(name, selection, STEPS, size, error_feedback=fed) for fed in (False, True))
    ]
    assert errors[1] < errors[0] / 2
