"""Damaged frames into both directions of the engine, in guarded memory: a short run of ``netoffload verify frames``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import netoffload

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.config import parse_count
from netoffload.engine import fuzz
from netoffload.engine.counters import Counter
from netoffload.engine.damage import FRAME_ROOM, FRAME_SLACK
from netoffload.engine.samples import make_samples
from netoffload.errors import RunError, UsageError

pytestmark = pytest.mark.timeout(400)  # what is compiled here takes half a minute on a quiet machine

COUNT = 300 if JIT_DISABLED else 200_000
NOT_THE_ENGINES = {
    Counter.DROP_WIRE_FULL,
    Counter.DROP_WIRE_DOWN,
    Counter.DROP_WIRE_REFUSED,
    Counter.DROP_HOST_DOWN,
    Counter.DROP_HOST_REFUSED,
    Counter.DROP_HOST_FULL,
    Counter.DROP_UNSPLIT,
    Counter.BYPASS_NO_SLOT,  # a table of a few connections is never full
}


@pytest.mark.slow
def test_every_frame_is_accounted_for_and_every_reason_is_met() -> None:
    frames, counters = fuzz.fuzz_batches(5, 0, COUNT)
    outcomes = {counter for counter in fuzz.OUTCOMES if counters[counter]}
    assert frames == COUNT
    # Each frame goes both ways, and so do the SYNs between the batches and the blocks that transmit made.
    assert sum(counters[counter] for counter in fuzz.OUTCOMES) >= 2 * COUNT
    if not JIT_DISABLED:
        assert set(fuzz.OUTCOMES) - outcomes <= NOT_THE_ENGINES
        assert counters[Counter.TX_SEGMENTS] > COUNT / 20
        assert counters[Counter.RX_BLOCKS] > COUNT / 20


def test_a_batch_depends_on_seed_and_number_alone() -> None:
    count = 50 if JIT_DISABLED else 5000
    one, same, other = (fuzz.fuzz_batches(seed, 3, count)[1] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_frame_that_is_not_accounted_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = fuzz.OUTCOME.copy()
    forgets[Counter.DROP_RUNT] = False
    monkeypatch.setattr(fuzz, "OUTCOME", forgets)
    with pytest.raises(RunError, match=r"seed 1, batch 0, frame \d+: not accounted for"):
        fuzz.fuzz_batches(1, 0, COUNT)


def test_the_samples_are_of_every_kind() -> None:
    samples = make_samples()
    assert samples.shares.sum() == pytest.approx(1)
    assert len({octets.tobytes()[:length] for octets, length in zip(samples.octets, samples.lengths, strict=True)}) > 90
    assert samples.lengths.min() == 0
    assert samples.lengths.max() <= FRAME_ROOM - FRAME_SLACK


def test_the_command_reports_json() -> None:
    count = "40" if JIT_DISABLED else "10k"
    done = netoffload("verify", "frames", "--count", count, "--jobs", "1", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["frames"], answer["seed"]) == (0, parse_count(count), 1)
    assert answer["outcomes"]["rx_bypass"] > 0


def test_counts_are_read_as_people_write_them() -> None:
    assert [parse_count(text) for text in ("20M", "200k", "7")] == [20_000_000, 200_000, 7]
    for text in ("0", "-1", "2.5M", "many", ""):
        with pytest.raises(UsageError, match="count"):
            parse_count(text)
    with pytest.raises(UsageError, match="frames"):
        fuzz.fuzz(0)
