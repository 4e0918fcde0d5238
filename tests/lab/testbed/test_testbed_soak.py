"""The code that draws the connections of a soak."""

import random
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from tests.soak.options import BLOCK_VALUES, DISTRIBUTIONS, Values, draw_options
from tests.soak.run import SoakResult


def test_a_seed_draws_the_same_connections_of_all_kinds() -> None:
    drawn = [[draw_options(draw) for _ in range(200)] for draw in (random.Random(5), random.Random(5))]
    assert drawn[0] == drawn[1]
    assert {options.listener for options in drawn[0]} == {0, 1}
    assert {options.is_ipv6 for options in drawn[0]} == {False, True}
    assert {direction.is_whole for options in drawn[0] for direction in options.directions} == {False, True}
    assert not any(options.is_ipv6 for options in (draw_options(random.Random(seed), ipv6=False) for seed in range(50)))


@pytest.mark.parametrize("codec", ["inceptionn", "bounded"])
def test_the_files_hold_the_codecs_round_trip(tmp_path: Path, codec: str) -> None:
    values = Values(tmp_path, codec, 10, seed=2)
    for name in DISTRIBUTIONS:
        sent = np.fromfile(values.sent(name), np.float32)
        assert sent.size == BLOCK_VALUES
        assert np.array_equal(
            get(codec).round_trip(sent, 10).view(np.uint32), np.fromfile(values.rounded(name), np.uint32)
        )


@pytest.mark.parametrize("trouble", ["wrong", "stuck", "broken"])
def test_any_trouble_makes_a_soak_bad(trouble: str) -> None:
    result = SoakResult(1, "bounded", 10)
    assert result.is_good
    setattr(result, trouble, 1)
    assert not result.is_good
