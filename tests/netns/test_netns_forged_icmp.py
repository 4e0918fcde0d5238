"""ICMP errors about blocks: those that a third host forges change nothing, those of the path's routers do."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.quick_cases import NIGHT, by_day

pytestmark = pytest.mark.slow

PROGRAM = str(Path(__file__).with_name("programs") / "forge_icmp.py")
COUNT = 1000 if NIGHT else 100
ENCAPSULATIONS = ("udp", "ipcomp")
ERRORS = ("too big", "port unreachable", "protocol unreachable")
BY_DAY = [("udp", "port unreachable", 4), ("ipcomp", "protocol unreachable", 6), ("udp", "too big", 6)]
SHARE_CHANGE_MAX = 0.1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("encapsulation", "error", "version"),
    by_day(itertools.product(ENCAPSULATIONS, ERRORS, (4, 6)), BY_DAY),
)
def test_errors_of_a_third_host_change_nothing(encapsulation: str, error: str, version: int) -> None:
    options = ["--version", str(version), "--errors", error, "--encapsulation", encapsulation, "--count", str(COUNT)]
    done = subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=280)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows, done.stderr
    assert [(row["quotes"], row["changed"], row["counters"]) for row in rows if row["changed"]] == []
    assert [row["quotes"] for row in rows if row["share_change"] > SHARE_CHANGE_MAX] == []
    assert done.returncode == 0, done.stderr
