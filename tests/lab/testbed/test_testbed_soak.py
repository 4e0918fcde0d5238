"""The code that judges the values of a soak, and the code that draws its connections."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from tests.soak import SoakResult, Values, draw_options, draw_values
from tests.soak.endpoint import Judge
from tests.soak.options import BLOCK_VALUES, DISTRIBUTIONS

SENT = draw_values("gradients", 1000, 1)
ROUNDED = get("bounded").round_trip(SENT, 10)
SENT_BITS, ROUNDED_BITS = SENT.view(np.uint32), ROUNDED.view(np.uint32)
DIFFER = int((SENT_BITS != ROUNDED_BITS).sum())


def judged(bits: np.ndarray, rotation: int = 0, piece: int = 1_000_000, tail: bytes = b"") -> dict[str, object]:
    judge = Judge(SENT_BITS, ROUNDED_BITS, rotation)
    octets = bits.tobytes() + tail
    for start in range(0, len(octets), piece):
        judge.take(octets[start : start + piece])
    return judge.close()


@pytest.mark.parametrize("piece", [1, 3, 4, 1001, 1_000_000])
def test_every_float_is_judged_however_the_stream_is_cut(piece: int) -> None:
    bits = np.roll(np.concatenate([ROUNDED_BITS, ROUNDED_BITS]), -300)
    found = judged(bits, rotation=300, piece=piece)
    assert (found["values"], found["rounded"], found["exact"], found["wrong"]) == (2000, 2 * DIFFER, 0, 0)


def test_exact_values_count_apart_before_and_after_the_first_rounded_one() -> None:
    bits = np.concatenate([SENT_BITS[:100], ROUNDED_BITS[100:900], SENT_BITS[900:]])
    found = judged(bits, piece=40)
    differ = SENT_BITS != ROUNDED_BITS
    assert found["exact"] == differ[:100].sum() + differ[900:].sum()
    assert found["exact_after_begun"] == differ[900:].sum() > 0


def test_half_of_one_form_and_half_of_the_other_is_wrong() -> None:
    octets = np.concatenate([ROUNDED_BITS]).view(np.uint8).reshape(-1, 4)
    at = int(np.flatnonzero((SENT_BITS & 0xFFFF != ROUNDED_BITS & 0xFFFF) & (SENT_BITS >> 16 != ROUNDED_BITS >> 16))[0])
    octets[at, :2] = SENT_BITS[at : at + 1].view(np.uint8)[:2]
    found = judged(octets.reshape(-1).view(np.uint32))
    assert (found["wrong"], found["first_wrong"]) == (1, at)


@pytest.mark.parametrize(("tail", "wrong"), [(0, 0), (1, 1)])
def test_odd_octets_at_the_end_must_be_exact(tail: int, wrong: int) -> None:
    octets = bytearray(SENT_BITS[:1].tobytes()[:3])
    octets[2] ^= tail
    assert judged(ROUNDED_BITS, tail=bytes(octets))["tail_wrong"] == wrong


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
