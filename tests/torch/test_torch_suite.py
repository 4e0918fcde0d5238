"""Torch's own tests of ``torch.distributed`` over the backend: see ``torch_suite``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.quick_cases import by_day

SUITE = Path(__file__).with_name("torch_suite.py")


def _run(*words: str) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SUITE), "--json", *words], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", by_day([3, 4], [3]))
def test_torchs_own_tests_of_collectives_pass(ranks: int) -> None:
    found = _run("--ranks", str(ranks), "--quick")
    assert (found["unexpected"], found["mended"]) == ([], [])
    assert len(found["passed"]) >= 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.night
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_all_of_torchs_own_tests_pass(ranks: int) -> None:
    found = _run("--ranks", str(ranks))
    assert (found["unexpected"], found["mended"]) == ([], [])
    assert len(found["passed"]) >= 115
