"""The models: what each declares is true, and a new model needs an entry and a network."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from netoffload.errors import UsageError
from netoffload.lab.training import models, networks
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import DATASETS, GREY_28, IMAGENET, Tokens
from netoffload.lab.training.models import ModelSpec
from netoffload.lab.training.networks import CharacterLstm, LocallyConnected
from netoffload.lab.training.optimizers import Sgd, StepDecay
from netoffload.lab.training.replica import Replica
from netoffload.lab.training.run import START_S, time_limit_s

ROOT = Path(__file__).parents[3]


def test_a_new_model_is_an_entry_and_its_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.MODELS.keys() == networks.NETWORKS.keys()
    made_up = ModelSpec("made-up", "one layer", Sgd(0.25, 0.5), StepDecay(2.0, 3), input_shape=GREY_28)
    monkeypatch.setitem(models.MODELS, "made-up", made_up)
    monkeypatch.setitem(networks.NETWORKS, "made-up", lambda shape: torch.nn.Linear(shape.features, 10))

    settings = TrainSettings("inc", model="made-up", iterations=100)
    assert [settings.learning_rate_at(at) for at in (0, 2, 3, 6)] == [0.25, 0.25, 0.125, 0.0625]
    assert (settings.resolved().momentum, settings.resolved().learning_rate_interval) == (0.5, 3)
    replica, images = Replica(settings), torch.ones(2, 784)
    outputs = torch.nn.functional.linear(
        images,
        torch.from_numpy(replica.parameters[:7840].reshape(10, 784)),
        torch.from_numpy(replica.parameters[7840:]),
    )
    labels = torch.tensor([3, 4])
    expected = torch.nn.functional.cross_entropy(outputs, labels)
    assert replica.backward(images, labels) == pytest.approx(float(expected))
    assert time_limit_s(settings, 10**6) - START_S == pytest.approx(100 * (1 + 10 * 2 * 4 * 7850 * 32 / 1e6))
    with pytest.raises(
        UsageError, match=r"made-up takes 28x28 grey images \(digits, mnist, fashion-mnist\), not cifar10: .* cnn"
    ):
        TrainSettings("inc", model="made-up", data="cifar10", data_dir="/nowhere")


PARAMETERS = {
    "alexnet": 61_100_840,
    "cifarnet": 1_068_298,  # as TensorFlow's tutorial says
    "cnn": 93_322,
    "dettmers-mnist": 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10,
    "dettmers-cifar": 4_864 + 36_928 + 64 * (64 * 9 * 64 + 64) + 64 * (64 * 9 * 32 + 32) + 20_490,
    "googlenet": 6_998_552 + 7_280,  # Caffe's, and a second value for normalisation in place of each bias
    "gpt": 96 * 128 + 128 * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128,
    "hdc": 1_149_010,
    "lenet5": 61_706,
    "lstm": 96 * 800 + 5 * 4 * 800 * (800 + 800 + 2) + 800 * 96 + 96,
    "nin": 7_595_176,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet110": 1_727_962,
    "vgg16": 138_357_544,
    "vgg16-cifar": 14_714_688 + 2 * 4_224 + 5_130,
}
"""Of the papers or of the implementations that they name; those of ImageNet are torchvision's too."""


def test_the_guide_has_every_model_and_its_parameters() -> None:
    guide = (ROOT / "docs/guide/training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| ([\d,]+) \|", guide, re.MULTILINE)
    assert {name: int(count.replace(",", "")) for name, count in rows} == PARAMETERS
    assert PARAMETERS.keys() == models.MODELS.keys()


DEEP = ("resnet110", "resnet152")
"""More of the blocks that smaller models have: nothing but time is in running them."""

LONG = ("resnet50", "googlenet", "resnet32", "resnet18")
"""Many blocks too; ``./scripts/check`` leaves them out."""

SHALLOW = [spec for spec in models.MODELS.values() if spec.name not in DEEP]


@pytest.mark.parametrize("name", DEEP)
def test_deep_models_have_the_size_of_the_paper(name: str) -> None:
    spec = models.get(name)
    assert sum(spec.layer_sizes(spec.usual_shape)) == PARAMETERS[name]


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, marks=pytest.mark.slow if spec.name in LONG else (), id=spec.name) for spec in SHALLOW],
)
def test_what_a_model_declares_holds(spec: ModelSpec) -> None:
    assert all(0 < threshold < 1 for threshold in spec.thresholds.values())
    assert spec.printed_mb is None or str(spec).endswith(f"; {spec.printed_mb:g} MB in INCEPTIONN, VII-A")
    sizes = spec.layer_sizes(spec.usual_shape)
    assert sum(sizes) == PARAMETERS[spec.name]
    assert TrainSettings("inc", model=spec.name).data_spec.name.startswith(spec.data)
    others = {known.shape for known in DATASETS.values() if spec.takes(known.shape)} - {spec.usual_shape}
    for shape in (spec.usual_shape, *others):
        if isinstance(shape, Tokens):  # a recurrence takes long
            shape = dataclasses.replace(shape, length=5)
        counter = FlopCounterMode(display=False)
        with torch.device("meta"), torch.inference_mode(), counter:  # shapes without numbers
            tokens, images = torch.zeros(2, shape.features, dtype=torch.int64), torch.zeros(2, shape.features)
            model = spec.build(1, shape).eval()
            outputs = model(tokens if isinstance(shape, Tokens) else images)
            assert networks.cross_entropy(outputs, torch.zeros(outputs.shape[:-1], dtype=torch.int64)).shape == ()
        assert outputs.shape == (2, shape.length, 96) if isinstance(shape, Tokens) else (2, shape.classes)
        uses = counter.get_total_flops() / 2 / 2 / sum(sizes)  # of two samples, an addition with each multiplication
        assert spec.weight_uses / 2 < uses <= spec.weight_uses or shape != spec.usual_shape
        found = tuple(tensor.numel() for tensor in model.parameters())
        assert found == sizes or shape != spec.usual_shape


def test_printed_sizes_are_those_of_the_models() -> None:
    printed = {spec.name: spec.printed_mb for spec in models.MODELS.values() if spec.printed_mb}
    assert printed.pop("hdc") == 2.5  # which five layers cannot have (docs/guide/training.md)
    assert {name: 4 * PARAMETERS[name] / 2**20 for name in printed} == pytest.approx(printed, rel=0.006)
    with torch.device("meta"):
        nin = models.get("nin").build(1, IMAGENET)
    weights = sum(tensor.numel() for tensor in nin.parameters() if tensor.dim() > 1)
    assert 8 * weights == 60_719_360  # gradients of eight nodes (Anoosheh et al., section 3)


SMALL = [spec for spec in SHALLOW if PARAMETERS[spec.name] < 4_000_000]


@pytest.mark.parametrize("spec", SMALL, ids=lambda spec: spec.name)
def test_weights_are_the_seeds_alone(spec: ModelSpec) -> None:
    """Of every type of layer: larger models have no other."""

    def weights(seed: int) -> torch.Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in spec.build(seed, spec.usual_shape).parameters()]).detach()

    torch.manual_seed(1)
    first = weights(5)
    torch.manual_seed(2)
    assert torch.equal(weights(5), first)
    assert not torch.equal(weights(6), first)
    assert first.isfinite().all()


def test_large_models_have_no_other_layers_with_weights_than_small_ones() -> None:
    def types(spec: ModelSpec) -> set[type]:
        with torch.device("meta"):
            layers = spec.build(1, spec.usual_shape).modules()
            return {type(layer) for layer in layers if list(layer.parameters(recurse=False))}

    covered = set().union(*map(types, SMALL))
    others = {spec.name: types(spec) - covered for spec in models.MODELS.values()}
    assert {name: found for name, found in others.items() if found} == {"lstm": {torch.nn.LSTM}}


def test_a_locally_connected_layer_is_a_convolution_where_its_weights_agree() -> None:
    layer, convolution = LocallyConnected(3, 5, 6), torch.nn.Conv2d(3, 5, 3, padding=1)
    layer.weight.data.copy_(convolution.weight.reshape(5, 27).expand(36, 5, 27))
    layer.bias.data.copy_(torch.as_tensor(convolution.bias)[:, None].expand(5, 36))
    images = torch.rand(2, 3, 6, 6)
    torch.testing.assert_close(layer(images), convolution(images))


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_a_guess_depends_on_no_later_token(name: str) -> None:
    shape = Tokens(6, 9)
    model = networks.build("gpt", 1, shape) if name == "gpt" else CharacterLstm(shape, 8, 2)
    tokens = torch.randint(0, 9, (2, 6))
    changed = tokens.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % 9
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


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
