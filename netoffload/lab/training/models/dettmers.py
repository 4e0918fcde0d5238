"""The networks of Dettmers' 8-bit paper (section 3.2) for MNIST and for CIFAR-10.

For MNIST the paper trains with RMSProp. For CIFAR-10 it names the filters of the convolutions. The filters of the
locally connected layers, 64 and 32 of 3x3, and the normalisation come from cuda-convnet's network, which it cites.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import COLOUR_32, ModelSpec, RmsProp, Schedule, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn


def build_dettmers_mnist(seed: int, shape: Shape) -> nn.Sequential:
    """Return the perceptron 784x1024x1024x10 with the weights of a seed: 1,863,690 parameters."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, he_initialise

    layers: list[nn.Module] = [nn.Dropout(0.2)]
    for inputs, outputs in itertools.pairwise((shape.features, 1024, 1024)):
        layers += [FullyConnected(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    model = nn.Sequential(*layers, FullyConnected(1024, shape.classes))
    he_initialise(model, seed)
    return model


def build_dettmers_cifar(seed: int, shape: Shape) -> nn.Sequential:
    """Return the network with locally connected layers with the weights of a seed: 3,607,370 for CIFAR-10."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, LocallyConnected, as_images, he_initialise

    side = -(-shape.side // 2)
    side = -(-side // 2)
    model = nn.Sequential(
        as_images(shape),
        *(nn.Conv2d(shape.channels, 64, 5, padding=2), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.001, 0.75)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.001, 0.75)),
        *(LocallyConnected(64, 64, side), nn.ReLU(inplace=True)),
        *(LocallyConnected(64, 32, side), nn.ReLU(inplace=True)),
        *(nn.Flatten(), FullyConnected(32 * side * side, shape.classes)),
    )
    he_initialise(model, seed)
    return model


SPECS: Final = (
    ModelSpec(
        name="dettmers-mnist",
        summary="the 8-bit paper's perceptron",
        build=build_dettmers_mnist,
        optimizer=RmsProp(learning_rate=0.003),
        schedule=Schedule(),
    ),
    ModelSpec(
        name="dettmers-cifar",
        summary="the 8-bit paper's locally connected network",
        build=build_dettmers_cifar,
        usual_shape=COLOUR_32,
        weight_uses=6,
        optimizer=Sgd(learning_rate=0.005, momentum=0.9, weight_decay=4e-3),
        schedule=StepDecay(divisor=10.0, interval=20_000),
    ),
)
