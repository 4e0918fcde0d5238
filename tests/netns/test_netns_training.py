"""A whole training, as a user runs it: testbed, NICs, ranks, training, record, report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netoffload.lab import results
from netoffload.lab.testbed.forks import ENV_FORK_SERVER
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from netoffload.lab.training.capture import Captured
from tests.shared.commands import PYTHONPATH, forked

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]


def environment(state: Path) -> dict[str, str]:
    """As a user's: the command starts a server of its own."""
    ours = {name: value for name, value in os.environ.items() if name != ENV_FORK_SERVER}
    return {**ours, "PYTHONPATH": PYTHONPATH, ENV_STATE_DIR: str(state)}


def test_four_exchanges_on_shaped_links(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "netoffload", "train", "hdc", "--nodes", "2", "--rate", "200mbit", "--json"]
    words += ["--iterations", "4", "--learning-rate", "0.05", "--evaluate-every", "2"]
    words += ["--out", str(tmp_path / "runs.jsonl")]
    words += [word for name in ("wa", "wa+c", "inc", "inc+c") for word in ("--exchange", name)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(tmp_path / "state"), timeout=200)
    assert done.returncode == 0, done.stderr
    assert "nothing is compressed" not in done.stderr
    records = {record.configuration.exchange: record for record in results.read_records(tmp_path / "runs.jsonl")}
    assert json.loads(done.stdout)["records"] == [json.loads(results.to_line(record)) for record in records.values()]

    gradient_octets = 4 * 4 * 1_149_010  # over four iterations
    for name, gradients in (("wa", 2), ("inc", 2)):
        plain, compressed = records[name].traffic, records[f"{name}+c"].traffic
        assert plain.raw_octets == plain.blocks == compressed.drops.get("drop_checksum", 0) == 0
        # Every tagged float passes a NIC once; what TCP sent again passes twice.
        assert gradients * gradient_octets * 0.99 <= compressed.raw_octets <= gradients * gradient_octets * 1.1
        assert compressed.classes.total * 4 == pytest.approx(compressed.raw_octets, rel=0.01)
        assert compressed.ratio > 3
        assert 1.03 < plain.wire_octets / (gradient_octets * (4 if name == "wa" else 2)) < 1.15
    assert records["inc+c"].traffic.wire_octets < records["inc"].traffic.wire_octets / 2.5
    assert list(records["inc"].learning.accuracy_after) == ["2", "4"]
    assert records["inc"].parameter_sha256 != records["inc+c"].parameter_sha256
    assert records["inc"].rate_bps_measured == pytest.approx(200e6, rel=0.05)


def test_raw_traffic_is_no_compressed_run_and_the_next_one_is_done(tmp_path: Path) -> None:
    words = ["train", "hdc", "--nodes", "2", "--iterations", "2", "--json"]
    words += ["--codec", "none", "--baselines", "nic", "--exchange", "inc+c", "--exchange", "inc"]
    done = forked(*words, env={ENV_STATE_DIR: str(tmp_path / "state")}, timeout_s=200)
    assert done.returncode != 0
    told = json.loads(done.stdout)
    assert list(told["exchanges"]) == ["inc via NICs"]
    assert list(told["missing"]) == ["inc+c"]
    assert "the NIC of n0 compressed 0 of 9192080 tagged octets of rank 0" in told["missing"]["inc+c"]
    assert "1 of 2 runs failed: inc+c: the NIC of n0" in done.stderr


def test_a_run_keeps_the_gradients_it_sent(tmp_path: Path) -> None:
    words = ["train", "hdc", "--exchange", "inc+c", "--nodes", "2", "--json"]
    words += ["--iterations", "4", "--capture", str(tmp_path / "kept.npy"), "--capture-every", "2", "--bound", "1"]
    words += ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "3", "--out", str(tmp_path / "runs.jsonl")]
    done = forked(*words, env={ENV_STATE_DIR: str(tmp_path / "state")}, timeout_s=200)
    assert done.returncode == 0, done.stderr
    kept = np.load(tmp_path / "kept.npy")
    assert (kept.shape, kept.dtype) == ((2, 1_149_010), np.float32)
    assert 1e-3 < np.abs(kept).max() < 10
    assert not np.array_equal(kept[0], kept[1])
    assert "of the floats were too small for the codec and crossed as 0" in done.stderr  # almost all are below 2^-1
    assert "inc+c: 4 of 4, loss " in done.stderr
    assert results.read_file(Captured, tmp_path / "kept.layers.json").iterations == (2, 4)
    # The run is over: resuming it builds nothing, tells the same, and adds no second record.
    again = forked(*words, "--resume", env={ENV_STATE_DIR: str(tmp_path)})
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert len(results.read_records(tmp_path / "runs.jsonl")) == 1


def test_a_split_perceptron_puts_an_octet_per_activation_on_the_wires(tmp_path: Path) -> None:
    words = ["train", "hdc", "--parallel", "model", "--activations", "8bit-dynamic", "--nodes", "2"]
    words += ["--iterations", "3", "--rate", "200mbit", "--json"]
    done = forked(*words, env={ENV_STATE_DIR: str(tmp_path)}, timeout_s=200)
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)["records"]
    assert (record["configuration"]["parallel"], record["configuration"]["activations"]) == ("model", "8bit-dynamic")
    # Four hidden layers' activations and errors, and the ten outputs, cross from each of two ranks to the other one.
    # A rank has half of the outputs, and all samples of two batches of 25.
    octets = 2 * record["timed_iterations"] * 50 * (2 * 4 * 250 + 10 // 2)
    assert 1.0 < sum(node["tx_octets"] for node in record["traffic"]["nodes"]) / octets < 1.2
    assert 0 < record["learning"]["final_loss"] < 10
