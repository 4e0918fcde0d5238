"""The declaration of a model, and its types; each module of ``models`` declares its models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from netoffload.lab.training.optimizers import Adam, Optimizer, Polynomial, RmsProp, Schedule, Sgd, StepDecay

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "CLASSES",
    "COLOUR_32",
    "GREY_28",
    "IMAGENET",
    "TEXT",
    "Adam",
    "ModelSpec",
    "Polynomial",
    "PrintedSize",
    "RmsProp",
    "SampleShape",
    "Schedule",
    "Sgd",
    "Shape",
    "StepDecay",
    "Tokens",
    "cross_entropy",
]

CLASSES: Final = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of images: ``channels`` planes of ``side`` x ``side`` values; each image is of one of ``classes``."""

    channels: int
    side: int
    classes: int = CLASSES

    @property
    def features(self) -> int:
        """Number of values of one image."""
        return self.channels * self.side * self.side

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.side}x{self.side} {'grey' if self.channels == 1 else 'colour'} images"


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The shape of sequences: ``length`` numbers in 0..``classes`` - 1; the label of each number is the next one."""

    length: int
    classes: int

    @property
    def features(self) -> int:
        """Number of tokens of one sequence."""
        return self.length

    def __str__(self) -> str:
        """Say it in words."""
        return "sequences of tokens"


SampleShape = Shape | Tokens

GREY_28: Final = Shape(1, 28)
COLOUR_32: Final = Shape(3, 32)
IMAGENET: Final = Shape(3, 224, 1000)
TEXT: Final = Tokens(128, 96)
"""Characters of the text corpus: printable ASCII and the line's end."""


@dataclasses.dataclass(frozen=True)
class PrintedSize:
    """The size that a paper prints for a model: octets, and the place in the paper."""

    octets: int
    place: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.octets / 1e6:g} MB in {self.place}"


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of outputs, float32[batch, classes], and labels, int64[batch].

    Sequences have a dimension for the place behind ``batch``; the mean is then over all places.
    """
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model and the defaults of its training.

    Attributes:
        build: builds the network from a seed and the shape of a sample; the same weights on every rank. On torch's
            meta device the network has no weights.
        input_shape: the only shape that it takes; None: images, or sequences, of any shape.
        usual_shape: the shape in its paper, which is the default of synthetic data.
        weight_uses: multiplications by a weight per usual sample, on average over the weights, or more.
        thresholds: best thresholds by method, from ``netoffload bench thresholds``.
    """

    name: str
    summary: str
    build: Callable[[int, Any], nn.Module]
    optimizer: Optimizer
    schedule: Schedule
    input_shape: SampleShape | None = None
    usual_shape: SampleShape = GREY_28
    smallest_side: int = 1
    data: str = "digits"
    weight_uses: int = 1
    printed: PrintedSize | None = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Describe the model in one line."""
        printed = f"; {self.printed}" if self.printed else ""
        rate = f"{type(self.optimizer).__name__}, learning rate {self.optimizer.learning_rate:g}"
        return f"{self.name}: {self.summary}; {rate}; trains on {self.data}{printed}"

    def takes(self, shape: SampleShape) -> bool:
        """Return whether the model can be built for samples of this shape."""
        if self.input_shape is not None:
            return shape == self.input_shape
        return (
            type(shape) is type(self.usual_shape) and getattr(shape, "side", self.smallest_side) >= self.smallest_side
        )

    @property
    def wants(self) -> str:
        """The samples that it takes, in words."""
        if self.input_shape is not None or isinstance(self.usual_shape, Tokens):
            return str(self.input_shape or self.usual_shape)
        return f"images of {self.smallest_side}x{self.smallest_side} or more"

    def layer_sizes(self, shape: SampleShape) -> tuple[int, ...]:
        """Return the lengths of all weights and biases, in their order, without allocating them."""
        import torch

        with torch.device("meta"):
            return tuple(tensor.numel() for tensor in self.build(0, shape).parameters())
