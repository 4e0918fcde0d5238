"""Tagged connections that open in quick succession, or all at once, are all compressed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(__file__).with_name("programs") / "fast_parallel.py")
CASES = [
    pytest.param(200, 0, id="200 at once"),
    pytest.param(2000, 0, id="2000 at once", marks=pytest.mark.slow),
    pytest.param(2000, 8, id="2000, 8 at a time", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("count", "in_progress"), CASES)
def test_no_connection_of_many_is_raw(count: int, in_progress: int) -> None:
    words = [PROGRAM, "--count", str(count), "--in-progress", str(in_progress)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=110)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["torn"] == found["missing"] == 0, found
    assert found["raw"] == 0, found
