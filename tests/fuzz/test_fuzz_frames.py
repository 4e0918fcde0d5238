"""Damaged frames into both directions of the engine, in guarded memory: a short run."""

import json

import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.config import parse_count
from netoffload.engine.counters import Counter
from netoffload.errors import RunError, UsageError
from tests.fuzz import frames
from tests.fuzz.__main__ import main
from tests.fuzz.frames import FRAME_ROOM, FRAME_SLACK
from tests.fuzz.samples import make_samples

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
    tally = frames.fuzz_batches(5, 0, COUNT)
    # Each frame goes both ways, and so do the SYNs between the batches and the blocks that transmit made.
    assert tally.total() >= 2 * COUNT
    if not JIT_DISABLED:
        assert {counter.name.lower() for counter in set(frames.OUTCOMES) - NOT_THE_ENGINES} <= tally.keys()
        assert tally["tx_segments"] > COUNT / 25  # one codec of eight is exact, to which noise is no gain
        assert tally["rx_blocks"] > COUNT / 20


def test_a_batch_depends_on_seed_and_number_alone() -> None:
    count = 50 if JIT_DISABLED else 5000
    one, same, other = (frames.fuzz_batches(seed, 3, count) for seed in (1, 1, 2))
    assert one == same != other


def test_a_frame_that_is_not_accounted_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = frames.OUTCOME.copy()
    forgets[Counter.DROP_RUNT] = False
    monkeypatch.setattr(frames, "OUTCOME", forgets)
    with pytest.raises(RunError, match=r"seed 1, batch 0, frame \d+: not accounted for"):
        frames.fuzz_batches(1, 0, COUNT)


def test_the_samples_are_of_every_kind() -> None:
    samples = make_samples()
    assert samples.shares.sum() == pytest.approx(1)
    assert len({octets.tobytes()[:length] for octets, length in zip(samples.octets, samples.lengths, strict=True)}) > 90
    assert samples.lengths.min() == 0
    assert samples.lengths.max() <= FRAME_ROOM - FRAME_SLACK


@pytest.mark.slow
def test_what_a_person_types_reports_json(capsys: pytest.CaptureFixture[str]) -> None:
    count = "40" if JIT_DISABLED else "10k"
    assert main(["frames", "--count", count, "--jobs", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["frames"], told["seed"]) == (parse_count(count), 1)
    assert told["outcomes"]["rx_bypass"] > 0


def test_counts_are_read_as_people_write_them() -> None:
    assert [parse_count(text) for text in ("20M", "200k", "7")] == [20_000_000, 200_000, 7]
    for text in ("0", "-1", "2.5M", "many", ""):
        with pytest.raises(UsageError, match="count"):
            parse_count(text)
