"""``netoffload bench allreduce`` on a real testbed: right sums and fewer octets; times are not tested."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.commands import PYTHONPATH

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
