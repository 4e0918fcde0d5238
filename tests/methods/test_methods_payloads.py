"""What names of methods stand for, the octets that ranks hand to sockets, and weights that are averaged in turn."""

from __future__ import annotations

import numpy as np
import pytest

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.methods import Member, Sent, WeightExchange, method_for, parse

WORKERS = 3
COUNT = 600
FLOATS = 4 * COUNT
PAYLOAD = HEADER_OCTETS + FLOATS
BLOCK = HEADER_OCTETS + FLOATS // WORKERS


@pytest.mark.parametrize(
    ("name", "of_worker", "of_server"),
    [
        ("none:via=gather", Sent(octets=2 * PAYLOAD, vector_octets=PAYLOAD), None),
        ("none:via=server", Sent(octets=PAYLOAD, vector_octets=PAYLOAD), Sent(octets=3 * FLOATS)),
        ("none:via=ring", Sent(octets=4 * BLOCK, vector_octets=3 * BLOCK), None),
    ],
)
def test_every_octet_that_goes_to_a_socket_is_counted_once(name: str, of_worker: Sent, of_server: Sent | None) -> None:
    spec = parse(name, batch=25)

    def one_rank(exchange: Exchange) -> Sent:
        method = method_for(spec, Member(exchange, layout=Layout((COUNT,))))
        for _ in range(2):
            method.step(np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32), lambda total: None)
        return method.sent

    *workers, last = run_ranks(WORKERS + spec.servers, one_rank, timeout_s=20)
    expected = [of_worker] * WORKERS + ([of_server] if of_server else [])
    for sent, once in zip([*workers, last], expected, strict=True):
        assert (sent.octets, sent.vector_octets) == (2 * once.octets, 2 * once.vector_octets)
        assert sent.tagged_octets == 0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qsgd:rule=mn,norm=l2", {"batch": 25, "period": 1}),
        ("qsgd:rule=mn,norm=l2,batch=50", {"batch": 50, "period": 1}),
        ("qsgd:rule=mpn,norm=l2,period=4", {"batch": 25, "period": 4}),
        ("pqasgd:p=4,rule=mpn,norm=l2,batch=50", {"batch": 50, "period": 4}),
    ],
)
def test_a_batch_or_period_in_the_name_goes_before_the_runs(name: str, parameters: dict[str, int]) -> None:
    rule = "mpn" if "mpn" in name else "mn"
    assert parse(name, batch=25).compressor == registry.get("qsgd", rule=rule, norm="l2", **parameters)


AVERAGING = 2
WEIGHTS = 8


def weights(name: str, iterations: int, *, finished: bool) -> list[Float32Array]:
    """Every worker's weights, which begin at 0; worker r's gradient is r + 1 everywhere, the rate is 1."""

    def one_rank(exchange: Exchange) -> Float32Array:
        method = method_for(parse(name, batch=25), Member(exchange))
        assert isinstance(method, WeightExchange)
        parameters = np.zeros(WEIGHTS, np.float32)

        def update(own: Float32Array) -> None:
            parameters[:] -= own

        for _ in range(iterations):
            method.step(np.full(WEIGHTS, exchange.rank + 1, np.float32), parameters, update)
        if finished:
            method.finish(parameters)
        return parameters

    return run_ranks(AVERAGING, one_rank, timeout_s=20)


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
        assert own.tolist() == [first] * (WEIGHTS // 2) + [second] * (WEIGHTS // 2)
    for own in weights(name, iterations, finished=True):
        assert own.tolist() == [-1.5 * iterations] * WEIGHTS
