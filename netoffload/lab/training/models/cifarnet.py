"""CifarNet of the TernGrad paper (4.1): the network of TensorFlow's CIFAR-10 tutorial, on the middle 24x24 values.

The paper names the network and the crop, but not the layers. It draws the place of the crop at random, mirrors images
and changes their brightness; here the crop is the middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import COLOUR_32, Adam, ModelSpec, Schedule, Shape

if TYPE_CHECKING:
    from torch import nn

CROP: Final = 24
"""TernGrad, 4.1."""


def build_cifarnet(seed: int, shape: Shape) -> nn.Sequential:
    """Return CifarNet with the weights of a seed: 1,068,298 parameters for CIFAR-10."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, as_images, he_initialise

    before = (shape.side - CROP) // 2
    after = shape.side - CROP - before
    model = nn.Sequential(
        as_images(shape),
        nn.ZeroPad2d((-before, -after, -before, -after)),
        *(nn.Conv2d(shape.channels, 64, 5, padding=2), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(3, 2, padding=1), nn.LocalResponseNorm(9, 0.009, 0.75)),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(inplace=True)),
        *(nn.LocalResponseNorm(9, 0.009, 0.75), nn.MaxPool2d(3, 2, padding=1), nn.Flatten()),
        *(FullyConnected(64 * (CROP // 4) ** 2, 384), nn.ReLU(inplace=True)),
        *(FullyConnected(384, 192), nn.ReLU(inplace=True), nn.Linear(192, shape.classes)),
    )
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="cifarnet",
    summary="TernGrad's CifarNet",
    build=build_cifarnet,
    usual_shape=COLOUR_32,
    smallest_side=CROP,
    weight_uses=18,
    optimizer=Adam(learning_rate=0.0002),
    schedule=Schedule(),
)
"""TernGrad, Table 1."""
