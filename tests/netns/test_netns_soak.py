"""``netoffload verify soak``: a few rounds of everything, and nothing left behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from netoffload.netlink import NETNS_DIR
from netoffload.testbed import state_root
from netoffload.testbed.processes import marked

pytestmark = pytest.mark.netns

COMMAND = [sys.executable, "-m", "netoffload", "verify", "soak", "--flows", "3", "--seed", "12"]


def left() -> set[str]:
    """Runs and their namespaces."""
    runs = set(os.listdir(state_root())) if state_root().exists() else set()
    return {name for name in os.listdir(NETNS_DIR) if any(run in name for run in runs)} | runs


def test_a_few_rounds_are_told_as_json() -> None:
    before = left()
    done = subprocess.run([*COMMAND, "--count", "3", "--json"], capture_output=True, text=True, timeout=110)
    told = json.loads(done.stdout)
    assert (told["seed"], told["rounds"], told["codec"]) == (12, 3, "inceptionn")
    assert sum(told["events"].values()) == 3
    assert told["flows"] >= 3
    assert told["values"] > 100_000
    assert told["compressed_share"] > 0
    assert (told["wrong"], told["stuck"], told["broken"], told["examples"]) == (0, 0, 0, [])
    assert done.returncode == 0
    assert "seed 12" in done.stderr
    assert "3/3 " in done.stderr
    assert left() == before


def test_an_interrupted_soak_tells_what_it_found_and_leaves_nothing() -> None:
    before = left()
    with subprocess.Popen(
        [*COMMAND, "--count", "1000", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as soak:
        assert soak.stderr is not None
        for line in soak.stderr:
            if line.startswith("2/1000"):
                break
        runs = set(os.listdir(state_root())) - before
        soak.send_signal(signal.SIGINT)
        told, said = soak.communicate(timeout=60)
    assert soak.returncode == 130
    assert "interrupted" in said
    assert json.loads(told)["rounds"] == 2
    assert left() == before
    assert len(runs) == 1
    assert marked(f"NETOFFLOAD_RUN={runs.pop()}") == []
