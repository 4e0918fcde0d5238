"""Averaged weights, with threads as ranks; between two averages each worker moves by its own gradient."""

import numpy as np
import pytest

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.methods import Member, WeightExchange, method_for, parse

WORKERS = 2
COUNT = 8


def weights(name: str, iterations: int, *, finished: bool) -> list[Float32Array]:
    """Every worker's weights, which begin at 0; worker r's gradient is r + 1 everywhere, the rate is 1."""

    def one_rank(exchange: Exchange) -> Float32Array:
        method = method_for(parse(name, batch=25), Member(exchange))
        assert isinstance(method, WeightExchange)
        parameters = np.zeros(COUNT, np.float32)

        def update(own: Float32Array) -> None:
            parameters[:] -= own

        for _ in range(iterations):
            method.step(np.full(COUNT, exchange.rank + 1, np.float32), parameters, update)
        if finished:
            method.finish(parameters)
        return parameters

    return run_ranks(WORKERS, one_rank, timeout_s=20)


@pytest.mark.parametrize(
    ("name", "iterations", "first_half", "second_half"),
    [
        ("psgd:p=2", 1, (-1.0, -2.0), (-1.0, -2.0)),  # nothing has travelled yet
        ("psgd:p=2", 2, (-3.0, -3.0), (-3.0, -3.0)),  # the mean of -2 and -4
        ("rsgd:p=2", 1, (-1.5, -1.5), (-1.0, -2.0)),  # the first half's turn
        ("rsgd:p=2", 2, (-2.5, -3.5), (-3.0, -3.0)),  # the second half's
    ],
)
def test_weights_are_averaged_when_it_is_their_turn(
    name: str, iterations: int, first_half: tuple[float, ...], second_half: tuple[float, ...]
) -> None:
    for own, first, second in zip(weights(name, iterations, finished=False), first_half, second_half, strict=True):
        assert own.tolist() == [first] * (COUNT // 2) + [second] * (COUNT // 2)
    for own in weights(name, iterations, finished=True):
        assert own.tolist() == [-1.5 * iterations] * COUNT
