"""Writes that cut floats over wires that lose frames: tagged transfers take no longer than untagged ones, nearly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.slow]

PROGRAM = str(Path(__file__).with_name("programs") / "loss_cut.py")
COUNT = 30
RATIO_MAX = 1.5
LIMIT_S = 180


@pytest.mark.timeout(300)
def test_tagged_transfers_that_cut_floats_keep_up_under_loss() -> None:
    options = ["--count", str(COUNT), "--parallel", str(COUNT), "--limit-s", str(LIMIT_S)]
    done = subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=280)
    assert done.stdout, done.stderr
    *rows, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert len(rows) == 2 * COUNT
    assert all(row["torn_values"] == 0 for row in rows)
    assert all(row["outcome"] == "finished" and row["short_octets"] == 0 for row in rows), rows
    assert summary["ratio"] <= RATIO_MAX, summary
