"""HDC of the INCEPTIONN paper: five fully connected layers, hidden size 500, for handwritten digits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import CLASSES, GREY_28, ModelSpec, PrintedSize, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn

WIDTHS: Final = (GREY_28.features, 500, 500, 500, 500, CLASSES)
"""INCEPTIONN, VII-A."""


def build_hdc(seed: int, shape: Shape = GREY_28) -> nn.Sequential:
    """Return HDC with the weights of a seed: 1,149,010 parameters."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, he_initialise

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(WIDTHS):
        layers += [FullyConnected(inputs, outputs), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers[:-1])
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="hdc",
    summary="INCEPTIONN's five-layer perceptron",
    build=build_hdc,
    input_shape=GREY_28,
    printed=PrintedSize(2_500_000, "INCEPTIONN, VII-A"),
    optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=5e-5),
    schedule=StepDecay(divisor=5.0, interval=2000),
    thresholds={"wgt": 0.002, "bgt": 0.05, "qgt": 0.005},
)
"""Optimizer and schedule are INCEPTIONN's Table I."""
