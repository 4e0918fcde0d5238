"""Workers in groups (INCEPTIONN, Fig. 1): every rank ends with the oracle's bits."""

import numpy as np
import pytest

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.collectives.reference import hierarchical_sum, tree_of_aggregators
from netoffload.collectives.schedule import aggregator_tree
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.methods import Member, Sent, method_for, parse
from netoffload.methods.floats import grouped_octets, ring_octets
from netoffload.transport.rendezvous.agreement import Precision

BOUND_K = 10
COUNT = 4003
GROUPED = (
    "wa:groups=2",
    "wa+c:groups=2",
    "inc:groups=2",
    "inc+c:groups=2",
    "inc:groups=2,top=wa",
    "inc+c:groups=2,top=wa",
)


def gradients(rank: int) -> Float32Array:
    return np.random.default_rng(rank).normal(0.0, 0.05, COUNT).astype(np.float32)


def round_trip(values: Float32Array) -> Float32Array:
    return codec.get("inceptionn").round_trip(values, BOUND_K, out=np.empty_like(values))


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("workers", [4, 8])
def test_all_ranks_end_with_the_sum_of_the_oracle(name: str, workers: int) -> None:
    spec, quantise = parse(name, batch=25), Precision("inceptionn", BOUND_K).quantiser()

    def one_rank(exchange: Exchange) -> tuple[Float32Array, Sent]:
        method = method_for(spec, Member(exchange, quantise))
        parameters = np.full(COUNT, np.nan, np.float32)

        def update(total: Float32Array) -> None:
            parameters[:] = total

        method.step(gradients(exchange.rank), parameters, update)
        return parameters, method.sent

    ranks = run_ranks(workers + spec.servers, one_rank, codec=codec.get("inceptionn"), bound_k=BOUND_K)
    vectors, lossy = [gradients(rank) for rank in range(len(ranks))], round_trip if spec.tagged else None
    if name.startswith("wa"):
        expected = tree_of_aggregators(vectors, aggregator_tree(workers, 2), lossy)
        assert sum(sent.octets + sent.tagged_octets for _, sent in ranks) == 4 * COUNT * 2 * (workers + 2)
    else:
        expected = hierarchical_sum(vectors, spec.groups_of(workers), lossy, top=spec.top)
    for rank, (parameters, sent) in enumerate(ranks):
        assert parameters.tobytes() == expected.tobytes()
        is_top = spec.has_server and rank == len(ranks) - 1  # weights travel untagged
        assert bool(sent.tagged_octets) == (spec.tagged and not is_top)
    exact = np.sum(vectors[:workers], axis=0, dtype=np.float64)
    assert np.abs(expected - exact).max() < (workers * 2.0**-7 if spec.tagged else 1e-6)


def test_what_a_rank_of_groups_sends() -> None:
    whole, groups = 4 * 8000, [range(4), range(4, 8)]
    in_its_ring = ring_octets(whole, 4)
    assert grouped_octets(whole, groups, 5, "ring") == (in_its_ring + 4 * 2000, 0)  # half of a block, there and back
    assert grouped_octets(whole, groups, 5, "wa") == (in_its_ring + 4 * 2000, 0)
    assert grouped_octets(whole, groups, 0, "wa") == (in_its_ring, 4 * 2000)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("inc:groups=1", "inc: groups=1 is not a number of groups, 2 or more"),
        ("inc:groups=2,top=", "inc: top '' is unknown"),
        ("psgd:p=", "psgd: p= is not a number of iterations"),
        ("wa:groups=x", "groups=x is not a number"),
        ("wa:groups=2,top=wa", "wa takes groups=NUMBER, not top=wa"),
        ("inc+c:p=3", "takes groups=NUMBER and top=ring or top=wa, not p=3"),
        ("inc:groups=2,top=tree", "inc: top 'tree' is unknown: choose from ring, wa"),
        ("fullsgd:groups=2", "takes no parameters"),
        ("inc:groups=3", "inc:groups=3: 4 workers do not make 3 groups of equal size"),
    ],
)
def test_groups_that_cannot_be_are_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings(name, nodes=4)
