"""The models by their names. A model is an entry of :data:`MODELS`, and its network.

``networks`` builds the networks, and imports torch; nothing here does, so the command line gets names without waiting.
Sizes are those of the papers: ``test_training_models.py`` compares each with its paper, or with the implementation that
the paper names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from netoffload.config import check_choice
from netoffload.lab.training.data_spec import COLOUR_32, GREY_28, IMAGENET, TEXT, SampleShape, Tokens
from netoffload.lab.training.optimizers import Adam, Optimizer, Polynomial, RmsProp, Schedule, Sgd, StepDecay

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model and the defaults of its training."""

    name: str
    summary: str
    optimizer: Optimizer
    schedule: Schedule
    weight_uses: int = 1  # multiplications by a weight per usual sample, on average over the weights, or more
    data: str = "digits"
    usual_shape: SampleShape = GREY_28  # the one in its paper, which is the default of synthetic data
    input_shape: SampleShape | None = None  # the only one that it takes; None: images, or sequences, of any shape
    smallest_side: int = 1
    printed_mb: float | None = None  # by INCEPTIONN, whose megabytes are 2^20 octets
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Best thresholds by method, from ``netoffload bench thresholds``."""

    def __str__(self) -> str:
        """Describe the model in one line."""
        printed = f"; {self.printed_mb:g} MB in INCEPTIONN, VII-A" if self.printed_mb else ""
        rate = f"{type(self.optimizer).__name__}, learning rate {self.optimizer.learning_rate:g}"
        return f"{self.name}: {self.summary}; {rate}; trains on {self.data}{printed}"

    def takes(self, shape: SampleShape) -> bool:
        """Return whether the model can be built for samples of this shape."""
        if self.input_shape is not None:
            return shape == self.input_shape
        return (
            type(shape) is type(self.usual_shape) and getattr(shape, "side", self.smallest_side) >= self.smallest_side
        )

    @property
    def wants(self) -> str:
        """The samples that it takes, in words."""
        if self.input_shape is not None or isinstance(self.usual_shape, Tokens):
            return str(self.input_shape or self.usual_shape)
        return f"images of {self.smallest_side}x{self.smallest_side} or more"

    def build(self, seed: int, shape: SampleShape) -> nn.Module:
        """Return the network for samples of this shape; see :func:`netoffload.lab.training.networks.build`."""
        from netoffload.lab.training import networks

        return networks.build(self.name, seed, shape)

    def layer_sizes(self, shape: SampleShape) -> tuple[int, ...]:
        """Return the lengths of all weights and biases, in their order, without allocating them."""
        import torch

        with torch.device("meta"):
            return tuple(tensor.numel() for tensor in self.build(0, shape).parameters())


_large = functools.partial(ModelSpec, data="synthetic", usual_shape=IMAGENET, smallest_side=32)
"""Models for ImageNet."""

MOMENTUM: Final = 0.9
HE: Final = Sgd(0.1, MOMENTUM, 1e-4)
"""ResNets: INCEPTIONN, Table I; for CIFAR-10 Jiang and Agrawal, 5.1, with the weight decay of He et al."""
IN_200_000: Final = StepDecay(10.0, 200_000)
IN_100_000: Final = StepDecay(10.0, 100_000)
EPOCHS_110: Final = StepDecay(10.0, 42_969)
"""Jiang and Agrawal, 5.1: 110 epochs of CIFAR-10 on four workers with batches of 32."""

_TABLE: Final = (
    # Name, summary, optimizer with rate, momentum and weight decay, schedule with divisor and interval, weight_uses.
    # INCEPTIONN, Table I:
    _large("alexnet", "AlexNet", Sgd(0.01, MOMENTUM, 5e-5), IN_100_000, 12, smallest_side=63, printed_mb=233),
    # TernGrad, Table 1:
    ModelSpec("cifarnet", "TernGrad's CifarNet", Adam(0.0002), Schedule(), 18, usual_shape=COLOUR_32, smallest_side=24),
    # With HDC's learning rate it diverges after a few steps:
    ModelSpec(
        "cnn",
        "a small convolutional network",
        *(Sgd(0.02, MOMENTUM, 5e-5), StepDecay(5.0, 2000), 62),
        thresholds={"wgt": 0.002, "bgt": 0.2, "qgt": 0.01},
    ),
    # Dettmers, 3.4:
    ModelSpec("dettmers-mnist", "the 8-bit paper's perceptron", RmsProp(0.003), Schedule()),
    ModelSpec(
        "dettmers-cifar",
        "the 8-bit paper's locally connected network",
        *(Sgd(0.005, MOMENTUM, 4e-3), StepDecay(10.0, 20_000), 6),
        usual_shape=COLOUR_32,
    ),
    # TernGrad, Table 3, four workers; the paper's rate falls with the root of what is left:
    _large("googlenet", "GoogLeNet with batch normalisation", Sgd(0.08, MOMENTUM, 4e-5), StepDecay(2.0, 75_000), 230),
    ModelSpec("gpt", "a small GPT", Sgd(0.02, MOMENTUM), StepDecay(2.0, 5000), 128, "text", TEXT),
    # INCEPTIONN, Table I:
    ModelSpec(
        "hdc",
        "INCEPTIONN's five-layer perceptron",
        *(Sgd(0.1, MOMENTUM, 5e-5), StepDecay(5.0, 2000)),
        input_shape=GREY_28,
        printed_mb=2.5,
        thresholds={"wgt": 0.002, "bgt": 0.05, "qgt": 0.005},
    ),
    # TernGrad, 4 and 4.1:
    ModelSpec("lenet5", "LeNet-5", Sgd(0.01, MOMENTUM, 5e-4), Polynomial(0.5, 10_000), 7, smallest_side=28),
    ModelSpec(
        "lstm", "five layers of LSTM with 800 units", Sgd(0.1, MOMENTUM), StepDecay(2.0, 5000), 128, "text", TEXT
    ),
    # Anoosheh et al., section 3:
    _large("nin", "Network in Network", Sgd(0.01, MOMENTUM, 5e-4), IN_100_000, 145, smallest_side=64),
    _large("resnet18", "ResNet-18 for ImageNet", HE, IN_200_000, 200),
    _large("resnet50", "ResNet-50 for ImageNet", HE, IN_200_000, 200, printed_mb=98),
    _large("resnet152", "ResNet-152 for ImageNet", HE, IN_200_000, 200),
    ModelSpec("resnet20", "ResNet-20 for CIFAR-10", HE, EPOCHS_110, 155, usual_shape=COLOUR_32),
    ModelSpec("resnet32", "ResNet-32 for CIFAR-10", HE, EPOCHS_110, 155, usual_shape=COLOUR_32),
    ModelSpec("resnet110", "ResNet-110 for CIFAR-10", HE, EPOCHS_110, 155, usual_shape=COLOUR_32),
    # INCEPTIONN, Table I:
    _large("vgg16", "VGG-16 for ImageNet", Sgd(0.01, MOMENTUM, 5e-5), IN_100_000, 112, printed_mb=525),
    # Jiang and Agrawal, 5.1:
    ModelSpec(
        "vgg16-cifar",
        "VGG-16 with batch normalisation for CIFAR-10",
        *(Sgd(0.1, MOMENTUM, 5e-4), EPOCHS_110, 22),
        usual_shape=COLOUR_32,
        smallest_side=17,
    ),
)

MODELS: Final = {spec.name: spec for spec in _TABLE}


def get(name: str) -> ModelSpec:
    """Return a model by its name."""
    return MODELS[check_choice("model", name, tuple(MODELS))]
