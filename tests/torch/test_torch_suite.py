"""Torch's own tests of ``torch.distributed`` over the backend: see ``torch_suite``."""

import json

import pytest

from tests.torch.launcher import Launcher


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("ranks", "is_quick", "passed_min"),
    [(3, True, 55), *(pytest.param(ranks, False, 115, marks=pytest.mark.night) for ranks in (3, 4, 8))],
)
def test_torchs_own_tests_pass(launcher: Launcher, ranks: int, is_quick: bool, passed_min: int) -> None:
    words = ["--quick"] if is_quick else []
    done = launcher.run("torch_suite", "--json", "--ranks", ranks, *words, timeout_s=3500)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["unexpected"], found["mended"]) == ([], [])
    assert len(found["passed"]) >= passed_min
