"""Models as a registry: what each declares holds, and a new one needs one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from netoffload.errors import UsageError
from netoffload.training import models
from netoffload.training.config import DATASETS, TrainSettings
from netoffload.training.model_spec import ModelSpec
from netoffload.training.replica import Replica
from netoffload.training.run import START_S, time_limit_s

ROOT = Path(__file__).parents[2]

MADE_UP = """
from torch import nn
from netoffload.training.model_spec import ModelSpec, Sgd, Shape, StepDecay

SPEC = ModelSpec(
    name="made-up",
    summary="one layer",
    build=lambda seed, shape: nn.Linear(shape.features, 10),
    input_shape=Shape(1, 28),
    optimizer=Sgd(0.25, 0.5, 0.0),
    schedule=StepDecay(2.0, 3),
    loss=lambda outputs, labels: outputs.square().mean(),
)
"""


def test_a_new_model_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    found = models._specs()
    assert found.keys() == {*models.MODELS, "made-up"}
    monkeypatch.setitem(models.MODELS, "made-up", found["made-up"])

    settings = TrainSettings("inc", model="made-up", iterations=100)
    assert [settings.learning_rate_at(at) for at in (0, 2, 3, 6)] == [0.25, 0.25, 0.125, 0.0625]
    assert (settings.resolved().momentum, settings.resolved().learning_rate_interval) == (0.5, 3)
    replica, images = Replica(settings), torch.ones(2, 784)
    outputs = torch.nn.functional.linear(
        images,
        torch.from_numpy(replica.parameters[:7840].reshape(10, 784)),
        torch.from_numpy(replica.parameters[7840:]),
    )
    assert replica.backward(images, torch.zeros(2, dtype=torch.int64)) == pytest.approx(float(outputs.square().mean()))
    assert time_limit_s(settings, 10**6) - START_S == pytest.approx(100 * (1 + 10 * 2 * 4 * 7850 * 32 / 1e6))
    with pytest.raises(UsageError, match=r"made-up takes 28x28 grey images \(digits, mnist\), not cifar10: .* cnn"):
        TrainSettings("inc", model="made-up", data="cifar10", data_dir="/nowhere")


@pytest.mark.parametrize("spec", models.MODELS.values(), ids=lambda spec: spec.name)
def test_what_a_model_declares_holds(spec: ModelSpec) -> None:
    assert all(0 < threshold < 1 for threshold in spec.thresholds.values())
    shapes = {known.shape for known in DATASETS.values() if spec.takes(known.shape)}
    assert shapes
    assert spec.printed is None or str(spec).endswith(f"; {spec.printed.octets / 1e6:g} MB in {spec.printed.place}")
    for shape in shapes:
        model = spec.build(1, shape)
        outputs = model(torch.rand(2, shape.features)) if not spec.input_shape else None
        assert outputs is None or outputs.shape == (2, 10)
        assert spec.layer_sizes(shape) == tuple(tensor.numel() for tensor in model.parameters())


def comparisons_with(names: set[str], source: str) -> list[str]:
    """The comparisons and cases of a module in which a model's name stands as a string."""
    if not any(name in source for name in names):
        return []
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare | ast.match_case)]
    return [
        ast.unparse(node.pattern if isinstance(node, ast.match_case) else node)
        for node in nodes
        for part in ast.walk(node.pattern if isinstance(node, ast.match_case) else node)
        if isinstance(part, ast.Constant) and part.value in names
    ]


def test_nothing_asks_for_a_model_by_its_name() -> None:
    names = set(models.MODELS)
    assert comparisons_with(names, "if model == 'hdc': pass\nmatch model:\n    case 'cnn': pass")
    files = [path for folder in ("netoffload", "daemon", "mpi_ext") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path): comparisons_with(names, path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
