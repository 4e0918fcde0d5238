"""A model split over two nodes, as a user runs it: activations and errors cross in 8 bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PYTHONPATH

pytestmark = [pytest.mark.netns, pytest.mark.mpi, pytest.mark.timeout(240)]

SAMPLES = 50
COLUMNS = 250
"""Each of two ranks has half of HDC's 500 outputs, and all of two batches of 25 samples."""


def test_a_split_perceptron_puts_an_octet_per_activation_on_the_wires(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces and TAP need root and /dev/net/tun")
    words = ["train", "hdc", "--parallel", "model", "--activations", "8bit-dynamic", "--nodes", "2"]
    words += ["--iterations", "3", "--rate", "400mbit", "--json"]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "NETOFFLOAD_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "netoffload", *words], capture_output=True, text=True, env=env, timeout=200
    )
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)["records"]
    assert (record["configuration"]["parallel"], record["configuration"]["activations"]) == ("model", "8bit-dynamic")
    # Four hidden layers' activations and errors, and the ten outputs, from each rank to the other one.
    octets = 2 * record["timed_iterations"] * SAMPLES * (2 * 4 * COLUMNS + 10 // 2)
    assert 1.0 < sum(node["tx_octets"] for node in record["traffic"]["nodes"]) / octets < 1.2
    assert 0 < record["learning"]["final_loss"] < 10
