"""A small CNN, for images of any number of channels: four workers train it on two cores.

Three convolutions of 3x3 with ReLU and 2x2 maximum pooling, then two fully connected layers.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import ModelSpec, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn

CHANNELS: Final = (32, 64, 64)
HIDDEN: Final = 64


def build_cnn(seed: int, shape: Shape) -> nn.Sequential:
    """Return the CNN for images of ``shape``, with the weights of a seed."""
    from torch import nn

    from netoffload.lab.training.layers import he_initialise

    layers: list[nn.Module] = [nn.Unflatten(1, (shape.channels, shape.side, shape.side))]
    side = shape.side
    for inputs, outputs in itertools.pairwise((shape.channels, *CHANNELS)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        side //= 2
    layers += [nn.Flatten(), nn.Linear(CHANNELS[-1] * side * side, HIDDEN), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, shape.classes))
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="cnn",
    summary="a small convolutional network",
    build=build_cnn,
    weight_uses=62,
    optimizer=Sgd(learning_rate=0.02, momentum=0.9, weight_decay=5e-5),
    schedule=StepDecay(divisor=5.0, interval=2000),
    thresholds={"wgt": 0.002, "bgt": 0.2, "qgt": 0.01},
)
"""With HDC's learning rate the CNN diverges after a few steps."""
