"""``netoffload bench ddp``: its arithmetic and, on a testbed, replicas that agree and fewer octets; no times."""

import json
import os
import statistics

import pytest

from netoffload.lab.bench.ddp import compared
from netoffload.lab.bench.jobs import DdpRecord, DdpResult
from netoffload.lab.bench.rank_ddp import UNTIMED_STEPS, steps_of
from tests.shared.commands import PYTHONPATH, netoffload


def result(what: str, octets: float) -> DdpResult:
    return DdpResult(what, 5, 2, 3, octets, None, None, 0.9, 0.5, (5,))


def test_octets_are_held_against_those_of_fp16_in_whatever_job() -> None:
    plain, through_nics = (result("gloo", 800), result("fp16", 400)), (result("nic_bounded", 100),)
    found = compared([DdpRecord({}, plain), DdpRecord({}, through_nics)])
    assert [(row.what, row.ratio_to_fp16) for row in found] == [("gloo", 0.5), ("fp16", 1.0), ("nic_bounded", 4.0)]
    assert compared([DdpRecord({}, plain[:1])]) == [plain[0]]


def test_rounds_share_the_steps_that_are_timed() -> None:
    assert [steps_of(number, 30, 4) for number in range(5)] == [UNTIMED_STEPS, 6, 7, 7, 7]


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_our_hook_trains_the_same_model_with_a_third_of_the_octets() -> None:
    words = "-n 2 --rate 500mbit --steps 5 --repeat 1 --what gloo --what inline_bounded --json"
    done = netoffload("bench", "ddp", *words.split(), env={"PYTHONPATH": PYTHONPATH})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    gloo, inline = found["results"]
    assert (gloo["what"], inline["what"], found["failed"]) == ("gloo", "inline_bounded", {})
    payload_octets = 2 * 4 * 1_149_010  # two ranks send HDC's gradient each
    assert payload_octets < gloo["wire_bytes_per_iteration"] < 1.2 * payload_octets
    assert inline["wire_bytes_per_iteration"] < payload_octets / 3
    assert inline["payload_ratio"] > 3
    assert len(inline["times_s"]) == 5 - UNTIMED_STEPS
    assert 0 < abs(gloo["loss"] - inline["loss"]) < 0.2
    for row in (gloo, inline):
        assert row["s_per_iteration"] == pytest.approx(statistics.median(row["times_s"]))
        assert row["communicate_s"] == pytest.approx(max(0, row["s_per_iteration"] - row["compute_s"]))
    assert gloo["compute_s"] == inline["compute_s"] > 0
