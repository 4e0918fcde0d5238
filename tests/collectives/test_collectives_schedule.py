"""The schedules, for any number of ranks, without a transport."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.collectives import schedule

SIZES = st.integers(1, 20)


@given(st.integers(0, 10_000), SIZES)
def test_partition_covers_in_order_and_evenly(count: int, size: int) -> None:
    spans = schedule.partition(count, size)
    assert len(spans) == size
    assert spans == schedule.consecutive([len(span) for span in spans])
    assert spans[-1].stop == count
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


@pytest.mark.parametrize("walk", [schedule.allreduce_walk, schedule.reduce_scatter_walk, schedule.allgather_walk])
@given(size=SIZES)
def test_what_is_received_is_what_the_left_neighbour_sends_and_what_is_sent_next(walk, size: int) -> None:  # type: ignore[no-untyped-def]
    for rank in range(size):
        assert walk(rank, size)[1:] == walk((rank - 1) % size, size)[:-1]


@given(size=SIZES)
def test_every_block_is_reduced_over_all_ranks_before_it_is_spread(size: int) -> None:
    for walk_of, steps, owned in ((schedule.allreduce_walk, size - 1, 1), (schedule.reduce_scatter_walk, size - 1, 0)):
        walks = [walk_of(rank, size) for rank in range(size)]
        terms = [[[rank] for _ in range(size)] for rank in range(size)]
        for step in range(steps):
            arriving = [list(terms[(rank - 1) % size][walks[rank][step + 1]]) for rank in range(size)]
            for rank in range(size):
                terms[rank][walks[rank][step + 1]] += arriving[rank]
        for rank in range(size):
            assert sorted(terms[rank][(rank + owned) % size]) == list(range(size))
        if walk_of is schedule.allreduce_walk:
            for rank in range(size):
                assert walks[rank][size - 1] == (rank + 1) % size  # phase 2 begins with the block that it owns
                assert sorted(walks[rank][size - 1 :]) == list(range(size))


@pytest.mark.parametrize("tree", [schedule.chain, schedule.binomial])
@given(size=SIZES)
def test_trees_reach_every_position_once_from_its_parent(tree, size: int) -> None:  # type: ignore[no-untyped-def]
    branches = [tree(position, size) for position in range(size)]
    assert branches[0].parent is None
    children = [child for branch in branches for child in branch.children]
    assert sorted(children) == list(range(1, size))
    for position, branch in enumerate(branches):
        assert all(branches[child].parent == position for child in branch.children)


@given(size=SIZES)
def test_a_binomial_tree_is_as_deep_as_the_logarithm(size: int) -> None:
    def depth(position: int) -> int:
        parent = schedule.binomial(position, size).parent
        return 0 if parent is None else 1 + depth(parent)

    assert max(map(depth, range(size))) <= max(size - 1, 0).bit_length()
