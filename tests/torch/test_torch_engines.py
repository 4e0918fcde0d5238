"""Lightning, Accelerate, Hugging Face's Trainer and Ray Train: each one's example with the real package, two ranks.

Each run has a loopback interface of its own, which counts what the run sends: launcher and store included.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from netoffload.errors import UsageError
from tests.shared.commands import PYTHONPATH, ROOT
from tests.shared.quick_cases import by_day

APART = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Starts a program with a loopback interface of its own; no process of it outlives the first one."""
COUNTED = 'ip link set lo up && "$@" && cat /proc/net/dev'
RANKS = 2
GRADIENT_OCTETS = 4 * (64 * 256 + 256 * 256 + 256 * 10 + 256 + 256 + 10)
FIRST_STEP_OCTETS = RANKS * GRADIENT_OCTETS
"""Of the step that travels exact: over Unix sockets, which no interface counts."""
STEPS = {"run_under_torchrun": 30, "run_under_ray": 90}  # Ray's processes talk over the same interface meanwhile
TIMEOUT_S = 300

OF_TORCHRUN = {
    "lightning": "lightning_ddp.py --ranks 2",
    "accelerate": "accelerate_ddp.py",
    "transformers": "hf_trainer.py",
}

pytestmark = pytest.mark.slow


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package}: install netoffload[engines]")


def accelerates_door() -> Any:
    """Return our module, which has imported Accelerate."""
    needs("accelerate")
    return importlib.import_module("netoffload.torch.accelerate")


def apart(*words: str) -> str:
    """Run a Python program in a network namespace; return what it prints, and behind it the interface's counts."""
    if subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare makes no network namespace here: it needs root, or user namespaces")
    with tempfile.TemporaryDirectory() as folder:  # for Ray a short path: sockets lie in it
        ray = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            [*APART, "sh", "-c", COUNTED, "sh", sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=ROOT,
            env=os.environ | ray | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_under_torchrun(*words: str) -> dict[str, tuple[str, int]]:
    """Run the examples that torchrun starts; return what each prints, and the octets on the wire."""
    for package in OF_TORCHRUN:
        needs(package)
    examples = [f"examples/{example}" for example in OF_TORCHRUN.values()]
    printed = apart("-m", "tests.torch.programs.engines_apart", " ".join(words), *examples)
    return dict(zip(OF_TORCHRUN, json.loads(printed.splitlines()[0]).values(), strict=True))


def run_under_ray(*words: str) -> dict[str, tuple[str, int]]:
    """Run Ray's example; return what it prints, and the octets on the wire."""
    needs("ray")
    printed = apart("examples/ray_ddp.py", "--ranks", str(RANKS), *words)
    return {"ray": (printed, int(printed.rpartition("lo:")[2].split()[0]))}


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("beside_gloo", by_day([False, True], [False]))
@pytest.mark.parametrize("run", by_day([run_under_torchrun, run_under_ray], [run_under_torchrun]))
def test_one_line_of_an_engine_compresses_every_step(
    run: Callable[..., dict[str, tuple[str, int]]], beside_gloo: bool
) -> None:
    count = STEPS[run.__name__]
    found = run("--steps", str(count))
    # Two ranks that sum without compression send their whole gradients: what gloo sends is counted by night.
    plain = run("--steps", str(count), "--plain") if beside_gloo else {}
    for engine, (printed, octets) in found.items():
        steps, sent = re.findall(r"(\d+) (?:steps|sums) sent ([\d,]+) octets, ratio", printed)[0]
        assert int(steps) == count, engine
        assert octets + FIRST_STEP_OCTETS > RANKS * int(sent.replace(",", "")), engine
        plain_octets = plain[engine][1] if plain else count * RANKS * GRADIENT_OCTETS
        assert 4 * (octets + FIRST_STEP_OCTETS) < plain_octets, engine


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Accelerate for one rank of one on the CPU, with torch.compile."""
    door = accelerates_door()
    from accelerate.state import AcceleratorState

    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {**own, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    try:
        yield door.Accelerator(cpu=True, dynamo_backend="eager")
    finally:
        torch.distributed.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_gives_every_model_that_it_trains_a_state_of_its_own(accelerator: Any) -> None:
    compress = accelerates_door().compress
    states = compress(accelerator, codec="packed", bound=8, exact_names=["1.*"])
    models = [accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))) for _ in range(2)]
    accelerator.prepare_model(torch.nn.Linear(4, 2), evaluation_mode=True)
    accelerator.prepare(models[0])  # is prepared already
    assert len(states) == 2
    models[1]._orig_mod(torch.ones(1, 4)).sum().backward()
    assert [state.report().steps for state in states] == [0, 1]
    assert states[1].layers.names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert states[1].options.bound == 8
    with pytest.raises(UsageError, match="before prepare"):
        compress(accelerator)
    for state in states:
        state.close()


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("NO", {}, r"write Accelerator\(cpu=True\)"),
        ("FSDP", {}, "netoffload.torch.fsdp.compress"),
        ("MULTI_CPU", {"bound": 99}, "99"),
    ],
)
def test_accelerate_is_refused_where_no_hook_would_run(
    kind: str, options: dict[str, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = accelerates_door()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=reason):
        door.compress(SimpleNamespace(distributed_type=door.DistributedType(kind), _models=[]), **options)


def test_accelerate_of_one_process_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    door = accelerates_door()
    monkeypatch.setenv("WORLD_SIZE", "1")
    alone = SimpleNamespace(distributed_type=door.DistributedType("NO"), _models=[], prepare_model=print)
    assert door.compress(alone) == []


def test_the_strategy_has_our_options_and_those_of_lightnings() -> None:
    needs("lightning")
    from netoffload.torch.lightning import NetOffloadStrategy

    strategy = NetOffloadStrategy(bound=8, find_unused_parameters=True, process_group_backend="netoffload")
    assert strategy._options == {"bound": 8}
    assert strategy._ddp_kwargs == {"find_unused_parameters": True}
    assert strategy.process_group_backend == "netoffload"
    with pytest.raises(UsageError, match="99"):
        NetOffloadStrategy(bound=99)
    with pytest.raises(UsageError, match="leave out ddp_comm_hook"):
        NetOffloadStrategy(ddp_comm_hook=print)
