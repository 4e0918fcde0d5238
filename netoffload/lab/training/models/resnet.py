"""ResNets (He et al., 2015): 18, 50 and 152 for ImageNet (Table 1), as torchvision has them too, and some for CIFAR-10.

Shortcuts that change the size are projections. The stride of a bottleneck is in its 3x3 convolution. ResNet-20, 32 and
110 for CIFAR-10 (4.2) are those that Jiang and Agrawal train (5.1). Their shortcuts have no parameters: they take every
second value, and planes of zeros for new maps.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import COLOUR_32, IMAGENET, ModelSpec, PrintedSize, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn


def _block(inputs: int, maps: int, stride: int, *, bottleneck: bool) -> nn.Module:
    from torch import nn

    from netoffload.lab.training.layers import Residual, convolution

    outputs = 4 * maps if bottleneck else maps
    if bottleneck:
        layers = [*convolution(inputs, maps, 1), nn.ReLU(inplace=True), *convolution(maps, maps, 3, stride)]
        layers += [nn.ReLU(inplace=True), *convolution(maps, outputs, 1)]
    else:
        layers = [*convolution(inputs, maps, 3, stride), nn.ReLU(inplace=True), *convolution(maps, maps, 3)]
    same = stride == 1 and inputs == outputs
    shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))
    return Residual(nn.Sequential(*layers), shortcut)


def build_resnet(blocks: tuple[int, ...], bottleneck: bool, seed: int, shape: Shape) -> nn.Sequential:
    """Return the ResNet whose four stages have ``blocks`` blocks, with the weights of a seed."""
    from torch import nn

    from netoffload.lab.training.layers import as_images, convolution, he_initialise

    layers: list[nn.Module] = [as_images(shape), *convolution(shape.channels, 64, 7, 2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = 64
    for stage, count in enumerate(blocks):
        maps = 64 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(_block(inputs, maps, stride, bottleneck=bottleneck))
            inputs = 4 * maps if bottleneck else maps
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes)]
    model = nn.Sequential(*layers)
    he_initialise(model, seed)
    return model


def _spec(depth: int, blocks: tuple[int, ...], bottleneck: bool, printed: PrintedSize | None = None) -> ModelSpec:
    return ModelSpec(
        name=f"resnet{depth}",
        summary=f"ResNet-{depth} for ImageNet",
        build=functools.partial(build_resnet, blocks, bottleneck),
        usual_shape=IMAGENET,
        smallest_side=32,
        data="synthetic",
        printed=printed,
        weight_uses=200,
        optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=StepDecay(divisor=10.0, interval=200_000),
    )


CIFAR_STAGES: Final = (16, 32, 64)


def build_resnet_cifar(depth: int, seed: int, shape: Shape) -> nn.Sequential:
    """Return the ResNet of ``depth`` layers, 6 n + 2, with the weights of a seed."""
    from torch import nn

    from netoffload.lab.training.layers import Residual, Subsample, as_images, convolution, he_initialise

    layers: list[nn.Module] = [
        as_images(shape),
        *convolution(shape.channels, CIFAR_STAGES[0], 3),
        nn.ReLU(inplace=True),
    ]
    inputs = CIFAR_STAGES[0]
    for maps in CIFAR_STAGES:
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


def _cifar_spec(depth: int) -> ModelSpec:
    return ModelSpec(
        name=f"resnet{depth}",
        summary=f"ResNet-{depth} for CIFAR-10",
        build=functools.partial(build_resnet_cifar, depth),
        usual_shape=COLOUR_32,
        weight_uses=155,
        optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=StepDecay(divisor=10.0, interval=42_969),
    )


SPECS: Final = (
    _spec(18, (2, 2, 2, 2), bottleneck=False),
    _spec(50, (3, 4, 6, 3), bottleneck=True, printed=PrintedSize(98_000_000, "INCEPTIONN, VII-A")),
    _spec(152, (3, 8, 36, 3), bottleneck=True),
    *(_cifar_spec(20), _cifar_spec(32), _cifar_spec(110)),
)
"""ImageNet's: INCEPTIONN, Table I; its megabytes are 2^20 octets. CIFAR-10's: Jiang and Agrawal, 5.1: 110 epochs on
four workers with batches of 32; weight decay is He et al.'s."""
