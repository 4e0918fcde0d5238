"""The final parameters of short runs of every method, as SHA-256: with threads as ranks, or with processes on links.

``python tests/shared/training_bits.py memory`` prints them as JSON, ``processes`` those of ranks in namespaces.
``training_bits.json`` holds those of some kinds of CPU by what ``alone`` returns on them: matrix products of another
kind round otherwise.
"""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import torch

from netoffload.lab.training import data, inprocess, models
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import Shape
from netoffload.lab.training.plan import plan_runs
from netoffload.lab.training.run import run_all
from netoffload.methods import names

TABLE: Final = Path(__file__).with_suffix(".json")
CODEC: Final = "inceptionn"
BOUND_K: Final = 10

# fmt: off
PARAMETERS: Final = {
    "wgt": "threshold=0.002", "bgt": "threshold=0.002", "qgt": "threshold=0.002", "psgd": "p=3", "rsgd": "p=3",
    "pqasgd": "p=3",
}
WAYS: Final = (
    *("none:via=server", "none:via=ring", "terngrad:via=gather", "qsgd:via=ring", "fp16:via=gather"),
    *("8bit-dynamic:via=server", "wa:groups=2", "wa+c:groups=2", "inc:groups=2", "inc+c:groups=2"),
    "inc:groups=2,top=wa",
)
VARIANTS: Final[dict[str, dict[str, object]]] = {
    "hdc": {"method": "inc", "model": "hdc"},
    "hdc compressed": {"method": "inc+c", "model": "hdc", "loss_scale": 64.0},
    "hdc buckets": {"method": "inc", "model": "hdc", "bucket_mb": 0.3},
    "hdc buckets qsgd": {"method": "qsgd", "model": "hdc", "bucket_mb": 0.5},
    "buckets": {"method": "inc+c", "bucket_mb": 0.05, "loss_scale": 64.0},
    "feedback": {"method": "inceptionn", "error_feedback": True},
    "clip": {"method": "inc", "clip_norm": 0.01, "loss_scale": 8.0},
    "adam": {"method": "inc", "optimizer": "adam", "learning_rate": 0.001},
    "rmsprop wa": {"method": "wa", "optimizer": "rmsprop", "learning_rate": 0.001},
    "adagrad server": {"method": "none:via=server", "optimizer": "adagrad", "learning_rate": 0.001},
    "clip psgd": {"method": "psgd:p=2", "clip_norm": 0.01, "loss_scale": 4.0},
    "model": {"method": "inc", "model": "hdc", "parallel": "model"},
    "hybrid": {"method": "inc", "parallel": "hybrid", "sub_batches": 5},
    "dropout": {"method": "inc", "model": "dettmers-mnist", "batch": 10},
    "batch norm": {"method": "inc", "model": "resnet20", "data": "synthetic:side=8", "batch": 2},
}
# fmt: on


def methods() -> list[str]:
    """Return every method that can be asked for, with parameters, and some ways of their payloads."""
    bare = (f"{name}:{PARAMETERS[name]}" if name in PARAMETERS else name for name in names())
    return [*bare, *WAYS]


def runs(nodes: int) -> dict[str, TrainSettings]:
    """Return the runs by name, those of two or four workers."""
    every = {name: {"method": name} for name in methods()} | VARIANTS
    if nodes == 2:
        every = {name: run for name, run in every.items() if "groups" not in name}
    return {
        name: TrainSettings(nodes=nodes, iterations=4, **({"model": "lenet5", "learning_rate": 0.02} | run))  # type: ignore[arg-type]
        for name, run in every.items()
    }


def in_memory(settings: TrainSettings) -> str:
    """Return the SHA-256 of a run whose ranks are threads; all workers have the same."""
    ranks = inprocess.run_threads(settings, data.load(settings), codec_name=CODEC, bound_k=BOUND_K)
    [sha256] = {run.replica.digest() for run in ranks[: settings.nodes]}
    return sha256


def alone() -> str:
    """Return the SHA-256 of what this CPU's torch makes of the networks of the runs, without anything of ours."""
    torch.set_num_threads(1)
    digest = hashlib.sha256()
    for name, shape in (("lenet5", Shape(1, 28)), ("hdc", Shape(1, 28)), ("resnet20", Shape(3, 8))):
        network = models.get(name).build(1, shape)
        generator = torch.Generator().manual_seed(1)
        for batch in (2, 5, 10, 25):
            images = torch.rand(batch, shape.features, generator=generator)
            labels = torch.randint(0, 10, (batch,), generator=generator)
            torch.autograd.backward(torch.nn.functional.cross_entropy(network(images), labels))
        for parameter in network.parameters():
            assert parameter.grad is not None
            digest.update(parameter.grad.numpy().data)
    return digest.hexdigest()


def in_processes(nodes: int, some: Collection[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of some or all runs as processes in namespaces, by their names."""
    from netoffload.lab.testbed import NicSettings, TestbedSettings

    asked = {name: settings for name, settings in runs(nodes).items() if not some or name in some}
    found: dict[str, str] = {}
    testbed = TestbedSettings(nodes=nodes + 3, nic=NicSettings(codec=CODEC, bound_k=BOUND_K))
    for dataset in dict.fromkeys(settings.data_spec.name for settings in asked.values()):
        chosen = {name: settings for name, settings in asked.items() if settings.data_spec.name == dataset}
        order = [run.settings for run in plan_runs(list(chosen.values()))]
        records = run_all(list(chosen.values()), testbed)
        by_run = dict(zip(map(id, order), records, strict=True))
        found |= {name: by_run[id(settings)].parameter_sha256 for name, settings in chosen.items()}
    return found


def table(sizes: Iterable[int] = (2, 4)) -> dict[str, dict[str, str]]:
    """Return the table of all runs with threads as ranks."""
    return {str(nodes): {name: in_memory(settings) for name, settings in runs(nodes).items()} for nodes in sizes}


if __name__ == "__main__":
    found = {str(nodes): in_processes(nodes) for nodes in (2, 4)} if sys.argv[1:] == ["processes"] else table()
    print(json.dumps({alone(): found}, indent=1))
