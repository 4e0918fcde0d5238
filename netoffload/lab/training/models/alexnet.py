"""AlexNet for ImageNet, in its form for one device (Krizhevsky, 2014), as torchvision has it too."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import IMAGENET, ModelSpec, PrintedSize, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn


def build_alexnet(seed: int, shape: Shape) -> nn.Sequential:
    """Return AlexNet with the weights of a seed: 61,100,840 parameters for ImageNet."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, as_images, he_initialise

    layers: list[nn.Module] = [as_images(shape), nn.Conv2d(shape.channels, 64, 11, stride=4, padding=2)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2))
    for inputs, outputs in itertools.pairwise((192, 384, 256, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten()]
    for inputs in (256 * 6 * 6, 4096):
        layers += [nn.Dropout(0.5), FullyConnected(inputs, 4096), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, FullyConnected(4096, shape.classes))
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="alexnet",
    summary="AlexNet",
    build=build_alexnet,
    usual_shape=IMAGENET,
    smallest_side=63,
    data="synthetic",
    printed=PrintedSize(233_000_000, "INCEPTIONN, VII-A"),
    weight_uses=12,
    optimizer=Sgd(learning_rate=0.01, momentum=0.9, weight_decay=5e-5),
    schedule=StepDecay(divisor=10.0, interval=100_000),
)
"""INCEPTIONN, Table I. Its megabytes are 2^20 octets."""
