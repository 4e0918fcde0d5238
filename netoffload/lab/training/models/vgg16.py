"""VGG-16 (Simonyan and Zisserman, 2014, configuration D) for ImageNet, and the form in which CIFAR-10 is trained.

The CIFAR form has batch normalisation and one fully connected layer. Jiang and Agrawal (5) name VGG, but no layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import COLOUR_32, IMAGENET, ModelSpec, PrintedSize, Sgd, Shape, StepDecay

if TYPE_CHECKING:
    from torch import nn

STAGES: Final = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Maps and number of the convolutions before each pooling."""


def _convolutions(shape: Shape, *, has_norm: bool) -> list[nn.Module]:
    from torch import nn

    from netoffload.lab.training.layers import as_images

    layers: list[nn.Module] = [as_images(shape)]
    inputs = shape.channels
    for outputs, count in STAGES:
        for _ in range(count):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
            layers += [nn.BatchNorm2d(outputs)] if has_norm else []
            layers.append(nn.ReLU(inplace=True))
            inputs = outputs
        layers.append(nn.MaxPool2d(2, ceil_mode=has_norm))
    return layers


def build_vgg16(seed: int, shape: Shape) -> nn.Sequential:
    """Return VGG-16 with the weights of a seed: 138,357,544 parameters for ImageNet."""
    from torch import nn

    from netoffload.lab.training.layers import FullyConnected, he_initialise

    layers = [*_convolutions(shape, has_norm=False), nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (512 * 7 * 7, 4096):
        layers += [FullyConnected(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    model = nn.Sequential(*layers, FullyConnected(4096, shape.classes))
    he_initialise(model, seed)
    return model


def build_vgg16_cifar(seed: int, shape: Shape) -> nn.Sequential:
    """Return the CIFAR form with the weights of a seed: 14,728,266 parameters for CIFAR-10."""
    from torch import nn

    from netoffload.lab.training.layers import he_initialise

    layers = [*_convolutions(shape, has_norm=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(512, shape.classes))
    he_initialise(model, seed)
    return model


SPECS: Final = (
    ModelSpec(
        name="vgg16",
        summary="VGG-16 for ImageNet",
        build=build_vgg16,
        usual_shape=IMAGENET,
        smallest_side=32,
        data="synthetic",
        printed=PrintedSize(525_000_000, "INCEPTIONN, VII-A"),
        weight_uses=112,
        optimizer=Sgd(learning_rate=0.01, momentum=0.9, weight_decay=5e-5),
        schedule=StepDecay(divisor=10.0, interval=100_000),
    ),
    ModelSpec(
        name="vgg16-cifar",
        summary="VGG-16 with batch normalisation for CIFAR-10",
        build=build_vgg16_cifar,
        usual_shape=COLOUR_32,
        smallest_side=17,
        weight_uses=22,
        optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=StepDecay(divisor=10.0, interval=42_969),
    ),
)
"""INCEPTIONN, Table I; its megabytes are 2^20 octets. Jiang and Agrawal, 5.1: 110 epochs on four workers."""
