"""``netoffload bench ddp``: its arithmetic and, on a testbed, replicas that agree and fewer octets; no times."""

import json
import os

import pytest
from commands import PYTHONPATH, netoffload

from netoffload.lab.bench.ddp import rows
from netoffload.lab.bench.jobs import ALONE, DdpRecord, DdpResult
from netoffload.lab.bench.rank_ddp import UNTIMED_STEPS, steps_of


def result(what: str, times_s: tuple[float, ...], octets: float, accuracy: float | None = 0.9) -> DdpResult:
    return DdpResult(what, times_s, octets, None, accuracy, 0.5)


def test_a_contender_is_held_against_its_own_jobs_computation_and_against_fp16() -> None:
    plain = (result(ALONE, (1, 2, 9), 0, None), result("gloo", (5, 7, 7), 800), result("fp16", (4, 4, 4), 400))
    through_nics = (result(ALONE, (3, 3, 3), 0, None), result("nic_bounded", (4, 5, 6), 100))
    found = {row.what: row for row in rows([DdpRecord({}, plain), DdpRecord({}, through_nics)])}
    assert list(found) == ["gloo", "fp16", "nic_bounded"]
    times = {what: (row.s_per_iteration, row.compute_s, row.communicate_s) for what, row in found.items()}
    assert times == {"gloo": (7, 2, 5), "fp16": (4, 2, 2), "nic_bounded": (5, 3, 2)}
    assert [row.ratio_to_fp16 for row in found.values()] == [0.5, 1.0, 4.0]
    alone = (result(ALONE, (3,), 0, None), result("gloo", (2,), 800))
    (row,) = rows([DdpRecord({}, alone)])
    assert (row.communicate_s, row.ratio_to_fp16) == (0.0, None)


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
