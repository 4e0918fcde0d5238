"""Scales that follow from the gradient itself: any history, every codec, threads as ranks."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload import codec
from netoffload.codec_specs import SPECS
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.errors import CollectiveError, UsageError
from netoffload.methods import Member, Selection, SelectiveReducer, parse
from netoffload.methods.scales import (
    AUTO_RMS,
    auto_rms,
    checked_scale,
    exponent_for,
    exponents_for,
    meet_loudest,
    root_mean_square,
)
from netoffload.transport.rendezvous.agreement import Precision
from tests.shared.example_counts import examples

LAYOUT = Layout((150, 50))
BOUND_K = 10
STEADY = 4

MAGNITUDES = st.lists(st.none() | st.integers(-60, 60), max_size=5)
"""Exponents of the gradients of some steps; None: a gradient of zeros."""


def gradient(rank: int, step: int, magnitude: int | None) -> Float32Array:
    normal = np.random.default_rng([rank, step]).normal(0, 1, LAYOUT.count).astype(np.float32)
    return np.zeros_like(normal) if magnitude is None else np.ldexp(normal, magnitude)


def steps_of(
    exchange: Exchange, name: str, codec_name: str, gradients: list[Float32Array], *, feedback: bool
) -> tuple[list[Float32Array], SelectiveReducer]:
    """One rank's sums."""
    spec, quantise = parse(name, batch=1), Precision(codec_name, BOUND_K).quantiser()
    member = Member(exchange, quantise, LAYOUT, error_feedback=feedback)
    reducer = SelectiveReducer(spec, member, Selection(scale="auto", auto_rms=auto_rms(spec, codec_name)))
    with np.errstate(all="ignore"):
        return [reducer.reduce(one.copy()).copy() for one in gradients], reducer


def error_of(total: Float32Array, gradients: list[Float32Array]) -> float:
    right = np.sum(gradients, axis=0, dtype=np.float64)
    return float(np.linalg.norm(total - right) / np.linalg.norm(right))


METHODS = [
    *(("inc+c", name) for name in sorted(spec.name.lower() for spec in SPECS)),
    *((name, "bounded") for name in ("packed", "bounded", "16b-T", "fp16", "bf16")),
]


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(("name", "codec_name"), METHODS)
@settings(max_examples=examples(16), deadline=None)
@given(history=MAGNITUDES, last=st.integers(-60, 60), silent=st.booleans())
def test_after_any_history_a_steady_gradient_is_as_exact_as_in_a_fresh_start(
    name: str, codec_name: str, feedback: bool, history: list[int | None], last: int, silent: bool
) -> None:
    """The history may hold spikes and zeros; rank 1 may have no gradient at all."""
    magnitudes = [*history, *[last] * STEADY]
    by_rank = [
        [gradient(rank, step, None if silent and rank else magnitude) for step, magnitude in enumerate(magnitudes)]
        for rank in range(2)
    ]

    def one_rank(exchange: Exchange) -> tuple[list[Float32Array], Float32Array]:
        mine = by_rank[exchange.rank]
        sums, _ = steps_of(exchange, name, codec_name, mine, feedback=feedback)
        return sums, steps_of(exchange, name, codec_name, mine[-1:], feedback=feedback)[0][0]

    (sums, fresh), (others, other_fresh) = run_ranks(2, one_rank, codec=codec.get(codec_name), bound_k=BOUND_K)
    for one, other in zip([*sums, fresh], [*others, other_fresh], strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()
    if feedback:  # the residual of the step before comes on top of this step's own
        right = [one[-1] for one in by_rank]
        assert error_of(sums[-1], right) < 3 * error_of(fresh, right) + 1e-6
    else:
        np.testing.assert_array_equal(sums[-1], fresh)


@pytest.mark.parametrize("name", ["inc+c", "nic:codec=exact"])
def test_exact_is_not_scaled(name: str) -> None:
    own = [gradient(rank, 0, 0) for rank in range(2)]
    for one in own:
        one[:20] *= np.float32(2.0**-140)  # a scale below 1 would cut the last bits off

    def one_rank(exchange: Exchange) -> Float32Array:
        return steps_of(exchange, name, "exact", [own[exchange.rank] * 1000], feedback=False)[0][0]

    for total in run_ranks(2, one_rank, codec=codec.get("exact"), bound_k=BOUND_K):
        assert total.tobytes() == (own[0] * 1000 + own[1] * 1000).tobytes()


@pytest.mark.parametrize(("name", "rms"), [("fp16", AUTO_RMS), ("inc", None), ("qsgd", None)])
def test_a_method_without_a_codec_has_a_scale_if_it_has_half_types(name: str, rms: float | None) -> None:
    assert auto_rms(parse(name, batch=1), "") == rms


@pytest.mark.parametrize("magnitudes", [(0, -10), (-10, 0, -10)])
@pytest.mark.parametrize("name", ["inc+c", "packed"])
def test_a_bucket_that_shrinks_takes_what_is_left_unsent_along(name: str, magnitudes: tuple[int, ...]) -> None:
    given = [gradient(0, step, magnitude) for step, magnitude in enumerate(magnitudes)]

    def one_rank(exchange: Exchange) -> list[Float32Array]:
        own = given if exchange.rank == 0 else [np.zeros(LAYOUT.count, np.float32)] * len(given)
        return steps_of(exchange, name, "packed", own, feedback=True)[0]

    for sums in run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K):
        assert (sums[0] != given[0]).any()
        np.testing.assert_array_equal(sums[-1] == given[-1], magnitudes[0] < 0)  # a spike leaves nothing unsent
        np.testing.assert_allclose(np.sum(sums, axis=0), np.sum(given, axis=0), atol=2.0**-22)


def test_a_gradient_that_is_not_finite_passes_and_is_forgotten() -> None:
    """What a loss scaler must see: all ranks get the infinity, and the next step is that of a fresh start."""
    good, bad = gradient(0, 0, -20), gradient(0, 1, -20)
    bad[7], bad[100] = np.inf, np.nan

    def one_rank(exchange: Exchange) -> list[list[Float32Array]]:
        given = [good, bad if exchange.rank else good, good]
        names = ("inc+c", "bounded", "fp16")
        return [steps_of(exchange, name, "packed", given, feedback=False)[0] for name in names]

    for by_name in run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K):
        for first, spoilt, after in by_name:
            assert np.isinf(spoilt[7])
            assert np.isnan(spoilt[100])
            assert np.isfinite(np.delete(spoilt, [7, 100])).all()
            np.testing.assert_array_equal(after, first)


@pytest.mark.parametrize("feedback", [False, True])
def test_no_finite_value_becomes_infinite(feedback: bool) -> None:
    """The largest and the smallest float32, after each other and beside each other."""
    large, tiny, subnormal = (np.full(LAYOUT.count, value, np.float32) for value in (3e38, 2.0**-126, 2.0**-149))
    mixed = np.where(np.arange(LAYOUT.count) == 5, large, tiny)

    def one_rank(exchange: Exchange) -> list[Float32Array]:
        own = [large, tiny, tiny, tiny, mixed, subnormal, subnormal, tiny, tiny, tiny]
        silent = np.zeros(LAYOUT.count, np.float32)
        given = own if exchange.rank == 0 else [silent] * len(own)  # 3e38 twice would be infinite without any scale
        return steps_of(exchange, "inc+c", "packed", given, feedback=feedback)[0]

    for sums in run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K):
        assert all(np.isfinite(one).all() for one in sums)
        np.testing.assert_allclose(sums[3], tiny, rtol=0.1)
        np.testing.assert_allclose(sums[-1], tiny, rtol=0.1)


def test_what_is_rounded_to_nothing_is_counted_reported_once_and_sent_exact_the_next_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The gradients of two ranks that nearly cancel out: their sum is far below the bound of either."""
    left, right = np.full(LAYOUT.count, 1.0, np.float32), np.full(LAYOUT.count, -1.0 + 2.0**-20, np.float32)

    def one_rank(exchange: Exchange) -> tuple[list[Float32Array], int]:
        own = right if exchange.rank else left
        sums, reducer = steps_of(exchange, "inc+c", "packed", [own] * 5, feedback=False)
        return sums, reducer.vanished

    for sums, vanished in run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K):
        assert [bool(one.any()) for one in sums] == [False, True, False, True, False]
        np.testing.assert_array_equal(sums[1], np.float32(2.0**-20))
        assert vanished == 3
    said = "the gradient of layers 0, 1 was rounded to nothing: it travels exact the next time"
    line = f"netoffload: warning: {said}; later ones are only counted"
    assert capsys.readouterr().err.splitlines() == [line] * 2


def test_a_fixed_scale_that_loses_everything_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    quantise = Precision("packed", BOUND_K).quantiser()

    def one_rank(exchange: Exchange) -> tuple[bool, int]:
        reducer = SelectiveReducer(parse("inc+c", batch=1), Member(exchange, quantise, LAYOUT), Selection(scale=2.0))
        total = sum(reducer.reduce(gradient(0, step, -30)) for step in range(3))
        return bool(np.any(total)), reducer.vanished

    assert run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K) == [(False, 3)] * 2
    assert capsys.readouterr().err.count('set scale="auto", or a larger one') == 2


@pytest.mark.parametrize("exponent", [-149, -140, -126, -70, -40, 0, 40, 70, 127])
def test_a_root_mean_square_is_right_at_any_size(exponent: int) -> None:
    values = np.ldexp(np.array([1, -1, 0.5, 0] * 3, np.float32), exponent)
    right = float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))
    assert root_mean_square(values) == pytest.approx(right, rel=1e-5)
    assert root_mean_square(np.zeros(3, np.float32)) == root_mean_square(np.empty(0, np.float32)) == 0


@given(st.floats(2.0**-125, 2.0**127), st.sampled_from([2.0**-6, 2.0**-4]))
def test_a_scale_brings_the_loudest_rank_to_where_the_codec_works(loudness: float, rms: float) -> None:
    exponent = exponent_for(rms, loudness)
    assert exponent is not None
    assert rms / 2 < loudness * 2.0**exponent <= rms or abs(exponent) == 120


def test_a_scale_of_nothing_is_one_and_none_fits_what_is_not_finite() -> None:
    assert exponent_for(2.0**-6, 0.0) == 0
    assert exponent_for(2.0**-6, math.inf) is exponent_for(2.0**-6, math.nan) is None
    assert exponent_for(2.0**-6, 2.0**-140) == 120
    smallest = np.full(4, 2.0**-149, np.float32)
    (nothing, little), _ = meet_loudest([smallest * 0, smallest], lambda source, target: np.copyto(target, source))
    assert nothing == 0 < little


@given(st.lists(st.integers(0, 2**34), min_size=1, max_size=4))
def test_ranks_notice_that_their_lengths_differ(lengths: list[int]) -> None:
    def words_of(length: int) -> Float32Array:
        heard: list[Float32Array] = []
        vector = np.broadcast_to(np.float32(0), (length,))  # takes no memory
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("netoffload.methods.scales.root_mean_square", lambda _: 1.0)
            meet_loudest([vector], lambda source, _: heard.append(source.copy()))
        return heard[0]

    together = np.max([words_of(length) for length in lengths], axis=0)
    for _ in lengths:
        vector = np.zeros(1, np.float32)
        found = meet_loudest([vector], lambda _, target: np.copyto(target, together))
        assert found == ([1.0], len(set(lengths)) == 1)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("selection", [Selection(), Selection(scale=64.0), "auto"])
@pytest.mark.parametrize("magnitude", [-100, -20, 0, 90])
def test_a_mean_has_the_bits_of_a_divided_sum(size: int, selection: Selection | str, magnitude: int) -> None:
    spec = parse("inc+c", batch=1)
    chosen = Selection(frozenset({1}), "auto", auto_rms(spec, "packed")) if isinstance(selection, str) else selection

    def one_rank(exchange: Exchange) -> list[Float32Array]:
        means = []
        for exact in (False, True):
            for pieces in ((), ((1,), (0,))):
                found = []
                for divisor in (1, size):
                    reducer = SelectiveReducer(spec, Member(exchange, lambda _: None, LAYOUT), chosen)
                    values = gradient(exchange.rank, 0, magnitude)
                    found.append(reducer.reduce(values, exact=exact, pieces=pieces, divisor=divisor))
                np.testing.assert_array_equal(found[0] / np.float32(size), found[1])
                means.append(found[1])
        return means

    run_ranks(size, one_rank)


def test_buckets_of_different_lengths_are_an_error_that_names_both() -> None:
    def one_rank(exchange: Exchange) -> None:
        layout = Layout((100 + exchange.rank,))
        spec = parse("inc+c", batch=1)
        member = Member(exchange, lambda _: None, layout)
        reducer = SelectiveReducer(spec, member, Selection(scale="auto", auto_rms=auto_rms(spec, "packed")))
        reducer.reduce(np.ones(layout.count, np.float32))

    with pytest.raises(CollectiveError, match=r"of 100 floats.* of 101 floats|of 101 floats.* of 100 floats"):
        run_ranks(2, one_rank, codec=codec.get("packed"), bound_k=BOUND_K)


def test_no_part_has_a_smaller_scale_than_the_whole() -> None:
    rms, sizes = 2.0**-6, [1000, 10, 1000, 5]
    assert exponents_for(rms, [1.0] * 4, sizes) == [-6] * 4
    assert exponents_for(rms, [2.0**-20, 8.0, 2.0**-10, 0.0], sizes) == [14, -6, 4, -6]
    assert exponents_for(rms, [2.0**-6, 1.0, 2.0**-6, 1.0], sizes) == [0, -3, 0, -3]
    assert exponents_for(rms, [0.0] * 4, sizes) == [0] * 4
    assert exponents_for(rms, [1.0, math.nan, 1.0, 1.0], sizes) is None


@pytest.mark.parametrize("scale", [0, -2.0, 3, 100.0, "64", "automatic", math.inf, math.nan, True, [1]])
def test_scales_that_cannot_be_are_refused(scale: Any) -> None:
    with pytest.raises(UsageError, match="not a power of two"):
        checked_scale(scale)
