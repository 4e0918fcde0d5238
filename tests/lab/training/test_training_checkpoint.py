"""A resumed run ends as an uninterrupted one, bit for bit; a checkpoint of another run is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from netoffload import compressors
from netoffload.collectives.inprocess import run_ranks
from netoffload.errors import UsageError
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.checkpoint import Checkpoints, describe, find
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.inprocess import Learned
from netoffload.lab.training.plan import Outputs, Planned
from netoffload.lab.training.replica import Replica
from netoffload.methods import FAMILIES
from tests.shared.quick_cases import with_quick

# fmt: off
EXCHANGES = (
    *("wa:groups=2", "wa+c:groups=2", "inc:groups=2", "inc+c:groups=2,top=wa"),
    *("wa", "wa+c", "inc", "inc+c", "fullsgd", "psgd:p=2", "rsgd:p=2", "pqasgd:p=2", "pqasgd:p=2+ef"),
    *("none", "nic:codec=bounded+ef", "terngrad", "terngrad:via=gather+ef"),
    *("qsgd+ef", "qsgd:via=server", "qsgd:via=ring"),
    *("wgt", "bgt", "qgt", "8bit+ef", "half", "half:via=server+ef", "general:library=zstd-1"),
    "chunked-topk:k=3,chunk=64",
)
QUICK = ("inc+c:groups=2,top=wa", "wa", "inc+c", "pqasgd:p=2+ef", "terngrad:via=gather+ef", "qsgd:via=ring")
# fmt: on
SHAPE = "synthetic:channels=1,side=8,classes=3,samples=60"


def a_run(exchange: str, **options: object) -> TrainSettings:
    method = exchange.removesuffix("+ef")
    settings = TrainSettings(
        method,
        nodes=4 if "groups" in method else 2,
        iterations=5,
        model="cnn",
        data=SHAPE,
        batch=4,
        error_feedback=exchange.endswith("+ef"),
    )
    return dataclasses.replace(settings, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def noise() -> Dataset:
    return data.load(a_run("inc"))


def asked(folder: Path, run: TrainSettings, *, resume: bool, every: int = 100) -> Checkpointing:
    return Checkpointing(str(folder), every, resume, describe(run, "bounded", 8))


def train(run: TrainSettings, noise: Dataset, checkpointing: Checkpointing | None = None) -> Learned:
    return inprocess.train(run, noise, codec_name="bounded", bound_k=8, checkpointing=checkpointing)


def test_every_method_is_resumed_here() -> None:
    tried = {name.removesuffix("+ef").partition(":")[0] for name in EXCHANGES}
    assert tried == {*FAMILIES, *compressors.registry.names()}


def resumed_and_whole(run: TrainSettings, noise: Dataset, folder: Path) -> tuple[Learned, Learned]:
    """Return what a run learns that stopped after three iterations, and what it learns without a stop."""
    begun = dataclasses.replace(run, iterations=3)
    train(begun, noise, asked(folder, begun, resume=False))
    resumed, whole = train(run, noise, asked(folder, run, resume=True)), train(run, noise)
    assert resumed == dataclasses.replace(whole, efficiency=resumed.efficiency)
    assert resumed.efficiency > 0
    return resumed, whole


@pytest.mark.slow
@pytest.mark.parametrize("exchange", with_quick(EXCHANGES, QUICK))
def test_a_resumed_run_ends_as_an_uninterrupted_one(exchange: str, noise: Dataset, tmp_path: Path) -> None:
    resumed_and_whole(a_run(exchange), noise, tmp_path)


def test_buckets_go_on(noise: Dataset, tmp_path: Path) -> None:
    run = a_run("qsgd+ef", bucket_mb=0.01)
    _, whole = resumed_and_whole(run, noise, tmp_path)
    assert whole.sha256 != train(dataclasses.replace(run, bucket_mb=0), noise).sha256


def test_statistics_dropout_momentum_and_warm_up_go_on(noise: Dataset, tmp_path: Path) -> None:
    schedule = "cosine:warmup=4,iterations=6"
    run = a_run("inc", model="resnet20", nodes=1, optimizer="adam", schedule=schedule, eval_every=2)
    resumed, _ = resumed_and_whole(run, noise, tmp_path)
    assert list(resumed.accuracy_after) == ["2", "4"]


def test_a_run_that_broke_goes_on_from_its_latest_checkpoint(noise: Dataset, tmp_path: Path) -> None:
    run = a_run("inc")
    with pytest.MonkeyPatch.context() as patch:
        backward, passes = Replica.backward, []

        def failing(self: Replica, images: torch.Tensor, labels: torch.Tensor, **options: Any) -> float:
            passes.append(1)
            if len(passes) > 8:
                raise OSError("the power is gone")
            return backward(self, images, labels, **options)

        patch.setattr(Replica, "backward", failing)
        with pytest.raises(OSError, match="power"):
            train(run, noise, asked(tmp_path, run, resume=False, every=2))
    found = find(asked(tmp_path, run, resume=True))
    assert found is not None
    assert found.iteration == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "iteration4"]
    assert train(run, noise, asked(tmp_path, run, resume=True)).sha256 == train(run, noise).sha256


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path, noise: Dataset) -> None:
    run = a_run("inc")
    train(run, noise, asked(tmp_path, run, resume=False))
    before = (tmp_path / "checkpoint.json").read_bytes()

    def save(exchange: object) -> None:
        Checkpoints(asked(tmp_path, run, resume=True), exchange).save({"bad": lambda: None}, 7, None)  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r"pickle|local object"):
        run_ranks(2, save)
    assert (tmp_path / "checkpoint.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.rglob("rank*")) == ["rank0.pt", "rank1.pt"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"model": "lenet5", "data": "synthetic:channels=1,side=32,classes=3"},
            "its model is .*; its data is synthetic",
        ),
        ({"seed": 2}, "its seed is 1, not 2"),
        ({"method": "wa"}, "its method is inc, not wa"),
        ({"nodes": 3}, "its nodes is 2, not 3"),
        ({"batch": 5}, "its batch is 4, not 5"),
        ({"optimizer": "adam"}, "its learning_rate is 0.02, not 0.001"),
        ({"schedule": "constant:warmup=3"}, "its learning_rate_divisor is 5.0, not none"),
        ({"clip_norm": 1.0}, "its clip_norm is none, not 1.0"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    options: dict[str, object], says: str, tmp_path: Path, noise: Dataset
) -> None:
    mine = asked(tmp_path, a_run("inc"), resume=True)
    (tmp_path / "checkpoint.json").write_text(
        json.dumps({"format": 3, "run": mine.run, "iteration": 3, "accuracy": None})
    )
    assert find(mine) is not None
    with pytest.raises(UsageError, match=f"is a checkpoint of another run: .*{says}"):
        find(asked(tmp_path, a_run("inc", **options), resume=True))
    with pytest.raises(UsageError, match="holds a checkpoint: go on with --resume"):
        find(dataclasses.replace(mine, resume=False))


def test_a_checkpoint_beyond_the_run_that_is_asked_for_is_refused(tmp_path: Path, noise: Dataset) -> None:
    outputs = Outputs(checkpoint=tmp_path, resume=True)
    begun, shorter = (Planned(a_run("inc", iterations=iterations), False) for iterations in (3, 2))
    at = outputs.checkpointing(begun, None)
    assert at is not None
    train(begun.settings, noise, at)
    with pytest.raises(UsageError, match="is 3 iterations into the run, beyond 2: ask for more --iterations"):
        outputs.finished(shorter, None)


def test_the_bound_belongs_to_a_run_whose_floats_it_rounds() -> None:
    assert describe(a_run("inc+c"), "bounded", 8)["bound"] == "8"
    assert "bound" not in describe(a_run("inc"), "bounded", 8)


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_a_damaged_checkpoint_is_one_clear_line(damage: str, tmp_path: Path, noise: Dataset) -> None:
    run = a_run("inc", iterations=1)
    train(run, noise, asked(tmp_path, run, resume=False))
    file = tmp_path / "iteration1" / "rank1.pt"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "gone":
        file.unlink()
    else:
        (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(UsageError, match="cannot read the checkpoint") as raised:
        train(dataclasses.replace(run, iterations=2), noise, asked(tmp_path, run, resume=True))
    assert "\n" not in str(raised.value)


def test_a_run_ends_at_the_accuracy_that_was_asked_for(noise: Dataset) -> None:
    run = a_run("wa", iterations=40, eval_every=1, stop_at_accuracy=0.1)
    learned = train(run, noise)
    assert list(learned.accuracy_after) == ["1"]
    assert learned.accuracy == learned.accuracy_after["1"] >= 0.1
    assert list(train(a_run("wa", eval_every=2), noise).accuracy_after) == ["2", "4"]
