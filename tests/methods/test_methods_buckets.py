"""Gradients reduced in buckets of layers, with threads as ranks."""

import itertools

import numpy as np
import pytest

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.compressors.registry import get
from netoffload.methods import Bucket, GradientReducer, GradientServer, Member, method_for, parse
from netoffload.methods.buckets import BucketStates
from netoffload.methods.payloads import PayloadRingReducer

SIZES = (40, 7, 90, 13)
LAYOUT = Layout(SIZES)
WORKERS = 2
WHOLE: list[Bucket | None] = [None]
CUT: list[Bucket | None] = [(2, 3), (0, 1)]
CUT_ANEW: list[Bucket | None] = [(3, 0), (1,), (2,)]


def layers_of(vector: Float32Array) -> list[Float32Array]:
    return np.split(vector, LAYOUT.offsets[1:-1])


def reduced(name: str, cuts: list[list[Bucket | None]]) -> list[Float32Array]:
    """Worker 0's sums, one whole vector per iteration; iteration i is reduced in the buckets of ``cuts[i]``."""
    spec = parse(name.removesuffix("+ef"), batch=25)

    def one_rank(exchange: Exchange) -> list[Float32Array]:
        method = method_for(spec, Member(exchange, layout=LAYOUT, seed=3, error_feedback=name.endswith("+ef")))
        rng, sums = np.random.default_rng(exchange.rank), []
        for buckets in cuts:
            if isinstance(method, GradientServer):
                for bucket in buckets:
                    method.serve(bucket)
                continue
            assert isinstance(method, GradientReducer)
            layers = layers_of(rng.normal(0, 0.02, LAYOUT.count).astype(np.float32))
            for bucket in buckets:
                mine = tuple(range(len(SIZES))) if bucket is None else bucket
                total = method.reduce(np.concatenate([layers[at] for at in mine]), bucket)
                for at, part in zip(mine, np.split(total, np.cumsum([SIZES[at] for at in mine])[:-1]), strict=True):
                    layers[at] = part
            sums.append(np.concatenate(layers))
        return sums

    return run_ranks(WORKERS + int(spec.has_server), one_rank, timeout_s=20)[0]


@pytest.mark.parametrize("name", ["inc", "none:via=ring", "inceptionn+ef", "wgt:threshold=0.01", "bounded:via=server"])
def test_buckets_are_reduced_as_the_whole_is_and_may_be_cut_anew(name: str) -> None:
    # All of these treat a float by itself, so only what was left unsent could tell the two ways apart.
    whole, in_parts = reduced(name, [WHOLE] * 4), reduced(name, [CUT, CUT, CUT_ANEW, WHOLE])
    for one, other in zip(whole, in_parts, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_ternary_gradients_are_served_in_buckets() -> None:
    [total] = reduced("terngrad", [CUT])
    for layer in layers_of(total):
        assert 1 < len(np.unique(np.abs(layer))) <= WORKERS + 1  # a scaler per layer, added by the workers


@pytest.mark.parametrize("name", ["qsgd", "qsgd:via=ring"])
def test_no_random_stream_is_used_twice(name: str) -> None:
    def keys(exchange: Exchange) -> list[tuple[int, int]]:
        member = Member(exchange, layout=LAYOUT)
        if name.endswith("ring"):
            method = method_for(parse(name, batch=25), member)
            assert isinstance(method, PayloadRingReducer)
            return [state.key() for bucket in CUT for state in method.states_of(bucket)]
        states, used = BucketStates(get("qsgd"), member), []
        for bucket in itertools.chain(CUT, CUT, CUT_ANEW, WHOLE):
            state = states.of(bucket)
            used.append(state.key())
            state.step += 1
        return used

    of_all = list(itertools.chain(*run_ranks(WORKERS, keys)))
    assert len(set(of_all)) == len(of_all)
