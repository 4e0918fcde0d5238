"""Lightning, Accelerate, Hugging Face's Trainer and Ray Train: each one's example with the real package, two ranks.

Each run has a loopback interface of its own, which counts what the run sends: launcher and store included.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile

import pytest

from tests.shared.commands import PYTHONPATH, ROOT
from tests.shared.quick_cases import by_day

APART = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Starts a program with a loopback interface of its own; no process of it outlives the first one."""
COUNTED = 'ip link set lo up && "$@" && cat /proc/net/dev'
RANKS = 2
GRADIENT_OCTETS = 4 * (64 * 256 + 256 * 256 + 256 * 10 + 256 + 256 + 10)
STEPS = 30
TIMEOUT_S = 200

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
ENGINES = {
    "lightning": ["examples/lightning_ddp.py", "--ranks", str(RANKS)],
    "accelerate": [*TORCHRUN, "examples/accelerate_ddp.py"],
    "transformers": [*TORCHRUN, "examples/hf_trainer.py"],
    "ray": ["examples/ray_ddp.py", "--ranks", str(RANKS)],
}

pytestmark = pytest.mark.slow


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package}: install netoffload[engines]")


def run(engine: str, *words: str) -> tuple[str, int]:
    """Run an engine's example for ``STEPS`` steps; return what it prints, and the octets on the wire."""
    needs(engine)
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare makes no network namespace here: it needs root, or user namespaces")
    with tempfile.TemporaryDirectory() as folder:  # for Ray a short path: sockets lie in it
        ray = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            [*APART, "sh", "-c", COUNTED, "sh", sys.executable, *ENGINES[engine], "--steps", str(STEPS), *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=ROOT,
            env=os.environ | ray | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, int(done.stdout.rpartition("lo:")[2].split()[0])


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize(
    ("engine", "beside_gloo"),
    by_day(itertools.product(ENGINES, (False, True)), [(engine, False) for engine in ENGINES]),
)
def test_one_line_of_an_engine_compresses_every_step(engine: str, beside_gloo: bool) -> None:
    printed, octets = run(engine)
    steps, sent = re.findall(r"(\d+) (?:steps|sums) sent ([\d,]+) octets, ratio", printed)[0]
    assert int(steps) == STEPS
    sent_octets = RANKS * int(sent.replace(",", ""))
    # The first step is exact, and goes through sockets of the host. The interface also has launcher and store.
    assert octets > sent_octets - RANKS * GRADIENT_OCTETS
    # No sum of two ranks without loss of any kind takes less than this: each sends its whole gradient.
    plain_octets = run(engine, "--plain")[1] if beside_gloo else STEPS * RANKS * GRADIENT_OCTETS
    assert 4 * octets < plain_octets
