"""The ring's schedule, as properties over all small rings."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.collectives import schedule

SIZES = range(1, 10)


@given(count=st.integers(0, 10**9), size=st.integers(1, 64))
def test_partition_covers_everything_once_and_evenly(count: int, size: int) -> None:
    spans = schedule.partition(count, size)
    assert len(spans) == size
    assert spans[0].start == 0
    assert spans[-1].stop == count
    assert all(left.stop == right.start for left, right in itertools.pairwise(spans))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


@pytest.mark.parametrize("size", SIZES)
def test_what_one_rank_sends_its_right_neighbour_receives(size: int) -> None:
    for step in range(schedule.step_count(size)):
        for rank in range(size):
            right = (rank + 1) % size
            assert schedule.sent_block(rank, size, step) == schedule.received_block(right, size, step)


@pytest.mark.parametrize("size", SIZES)
def test_what_arrives_in_one_step_leaves_in_the_next(size: int) -> None:
    for rank in range(size):
        for step in range(schedule.step_count(size)):
            assert schedule.sent_block(rank, size, step + 1) == schedule.received_block(rank, size, step)


@pytest.mark.parametrize("size", SIZES)
def test_schedule_sums_every_block_over_every_rank_exactly_once(size: int) -> None:
    # terms[rank][block]: whose values are in rank's copy of block, with repetition.
    terms = [[[rank] for _ in range(size)] for rank in range(size)]
    for step in range(schedule.step_count(size)):
        arriving = [terms[(rank - 1) % size][schedule.received_block(rank, size, step)] for rank in range(size)]
        for rank in range(size):
            block = schedule.received_block(rank, size, step)
            kept = terms[rank][block] if schedule.is_reducing(size, step) else []
            terms[rank][block] = kept + arriving[rank]
        if step == size - 2:
            for rank in range(size):
                assert sorted(terms[rank][schedule.owned_block(rank, size)]) == list(range(size))
    assert all(sorted(block) == list(range(size)) for rank in terms for block in rank)
