"""``netoffload bench allreduce`` and ``ddp`` on a testbed: right results and fewer octets; times are not tested."""

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.lab.bench.ddp import compared
from netoffload.lab.bench.jobs import DdpRecord, DdpResult
from netoffload.lab.bench.rank_ddp import UNTIMED_STEPS, steps_of
from tests.shared.commands import PYTHONPATH, netoffload
from tests.shared.forked_ranks import _forks  # noqa: F401

ROOT = Path(__file__).parents[3]
KEYS = {"what", "size_octets", "median_s", "min_s", "max_s", "over_bound", "wire_octets", "ratio"}


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-m", "netoffload", "bench", "allreduce", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def bench(*arguments: str, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    with start(*arguments) as process:
        try:
            out, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, said)


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_compressed_ring_sends_a_fraction_and_nobody_is_wrong() -> None:
    contenders = ("ring", "ring_nic", "ring_comp", "mpich")
    words = [word for name in contenders for word in ("--what", name)]
    done = bench("--nodes", "3", "--rate", "500mbit", "--size", "1MB", "--repeat", "2", "--json", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["bound_s"] == pytest.approx(2 * 2 / 3 * 8e6 / 5e8)
    results = {result["what"]: result for result in report["results"]}
    assert tuple(results) == contenders
    assert all(result.keys() >= KEYS for result in results.values())
    payload_octets = 4 * 1_000_000
    for name in ("ring", "ring_nic", "mpich"):
        assert results[name]["max_error"] == 0.0
        assert results[name]["wire_octets"] > payload_octets  # all of it crossed the wire, with headers
    assert results["ring_comp"]["wire_octets"] < payload_octets / 3
    assert results["ring_comp"]["nic"]["tx_raw_octets"] == pytest.approx(payload_octets, rel=0.1)


@pytest.mark.netns
@pytest.mark.mpi
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_was_found_is_told_when_the_rest_is_interrupted() -> None:
    words = ["-n", "2", "--rate", "500mbit", "--size", "1MB", "--repeat", "1", "--what", "ring", "--what", "ring_comp"]
    with start(*words, "--json") as process:
        assert process.stderr is not None
        said = ""
        while "ring_comp: checking" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(out)
    assert [result["what"] for result in report["results"]] == ["ring"]
    assert report["failed"] == [{"what": "ring_comp", "nodes": 2, "reason": "interrupted"}]


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
