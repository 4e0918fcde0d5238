"""Network in Network for ImageNet, as Caffe's model zoo has it: the network of the thresholds' paper (section 3).

That paper counts 60,719,360 gradients of eight nodes per iteration: eight times this network's weights without biases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import IMAGENET, ModelSpec, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn


def build_nin(seed: int, shape: Shape) -> nn.Sequential:
    """Return NiN with the weights of a seed: 7,595,176 parameters for ImageNet."""
    from torch import nn

    from netoffload.lab.training.layers import as_images, he_initialise

    def stage(*convolutions: nn.Conv2d) -> list[nn.Module]:
        return [layer for convolution in convolutions for layer in (convolution, nn.ReLU(inplace=True))]

    def pointwise(maps: int, outputs: int | None = None) -> nn.Conv2d:
        return nn.Conv2d(maps, outputs or maps, 1)

    model = nn.Sequential(
        as_images(shape),
        *stage(nn.Conv2d(shape.channels, 96, 11, stride=4), pointwise(96), pointwise(96)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *stage(nn.Conv2d(96, 256, 5, padding=2), pointwise(256), pointwise(256)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        *stage(nn.Conv2d(256, 384, 3, padding=1), pointwise(384), pointwise(384)),
        *(nn.MaxPool2d(3, 2, ceil_mode=True), nn.Dropout(0.5)),
        *stage(nn.Conv2d(384, 1024, 3, padding=1), pointwise(1024), pointwise(1024, shape.classes)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="nin",
    summary="Network in Network",
    build=build_nin,
    usual_shape=IMAGENET,
    smallest_side=64,
    data="synthetic",
    weight_uses=145,
    optimizer=Sgd(learning_rate=0.01, momentum=0.9, weight_decay=5e-4),
    schedule=StepDecay(divisor=10.0, interval=100_000),
)
"""Anoosheh et al., section 3."""
