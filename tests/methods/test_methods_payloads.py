"""Methods with a compressor: what their names stand for, and the octets that their ranks hand to sockets."""

from __future__ import annotations

import numpy as np
import pytest

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compressors import Layout, registry
from netoffload.compressors.base import HEADER_OCTETS
from netoffload.methods import Member, Sent, method_for, parse

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
