"""LeNet-5 (LeCun et al., 1998, II-B), which the TernGrad paper trains on MNIST (4.1).

Its third layer sees all maps of the second. ReLU, maximum pooling and softmax replace the original's functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import ModelSpec, Polynomial, Sgd, Shape

if TYPE_CHECKING:
    from torch import nn


def build_lenet5(seed: int, shape: Shape) -> nn.Sequential:
    """Return LeNet-5 with the weights of a seed: 61,706 parameters for 28x28 grey."""
    from torch import nn

    from netoffload.lab.training.layers import as_images, he_initialise

    after = ((shape.side - shape.side % 2) // 2 - 4) // 2 - 4  # of the third convolution's maps
    model = nn.Sequential(
        as_images(shape),
        *(nn.Conv2d(shape.channels, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 120, 5), nn.ReLU(inplace=True), nn.Flatten()),
        *(nn.Linear(120 * after * after, 84), nn.ReLU(inplace=True), nn.Linear(84, shape.classes)),
    )
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="lenet5",
    summary="LeNet-5",
    build=build_lenet5,
    smallest_side=28,
    weight_uses=7,
    optimizer=Sgd(learning_rate=0.01, momentum=0.9, weight_decay=5e-4),
    schedule=Polynomial(power=0.5, iterations=10_000),
)
"""TernGrad, 4 and 4.1."""
