"""Writes that cut floats over wires that lose frames: every value arrives as it was sent or as the codec makes it.

How long such transfers take beside untagged ones is a measurement: ``programs/loss_cut.py --count 30 --parallel 30``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = str(Path(__file__).with_name("programs") / "loss_cut.py")
COUNT = 12
LIMIT_S = 40


@pytest.mark.timeout(150)
def test_transfers_that_cut_floats_tear_none_under_loss() -> None:
    options = ["--count", str(COUNT), "--parallel", str(COUNT), "--octets", "20000", "--limit-s", str(LIMIT_S)]
    done = subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=140)
    assert done.stdout, done.stderr
    *rows, _ = (json.loads(line) for line in done.stdout.splitlines())
    assert len(rows) == 2 * COUNT
    assert all(row["torn_values"] == 0 for row in rows)
    finished = [row for row in rows if row["outcome"] == "finished" and row["tagged"]]
    assert len(finished) >= COUNT // 2, rows
    assert all(row["short_octets"] == 0 for row in finished)
