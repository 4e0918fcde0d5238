"""ResNet-20, ResNet-32 and ResNet-110 for CIFAR-10 (He et al., 2015, 4.2), which Jiang and Agrawal train (5.1).

Shortcuts have no parameters: they take every second value, and planes of zeros for new maps.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import COLOUR_32, ModelSpec, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn

STAGES: Final = (16, 32, 64)


def build_resnet_cifar(depth: int, seed: int, shape: Shape) -> nn.Sequential:
    """Return the ResNet of ``depth`` layers, 6 n + 2, with the weights of a seed."""
    from torch import nn

    from netoffload.lab.training.layers import Residual, Subsample, as_images, convolution, he_initialise

    layers: list[nn.Module] = [as_images(shape), *convolution(shape.channels, STAGES[0], 3), nn.ReLU(inplace=True)]
    inputs = STAGES[0]
    for maps in STAGES:
        for _ in range((depth - 2) // 6):
            stride = maps // inputs
            body = [*convolution(inputs, maps, 3, stride), nn.ReLU(inplace=True), *convolution(maps, maps, 3)]
            shortcut = nn.Identity() if stride == 1 else Subsample(maps - inputs)
            layers.append(Residual(nn.Sequential(*body), shortcut))
            inputs = maps
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes)]
    model = nn.Sequential(*layers)
    he_initialise(model, seed)
    return model


def _spec(depth: int) -> ModelSpec:
    return ModelSpec(
        name=f"resnet{depth}",
        summary=f"ResNet-{depth} for CIFAR-10",
        build=functools.partial(build_resnet_cifar, depth),
        usual_shape=COLOUR_32,
        weight_uses=155,
        optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=StepDecay(divisor=10.0, interval=42_969),
    )


SPECS: Final = (_spec(20), _spec(32), _spec(110))
"""Jiang and Agrawal, 5.1: 110 epochs on four workers with batches of 32. Weight decay is He et al.'s."""
