"""torchft's replicas on four nodes: one is killed twice, and comes back."""

import importlib.util

import pytest

from tests.netns.replicas_on_nodes import KILLS, REPLICAS, parsed, run


@pytest.mark.night
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="no torchft: install netoffload[engines]")
@pytest.mark.parametrize("mode", ["ddp", "diloco"])
def test_the_others_lose_a_step_for_a_replica_that_dies_and_all_end_with_the_same_bits(mode: str) -> None:
    found = run(parsed(["--mode", mode]))
    assert found.steps == 300
    assert found.lost <= KILLS
    assert None not in found.resumed_s + found.rejoined_s
    assert len(found.resumed_s) == KILLS
    assert len(found.digests) == REPLICAS
    assert len(set(found.digests)) == 1
    assert found.digests[0]
