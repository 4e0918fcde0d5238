"""A NIC without any option ends and starts again while connections write cut floats: none hangs, no value is torn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.quick_cases import by_day

pytestmark = pytest.mark.slow

PROGRAM = str(Path(__file__).with_name("programs") / "restart_cut.py")
CASES = [
    (number, node, count)
    for count, numbers, nodes in ((20, ("TERM", "KILL"), ("0", "both")), (100, ("TERM", "KILL"), ("0",)))
    for number in numbers
    for node in nodes
]
BY_DAY = [("TERM", "0", 20), ("KILL", "both", 20)]
LIMIT_S = 60


@pytest.mark.parametrize(("number", "node", "count"), by_day(CASES, BY_DAY))
def test_no_connection_hangs_after_a_restart_without_options(number: str, node: str, count: int) -> None:
    command = [sys.executable, PROGRAM, "--signal", number, "--node", node, "--count", str(count)]
    done = subprocess.run([*command, "--limit-s", str(LIMIT_S)], capture_output=True, text=True, timeout=110)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["hung"] == found["torn_values"] == found["short"] == 0, found
    assert found["finished"] + found["reset"] == count
    assert done.returncode == 0, done.stderr
