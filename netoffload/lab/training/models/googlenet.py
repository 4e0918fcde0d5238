"""GoogLeNet (Szegedy et al., 2014, Table 1) as the TernGrad paper trains it (4.2).

Every convolution has batch normalisation, and there are no auxiliary classifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import IMAGENET, ModelSpec, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn

MODULES: Final = (
    *((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None),
    *((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64)),
    *((112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None),
    *((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Maps of each module: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; behind the pooling. None: a pooling between modules."""


def build_googlenet(seed: int, shape: Shape) -> nn.Sequential:
    """Return GoogLeNet with the weights of a seed: 7,005,832 parameters for ImageNet."""
    from torch import nn

    from netoffload.lab.training.layers import Branches, as_images, convolution, he_initialise

    def active(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [*convolution(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    layers: list[nn.Module] = [as_images(shape), *active(shape.channels, 64, 7, 2), pool()]
    layers += [*active(64, 64, 1), *active(64, 192, 3), pool()]
    inputs = 192
    for module in MODULES:
        if module is None:
            layers.append(pool())
            continue
        ones, reduce3, threes, reduce5, fives, pooled = module
        branches = (
            active(inputs, ones, 1),
            [*active(inputs, reduce3, 1), *active(reduce3, threes, 3)],
            [*active(inputs, reduce5, 1), *active(reduce5, fives, 5)],
            [nn.MaxPool2d(3, 1, padding=1), *active(inputs, pooled, 1)],
        )
        layers.append(Branches(*(nn.Sequential(*branch) for branch in branches)))
        inputs = ones + threes + fives + pooled
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inputs, shape.classes)]
    model = nn.Sequential(*layers)
    he_initialise(model, seed)
    return model


SPEC: Final = ModelSpec(
    name="googlenet",
    summary="GoogLeNet with batch normalisation",
    build=build_googlenet,
    usual_shape=IMAGENET,
    smallest_side=32,
    data="synthetic",
    weight_uses=230,
    optimizer=Sgd(learning_rate=0.08, momentum=0.9, weight_decay=4e-5),
    schedule=StepDecay(divisor=2.0, interval=75_000),
)
"""TernGrad, Table 3, four workers. The schedule differs: the paper's rate falls with the root of what is left."""
